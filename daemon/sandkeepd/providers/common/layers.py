"""Files that local sandboxes begin with besides an image's: copies of other sandboxes' changes, and unpacked archives.

Each is a directory that is immutable once it is complete; overlays use it as a lower layer, so that any number of
sandboxes share it. A copy of an overlay's upper layer keeps its whiteouts, which hide files in the layers beneath.
Everything here blocks.
"""

import os
from collections.abc import Collection
from typing import Final

from msgspec import Struct

from sandkeep import failpoints
from sandkeep.errors import ProviderError
from sandkeep.system.durable import sync_directory
from sandkeep_store.archives.trees import swap
from sandkeep_store.archives.trees.overlay import unpack_layer
from sandkeep_store.archives.trees.tree import Overlay
from sandkeep_store.archives.trees.unpack import unpack
from sandkeep_store.files.syncfs import flushing
from sandkeepd.contract.layers import KeptArchive
from sandkeepd.host.processes import run_tool
from sandkeepd.host.threads import Meter
from sandkeepd.providers.common.errors import storage_errors
from sandkeepd.providers.common.layout import LAYER_MARK, Layout, write_mark
from sandkeepd.providers.common.tree_copies import copy_tree
from sandkeepd.providers.common.views import writable

MAKING: Final = "making"
"""The name of a layer's directory until it is complete."""

_BLOCK: Final = 512
_FEW: Final = 500
MOST_LAYERS: Final = 24
"""Maximum number of layers of a fork; with more, it gets a copy of all files instead: each layer adds about 2 ms to a
start.
"""


class Layer(Struct, frozen=True, kw_only=True):
    """Files that a sandbox begins with, by the name under which they are kept. They belong to `uid`, None for the
    daemon's own user's.
    """

    name: str
    uid: int | None


class Layers:
    """The layers of one state directory. `uid` owns unpacked files; None: the daemon's own user does."""

    def __init__(self, layout: Layout, log_id: str, uid: int | None) -> None:
        self._layout = layout
        self._log_id = log_id
        self.uid = uid

    def is_complete(self, name: str) -> bool:
        """Return True if it is complete."""
        return os.path.isdir(self.root(name))

    def root(self, name: str) -> str:
        """Return the directory of its files."""
        return f"{self._layout.layer(name)}/root"

    def begin(self, name: str) -> str:
        """Make the directory of a new layer; return the path for its files. A half-made one of the same name is
        removed.
        """
        directory = self._layout.layer(name)
        self._layout.discard([directory])
        with storage_errors(directory):
            os.makedirs(directory, mode=0o700)
            write_mark(f"{directory}/{LAYER_MARK}", self._log_id)
        return f"{directory}/{MAKING}"

    def complete(self, name: str) -> None:
        """Say that all files are there."""
        failpoints.reach("layer.made")
        os.rename(f"{self._layout.layer(name)}/{MAKING}", self.root(name))

    def discard_stages(self, name: str) -> None:
        """Remove temporary files beside a complete layer, left when the machine crashed while it was being made."""
        if self.is_complete(name):
            self._layout.discard(swap.leftovers(self._layout.layer(name)))

    def discard(self, names: Collection[str]) -> None:
        """Remove layers, complete or half made."""
        self._layout.discard([self._layout.layer(name) for name in names])

    def copy(self, source: int, target: str) -> None:
        """Copy the content of an open directory, one from `open_merged`."""
        copy_tree(source, target, enter=self.enter)

    def give(self, path: str, uid: int) -> None:
        """Make one uid the owner of all files of a half-made layer. The layers that it was copied from have owners of
        their own, but a layer has only one.
        """
        with writable(os.path.dirname(path)) as place:
            inside = f"/proc/self/fd/0/{os.path.basename(path)}"
            argv = ["chown", "--recursive", "--no-dereference", "-P", f"{uid}:{uid}", "--", inside]
            run = run_tool(argv, stdin=place)
        if run.returncode:
            why = run.stderr.decode(errors="replace")[:300]
            raise ProviderError("provider_unavailable", f"cannot chown the sandbox's files: {why}")

    def size_bytes(self, path: str) -> int:
        """Return the bytes that an immutable directory occupies."""
        few = _size_of_few(path)
        if few is not None:
            return few
        *_, total = run_tool([*self.enter, "du", "-s", "-B1", "--", path]).stdout.splitlines() or [b"0"]
        return int(total.split()[0])

    @property
    def enter(self) -> list[str]:
        """The argv before a program: in a namespace of its own a user can read files without permissions."""
        return [] if self.uid is not None else ["unshare", "--user", "--map-root-user", "--"]

    @property
    def overlay(self) -> Overlay:
        """The kind of overlays that they are for."""
        return "trusted" if self.uid is not None else "user"

    def fill(self, name: str, archive: KeptArchive, moved: Meter) -> None:
        """Make a layer of an archive's content. It is flushed to the disk: it will be used again, and has to survive a
        crash of the machine.
        """
        making = self.begin(name)
        owner = (self.uid, self.uid) if self.uid is not None else None
        with storage_errors(making):
            with flushing(self._layout.layer(name)):
                if archive.is_layer:
                    unpack_layer(
                        archive.descriptor, making, overlay=self.overlay, owner=owner, limits=archive.limits,
                        sha256=archive.sha256, moved=moved,
                    )  # fmt: skip
                else:
                    unpack(
                        archive.descriptor, making, owner=owner, limits=archive.limits, sha256=archive.sha256,
                        durable=False, moved=moved,
                    )  # fmt: skip
            self.complete(name)
            sync_directory(self._layout.layer(name))


def _size_of_few(path: str) -> int | None:
    """Do as `size_bytes` without a program, which takes longer to begin; return None for many files, and where some are
    unreadable to us.
    """
    counted = {(status := os.lstat(path)).st_ino: status.st_blocks}
    left = [path]
    try:
        while left:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    counted[entry.inode()] = entry.stat(follow_symlinks=False).st_blocks
                    if len(counted) > _FEW:
                        return None
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
    except PermissionError:
        return None
    return sum(counted.values()) * _BLOCK
