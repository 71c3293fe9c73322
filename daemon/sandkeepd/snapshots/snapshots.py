"""Snapshots: the files of a sandbox, kept as an archive; made, listed, deleted.

An archive that others build on stays when its snapshot is deleted, and goes with the last of them.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal

import trio
from msgspec.structs import replace

from sandkeep import events, failpoints, ids, model
from sandkeep.errors import SandkeepError, SetupError, StateError
from sandkeep.model import Snapshot, SnapshotList
from sandkeep.protocol.methods import CheckpointQuery, SnapshotCreate, SnapshotDelete, SnapshotQuery, SnapshotRef
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.threads import in_thread
from sandkeep_store.views.chains import chain, children
from sandkeep_store.views.checkpoints import CheckpointState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.snapshots import SnapshotState
from sandkeepd.contract.provider import Provider
from sandkeepd.contract.snapshots import PackedFiles, PackRequest, Snapshotting
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.core.holds import Holds
from sandkeepd.core.operation import Creation, Operation, Order, Removal
from sandkeepd.core.paging import page
from sandkeepd.sandboxes.runtimes import Runtimes
from sandkeepd.snapshots.archive_paths import group_of
from sandkeepd.snapshots.archives import Making, SnapshotArchives
from sandkeepd.snapshots.deferred_upload import DeferredUploads, not_sent
from sandkeepd.snapshots.forks import source_of
from sandkeepd.snapshots.layers import LayerReferences

MOST_BENEATH: Final = 64
"""Maximum length of a chain of incremental snapshots: each is a layer of a restored sandbox, and the kernel limits an
overlay's layers.
"""

DISCARD_S: Final = 10.0
"""Seconds that the deletion of the image of a snapshot that failed may take."""


class SnapshotCreation(Creation[SnapshotState, Snapshot]):
    """``snapshot.create``: a provider packs the files of a sandbox, and the archive goes where it is to lie."""

    method = "snapshot.create"
    view = "snapshots"
    named = "snapshot_id"
    failure = events.SnapshotFailed
    interrupted = "the daemon stopped while it was being made: make it again"

    def __init__(
        self, core: Core, runtimes: Runtimes, archives: SnapshotArchives, layers: LayerReferences,
        removal: "SnapshotRemoval",
    ) -> None:  # fmt: skip
        super().__init__(core)
        self._runtimes = runtimes
        self._archives = archives
        self._layers = layers
        self._removal = removal

    def owns(self, subject: SnapshotState) -> bool:
        """See `Operation.owns`. Archives from elsewhere are of no sandbox, and come by an import."""
        return subject.sandbox_id is not None

    async def act(self, order: Order[SnapshotState]) -> Sequence[NewEvent]:
        asked = order.subject.requested
        assert asked.sandbox_id is not None
        with self._runtimes.reading(asked.sandbox_id):
            stored = await self._store(order, asked)
        return [NewEvent(order.stream, stored, asked.sandbox_id)]

    async def _store(self, order: Order[SnapshotState], asked: events.SnapshotCreateRequested) -> events.SnapshotStored:
        core, archives, snapshot_id, progress = self.core, self._archives, order.stream, order.progress
        assert asked.sandbox_id is not None
        sandbox = rules.sandbox(core.state, asked.sandbox_id)
        provider = snapshotting(core.provider(sandbox.requested.provider))
        parent = core.state.snapshots.get(asked.parent_id or "")
        is_own = (
            parent is not None and parent.sandbox_id == asked.sandbox_id and sandbox.restored_from != asked.parent_id
        )
        over: Literal["nothing", "start", "parent"] = "parent" if is_own else "start"
        if asked.kind == "full":
            over = "nothing"
        fence = partial(archives.fence, asked.sandbox_id, sandbox.owner)
        fence()  # a lock that was lost is told before anything is packed
        async with archives.making(asked.places, fence) as making:
            files = PackRequest(
                name=snapshot_id,
                output=making.descriptor,
                catalogue=archives.catalogue(snapshot_id),
                format=asked.format,
                include=asked.include,
                exclude=asked.exclude,
                over=over,
                parent_catalogue=archives.catalogue(asked.parent_id) if over == "parent" and asked.parent_id else None,
            )
            packed = await provider.pack(source_of(sandbox), files, progress)
            failpoints.reach("snapshot.packed")
            try:
                self.charge(order, asked.owner, "snapshots", packed.size_bytes)
                await making.keep(packed.sha256, packed.size_bytes, progress)
            except BaseException:
                await _discard_image_of(provider, packed)
                raise
        return stored_of(packed, asked.format, making)

    async def succeeded(self, order: Order[SnapshotState], facts: Sequence[Recorded]) -> None:  # noqa: ARG002
        self._removal.sending.begin(order.stream)

    async def undo(self, order: Order[SnapshotState]) -> None:
        places = order.subject.requested.places
        await self._removal.clear(order.stream, [*places, self._archives.here(places)])

    async def undone(self, order: Order[SnapshotState]) -> None:
        """See `Creation.undone`. Removes the provider's copy of the files, and archives kept for this one alone."""
        await in_thread(self._archives.drop_catalogue, order.stream)
        await self._removal.drop_kept()
        provider = order.subject.requested.provider
        if provider is not None:
            await self._layers.drop(provider, [order.stream])

    async def answered(self, request: Request[Any], subject: SnapshotState) -> Snapshot:
        """See `Operation.answered`. Raises `provider_unavailable` for one that is to be in a bucket, and is not yet."""
        if request.params.archive == "bucket" and subject.here is not None:
            raise not_sent(subject)
        sandbox = self.core.state.sandboxes.get(subject.sandbox_id or "")
        if sandbox is not None and sandbox.spec.shared is not None:
            await self._archives.publish(sandbox.sandbox_id)
        return subject.view()


class SnapshotRemoval(Removal[SnapshotState, Snapshot]):
    """``snapshot.delete``, and retention: with a snapshot go the archives that were only kept for it."""

    method = "snapshot.delete"
    view = "snapshots"
    under_way = "deleting"

    def __init__(self, core: Core, archives: SnapshotArchives) -> None:
        super().__init__(core)
        self._archives = archives
        self.sending = DeferredUploads(core, archives)
        self._builders = Holds()
        self.held = self._builders.held
        self._dropping: set[str] = set()

    async def order_end(self, snapshot: SnapshotState, reason: str, meta: events.Meta) -> None:
        """Order the end of a snapshot, if that is not ordered already. It is on record when this returns."""
        await self.order(snapshot.snapshot_id, events.SnapshotDeleteRequested(reason=reason), snapshot.sandbox_id, meta)

    async def act(self, order: Order[SnapshotState]) -> Sequence[NewEvent]:
        kept = self._is_built_on(order.stream)
        if not kept:
            await self.clear(order.stream, order.subject.traces)
            await self._discard_image(order.subject)
            failpoints.reach("snapshot.removed")
        return [NewEvent(order.stream, events.SnapshotDeleted(kept=kept), order.subject.sandbox_id)]

    async def recorded(self, order: Order[SnapshotState], facts: Sequence[Recorded]) -> None:  # noqa: ARG002
        await self.drop_kept()

    async def clear(self, snapshot_id: str, places: Sequence[model.Place]) -> None:
        """Remove all that there is of a snapshot besides its record, however often that takes."""
        await self.core.under_way.interrupt(snapshot_id)  # nothing of it is sent from then on
        then = f"the removal of snapshot {snapshot_id} is on record, and will be carried out when it answers"
        await self.insist(snapshot_id, partial(self._archives.remove, places), then)
        await in_thread(self._archives.drop_catalogue, snapshot_id)

    async def _discard_image(self, snapshot: SnapshotState) -> None:
        """Delete the image that a provider keeps besides the archive, however often that takes."""
        image = snapshot.stored.modal_image_id if snapshot.stored is not None else None
        if image is not None:
            provider = self.core.provider_of(snapshot)
            snapshot_id = snapshot.snapshot_id
            then = f"the removal of snapshot {snapshot_id} is on record, and will be carried out when it answers"
            work = partial(snapshotting(provider).discard_image, image)
            await self.insist(snapshot_id, work, then, provider=provider.name)

    def _is_built_on(self, snapshot_id: str) -> bool:
        return self._builders.count(snapshot_id) > 0 or any(children(self.core.state, snapshot_id))

    async def drop_kept(self) -> None:
        """Remove the archives of deleted snapshots that were only kept for others, as soon as these are gone, too."""
        core = self.core
        while kept := next((s for s in core.state.snapshots.values() if self._is_left(s)), None):
            self._dropping.add(kept.snapshot_id)
            try:
                await self.clear(kept.snapshot_id, kept.traces)
                await core.record([NewEvent(kept.snapshot_id, events.SnapshotDeleted(), kept.sandbox_id)], None)
            finally:
                self._dropping.discard(kept.snapshot_id)

    def _is_left(self, snapshot: SnapshotState) -> bool:
        snapshot_id = snapshot.snapshot_id
        return snapshot.kept and snapshot_id not in self._dropping and not self._is_built_on(snapshot_id)


class Snapshots:
    """The handlers of ``snapshot.create``, ``get``, ``list`` and ``delete``."""

    def __init__(self, core: Core, runtimes: Runtimes, archives: SnapshotArchives, layers: LayerReferences) -> None:
        self._core = core
        self._runtimes = runtimes
        self._archives = archives
        self.removal = SnapshotRemoval(core, archives)
        self._creation = SnapshotCreation(core, runtimes, archives, layers, self.removal)
        self.operations: Sequence[Operation[Any, Any]] = (self._creation, self.removal)

    async def create(self, request: Request[SnapshotCreate]) -> Snapshot:
        """Keep the files of a sandbox as an archive."""
        command, core = request.params, self._core
        sandbox = rules.sandbox(core.state, command.sandbox_id)
        await self._runtimes.adopted(sandbox.sandbox_id)
        rules.require_files(sandbox)
        provider = core.provider(sandbox.requested.provider)
        able = snapshotting(provider)
        core.quotas.require(request, sandbox.owner, "snapshots")
        snapshot_id = ids.new_id(ids.SNAPSHOT)
        bucket = command.archive == "bucket" or sandbox.spec.shared is not None
        places = self._archives.places(snapshot_id, group_of(sandbox), command.format, bucket=bucket)
        root = able.files_root(sandbox.requested.plan)
        command = rules.wanted_files(command, sandbox.isolation.workspace if sandbox.isolation else root, root)
        parent = self._parent(sandbox, command, provider)
        if sandbox.spec.session_id is not None and not (command.include or command.incremental or command.parent_id):
            command = replace(command, include=self._written(sandbox, provider))
        event = rules.create_snapshot(sandbox, command, places, parent_id=parent, root=root)
        with self.removal.held(*([parent] if parent is not None else [])):  # whatever becomes of its snapshot
            return await self._creation.run(NewEvent(snapshot_id, event, event.sandbox_id, 0), request)

    def _written(self, sandbox: SandboxState, provider: Provider) -> list[str]:
        """Return the directory without which a sandbox's files are those of its image; none if there is no such one."""
        directory = snapshotting(provider).directory_written(sandbox.requested.plan, sandbox.handle)
        if directory is None or not (sandbox.requested.image_id or "").startswith(f"{ids.IMAGE}_"):
            return []
        for name in provider.layers.layers_of(sandbox.requested.plan) if provider.layers is not None else ():
            first = self._core.state.snapshots.get(name)
            if first is None or not first.is_part or first.requested.image_id != sandbox.requested.image_id:
                return []
            if list(first.requested.include) != [directory]:
                return []
        return [directory]

    def _parent(self, sandbox: SandboxState, command: SnapshotCreate, provider: Provider) -> str | None:
        """Return the parent of an incremental snapshot; None if that is an image, or the snapshot is not incremental.

        Raises `not_supported` if there is no base for it.
        """
        if not command.incremental and command.parent_id is None:
            return None
        if command.parent_id is not None:
            parent = rules.snapshot(self._core.state, command.parent_id)
            why = self._why_no_parent(parent, sandbox, command)
            if why is not None:
                message = f"snapshot {parent.snapshot_id} {why}: leave out parent_id, or make a full one"
                raise StateError("conflict", message, snapshot_id=parent.snapshot_id)
            return parent.snapshot_id
        for kept in reversed(sandbox.snapshots):
            parent = self._core.state.snapshots[kept.snapshot_id]
            if self._why_no_parent(parent, sandbox, command) is None:
                return parent.snapshot_id
        return self._start(sandbox, command, provider)

    def _start(self, sandbox: SandboxState, command: SnapshotCreate, provider: Provider) -> str | None:
        """The snapshot that the sandbox began with; None for its image. Raises `not_supported` for anything else."""
        why = snapshotting(provider).why_not_incremental(sandbox.handle)
        if command.include or command.exclude:
            why = why or "what is left out of it can only be left out of a full one"
        began_with = provider.layers.layers_of(sandbox.requested.plan) if provider.layers is not None else ()
        first = self._core.state.snapshots.get(began_with[0]) if began_with else None
        if began_with and (first is None or first.status != "ready"):
            why = why or "the sandbox began with files that no snapshot has"
        if first is not None and self._is_deep(first):
            why = why or f"the sandbox began with a snapshot that builds on {MOST_BENEATH} others"
        if why is not None:
            raise SetupError("not_supported", f"there is no snapshot to build on, as {why}: make a full one")
        return first.snapshot_id if first is not None else None

    def _why_no_parent(self, parent: SnapshotState, sandbox: SandboxState, command: SnapshotCreate) -> str | None:
        """Return the reason why a snapshot cannot be another's parent, or None."""
        asked = parent.requested
        if parent.status != "ready":
            return f"is {parent.status}, not ready"
        if asked.sandbox_id != sandbox.sandbox_id:
            return "is of another sandbox"
        if (asked.include, asked.exclude) != (list(command.include), list(command.exclude)):
            return "leaves out other files"
        if parent.requested_us < sandbox.restored_us:
            return "is of the files that the sandbox had before it was restored"
        if self._is_deep(parent):
            return f"builds on {MOST_BENEATH} others, which is as many as there may be"
        if not self._archives.has_catalogue(parent.snapshot_id):
            return "was made by another daemon, or one that did not tell what it holds"
        return None

    def _is_deep(self, snapshot: SnapshotState) -> bool:
        """Return True if its chain has the maximum length."""
        return sum(1 for _ in chain(self._core.state, snapshot)) > MOST_BENEATH

    async def delete(self, request: Request[SnapshotDelete]) -> Snapshot:
        """Delete a snapshot. One that is deleted is answered as it is."""
        snapshot = rules.snapshot(self._core.state, request.params.snapshot_id)
        if snapshot.status == "creating":
            rules.require_ready(snapshot, "snapshot", snapshot.snapshot_id)
        await self.removal.order_end(snapshot, "requested", request.meta)
        return await self.removal.answer(request, snapshot.snapshot_id)

    def get_now(self, request: Request[SnapshotRef]) -> Snapshot:
        """Show a snapshot."""
        return rules.snapshot(self._core.state, request.params.snapshot_id).view()

    def list_now(self, request: Request[SnapshotQuery]) -> SnapshotList:
        """List the caller's snapshots; an administrator sees all."""
        query = request.params
        mine = (s for s in self._core.state.snapshots.values() if request.sees(s.owner) and matches(s, query))
        found, following = page(mine, lambda snapshot: snapshot.snapshot_id, query.after, query.limit)
        return SnapshotList(snapshots=[snapshot.view() for snapshot in found], next=following)


def matches(kept: SnapshotState | CheckpointState, query: SnapshotQuery | CheckpointQuery) -> bool:
    """Tell if a snapshot or checkpoint is one that a caller lists."""
    asked = kept.requested
    return (
        (query.all or not kept.ended)
        and query.sandbox_id in (None, asked.sandbox_id)
        and query.name in (None, asked.name)
        and query.labels.items() <= asked.labels.items()
    )


def snapshotting(provider: Provider) -> Snapshotting:
    """Return the provider's snapshots. Raises `not_supported` if it has none."""
    if provider.snapshots is not None:
        return provider.snapshots
    raise SetupError("not_supported", f"the {provider.name} provider cannot make snapshots yet: use the local provider")


async def _discard_image_of(provider: Snapshotting, packed: PackedFiles) -> None:
    """Delete the image that a provider made besides an archive that is not kept, if that can be done soon."""
    if packed.modal_image_id is not None:
        with trio.move_on_after(DISCARD_S, shield=True), suppress(SandkeepError):
            await provider.discard_image(packed.modal_image_id)


def stored_of(packed: PackedFiles, written_as: model.ArchiveFormat, making: Making) -> events.SnapshotStored:
    """Return the event of an archive that is in its place, or on its way."""
    return events.SnapshotStored(
        digest=f"sha256:{packed.sha256}",
        size_bytes=packed.size_bytes,
        member_count=packed.member_count,
        content_bytes=packed.content_bytes,
        format=written_as,
        pause_ms=packed.pause_ms,
        remarks=packed.remarks,
        here=making.here if making.unsent else None,
        unsent=making.unsent,
        modal_image_id=packed.modal_image_id,
    )
