"""The disk usage of a sandbox, however the code inside hides it. Everything here blocks."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Final

from sandkeep.system.descriptors import closing_fd
from sandkeep.system.openat2 import open_in_root
from sandkeepd.host import mounts
from sandkeepd.host.cgroups import groups as cgroups
from sandkeepd.host.hostile_files import HostileTree
from sandkeepd.host.processes import pids_where, run_tool
from sandkeepd.providers.common.views import open_for_tool

BLOCK_BYTES: Final = 4096
"""Minimum bytes counted for a file or directory: a filesystem runs out of inodes, too."""

_OPEN: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_REMOVED: Final = 'find -L "$@" -maxdepth 1 -type f -links 0 -printf "%D %i %b\\n" 2>/dev/null | sort -u'
"""Shell command that prints device, inode and blocks of each unlinked file that is open in one of the processes."""


def occupied_bytes(
    places: Sequence[str | HostileTree], first: int, groups: Mapping[str, str], inside: Sequence[str], *, root: bool
) -> int:
    """Return the bytes that a sandbox with the first process `first` has on the disk: in these directories, and in
    unlinked files. `inside` are the paths, as the code inside sees them, of the places that lie on the disk.
    """
    with ExitStack() as stack:
        opened = [fd for place in places if (fd := _open(place, stack, root=root)) is not None]
        if not opened:
            return 0
        written = max(_total(["-B1"], opened, root), _total(["--inodes"], opened, root) * BLOCK_BYTES)
    return written + _removed(first, groups, inside)


def _open(place: str | HostileTree, stack: ExitStack, *, root: bool) -> int | None:
    """Open a directory; return None when there is none."""
    try:
        if isinstance(place, HostileTree):
            return stack.enter_context(place.directory())
        fd = open_for_tool(place, mounts.TO_READ) if root else os.open(place, _OPEN)
    except OSError:
        return None
    stack.callback(os.close, fd)
    return fd


def _total(unit: list[str], opened: Sequence[int], root: bool) -> int:
    # In a namespace of his own a user can look into directories that the code inside has closed.
    enter = [] if root else ["unshare", "--user", "--map-root-user", "--"]
    paths = [f"/proc/self/fd/{fd}/" for fd in opened]  # no path that could lead elsewhere by now
    done = run_tool([*enter, "du", "-s", "-x", *unit, "-c", "--", *paths], timeout_s=120, descriptors=opened)
    *_, total = done.stdout.splitlines() or [b"0"]
    return int(total.split()[0])


def _removed(first: int, groups: Mapping[str, str], inside: Sequence[str]) -> int:
    """Return the bytes of unlinked files that are still open."""
    try:
        devices = set(_devices(first, inside))
        namespace = os.readlink(f"/proc/{first}/ns/pid")
    except OSError:  # it has ended, or is not isolated
        return 0
    pids = cgroups.members(groups) or pids_where(lambda pid: os.readlink(f"/proc/{pid}/ns/pid") == namespace)
    return _open_and_removed(pids, devices)


def _devices(first: int, inside: Sequence[str]) -> Iterator[int]:
    """Return the devices of places as a process finds them, through any links that the code inside has made there."""
    with closing_fd(os.open(f"/proc/{first}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)) as root:
        for name in inside:
            found = open_in_root(root, name, os.O_PATH)
            yield os.fstat(found).st_dev
            os.close(found)


def _open_and_removed(pids: Sequence[int], devices: Collection[int]) -> int:
    # A program looks, as there can be millions, and the interpreter's lock is for others meanwhile.
    places = [f"/proc/{pid}/fd" for pid in pids]
    done = run_tool(["sh", "-c", _REMOVED, "sh", *places], timeout_s=120)
    files = (line.split() for line in done.stdout.splitlines())
    return sum(int(blocks) * 512 for device, _, blocks in files if int(device) in devices)
