"""Files in a sandbox, read and written by commands that run inside it as its own user: a link cannot lead out.

Answers of the commands come from inside the sandbox, and only their form is checked.
"""

import os
import re
import stat
from typing import Final

import trio

from sandkeep.errors import CallerError, ProviderError, SandkeepError
from sandkeep.ids import new_id
from sandkeep.model import FileContent, FileEntry, FileType
from sandkeep.protocol.clock import rfc3339
from sandkeep_store.threads import in_thread
from sandkeepd.contract.instance import Directory, Instance
from sandkeepd.keeper.failure import display, failure
from sandkeepd.keeper.pipes import HELPER

MAX_NAMES_BYTES: Final = 64 * 1024 * 1024
"""The most that the names in a directory may be together."""

DEADLINE_S: Final = 60.0
"""Seconds a command may take for one file: the code inside can stop it, or make it wait."""

_HEAD_BYTES: Final = 64
"""An upper bound of the header before a file's content."""

PARTIAL_PREFIX: Final = ".sandkeep-"
"""Prefix of the names of files that are not complete."""

_START: Final = """
export LC_ALL=C
case $1 in /*) path=$1 ;; *) path=./$1 ;; esac
refuse() { printf '%s\\n' "$1" >&2; exit 1; }
"""

# $2 the offset, $3 how many bytes. The type is looked at before the file is opened, so that a FIFO cannot hold the
# reader, and once more when it is. What lies before the offset is not read.
_READ: Final = f"""{_START}
[ -e "$path" ] || refuse 'No such file or directory'
[ -f "$path" ] || refuse 'Is not a regular file'
exec 3<"$path" || exit 1
stat -L -c '%f %s' /proc/self/fd/3 || exit 1
exec dd bs=65536 iflag=skip_bytes,count_bytes,fullblock skip="$2" count="$3" <&3 2>/dev/null
"""

# $2 a name for the new file, $3 its mode or nothing, $4 whether to make directories. Written beside the target, in
# one directory whatever becomes of its name, and renamed, so that nobody sees half of it. An existing file keeps its
# mode; a link is followed.
_WRITE: Final = f"""{_START}
new='' made='' up=${{path%/*}}
undo() {{
	trap '' INT TERM HUP
	[ -z "$new" ] || rm -f -- "$new"
	[ -z "$made" ] || find "$made" -depth -type d -exec rmdir {{}} + 2>/dev/null
}}
trap undo EXIT
trap 'undo; exit 1' INT TERM HUP
case $path in */ | */. | */..) refuse 'Is not a regular file' ;; esac
if [ -n "$4" ]; then
	while [ -n "$up" ] && ! [ -e "$up" ]; do made=$up up=${{up%/*}}; done
	[ -d "$up/" ] || refuse 'Not a directory'
	mkdir -p -- "${{path%/*}}/" || exit 1
	case $made in ./*) made=$PWD/$made ;; esac
fi
target=$(readlink -f -- "$path" && echo x) && target=${{target%??}} || refuse 'No such file or directory'
cd -P -- "${{target%/*}}/" || refuse 'Permission denied'
target=./${{target##*/}}
if [ -e "$target" ]; then
	[ -f "$target" ] || refuse 'Is not a regular file'
	[ -w "$target" ] || refuse 'Permission denied'
	mode=$(stat -c %a -- "$target")
fi
mode=${{3:-$mode}}
new=./$2
cat >"$new" || {{ [ $? -ne 153 ] || echo 'File too large' >&2; exit 1; }}
[ -z "$mode" ] || chmod "$mode" -- "$new" || exit 1
mv -fT -- "$new" "$target" || exit 1
new='' made=''
"""

_ENTER: Final = f"""{_START}
[ -e "$path" ] || refuse 'No such file or directory'
[ -d "$path" ] || refuse 'Not a directory'
[ -r "$path" ] && cd -- "$path" || refuse 'Permission denied'
"""

# $2 how many bytes of names.
_NAMES: Final = f"""{_ENTER}
find . -mindepth 1 -maxdepth 1 -print0 | head -c "$2"
"""

# $2 and further: names. Three pieces for each that is still there: its name, what it is, and where a link leads.
_ENTRIES: Final = f"""{_ENTER}
shift
if find . -prune -printf '' 2>/dev/null; then
	find "$@" -prune -printf '%p\\0%y%m %s %T@\\0%l\\0' 2>/dev/null
	exit 0
fi
for name do
	what=$(stat -c 'x%f %s %Y' -- "$name" 2>/dev/null) || continue
	printf '%s\\0%s\\0' "$name" "$what"
	if [ -L "$name" ]; then readlink -n -- "$name"; fi
	printf '\\0'
done
"""

_ENTRY: Final = re.compile(
    rb"(?:([a-zA-Z])([0-7]{1,5})|x([0-9a-f]{1,8})) ([0-9]{1,19}) (-?[0-9]{1,19})(?:\.([0-9]{1,9}))?[0-9]*"
)
_TYPES: Final[dict[bytes, FileType]] = {
    b"f": "file", b"d": "directory", b"l": "symlink", b"p": "fifo", b"s": "socket", b"b": "device", b"c": "device",
}  # fmt: skip
_FORMATS: Final = {
    stat.S_IFREG: b"f", stat.S_IFDIR: b"d", stat.S_IFLNK: b"l", stat.S_IFIFO: b"p", stat.S_IFSOCK: b"s",
    stat.S_IFBLK: b"b", stat.S_IFCHR: b"c",
}  # fmt: skip


async def read_piece(instance: Instance, path: str, offset: int, max_bytes: int) -> FileContent:
    """Up to `max_bytes` of a file from `offset`. Raises `not_found`, `invalid` (not a file), `permission_denied`."""
    output = await _run(instance, path, _READ, str(offset), str(max_bytes), most_bytes=_HEAD_BYTES + max_bytes)
    head, _, data = output.partition(b"\n")
    match = re.fullmatch(rb"([0-9a-f]{1,8}) ([0-9]{1,19})", head)
    if match is None or len(data) > max_bytes:
        raise _malformed_answer(path)
    mode = int(match[1], 16)
    if not stat.S_ISREG(mode):
        raise failure(b"Is not a regular file", 1, path)
    end = offset + len(data)
    size = max(int(match[2]), end if data else 0)
    # What the kernel shows as files has no size, and ends where less came than was asked for.
    eof = end >= size and (len(data) < max_bytes or int(match[2]) > 0 or max_bytes == 0)
    return FileContent(offset=offset, data=data, size_bytes=size, mode=stat.S_IMODE(mode), eof=eof)


async def write_whole(
    instance: Instance, path: str, data: bytes, *, mode: int | None = None, parents: bool = False
) -> None:
    """Write a file whole or not at all. Raises as `read_piece` does, and `disk_limit`."""
    octal = "" if mode is None else f"{mode:o}"
    await _run(instance, path, _WRITE, PARTIAL_PREFIX + new_id(HELPER), octal, "parents" if parents else "", stdin=data)


async def list_directory(instance: Instance, path: str, after: bytes, limit: int) -> Directory:
    """Up to `limit` files of a directory, by the bytes of their names, that come after the name `after`."""
    output = await _run(instance, path, _NAMES, str(MAX_NAMES_BYTES), most_bytes=MAX_NAMES_BYTES)
    if len(output) >= MAX_NAMES_BYTES:
        raise CallerError("invalid", f"path: {path!r} has too many files to list: over 64 MiB of names", field="path")
    names, more = await in_thread(_page, output, after, limit)
    if not names:
        return Directory(entries=[], last=None)
    arguments = [os.fsdecode(b"./" + name) for name in names]
    output = await _run(instance, path, _ENTRIES, *arguments, most_bytes=MAX_NAMES_BYTES)
    return Directory(entries=_entries(output, path), last=names[-1] if more else None)


def _page(output: bytes, after: bytes, limit: int) -> tuple[list[bytes], bool]:
    names = sorted(name[2:] for name in output.split(b"\0") if name[2:] > after)
    return names[:limit], len(names) > limit


def _entries(output: bytes, path: str) -> list[FileEntry]:
    pieces = output.split(b"\0")
    return [entry(path, *pieces[place : place + 3]) for place in range(0, len(pieces) - 2, 3)]


def entry(path: str, name: bytes, what: bytes, target: bytes) -> FileEntry:
    """Return the entry of a file, from its name below ``./``, its properties (`_ENTRIES`), and its link target."""
    match = _ENTRY.fullmatch(what)
    if match is None:
        raise _malformed_answer(path)
    letter, octal, raw, size, seconds, fraction = match.groups()
    if raw:
        letter, mode = _FORMATS.get(stat.S_IFMT(int(raw, 16)), b"?"), stat.S_IMODE(int(raw, 16))
    else:
        mode = int(octal, 8)
    name = name[2:]
    text = name.decode("utf-8", "replace")
    kind = _TYPES.get(letter, "unknown")
    return FileEntry(
        name=text,
        type=kind,
        mode=mode,
        size_bytes=int(size),
        modified_at=_moment(int(seconds), fraction or b""),
        target=target.decode("utf-8", "backslashreplace") if kind == "symlink" else None,
        name_bytes=None if text.encode() == name else name,
    )


def _moment(seconds: int, fraction: bytes) -> str:
    """Format a file's time; times beyond the calendar are clamped."""
    micros = int(fraction[:6].ljust(6, b"0"))
    first, last = -62_135_596_800, 253_402_300_799
    return rfc3339(min(max(seconds, first), last) * 1_000_000 + micros)


async def _run(
    instance: Instance, path: str, script: str, *arguments: str, stdin: bytes | None = None, most_bytes: int = 0
) -> bytes:
    command = ["sh", "-c", script, "sh", path, *arguments]
    with trio.move_on_after(DEADLINE_S):
        code, stdout, stderr = await instance.run_command(
            command, stdin, working_dir=working_dir_for(path), most_bytes=most_bytes
        )
        if code != 0:
            raise failure(stderr, code, path)
        return stdout
    message = f"{display(path)}: no answer from the sandbox within {DEADLINE_S:g} s: its code may block it"
    raise ProviderError("provider_unavailable", message)


def working_dir_for(path: str) -> str | None:
    """Return the directory to run a command in: ``/`` for absolute paths, as the sandbox's own may be gone."""
    return "/" if path.startswith("/") else None


def _malformed_answer(path: str) -> SandkeepError:
    return ProviderError(
        "provider_unavailable", f"malformed answer from the sandbox about {display(path)}: check its find, stat and dd"
    )
