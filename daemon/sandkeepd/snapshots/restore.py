"""Restores: sandboxes with the files of a snapshot, new ones or over their own; images of snapshots; whole archives.

A snapshot is unpacked once, into kept files that all sandboxes share which were restored from it; so is each that it
builds on, and they lie one above the other, the last of them above an image if need be. Before a byte is unpacked an
archive was read from its first byte to its last, whatever its digest says.
"""

from functools import partial
from typing import Any

from sandkeep import events, failpoints
from sandkeep.errors import CallerError, SetupError
from sandkeep.model import Sandbox, SandboxSpec
from sandkeep.protocol.methods import SandboxRestore, SnapshotRestore
from sandkeep.settings.daemon import DISK_LIMIT
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.chains import chain
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.snapshots import SnapshotState
from sandkeepd.contract.caller import Progress
from sandkeepd.contract.instance import Instance
from sandkeepd.contract.layers import Layering
from sandkeepd.contract.provider import Provider
from sandkeepd.contract.replacement import Replacing
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import ANEW, Core, as_sandkeep_error
from sandkeepd.sandboxes.sandboxes import Pending, Sandboxes
from sandkeepd.snapshots.archive_limits import archive_of
from sandkeepd.snapshots.archives import SnapshotArchives
from sandkeepd.snapshots.forks import layering
from sandkeepd.snapshots.layers import LayerReferences


class Restores:
    """The handlers of ``snapshot.restore`` and ``sandbox.restore``; ``sandbox.restore_at`` goes through it."""

    def __init__(self, core: Core, sandboxes: Sandboxes, layers: LayerReferences, archives: SnapshotArchives) -> None:
        self._core = core
        self._sandboxes = sandboxes
        self._layers = layers
        self._archives = archives

    # -- into a new sandbox -------------------------------------------------------------------------------------------

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
        spec = self._spec(source, snapshot, command)
        with self._sandboxes.about_to_be(request.owner, command.name) as sandbox_id:
            event = await self._planned(request, snapshot, sandbox_id, spec)
            with self._layers.held(*names_of(core, snapshot)):
                intent = await core.intend(NewEvent(sandbox_id, event, sandbox_id, 0), request.meta)
        failpoints.reach("restore.planned")
        prepare = partial(self.unpack, snapshot, event.provider, request.progress)
        self._sandboxes.begin(intent, command.secrets, prepare)
        return await self._sandboxes.answer_create(sandbox_id)

    def _spec(self, source: SandboxState | None, snapshot: SnapshotState, command: SnapshotRestore) -> SandboxSpec:
        """What the new sandbox is asked to be: as the one that the files were of."""
        if source is not None:
            return rules.like(source.spec, command.labels, command.env)
        provider = self._core.provider_of(snapshot)
        plain = SandboxSpec(disk_bytes=DISK_LIMIT(), network=provider.default_network())
        return rules.like(plain, command.labels, command.env)

    async def _planned(
        self, request: Request[SnapshotRestore], snapshot: SnapshotState, sandbox_id: str, spec: SandboxSpec
    ) -> events.SandboxCreateRequested:
        core, asked = self._core, snapshot.requested
        provider = core.provider_of(snapshot)
        files = await layering(provider).filled(names_of(core, snapshot), image_beneath(core, snapshot))
        image_id = asked.image_id or snapshot.snapshot_id
        plan = self._sandboxes.plan(provider, sandbox_id, image_id, spec, request.caller, request.owner)
        plan = layering(provider).layered(plan, files)
        name = self._sandboxes.give(sandbox_id, provider.name, plan)
        return events.SandboxCreateRequested(
            owner=request.owner,
            image_id=image_id,
            provider=provider.name,
            spec=spec,
            secrets=sorted(request.params.secrets),
            plan=plan,
            restored_from=snapshot.snapshot_id,
            needs_image=layering(provider).needs_image(files),
            name=name,
        )

    # -- over a sandbox's own files -----------------------------------------------------------------------------------

    async def restore_own(self, request: Request[SandboxRestore]) -> Sandbox:
        """Replace the files of a sandbox by those of a snapshot."""
        command, core = request.params, self._core
        sandbox = rules.sandbox(core.state, command.sandbox_id)
        snapshot = rules.ready_snapshot(core.state, command.snapshot_id or "")
        await self._sandboxes.adopted(sandbox.sandbox_id)
        provider = core.provider(sandbox.requested.provider)
        replacement = replacing(provider)
        rules.restore(sandbox, snapshot, command.secrets, end_processes=command.end_processes)
        beneath = image_beneath(core, snapshot)
        if beneath not in (None, sandbox.requested.image_id):
            words = f"snapshot_id: {snapshot.snapshot_id} is above another image than the sandbox's: make a full one"
            raise CallerError("invalid", words, field="snapshot_id")
        files = await layering(provider).filled(names_of(core, snapshot), beneath)
        event = events.SandboxRestoreRequested(
            snapshot_id=snapshot.snapshot_id,
            plan=replacement.replaced(sandbox.requested.plan, files),
            needs_image=layering(provider).needs_image(files),
        )
        with self._layers.held(*names_of(core, snapshot)):
            new = NewEvent(sandbox.sandbox_id, event, sandbox.sandbox_id, sandbox.revision)
            intent = await core.intend(new, request.meta)
        self._sandboxes.changing[sandbox.sandbox_id] = Pending()
        what = f"restore of {sandbox.sandbox_id}"
        core.carry(partial(self._carry, sandbox, snapshot, dict(command.secrets), intent, request.progress), what)
        return await self._sandboxes.answer_restore(sandbox)

    async def _carry(
        self,
        sandbox: SandboxState,
        snapshot: SnapshotState,
        secrets: dict[str, str],
        intent: Recorded,
        progress: Progress,
    ) -> None:
        core, sandbox_id = self._core, sandbox.sandbox_id
        old = sandbox.plans
        outcome: list[NewEvent] = []
        instance: Instance | None = None
        try:
            with self._sandboxes.carrying(sandbox_id):
                if sandbox.status == "restoring":  # its end was not ordered at that instant
                    instance, outcome = await self._replaced(sandbox, snapshot, secrets, progress)
        finally:
            secrets.clear()
        if not await self._sandboxes.record_restore(sandbox, outcome, intent):
            return
        if instance is not None:
            self._sandboxes.keep(instance)
            failpoints.reach("replace.recorded")
            await replacing(core.provider(sandbox.requested.provider)).drop_replaced(sandbox_id)
        await self._layers.drop_plans(sandbox.requested.provider, old)

    async def _replaced(
        self, sandbox: SandboxState, snapshot: SnapshotState, secrets: dict[str, str], progress: Progress
    ) -> tuple[Instance | None, list[NewEvent]]:
        """Unpack the snapshot, then end the sandbox and start it with those files; answer what to record."""
        sandbox_id, asked = sandbox.sandbox_id, sandbox.requested
        provider = replacing(self._core.provider(asked.provider))
        instance: Instance | None = None
        ended = False
        try:
            await self.unpack(snapshot, asked.provider, progress)
            failpoints.reach("restore.unpacked")
            old, new = sandbox.plans
            runtime, ended = await self._sandboxes.stop_keeping(sandbox_id), True
            instance = await provider.replace_files(
                sandbox_id, asked.image_id, sandbox.spec, secrets, (old, new), sandbox.handle
            )
            outcome: events.Event = events.SandboxRestored(
                snapshot_id=snapshot.snapshot_id, isolation=instance.isolation, handle=instance.handle
            )
        except Exception as unforeseen:  # noqa: BLE001  # an outcome is recorded whatever happened
            error = as_sandkeep_error(unforeseen)
            outcome = events.SandboxRestoreFailed(code=error.code, message=error.message, ended=ended)
        last_words = await self._sandboxes.words_of_killed(sandbox, runtime) if ended else []
        return instance, [*last_words, NewEvent(sandbox_id, outcome, sandbox_id)]

    async def restored_before(self, request: Request[Any], first: Recorded) -> Any:  # noqa: ARG002
        """The answer to a command that was given before."""
        sandbox = self._core.state.sandboxes[first.stream]
        change = sandbox.change
        if change is None or change.position != first.position:
            return await self._sandboxes.answer_earlier(first)
        await self._core.settled(first.stream, lambda: sandbox.status != "restoring")
        return ANEW if change.interrupted else await self._sandboxes.answer_restore(sandbox)

    # -- unpacking ----------------------------------------------------------------------------------------------------

    async def unpack(self, snapshot: SnapshotState, provider_name: str, progress: Progress) -> None:
        """Have the files of a snapshot, and of all that it builds on, be there for sandboxes to begin with."""
        provider = layering(self._core.provider(provider_name))
        for each in reversed(list(chain(self._core.state, snapshot))):
            async with self._layers.turn(each.snapshot_id):
                if not await provider.is_filled(each.snapshot_id):
                    await self._fill(provider, each, progress)

    async def _fill(self, provider: Layering, snapshot: SnapshotState, progress: Progress) -> None:
        async with self._archives.opened(snapshot, progress) as archive:
            failpoints.reach("restore.opened")
            await provider.fill(snapshot.snapshot_id, archive_of(self._core.state, snapshot, archive), progress)


def names_of(core: Core, snapshot: SnapshotState) -> list[str]:
    """Under which names the files of a snapshot are kept, each hiding parts of the next."""
    return [each.snapshot_id for each in chain(core.state, snapshot)]


def image_beneath(core: Core, snapshot: SnapshotState) -> str | None:
    """The image that a snapshot is above; None for one that is whole. Raises `snapshot_missing` without that image."""
    *_, lowest = chain(core.state, snapshot)
    if lowest.requested.kind == "full":
        return None
    assert lowest.requested.image_id is not None
    return lowest.requested.image_id


def replacing(provider: Provider) -> Replacing:
    """What replaces a sandbox's files. Raises `not_supported` where nothing does."""
    if provider.replacement is not None:
        return provider.replacement
    raise SetupError("not_supported", "its provider cannot replace the files of a sandbox yet: restore into a new one")
