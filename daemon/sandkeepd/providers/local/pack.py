"""Packing the visible files of a local sandbox, or its changes, with the shortest possible freeze.

Changes are copied during the freeze, and packed afterwards, if the copy is quick: where the filesystem shares blocks,
or there is little. Else they are copied while the sandbox runs, see `precopy`. Only where that is impossible the
archive is written during the freeze. Everything here blocks.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from sandkeep import failpoints
from sandkeep.errors import CallerError
from sandkeep_store.archives.tar.members import TOP
from sandkeep_store.archives.trees import changes
from sandkeep_store.archives.trees.changes import Catalogue, ChangedTree
from sandkeep_store.archives.trees.pack import PackedArchive, write
from sandkeep_store.archives.trees.read import reading_only
from sandkeep_store.archives.trees.tree import Overlay, Tree
from sandkeepd.contract.snapshots import PackedFiles, PackRequest
from sandkeepd.host.cgroups.pause import Pause
from sandkeepd.host.threads import Meter
from sandkeepd.providers.common.errors import storage_errors
from sandkeepd.providers.common.inside import WORKSPACE
from sandkeepd.providers.common.layers import Layers
from sandkeepd.providers.common.packing import CODECS, packed_files, wanted_names
from sandkeepd.providers.common.views import shown
from sandkeepd.providers.local.files import SandboxFiles
from sandkeepd.providers.local.precopy import (
    COPIED_BYTES,
    COPIED_FILES,
    Copied,
    Look,
    Select,
    copy_running,
    is_little,
    is_quick_to_copy,
    look,
    sum_of,
    whole,
)


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
            with self._frozen_changes(held, request, moved) as (upper, pause):
                packed = self._pack_tree([upper, *held.lowers], request, held, None, moved)
        elif request.over == "start":
            with self._frozen_changes(held, request, moved) as (upper, pause):
                packed = self._pack_tree([upper], request, held, self._overlay, moved)
        else:
            packed, pause = self._pack_changes(held, request, moved)
        return packed_files(packed, pause)

    @contextmanager
    def _frozen_changes(self, held: SandboxFiles, request: PackRequest, moved: Meter) -> Iterator[tuple[str, Pause]]:
        """For the length of a block, provide a directory with the sandbox's changes as they were at one moment."""
        if not is_quick_to_copy(held, self._layers, self._state_dir, shares_blocks=self._shares_blocks):
            with self._copied_running(held, request, whole, moved) as copied:
                if copied is not None:
                    yield copied.directory, copied.pause
                    return
            with self._shown(held.upper) as upper, held.freeze() as pause:
                failpoints.reach("snapshot.frozen")
                _save(look(held, self._layers, upper), request)
                yield held.upper, pause
            return
        copy = self._layers.begin(request.name)
        try:
            with self._shown(held.upper) as upper, held.freeze() as pause:
                failpoints.reach("snapshot.frozen")
                _save(look(held, self._layers, upper), request)
                self._layers.copy(upper, copy)
            failpoints.reach("snapshot.copied")
            yield copy, pause
        finally:
            self._layers.discard([request.name])

    def _shown(self, *roots: str) -> AbstractContextManager[int]:
        return shown(*roots, above=self._state_dir)

    @contextmanager
    def _copied_running(
        self, held: SandboxFiles, request: PackRequest, select: Select, moved: Meter
    ) -> Iterator[Copied | None]:
        """For the length of a block, provide a copy made while the sandbox ran; None if there can be none."""
        copy = self._layers.begin(request.name)
        try:
            with self._shown(held.upper) as tree:
                copied = copy_running(
                    held, self._layers, tree, copy, select=select, proceed=lambda: moved(0), point="snapshot.frozen"
                )
            if copied is not None:
                _save(copied.look, request)
                failpoints.reach("snapshot.copied")
            yield copied
        finally:
            self._layers.discard([request.name])

    def _pack_changes(self, held: SandboxFiles, request: PackRequest, moved: Meter) -> tuple[PackedArchive, Pause]:
        """Pack the difference from the content of an earlier archive. Only that is read, so the sandbox is frozen if it
        is little.
        """
        assert request.parent_catalogue is not None
        before, wanted = changes.load(request.parent_catalogue), _wanted(request)

        def select(now: Catalogue) -> list[bytes]:
            return changes.with_directories(changes.compare(before, now, wanted).names)

        packed, pause = self._pack_frozen_changes(held, request, before, moved, only_little=True)
        if packed is not None:
            return packed, pause
        with self._copied_running(held, request, select, moved) as copied:
            if copied is not None:
                different = changes.compare(before, copied.look.found, wanted)
                with self._shown(copied.directory) as tree, reading_only(tree, self._reader(held)) as read:
                    packed = self._write_changes(ChangedTree(different, read), held, request, moved)
                return packed, sum_of(pause, copied.pause)
        packed, again = self._pack_frozen_changes(held, request, before, moved, only_little=False)
        assert packed is not None
        return packed, sum_of(pause, again)

    def _pack_frozen_changes(
        self, held: SandboxFiles, request: PackRequest, before: Catalogue, moved: Meter, *, only_little: bool
    ) -> tuple[PackedArchive | None, Pause]:
        with (
            self._shown(held.upper) as tree,
            reading_only(tree, self._reader(held)) as read,
            held.freeze() as pause,
        ):
            failpoints.reach("snapshot.frozen")
            seen = look(held, self._layers, tree)
            different = changes.compare(before, seen.found, _wanted(request))
            if only_little and not is_little(tree, different.names, COPIED_FILES, COPIED_BYTES):
                return None, pause
            _save(seen, request)
            packed = self._write_changes(ChangedTree(different, read), held, request, moved)
        return packed, pause

    def _write_changes(
        self, source: ChangedTree, held: SandboxFiles, request: PackRequest, moved: Meter
    ) -> PackedArchive:
        return write(source, request.output, CODECS[request.format], source.remarks, owner=held.owner, moved=moved)

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


def _save(seen: Look, request: PackRequest) -> None:
    with storage_errors(request.catalogue):
        changes.save(seen.now, request.catalogue)


def _wanted(request: PackRequest) -> changes.Asked:
    return wanted_names(paths(request.include), paths(request.exclude))


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
