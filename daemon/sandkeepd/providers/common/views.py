"""Read-only and writable views of directories for host programs that touch files of sandboxes.

Each is on a mount of its own on which the kernel follows no symbolic link and knows no way upwards: even if hostile
code replaces a file or directory meanwhile, a name below it leads to a file below it, or nowhere. That holds for
programs that resolve names, such as ``cp``, too. Everything here blocks.

Root can make such mounts itself. A user's daemon runs a program to make them, in namespaces of its own; where a user
may have none, the directory is opened as it is.
"""

import functools
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from typing import Final

from sandkeep.errors import ProviderError, SetupError
from sandkeep.system.descriptors import closing_fd
from sandkeep_store.archives.trees.read import can_enter_namespaces
from sandkeepd.host import mounts
from sandkeepd.host.processes import in_fresh_thread, reap, spawn

_OPTIONS: Final = "nosuid,nodev,noexec,nosymfollow"
_OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def open_merged(roots: Sequence[str], above: str) -> int:
    """Open the merged view of directories below `above`, each hiding parts of the next, as a directory for reading."""
    if os.geteuid() == 0:
        if len(roots) == 1:
            return mounts.open_detached(roots[0], mounts.TO_READ)
        return in_fresh_thread(functools.partial(_mount_merged, roots))
    if len(roots) == 1:
        return _bind_by_program(roots[0], f"ro,{_OPTIONS}")
    lower = ":".join(os.path.relpath(root, above) for root in roots)  # names of ours only
    options = f"ro,{_OPTIONS},lowerdir={lower},userxattr,redirect_dir=nofollow,metacopy=off"
    return _mount_by_program(above, ["-t", "overlay", "-o", options, "sandkeep", "layers"], f"{above}/layers")


def open_for_tool(path: str, flags: int) -> int:
    """Open a directory for programs that follow no link by themselves, such as `rm` and `du`: on a mount with `flags`
    where root may make one, else as it is. Raises OSError.
    """
    if os.geteuid() == 0:
        with suppress(PermissionError, SetupError):  # root may not mount here, or the kernel is too old
            return mounts.open_detached(path, flags)
    return os.open(path, _OPEN | os.O_NOFOLLOW)


def shown(*roots: str, above: str) -> AbstractContextManager[int]:
    """Do as `open_merged` for the length of a block."""
    return closing_fd(open_merged(roots, above))


def writable(path: str) -> AbstractContextManager[int]:
    """Open a directory of ours, for a block in which programs write, or remove, files chosen by hostile code."""
    if os.geteuid() == 0:
        return closing_fd(mounts.open_detached(path, mounts.TO_WRITE))
    return closing_fd(_bind_by_program(path, _OPTIONS))


def _mount_merged(roots: Sequence[str]) -> int:
    """Mount the merged view. The mount ends with this thread, except for open descriptors of it."""
    place = mounts.enter_private_namespace()
    opened = [mounts.open_path(root) for root in roots]
    try:
        mounts.mount_scratch(place)
        seen = []
        for number, lower in enumerate(opened):
            seen.append(f"{place}/{number}")
            os.mkdir(seen[-1], 0o755)
            mounts.bind(mounts.at(lower), seen[-1], mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_RDONLY)
        os.mkdir(f"{place}/shown", 0o755)
        mounts.overlay_read_only(seen, f"{place}/shown")
        return mounts.open_detached(f"{place}/shown", mounts.TO_READ)
    finally:
        for fd in opened:
            os.close(fd)


def _bind_by_program(path: str, options: str) -> int:
    if not can_enter_namespaces():
        return os.open(path, _OPEN | os.O_NOFOLLOW)
    return _mount_by_program(path, ["-o", f"bind,{options}", ".", path], path)


# Mounts for a user's daemon, in the namespaces that `unshare` made: $1 is the directory, the rest mount's arguments.
_USER_MOUNT: Final = """
cd -- "$1" && shift && mount "$@" || exit 1
echo mounted
exec cat >/dev/null
"""


def _mount_by_program(begin: str, arguments: Sequence[str], place: str) -> int:
    """Open the directory `place` as seen by a program that has mounted something there: a user's daemon cannot enter a
    namespace in which it may mount.
    """
    enter = ["unshare", "--user", "--map-root-user", "--mount", "--", "sh", "-c", _USER_MOUNT, "sh", begin, *arguments]
    waiting, ours = os.pipe()
    output, saying = os.pipe()
    child = -1
    try:
        child = spawn(enter, stdin=waiting, output=saying)
        os.close(saying)
        saying = -1
        answer = os.read(output, 4096)
        if answer != b"mounted\n":
            why = answer.decode(errors="replace").strip()[:200]
            raise ProviderError("provider_unavailable", f"files could not be mounted: {why}")
        return os.open(f"/proc/{child}/root{place}", _OPEN)
    finally:
        for fd in (waiting, ours, output, saying):
            if fd >= 0:
                os.close(fd)
        if child >= 0:
            reap(child)
