"""Files that local sandboxes begin with besides an image's: copies of what others had changed, and what was unpacked.

Each is a directory that nothing ever changes once it is complete; overlays have it as a lower layer, so that any number
of sandboxes share it. A copy of an overlay's upper layer keeps what stands for removed and replaced files there, and
hides them in the layers beneath. Everything here blocks.
"""

import functools
import os
from collections.abc import Callable, Collection, Sequence
from typing import Final

from sandkeep import failpoints
from sandkeep.errors import DaemonError, ProviderError
from sandkeepd import mounts
from sandkeepd.hostprocess import in_fresh_thread, reap, run_tool, spawn
from sandkeepd.providers.base import Filling
from sandkeepd.providers.local_layout import LAYER_MARK, Layout, write_mark

MAKING: Final = "making"
"""Where a layer lies until it is complete."""

_FIRST_BYTES: Final = 65536
MOST_LAYERS: Final = 24
"""With more beneath it, a fork gets a copy of all files instead: each costs a start about two milliseconds."""


class Layers:
    """The layers of one state directory. `uid` owns what is unpacked, None: the daemon's own user does."""

    def __init__(self, layout: Layout, log_id: str, uid: int | None) -> None:
        self._layout = layout
        self._log_id = log_id
        self.uid = uid

    def is_there(self, name: str) -> bool:
        """Whether it is complete."""
        return os.path.isdir(self.root(name))

    def root(self, name: str) -> str:
        """The directory of its files."""
        return f"{self._layout.layer(name)}/root"

    def begin(self, name: str) -> str:
        """Make room for a new layer; answer where to put its files. Whatever was left half made under its name goes."""
        directory = self._layout.layer(name)
        self._layout.discard([directory])
        os.makedirs(directory, mode=0o700)
        write_mark(f"{directory}/{LAYER_MARK}", self._log_id)
        return f"{directory}/{MAKING}"

    def complete(self, name: str) -> None:
        """Say that all files are there."""
        failpoints.reach("layer.made")
        os.rename(f"{self._layout.layer(name)}/{MAKING}", self.root(name))

    def discard(self, names: Collection[str]) -> None:
        """Remove layers, complete or half made."""
        self._layout.discard([self._layout.layer(name) for name in names])

    def copy(self, source: int, target: str) -> None:
        """Copy what is in an open directory."""
        run([*self.enter, "cp", "-a", "--reflink=auto", "-T", "--", "/proc/self/fd/0/.", target], source)

    def size_bytes(self, path: str) -> int:
        """What a directory occupies."""
        *_, total = run_tool([*self.enter, "du", "-s", "-B1", "--", path]).stdout.splitlines() or [b"0"]
        return int(total.split()[0])

    @property
    def enter(self) -> list[str]:
        """The words before a program: in a namespace of his own a user can read what the code inside has closed."""
        return [] if self.uid is not None else ["unshare", "--user", "--map-root-user", "--"]

    def fill(self, name: str, put: Callable[[Filling], None]) -> None:
        """Make a layer of what is put into it."""
        making = self.begin(name)
        owner = (self.uid, self.uid) if self.uid is not None else None
        put(Filling(target=making, owner=owner, overlay="trusted" if self.uid is not None else "user"))
        self.complete(name)


def run(argv: Sequence[str], stdin: int) -> None:
    """Run a program that copies files. Raises `storage_unavailable` when the disk is full."""
    said, saying = os.pipe()
    try:
        child = spawn(argv, stdin=stdin, output=saying)
    except BaseException:
        os.close(said)
        raise
    finally:
        os.close(saying)
    with open(said, "rb") as complaints:
        first = complaints.read(_FIRST_BYTES).decode(errors="replace").strip()
        while complaints.read(_FIRST_BYTES):
            pass
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        if "No space left" in first or "quota" in first:
            raise DaemonError("storage_unavailable", f"the state directory is full: make room there: {first[:300]}")
        raise ProviderError("provider_unavailable", f"files could not be copied: {first[:300]}")


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
