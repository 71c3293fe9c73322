"""Packing the visible files of a local sandbox, or its changes, with the shortest possible freeze.

Changes are copied during the freeze, and packed afterwards, if the copy is quick: where the filesystem shares blocks,
or there is little. Else a copy takes longer than an archive, so the archive is written during the freeze. Everything
here blocks.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from sandkeep import failpoints
from sandkeep.errors import CallerError
from sandkeep_store.archives.tar.members import TOP
from sandkeep_store.archives.trees import changes
from sandkeep_store.archives.trees.changes import ChangedTree
from sandkeep_store.archives.trees.pack import PackedArchive, write
from sandkeep_store.archives.trees.read import reading_only
from sandkeep_store.archives.trees.tree import Overlay, Tree
from sandkeepd.contract.snapshots import PackedFiles, PackRequest
from sandkeepd.host.cgroups.pause import Pause, processes
from sandkeepd.host.mapped_files import mapped_files
from sandkeepd.host.processes import run_tool
from sandkeepd.host.threads import Meter
from sandkeepd.providers.common.errors import storage_errors
from sandkeepd.providers.common.inside import WORKSPACE
from sandkeepd.providers.common.layers import Layers
from sandkeepd.providers.common.packing import CODECS, packed_files
from sandkeepd.providers.common.views import shown
from sandkeepd.providers.local.layers import SandboxFiles

COPIED_BYTES: Final = 32 * 1024**2
COPIED_FILES: Final = 2000
"""Maximum bytes that are copied where blocks are not shared."""


class Packer:
    """Packs the sandboxes of one state directory. `shares_blocks`: a copy costs no bytes."""

    def __init__(self, layers: Layers, state_dir: str, *, shares_blocks: bool) -> None:
        self._layers = layers
        self._state_dir = state_dir
        self._shares_blocks = shares_blocks
        self._overlay = layers.overlay

    def pack(self, held: SandboxFiles, request: PackRequest, moved: Meter) -> PackedFiles:
        """Pack a sandbox's files as they are at one moment, and write their catalogue."""
        if request.over == "nothing":
            with self._frozen_changes(held, request.name, request) as (upper, pause):
                packed = self._pack_tree([upper, *held.lowers], request, held, None, moved)
        elif request.over == "start":
            with self._frozen_changes(held, request.name, request) as (upper, pause):
                packed = self._pack_tree([upper], request, held, self._overlay, moved)
        else:
            packed, pause = self._pack_changes(held, request, moved)
        return packed_files(packed, pause)

    @contextmanager
    def _frozen_changes(self, held: SandboxFiles, name: str, request: PackRequest) -> Iterator[tuple[str, Pause]]:
        """For the length of a block, provide a directory with the sandbox's changes as they were at one moment."""
        if not self._is_quick_to_copy(held.upper):
            with self._shown(held.upper) as upper, held.freeze() as pause:
                failpoints.reach("snapshot.frozen")
                self._list_changes(held, upper, request)
                yield held.upper, pause
            return
        copy = self._layers.begin(name)
        try:
            with self._shown(held.upper) as upper, held.freeze() as pause:
                failpoints.reach("snapshot.frozen")
                self._list_changes(held, upper, request)
                self._layers.copy(upper, copy)
            failpoints.reach("snapshot.copied")
            yield copy, pause
        finally:
            self._layers.discard([name])

    def _shown(self, *roots: str) -> AbstractContextManager[int]:
        return shown(*roots, above=self._state_dir)

    def _is_quick_to_copy(self, upper: str) -> bool:
        """Return True if a copy is quick enough. The measurement stops at the limit."""
        if self._shares_blocks and not os.path.ismount(os.path.dirname(upper)):  # a disk shares none with another
            return True
        measure = [*self._layers.enter, "sh", "-c", _MEASURE, "sh"]
        with self._shown(upper) as tree:
            done = run_tool([*measure, f"/proc/self/fd/{tree}/.", str(COPIED_FILES + 1)], descriptors=[tree])
        blocks = [int(line) for line in done.stdout.split()]
        return len(blocks) <= COPIED_FILES and sum(blocks) * _BLOCK <= COPIED_BYTES

    def _list_changes(self, held: SandboxFiles, tree: int, request: PackRequest) -> dict[bytes, changes.Seen]:
        """List the open upper directory during the freeze, and write the list to the catalogue."""
        found = changes.take_catalogue(tree, self._layers.enter, self._overlay)
        mapped = mapped_files(processes(held.plan.cgroups, held.first_pid), held.handle.workspace)
        with storage_errors(request.catalogue):
            changes.save(changes.with_unreliable(found, mapped), request.catalogue)
        return found

    def _pack_changes(self, held: SandboxFiles, request: PackRequest, moved: Meter) -> tuple[PackedArchive, Pause]:
        """Pack the difference from the content of an earlier archive. Only that is read, so the sandbox is frozen."""
        assert request.parent_catalogue is not None
        before = changes.load(request.parent_catalogue)
        wanted = _wanted(request)
        with (
            self._shown(held.upper) as tree,
            reading_only(tree, self._reader(held)) as read,
            held.freeze() as pause,
        ):
            failpoints.reach("snapshot.frozen")
            now = self._list_changes(held, tree, request)
            source = ChangedTree(changes.compare(before, now, wanted), read)
            packed = write(
                source, request.output, CODECS[request.format], source.remarks, owner=held.owner, moved=moved
            )
        return packed, pause

    def _pack_tree(
        self, roots: Sequence[str], request: PackRequest, held: SandboxFiles, overlay: Overlay | None, moved: Meter
    ) -> PackedArchive:
        with self._shown(*roots) as tree:
            source = Tree(
                tree, include=paths(request.include) or (TOP,), exclude=paths(request.exclude),
                never=[self._state_dir], reader=self._reader(held), overlay=overlay,
            )  # fmt: skip
            return write(source, request.output, CODECS[request.format], source.remarks, owner=held.owner, moved=moved)

    def _reader(self, held: SandboxFiles) -> tuple[int, int] | None:
        plan = held.plan
        return (plan.uid, plan.gid) if self._layers.uid is not None and plan.uid and plan.gid else None


# $1 a directory, $2 how many files are looked at: prints how many blocks each occupies.
_MEASURE: Final = """find "$1" -printf '%b\\n' | head -n "$2" """
_BLOCK: Final = 512


def paths(given: Sequence[str]) -> list[bytes]:
    """Convert paths in the sandbox into paths in its workspace. Raises `invalid` for others."""
    found = []
    for path in given:
        inner = path
        if path.startswith("/"):
            if not f"{path}/".startswith(f"{WORKSPACE}/"):
                message = f"{path!r} is not in {WORKSPACE}, and nothing else of a local sandbox is kept: leave it out"
                raise CallerError("invalid", message, field="include")
            inner = path.removeprefix(WORKSPACE)
        found.append(inner.strip("/").encode("utf-8", "surrogateescape") or TOP)
    return found


def _wanted(request: PackRequest) -> Callable[[bytes], bool]:
    """Return a predicate that is True for the names that belong in the archive."""
    include, exclude = paths(request.include), paths(request.exclude)

    def is_wanted(name: bytes) -> bool:
        if any(_is_in(name, place) for place in exclude):
            return False
        return not include or any(_is_in(name, place) or _is_in(place, name) for place in include)

    return is_wanted


def _is_in(name: bytes, place: bytes) -> bool:
    return place in (TOP, name) or name.startswith(place + b"/")
