"""Restores: sandboxes with the files of a snapshot, new ones or over their own; images of snapshots; whole archives.

A snapshot is unpacked once, into kept files that all sandboxes restored from it share; so is each of its ancestors, and
they are stacked, the last of them above an image if need be. An archive is inspected from its first byte to its last
before a byte is unpacked, even if its digest is right.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec.structs import replace

from sandkeep import events, failpoints
from sandkeep.errors import CallerError, SandkeepError, SetupError
from sandkeep.model import Sandbox, SandboxSpec
from sandkeep.protocol.methods import SandboxRestore, SnapshotRestore
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.chains import chain
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.snapshots import SnapshotState
from sandkeepd.contract.caller import Progress
from sandkeepd.contract.instance import Instance
from sandkeepd.contract.layers import KeptArchive, Layering
from sandkeepd.contract.provider import Provider
from sandkeepd.contract.replacement import Replacing
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Order
from sandkeepd.sandboxes.changes import SandboxChange
from sandkeepd.sandboxes.creation import Maker
from sandkeepd.sandboxes.process_ends import ends_of_killed
from sandkeepd.sandboxes.runtimes import Runtime, Runtimes
from sandkeepd.sandboxes.sandboxes import Sandboxes
from sandkeepd.snapshots.archive_limits import archive_of
from sandkeepd.snapshots.archives import SnapshotArchives
from sandkeepd.snapshots.forks import layering
from sandkeepd.snapshots.layers import LayerReferences
from sandkeepd.snapshots.snapshots import snapshotting


class Unpacking:
    """Unpacks snapshots where sandboxes begin with them."""

    def __init__(self, core: Core, layers: LayerReferences, archives: SnapshotArchives) -> None:
        self._core = core
        self._layers = layers
        self._archives = archives

    async def unpack(self, snapshot: SnapshotState, provider_name: str, progress: Progress) -> None:
        """Unpack the files of a snapshot, and of all its ancestors, unless they are there already."""
        provider = layering(self._core.provider(provider_name))
        for each in reversed(list(chain(self._core.state, snapshot))):
            async with self._layers.turn(each.snapshot_id):
                if not await provider.has_layer(each.snapshot_id):
                    await self._fill(provider, each, progress)

    async def _fill(self, provider: Layering, snapshot: SnapshotState, progress: Progress) -> None:
        async with self.opened(snapshot, progress) as archive:
            await provider.fill(snapshot.snapshot_id, archive, progress)

    @asynccontextmanager
    async def opened(self, snapshot: SnapshotState, progress: Progress) -> AsyncIterator[KeptArchive]:
        """Open the archive of a snapshot, for the length of a block."""
        async with self._archives.opened(snapshot, progress) as archive:
            failpoints.reach("restore.opened")
            yield archive_of(self._core.state, snapshot, archive)


class FromSnapshot(Maker):
    """Makes a sandbox of its image, with the files of a snapshot."""

    def __init__(
        self, secrets: dict[str, str], unpacking: Unpacking, snapshot: SnapshotState, progress: Progress
    ) -> None:
        super().__init__(secrets)
        self._unpacking = unpacking
        self._snapshot = snapshot
        self._progress = progress

    async def make(self, provider: Provider, sandbox: SandboxState) -> Instance:
        """See `Maker.make`. A provider that has an image of the same files needs no archive, unless it is gone."""
        layers, asked = layering(provider), sandbox.requested
        if is_filled(layers, self._snapshot, asked.spec):
            async with self._unpacking.opened(self._snapshot, self._progress) as archive:
                made = await layers.create_filled(
                    sandbox.sandbox_id, asked.image_id, asked.spec, self.secrets, asked.plan, archive, self._progress
                )
            if made is not None:
                return made
        if await layers.has_own_image(asked.plan):
            try:
                return await super().make(provider, sandbox)
            except CallerError as error:
                if error.code != "not_found":
                    raise
                await self._progress(f"using the archive: {error.message}")
        await self._unpacking.unpack(self._snapshot, asked.provider, self._progress)
        return await super().make(provider, sandbox)


def is_filled(layers: Layering, snapshot: SnapshotState, spec: SandboxSpec) -> bool:
    """Return True if the files of a snapshot are for one sandbox alone: the one that brings back a session."""
    return layers.fills_workspaces and snapshot.is_part and spec.session_id is not None


class Restores:
    """``snapshot.restore``, and its handler, by which ``sandbox.restore_at`` goes, too: into a new sandbox."""

    method = "snapshot.restore"

    def __init__(self, core: Core, sandboxes: Sandboxes, layers: LayerReferences, unpacking: Unpacking) -> None:
        self._core = core
        self._reservations = sandboxes.reservations
        self._creation = sandboxes.creation
        self._layers = layers
        self._unpacking = unpacking
        self.again = sandboxes.creation.again

    async def restore(self, request: Request[SnapshotRestore]) -> Sandbox:
        """Make a sandbox with the files of a snapshot and start it."""
        snapshot = rules.ready_snapshot(self._core.state, request.params.snapshot_id)
        return await self.restore_like(request, self._core.state.sandboxes.get(snapshot.sandbox_id or ""))

    async def restore_like(self, request: Request[SnapshotRestore], source: SandboxState | None) -> Sandbox:
        """The same, for a sandbox that is to be as `source` was asked to be."""
        command, core = request.params, self._core
        snapshot = rules.ready_snapshot(core.state, command.snapshot_id)
        if source is not None:
            rules.require_secrets(source, command.secrets)
        return await self.restore_as(request, self._spec(source, snapshot, command))

    async def restore_as(self, request: Request[SnapshotRestore], spec: SandboxSpec) -> Sandbox:
        """The same, for a sandbox of this spec; labels and variables of the request do not count."""
        command, core = request.params, self._core
        snapshot = rules.ready_snapshot(core.state, command.snapshot_id)
        with self._reservations.one(request, command.name, spec) as sandbox_id:
            await self.begin(request, snapshot, sandbox_id, spec)
        return await self._creation.made(sandbox_id)

    async def begin(
        self, request: Request[SnapshotRestore], snapshot: SnapshotState, sandbox_id: str, spec: SandboxSpec,
        **facts: Any,
    ) -> None:  # fmt: skip
        """Begin to make a sandbox whose name is reserved; it is on record when this returns. The snapshot need not be
        on record, if it is whole. `facts` are further fields of the event.
        """
        new = await self._planned(request, snapshot, sandbox_id, spec, facts)
        maker = FromSnapshot(request.params.secrets, self._unpacking, snapshot, request.progress)
        with self._layers.held(*names_of(self._core, snapshot)):
            await self._creation.begin(new, request.meta, request, maker)

    def _spec(self, source: SandboxState | None, snapshot: SnapshotState, command: SnapshotRestore) -> SandboxSpec:
        """Return the spec of the new sandbox: that of the snapshot's sandbox."""
        if source is not None:
            spec = rules.asked_spec(source.requested)
        else:
            provider = self._core.provider_of(snapshot)
            spec = SandboxSpec(network=provider.default_network(), memory_bytes=provider.default_memory())
        if command.idle_timeout_s is not None:
            spec = replace(spec, idle_timeout_s=command.idle_timeout_s)
        return rules.like(spec, command.labels, command.env)

    async def _planned(
        self, request: Request[SnapshotRestore], snapshot: SnapshotState, sandbox_id: str, spec: SandboxSpec,
        facts: dict[str, Any],
    ) -> NewEvent:  # fmt: skip
        core, provider = self._core, self._core.provider_of(snapshot)
        layers = layering(provider)
        files = await layers.files_of_layers(names_of(core, snapshot), image_beneath(core, snapshot))
        if snapshot.stored is not None and snapshot.stored.modal_image_id is not None:
            files = layers.over_own_image(files, snapshot.stored.modal_image_id)
        image_id = snapshot.requested.image_id or snapshot.snapshot_id
        return self._reservations.intent(
            sandbox_id, provider, image_id, spec, request.caller, request.params.secrets,
            lambda plan: {**plan, **files},
            needs_image=layers.needs_image(files) or is_filled(layers, snapshot, spec),
            **{"restored_from": snapshot.snapshot_id, **facts},
        )  # fmt: skip


class Replacement(msgspec.Struct):
    """The progress of a replacement of a sandbox's files: the `plans` for the old files and the new, its old runtime,
    and the instance that runs now; `gone`, while no process of the sandbox runs.
    """

    plans: list[dict[str, Any]]
    gone: bool = False
    runtime: Runtime | None = None
    instance: Instance | None = None


class FileReplacement(SandboxChange):
    """``sandbox.restore``: the files of a sandbox are replaced. The context of an order is its `Replacement`."""

    method = "sandbox.restore"
    under_way = "restoring"
    failure = events.SandboxRestoreFailed

    def __init__(self, core: Core, runtimes: Runtimes, layers: LayerReferences) -> None:
        super().__init__(core, runtimes)
        self.layers = layers

    async def recorded(self, order: Order[SandboxState], facts: Sequence[Recorded]) -> None:
        progress, provider = order.context, self.core.provider(order.subject.requested.provider)
        if progress.instance is not None:
            self.supervise(progress)
            failpoints.reach("replace.recorded")
        if any(isinstance(fact.event, events.SandboxRestored) for fact in facts):
            await replacing(provider).drop_replaced(order.stream)
        await self.layers.drop_plans(provider.name, progress.plans)

    def supervise(self, progress: Any) -> Runtime:
        """Supervise the instance that runs now."""
        return self.runtimes.keep(progress.instance)


class OwnRestore(FileReplacement):
    """``sandbox.restore`` of a snapshot, over the sandbox's own files. `payload` is the snapshot, and secrets."""

    def __init__(self, core: Core, sandboxes: Sandboxes, layers: LayerReferences, unpacking: Unpacking) -> None:
        super().__init__(core, sandboxes.runtimes, layers)
        self._unpacking = unpacking

    async def restore(self, request: Request[SandboxRestore]) -> Sandbox:
        """Replace the files of a sandbox by those of a snapshot."""
        command, core = request.params, self.core
        sandbox = rules.sandbox(core.state, command.sandbox_id)
        snapshot = rules.ready_snapshot(core.state, command.snapshot_id or "")
        await self.runtimes.adopted(sandbox.sandbox_id)
        provider = core.provider(sandbox.requested.provider)
        replacement = replacing(provider)
        rules.restore(sandbox, snapshot, command.secrets, end_processes=command.end_processes)
        beneath = image_beneath(core, snapshot)
        if beneath not in (None, sandbox.requested.image_id):
            message = (
                f"snapshot_id: {snapshot.snapshot_id} builds on another image than the sandbox's: create a full one"
            )
            raise CallerError("invalid", message, field="snapshot_id")
        files = await layering(provider).files_of_layers(names_of(core, snapshot), beneath)
        event = events.SandboxRestoreRequested(
            snapshot_id=snapshot.snapshot_id,
            plan=replacement.plan_replacement(sandbox.requested.plan, files),
            needs_image=layering(provider).needs_image(files),
        )
        with self.layers.held(*names_of(core, snapshot)):
            new = NewEvent(sandbox.sandbox_id, event, sandbox.sandbox_id, sandbox.revision)
            await self.begin(new, request.meta, request, (snapshot, dict(command.secrets)))
        return await self.answer(request, sandbox.sandbox_id)

    async def act(self, order: Order[SandboxState]) -> Sequence[NewEvent]:
        """See `Operation.act`. Unpack the snapshot, then end the sandbox and start it with those files."""
        (snapshot, secrets), sandbox = order.payload, order.subject
        order.resources.callback(secrets.clear)
        order.context = under_way = Replacement(sandbox.plans)
        sandbox_id, asked = order.stream, sandbox.requested
        provider = replacing(self.core.provider(asked.provider))
        await self._unpacking.unpack(snapshot, asked.provider, order.progress)
        failpoints.reach("restore.unpacked")
        under_way.runtime, under_way.gone = await self.runtimes.drop(sandbox_id), True
        old, new = under_way.plans
        under_way.instance = made = await provider.replace_files(
            sandbox_id, asked.image_id, sandbox.spec, secrets, (old, new), sandbox.handle
        )
        restored = events.SandboxRestored(
            snapshot_id=snapshot.snapshot_id, isolation=made.isolation, handle=made.handle
        )
        return [*await self._ends(order), NewEvent(sandbox_id, restored, sandbox_id)]

    async def failed(self, order: Order[SandboxState], error: SandkeepError) -> Sequence[NewEvent]:
        under_way: Replacement = order.context
        failed = events.SandboxRestoreFailed(code=error.code, message=error.message, ended=under_way.gone)
        ends = await self._ends(order) if under_way.gone else []
        return [*ends, NewEvent(order.stream, failed, order.stream)]

    async def _ends(self, order: Order[SandboxState]) -> list[NewEvent]:
        runtime = order.context.runtime
        ends = await ends_of_killed(self.core, order.subject, runtime)
        if runtime is not None:
            await runtime.instance.aclose()
        return ends


def names_of(core: Core, snapshot: SnapshotState) -> list[str]:
    """Under which names the files of a snapshot are kept, each hiding parts of the next."""
    return [each.snapshot_id for each in chain(core.state, snapshot)]


def image_beneath(core: Core, snapshot: SnapshotState) -> str | None:
    """The image that a snapshot is above; None for one that is whole. Raises `snapshot_missing` without that image,
    `not_supported` for one with more than what its provider's sandboxes can begin with.
    """
    *_, lowest = chain(core.state, snapshot)
    if lowest.requested.include and lowest.requested.root != snapshotting(core.provider_of(lowest)).files_root({}):
        message = (
            f"snapshot {lowest.snapshot_id} holds directories besides the workspace, which are unpacked in a sandbox"
        )
        raise SetupError("not_supported", f"{message}: `export` it, and copy what you need of it with `cp`")
    if not lowest.is_over_image:
        return None
    assert lowest.requested.image_id is not None
    return lowest.requested.image_id


def replacing(provider: Provider) -> Replacing:
    """Return the provider's replacement of files. Raises `not_supported` if it has none."""
    if provider.replacement is not None:
        return provider.replacement
    raise SetupError("not_supported", "its provider cannot replace the files of a sandbox yet: restore into a new one")
