"""Packing the visible files of a local sandbox, or its changes, with the shortest possible freeze.

Changes are copied during the freeze, and packed afterwards, if the copy is quick: where the filesystem shares blocks,
or there is little. Else they are copied while the sandbox runs, see `precopy`. Only where that is impossible the
archive is written during the freeze. Everything here blocks.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

from sandkeep import failpoints
from sandkeep.errors import CallerError
from sandkeep.system.descriptors import closing_fd
from sandkeep.system.openat2 import open_beneath
from sandkeep_store.archives.tar import hardlinks
from sandkeep_store.archives.tar.hardlinks import HardLinks
from sandkeep_store.archives.tar.members import TOP
from sandkeep_store.archives.trees import changes
from sandkeep_store.archives.trees.changes import (
    DIRECTORY,
    OPAQUE,
    WHITEOUT,
    Catalogue,
    ChangedTree,
    Changes,
    parent_of,
)
from sandkeep_store.archives.trees.merge import Layer, LayerStack
from sandkeep_store.archives.trees.pack import PackedArchive, write
from sandkeep_store.archives.trees.read import Remarks, reading_only
from sandkeep_store.archives.trees.spool import Spool, SpooledTree
from sandkeep_store.archives.trees.tree import Overlay, Source, Tree, not_there
from sandkeepd.contract.snapshots import PackedFiles, PackRequest
from sandkeepd.host.cgroups.pause import Pause
from sandkeepd.host.threads import Meter
from sandkeepd.providers.common.errors import storage_errors
from sandkeepd.providers.common.inside import WORKSPACE
from sandkeepd.providers.common.layers import Layers
from sandkeepd.providers.common.packing import CODECS, bytes_in, packed_files, wanted_names
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
        packed, pause = (self._pack_changes if request.over == "parent" else self._pack_all)(held, request, moved)
        return packed_files(packed, pause)

    def _pack_all(self, held: SandboxFiles, request: PackRequest, moved: Meter) -> tuple[PackedArchive, Pause]:
        is_quick = is_quick_to_copy(held, self._layers, self._state_dir, shares_blocks=self._shares_blocks)
        if not is_quick:
            with self._copied_running(held, request, whole) as copied:
                if copied is not None:
                    return self._pack_spooled(*copied, held, request, moved), copied[1].pause
        with self._frozen_changes(held, request, copy=is_quick) as (upper, pause):
            roots, overlay = ([upper, *held.lowers], None) if request.over == "nothing" else ([upper], self._overlay)
            with self._shown(*roots) as tree:
                source = self._tree(tree, request, held, paths(request.include), overlay)
                if is_quick and not (request.include or request.exclude):  # a frozen sandbox waits for no count
                    moved.count = partial(bytes_in, tree)
                packed = self._write(source, source.remarks, held, request, moved)
        return packed, pause

    @contextmanager
    def _frozen_changes(self, held: SandboxFiles, request: PackRequest, *, copy: bool) -> Iterator[tuple[str, Pause]]:
        """For the length of a block, provide a directory with the sandbox's changes as they were at one moment: a copy,
        or their own while the sandbox is frozen.
        """
        if not copy:
            with self._shown(held.upper) as upper, held.freeze() as pause:
                failpoints.reach("snapshot.frozen")
                _save(look(held, self._layers, upper), request)
                yield held.upper, pause
            return
        target = self._layers.begin(request.name)
        try:
            with self._shown(held.upper) as upper, held.freeze() as pause:
                failpoints.reach("snapshot.frozen")
                _save(look(held, self._layers, upper), request)
                self._layers.copy(upper, target)
            held.end_reading()
            failpoints.reach("snapshot.copied")
            yield target, pause
        finally:
            self._layers.discard([request.name])

    def _shown(self, *roots: str) -> AbstractContextManager[int]:
        return shown(*roots, above=self._state_dir)

    @contextmanager
    def _copied_running(
        self, held: SandboxFiles, request: PackRequest, select: Select
    ) -> Iterator[tuple[Spool, Copied] | None]:
        """For the length of a block, provide a copy made while the sandbox ran; None if there can be none."""
        copy = self._layers.begin(request.name)
        try:
            opened = os.open(copy, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with closing_fd(opened) as target, self._shown(held.upper) as tree:
                spool = Spool(tree, target)
                copied = copy_running(held, self._layers, tree, spool, select=select, point="snapshot.frozen")
                if copied is not None:
                    held.end_reading()
                    _save(copied.look, request)
                    failpoints.reach("snapshot.copied")
                yield None if copied is None else (spool, copied)
        finally:
            self._layers.discard([request.name])

    def _pack_spooled(
        self, spool: Spool, copied: Copied, held: SandboxFiles, request: PackRequest, moved: Meter
    ) -> PackedArchive:
        """Pack a copy of all changes: as a layer, or over the files beneath."""
        found, wanted = copied.look.found, _wanted(request)
        if request.over == "start":
            return self._pack_difference(spool, changes.compare({}, found, wanted), held, request, moved)
        names = [name for name in whole(found) if found[name].kind != WHITEOUT and (name == TOP or wanted(name))]
        upper = SpooledTree(spool, names)
        moved.count = upper.count_bytes
        with self._shown(*held.lowers) if held.lowers else nullcontext() as lower:
            include = _beneath(lower, found, paths(request.include) or [TOP])
            if lower is None or not include:
                return self._write(upper, upper.remarks, held, request, moved)
            tree = self._tree(lower, request, held, include, None)
            tree.remarks = upper.remarks
            gone = [name for name, seen in found.items() if seen.kind == WHITEOUT]
            gone += [name + b"/" for name, seen in found.items() if seen.kind == OPAQUE]
            stack = LayerStack([
                Layer(source=upper, links=HardLinks(), gone=gone), Layer(source=tree, links=hardlinks.in_tree(lower))
            ])  # fmt: skip
            if not (request.include or request.exclude):
                moved.count = lambda: upper.count_bytes() + bytes_in(lower)
            return self._write(stack, upper.remarks, held, request, moved)

    def _pack_difference(
        self, spool: Spool, different: Changes, held: SandboxFiles, request: PackRequest, moved: Meter
    ) -> PackedArchive:
        names = changes.with_directories(different.names)
        source = SpooledTree(spool, names, different.marks, is_layer=True)
        moved.count = source.count_bytes
        return self._write(source, source.remarks, held, request, moved)

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
        with self._copied_running(held, request, select) as copied:
            if copied is not None:
                spool, (seen, passes) = copied
                packed = self._pack_difference(spool, changes.compare(before, seen.found, wanted), held, request, moved)
                return packed, sum_of(pause, passes)
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
            source = ChangedTree(different, read)
            packed = self._write(source, source.remarks, held, request, moved)
        return packed, pause

    def _tree(
        self, tree: int, request: PackRequest, held: SandboxFiles, include: Sequence[bytes], overlay: Overlay | None
    ) -> Tree:
        return Tree(
            tree, include=include or (TOP,), exclude=paths(request.exclude), never=[self._state_dir],
            reader=self._reader(held), overlay=overlay,
        )  # fmt: skip

    def _write(
        self, source: Source, remarks: Remarks, held: SandboxFiles, request: PackRequest, moved: Meter
    ) -> PackedArchive:
        return write(source, request.output, CODECS[request.format], remarks, owner=held.owner, moved=moved)

    def _reader(self, held: SandboxFiles) -> tuple[int, int] | None:
        plan = held.plan
        return (plan.uid, plan.gid) if self._layers.uid is not None and plan.uid and plan.gid else None


def _save(seen: Look, request: PackRequest) -> None:
    with storage_errors(request.catalogue):
        changes.save(seen.now, request.catalogue)


def _beneath(lower: int | None, found: Catalogue, include: Sequence[bytes]) -> list[bytes]:
    """Return those of the paths that the files beneath have. Raises `not_found` for one that is nowhere."""
    beneath = [name for name in include if lower is not None and _is_in(lower, name)]
    for name in include:
        seen = found.get(name)
        if (seen is not None and seen.kind == WHITEOUT) or (
            seen is None and (name not in beneath or _hides(found, name))
        ):
            raise not_there(name)
    return beneath


def _is_in(tree: int, name: bytes) -> bool:
    try:
        os.close(open_beneath(tree, name, os.O_PATH | os.O_NOFOLLOW))
    except OSError:
        return False
    return True


def _hides(found: Catalogue, name: bytes) -> bool:
    """Return True if nothing beneath is visible in a directory of that name."""
    while name != TOP:
        name = parent_of(name)
        if name in found and found[name].kind != DIRECTORY:
            return True
    return False


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
