"""What directories show that lie one above the other, as one directory to be read. Everything here blocks."""

import functools
import os
from collections.abc import Sequence
from typing import Final

from sandkeep.errors import ProviderError
from sandkeepd import mounts
from sandkeepd.hostprocess import in_fresh_thread, reap, spawn


def open_shown(roots: Sequence[str], above: str) -> int:
    """What directories below `above` show, each hiding parts of the next, as an open directory of our own."""
    if len(roots) == 1:
        return os.open(roots[0], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if os.geteuid() == 0:
        return in_fresh_thread(functools.partial(_mounted, roots))
    return _mounted_by_program(roots, above)


def _mounted(roots: Sequence[str]) -> int:
    """The mount is gone with this thread, but for who has it open."""
    place = mounts.enter_private_namespace()
    opened = [mounts.open_place(root) for root in roots]
    try:
        mounts.mount_scratch(place)
        seen = []
        for number, lower in enumerate(opened):
            seen.append(f"{place}/{number}")
            os.mkdir(seen[-1], 0o755)
            mounts.bind(mounts.at(lower), seen[-1], mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_RDONLY)
        os.mkdir(f"{place}/shown", 0o755)
        mounts.overlay_read_only(seen, f"{place}/shown")
        return os.open(f"{place}/shown", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        for fd in opened:
            os.close(fd)


# Mounts for a user's daemon, in the namespaces that `unshare` made: $1 a directory above all, $2 the options.
_USER_MOUNT: Final = """
cd -- "$1" && mount -t overlay -o "$2" sandkeep layers || exit 1
echo mounted
exec cat >/dev/null
"""


def _mounted_by_program(roots: Sequence[str], above: str) -> int:
    """The same for a user's daemon, which cannot enter a namespace in which it may mount."""
    lower = ":".join(os.path.relpath(root, above) for root in roots)  # names of ours only
    options = f"lowerdir={lower},userxattr,redirect_dir=nofollow,metacopy=off"
    enter = ["unshare", "--user", "--map-root-user", "--mount", "--", "sh", "-c", _USER_MOUNT, "sh", above, options]
    waiting, ours = os.pipe()
    said, saying = os.pipe()
    child = -1
    try:
        child = spawn(enter, stdin=waiting, output=saying)
        os.close(saying)
        saying = -1
        answer = os.read(said, 4096)
        if answer != b"mounted\n":
            why = answer.decode(errors="replace").strip()[:200]
            raise ProviderError("provider_unavailable", f"files could not be mounted: {why}")
        return os.open(f"/proc/{child}/root{above}/layers", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        for fd in (waiting, ours, said, saying):
            if fd >= 0:
                os.close(fd)
        if child >= 0:
            reap(child)
