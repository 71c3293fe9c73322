"""The jail of the extracting program: bubblewrap, with no access but to the tree that it makes.

GNU tar makes the files: it is fast, and handles holes, links and times. It gets an archive written here, member by
member, from checked values; no byte of a foreign header reaches it. Should that fail, it still runs as the files' owner
without any capability, without a network, in namespaces of its own, sees of the machine only the programs below
``/usr``, and can write nothing but the tree.

Without bubblewrap, Landlock keeps it from writing elsewhere (see `sandkeep.system.confined`); it could then read all
that its user may read, and reach the network.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from functools import cache
from typing import IO, Any, Final

from sandkeep.errors import SetupError
from sandkeep.system import confined, hostview

_TAR: Final = (
    "tar", "--extract", "--file=-", "--no-same-owner", "--no-same-permissions", "--no-overwrite-dir",
    "--delay-directory-restore", "--absolute-names", "--xattrs", "--xattrs-include=user.*", "--numeric-owner",
    "--warning=no-timestamp", "--quoting-style=escape", "--blocking-factor=512",
)  # fmt: skip
"""`--absolute-names` because no name is absolute, and tar would make links at the end only."""

_TREE: Final = "/tree"
_ENVIRONMENT: Final = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


@cache
def bubblewrap() -> str | None:
    """Return the path of bubblewrap if it is installed and works, else None."""
    program = shutil.which("bwrap", path=_ENVIRONMENT["PATH"])
    if program is None:
        return None
    with tempfile.TemporaryDirectory(prefix="sandkeep-") as place:
        tried = [program, *_view(os.fsencode(place)), *_rights(None), "true"]
        works = subprocess.run(tried, capture_output=True, env=_ENVIRONMENT, check=False).returncode == 0
    return program if works else None


def start_extracting(
    tree: bytes, owner: tuple[int, int] | None, stderr: IO[bytes], *, group: int
) -> "subprocess.Popen[bytes]":
    """Start the program that extracts the archive on its stdin into the directory `tree`, as the uid and gid `owner`.

    It joins the process group `group`, and ends with this thread. `stderr` receives its stderr. Raises `not_supported`.
    """
    nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    settings: dict[str, Any] = {
        "stdin": subprocess.PIPE, "stdout": nothing, "stderr": stderr, "env": _ENVIRONMENT, "umask": 0,
        "process_group": group,
    }  # fmt: skip
    program = bubblewrap()
    try:
        if program is not None:
            return subprocess.Popen([program, "--die-with-parent", *_view(tree), *_rights(owner), *_TAR], **settings)
        if owner is not None and os.geteuid() == 0:
            settings |= {"user": owner[0], "group": owner[1], "extra_groups": []}
        return confined.start(_TAR, tree, cwd=tree, **settings)
    except FileNotFoundError:
        raise SetupError("not_supported", "there is no tar on this machine: install GNU tar") from None
    finally:
        os.close(nothing)


def _view(tree: bytes) -> Iterator[str | bytes]:
    if os.geteuid() != 0:
        yield "--unshare-user"
    yield from ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
    yield from ("--new-session", *hostview.bind_arguments())
    yield from ("--bind", tree, _TREE, "--remount-ro", "/", "--chdir", _TREE)
    yield "--"


def _rights(owner: tuple[int, int] | None) -> list[str]:
    """Return the argv prefix that drops root for good; bubblewrap has needed it to build the mounts."""
    if os.geteuid() != 0:
        return []
    uid, gid = owner or (0, 0)
    # As root, tar relies on it that closed directories are open to it.
    left = "-all,+dac_override" if uid == 0 else "-all"
    return [
        "setpriv", "--reuid", str(uid), "--regid", str(gid), "--clear-groups", "--no-new-privs", "--inh-caps=-all",
        f"--bounding-set={left}", "--",
    ]  # fmt: skip
