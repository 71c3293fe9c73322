"""Files that local sandboxes begin with besides an image's: copies of what others had changed, and what was unpacked.

Each is a directory that nothing ever changes once it is complete; overlays have it as a lower layer, so that any number
of sandboxes share it. A copy of an overlay's upper layer keeps what stands for removed and replaced files there, and
hides them in the layers beneath. Everything here blocks, and must run in a thread of its own
(`hostprocess.in_fresh_thread`) where mounts are made.
"""

import os
from collections.abc import Collection, Sequence
from typing import Final

from sandkeep import failpoints
from sandkeep.errors import DaemonError, ProviderError
from sandkeepd import mounts
from sandkeepd.hostprocess import run_tool
from sandkeepd.providers.base import Fill
from sandkeepd.providers.local_layout import LAYER_MARK, Layout, write_mark

MAKING: Final = "making"
"""Where a layer lies until it is complete."""

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

    def copy(self, source: str, target: str) -> None:
        """Copy the upper layer of a sandbox that stands still."""
        run([*self._enter(), "cp", "-a", "--reflink=auto", "-T", "--", source, target])

    def size_bytes(self, path: str) -> int:
        """What a directory occupies."""
        *_, total = run_tool([*self._enter(), "du", "-s", "-B1", "--", path]).stdout.splitlines() or [b"0"]
        return int(total.split()[0])

    def _enter(self) -> list[str]:
        """In a namespace of his own a user can read what the code inside has closed to him."""
        return [] if self.uid is not None else ["unshare", "--user", "--map-root-user", "--"]

    def fill(self, name: str, beneath: str | None, put: Sequence[Fill]) -> None:
        """Make a layer of what is put into it; above the directory `beneath`, if there is one, which shows through."""
        making = self.begin(name)
        os.mkdir(making, 0o755)
        self._own(making)
        if beneath is None:
            _put(put, making, self.uid)
        else:
            self._put_above(making, beneath, put)
        self.complete(name)

    def _put_above(self, making: str, beneath: str, put: Sequence[Fill]) -> None:
        """Have an overlay tell the difference between what is beneath and what comes of it."""
        work = f"{os.path.dirname(making)}/work"
        os.mkdir(work, 0o755)
        place = mounts.enter_private_namespace()
        lower, upper, working = (mounts.open_place(path) for path in (beneath, making, work))
        try:
            mounts.mount_scratch(place)
            os.mkdir(f"{place}/tree", 0o755)
            mounts.overlay(mounts.at(lower), mounts.at(upper), mounts.at(working), f"{place}/tree")
        finally:
            for fd in (lower, upper, working):
                os.close(fd)
        _put(put, f"{place}/tree", self.uid)
        mounts.unmount(f"{place}/tree")
        self._layout.discard([work])

    def _own(self, path: str) -> None:
        if self.uid is not None:
            os.chown(path, self.uid, self.uid)


def _put(put: Sequence[Fill], directory: str, uid: int | None) -> None:
    for fill in put:
        fill(directory, uid)


def run(argv: Sequence[str]) -> None:
    """Run a program that copies files. Raises `storage_unavailable` when the disk is full."""
    done = run_tool(argv, timeout_s=6 * 3600)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()[:300]
        if "No space left" in said or "quota" in said:
            raise DaemonError("storage_unavailable", f"the state directory is full: make room there: {said}")
        raise ProviderError("provider_unavailable", f"files could not be copied: {said}")


def seen_through(roots: Sequence[str]) -> str:
    """Where all that directories show, each hiding parts of the next, can be read in this thread's own namespace."""
    place = mounts.enter_private_namespace()
    opened = [mounts.open_place(root) for root in roots]
    try:
        mounts.mount_scratch(place)
        seen = []
        for name, lower in enumerate(opened):
            seen.append(f"{place}/{name}")
            os.mkdir(seen[-1], 0o755)
            mounts.bind(mounts.at(lower), seen[-1], mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_RDONLY)
        if len(seen) == 1:
            return seen[0]
        os.mkdir(f"{place}/tree", 0o755)
        mounts.overlay_read_only(seen, f"{place}/tree")
        return f"{place}/tree"
    finally:
        for fd in opened:
            os.close(fd)
