"""Files in a sandbox, read and written by commands that run inside it as its own user: a link goes nowhere else."""

from typing import Final

from sandkeep.errors import CallerError, ProviderError
from sandkeep.ids import PROCESS, new_id
from sandkeepd.providers.base import Instance

MAX_FILE_BYTES: Final = 64 * 1024 * 1024
"""The largest file that is read whole."""

# The target's type is looked at first, so that a FIFO cannot hold the reader.
READ_FILE: Final = """
if [ -e "$1" ] && ! [ -f "$1" ]; then echo 'Is a directory' >&2; exit 1; fi
LC_ALL=C exec head -c "$2" -- "$1"
"""

# Written beside the target and renamed, so that nobody sees half of it. An existing file keeps its mode; a link is
# followed.
WRITE_FILE: Final = """
export LC_ALL=C
target=$(readlink -f -- "$1" && echo x) && target=${target%??} || { echo 'No such file' >&2; exit 1; }
if [ -e "$target" ] && ! [ -f "$target" ]; then echo 'Is a directory' >&2; exit 1; fi
if [ -e "$target" ] && ! [ -w "$target" ]; then echo 'Permission denied' >&2; exit 1; fi
new=${target%/*}/.$2
trap 'rm -f -- "$new"' EXIT
cat >"$new" || exit 1
if [ -e "$target" ]; then chmod --reference="$target" -- "$new"; fi
mv -fT -- "$new" "$target"
"""


async def read_file(instance: Instance, path: str) -> bytes:
    """See `Instance.read_file`."""
    code, stdout, stderr = await instance.run_command(["sh", "-c", READ_FILE, "sh", path, str(MAX_FILE_BYTES + 1)])
    _check_file(code, stderr, path)
    if len(stdout) > MAX_FILE_BYTES:
        raise CallerError(
            "invalid", f"path: {path!r} is larger than {MAX_FILE_BYTES} bytes: read it in pieces", field="path"
        )
    return stdout


async def write_file(instance: Instance, path: str, data: bytes) -> None:
    """See `Instance.write_file`."""
    code, _, stderr = await instance.run_command(["sh", "-c", WRITE_FILE, "sh", path, new_id(PROCESS)], data)
    _check_file(code, stderr, path)


def _check_file(code: int | None, stderr: bytes, path: str) -> None:
    if code == 0:
        return
    said = stderr.decode(errors="replace")
    if "No such file" in said or "Not a directory" in said or "nonexistent" in said:
        raise CallerError("not_found", f"there is no file {path!r} in the sandbox", field="path")
    if "Is a directory" in said:
        raise CallerError("invalid", f"path: {path!r} is not a regular file", field="path")
    if "ermission denied" in said or "Read-only" in said:
        raise CallerError("permission_denied", f"the sandbox's user may not do that with {path!r}", field="path")
    raise ProviderError("provider_unavailable", f"{path!r} could not be read or written: {said.strip()[:200] or code}")
