"""Comparison of sandboxes: ``sandbox.diff`` and ``branch.diff``."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from sandkeep import ids
from sandkeep.errors import CallerError
from sandkeep.model import ChangeKind, Diff, FileChange
from sandkeep.protocol.methods import Kind, SandboxDiff
from sandkeep_store.archives.tar.members import TOP
from sandkeep_store.merging.compare import Change, changes
from sandkeep_store.merging.trees import TreeState
from sandkeep_store.merging.unified import line_counts, unified
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.branches.answers import as_many_as_fit, chosen, text_of
from sandkeepd.branches.lineage import Kept, began_with
from sandkeepd.branches.merge_files import counting
from sandkeepd.branches.points import Files, Points
from sandkeepd.contract.caller import Progress
from sandkeepd.core import naming, rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.host.threads import Meter, run_in_thread
from sandkeepd.snapshots.forks import layering
from sandkeepd.snapshots.layers import LayerReferences
from sandkeepd.snapshots.restore import Unpacking, image_beneath, names_of

MOST_SHOWN_BYTES: Final = 1 << 20
"""Maximum bytes of the text of one file."""

_COMPARED: Final[tuple[Kind, ...]] = ("sandbox", "snapshot", "image")


class Comparing:
    """The comparison of a sandbox with others, and with what is kept."""

    def __init__(self, core: Core, points: Points, unpacking: Unpacking, layers: LayerReferences) -> None:
        self._core = core
        self._points = points
        self._unpacking = unpacking
        self._layers = layers

    async def diff(self, request: Request[SandboxDiff]) -> Diff:
        """Compare another sandbox, a snapshot, an image, or its own first files with a sandbox's workspace."""
        asked = request.params
        sandbox = rules.sandbox(self._core.state, asked.sandbox_id)
        rules.require_files(sandbox)
        async with (
            self._other(request, sandbox) as (base_id, base),
            self.present(sandbox, request.progress) as now,
            self._points.opened(base, now) as (before, after),
        ):
            ignored = self._points.ignored(sandbox)
            old, new = (after, before) if asked.reverse else (before, after)
            compare = partial(_diff, old, new, asked, ignored, sandbox.sandbox_id, base_id)
            return await run_in_thread(compare, request.progress, "comparing the files")

    @asynccontextmanager
    async def present(self, sandbox: SandboxState, progress: Progress) -> AsyncIterator[Files]:
        """Keep the present files of a sandbox for the length of a block."""
        point_id, asked = ids.new_id(ids.POINT), sandbox.requested
        try:
            with self._layers.held(point_id):
                kept = await self._points.take(sandbox, point_id, progress)
                yield Files(provider=asked.provider, image_id=asked.image_id, plan={**asked.plan, **kept.files})
        finally:
            await self._points.drop(asked.provider, [point_id])

    @asynccontextmanager
    async def _other(self, request: Request[SandboxDiff], sandbox: SandboxState) -> AsyncIterator[tuple[str, Files]]:
        """Yield what a sandbox is compared with, and its id. Raises `not_found`."""
        state, asked = self._core.state, sandbox.requested
        other = self._compared(request)
        if other is None:
            kind, began = began_with(sandbox)
            yield (
                asked.image_id if kind == "checkpoint" else began,
                Files(provider=asked.provider, image_id=asked.image_id, plan=asked.plan),
            )
        elif other in state.images:
            provider = rules.ready_image(state, other).requested.provider
            kept = Kept(state_id=other, time_us=0, image_id=other, plan={})
            like = asked.plan if provider == asked.provider else {}
            _, files = await self._points.nearest(provider, [kept], like)
            yield other, files
        elif other in state.snapshots:
            async with self._unpacked(request, other, sandbox) as files:
                yield other, files
        else:
            found = rules.sandbox(state, other)
            rules.require_files(found)
            async with self.present(found, request.progress) as files:
                yield found.sandbox_id, files

    def _compared(self, request: Request[SandboxDiff]) -> str | None:
        """Return the id of what a sandbox is compared with, if anything is named. Raises `not_found` and `invalid`."""
        state, other = self._core.state, request.params.base
        if other is None:
            return None
        for kind in _COMPARED:
            if (found := naming.find(state, kind, other, "base", request)) is not None:
                return found
        message = f"base: there is no sandbox, snapshot or image {other!r}"
        raise CallerError("not_found", message, field="base", base=other)

    @asynccontextmanager
    async def _unpacked(
        self, request: Request[SandboxDiff], snapshot_id: str, sandbox: SandboxState
    ) -> AsyncIterator[Files]:
        """Unpack a snapshot for the length of a block, unless sandboxes have its files already."""
        core = self._core
        snapshot = rules.ready_snapshot(core.state, snapshot_id)
        provider = core.provider_of(snapshot)
        names = names_of(core, snapshot)
        source = core.state.sandboxes.get(snapshot.sandbox_id or "") or sandbox
        files = await layering(provider).files_of_layers(names, image_beneath(core, snapshot))
        plan = {**source.requested.plan, **files}
        try:
            with self._layers.held(*names):
                await self._unpacking.unpack(snapshot, provider.name, request.progress)
                image_id = snapshot.requested.image_id or source.requested.image_id
                yield Files(provider=provider.name, image_id=image_id, plan=plan)
        finally:
            await self._layers.drop(provider.name, names)


def _diff(
    before: TreeState, after: TreeState, asked: SandboxDiff, ignored: Sequence[bytes], sandbox_id: str, base_id: str,
    meter: Meter,
) -> Diff:  # fmt: skip
    found = {name: change for name, change in changes(before, after, ignored, counting(meter)).items() if name != TOP}
    is_chosen = chosen(asked.paths)
    found = {name: change for name, change in found.items() if is_chosen(name)}
    counts = {"added": 0, "changed": 0, "deleted": 0}
    for change in found.values():
        counts[_kind(change)] += 1
    shown = list(as_many_as_fit(list(found.items())[: asked.limit], lambda named: len(named[0]) + 100))
    texts, room, is_cut = list[str](), asked.max_bytes, len(shown) < len(found)
    files = []
    for name, change in shown:
        meter(meter.bytes)
        files.append(_shown(before, after, name, change, lines=asked.lines))
        if asked.unified and room > 0 and not _is_of_directories(change):
            text, cut = unified(before.view, after.view, name, change, min(room, MOST_SHOWN_BYTES))
            room, is_cut = room - len(text), is_cut or cut
            texts.append(text.decode("utf-8", "backslashreplace"))
    return Diff(
        sandbox_id=sandbox_id, base_id=base_id, files=files, **counts,
        unified="".join(texts) if asked.unified else None, truncated=is_cut or (asked.unified and room <= 0),
    )  # fmt: skip


def _is_of_directories(change: Change) -> bool:
    """Return True for a change that has no place in a patch."""
    return all(entry is None or entry.kind == "directory" for entry in (change.before, change.after))


def _kind(change: Change) -> ChangeKind:
    return "added" if change.before is None else "deleted" if change.after is None else "changed"


def _shown(before: TreeState, after: TreeState, name: bytes, change: Change, *, lines: bool) -> FileChange:
    old, new = change.before, change.after
    entry = new or old
    assert entry is not None
    path, raw = text_of(name)
    counts = line_counts(before.view, after.view, name, change) if lines else None
    return FileChange(
        path=path,
        path_bytes=raw,
        change=_kind(change),
        kind=entry.kind,
        mode=entry.mode,
        kind_before=old.kind if old is not None and new is not None and old.kind != new.kind else None,
        mode_before=old.mode if old is not None and new is not None and old.mode != new.mode else None,
        size_bytes=entry.size,
        added_lines=counts.added if counts is not None else None,
        removed_lines=counts.removed if counts is not None else None,
    )
