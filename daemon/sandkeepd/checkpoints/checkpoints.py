"""Checkpoints: sandboxes saved with all their processes; made, listed, deleted, and restored.

A sandbox that is suspended with its checkpoint has a copy of its own, from which ``sandbox.resume`` restores it: it
does not need the checkpoint any more.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from sandkeep import events, failpoints, ids
from sandkeep.errors import SandkeepError, SetupError, StateError
from sandkeep.model import Checkpoint, CheckpointList, CheckpointRestoreResult
from sandkeep.protocol.methods import (
    CheckpointCreate,
    CheckpointDelete,
    CheckpointQuery,
    CheckpointRef,
    CheckpointRestore,
)
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.threads import in_thread
from sandkeep_store.views.checkpoints import CheckpointState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.checkpoints.files import CheckpointFiles, remove_directory
from sandkeepd.checkpoints.manifest import write_manifest
from sandkeepd.checkpoints.restoration import CheckpointRestoration, CheckpointReturn, checkpointing, require_here
from sandkeepd.contract.caller import Progress
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Creation, Operation, Order, Removal
from sandkeepd.core.paging import page
from sandkeepd.sandboxes.processes import Processes
from sandkeepd.sandboxes.runtimes import Runtimes
from sandkeepd.sandboxes.sandboxes import Sandboxes
from sandkeepd.snapshots.layers import LayerReferences
from sandkeepd.snapshots.snapshots import matches


class CheckpointCreation(Creation[CheckpointState, Checkpoint]):
    """``checkpoint.create``: a provider saves a sandbox, which goes on or is suspended with that."""

    method = "checkpoint.create"
    view = "checkpoints"
    named = "checkpoint_id"
    failure = events.CheckpointFailed
    interrupted = "the daemon stopped while it was being made: make it again"

    def __init__(self, core: Core, runtimes: Runtimes, files: CheckpointFiles, removal: "CheckpointRemoval") -> None:
        super().__init__(core)
        self._runtimes = runtimes
        self._files = files
        self._removal = removal

    async def act(self, order: Order[CheckpointState]) -> Sequence[NewEvent]:
        core, asked, sandbox_id = self.core, order.subject.requested, order.subject.sandbox_id
        sandbox = core.state.sandboxes[sandbox_id]
        suspends = not asked.leave_running and sandbox.status == "running"
        if suspends:
            suspend = events.SandboxSuspendRequested()
            await core.record([NewEvent(sandbox_id, suspend, sandbox_id, sandbox.revision)], order.intent)
        with self._runtimes.reading(sandbox_id):
            stored = await self._store(sandbox, asked, order.progress)
        try:
            self.charge(order, asked.owner, "checkpoints", sum(file.size_bytes for file in stored.files))
        except StateError:
            await self._removal.clear(order.subject)
            raise
        outcome = [NewEvent(order.stream, stored, sandbox_id)]
        if suspends and rules.may(sandbox, "sandbox.suspended"):
            outcome.append(NewEvent(sandbox_id, events.SandboxSuspended(), sandbox_id))
        return outcome

    async def _store(
        self, sandbox: SandboxState, asked: events.CheckpointCreateRequested, progress: Progress
    ) -> events.CheckpointStored:
        core, sandbox_id = self.core, sandbox.sandbox_id
        provider = checkpointing(core.provider(asked.provider))
        fence = partial(self._files.archives.fence, sandbox_id, asked.owner)
        fence()  # a lock that was lost is told before anything is saved
        async with self._files.making(asked.place) as directory:
            await progress("saving the sandbox")
            active = list(sandbox.active.values())
            made = await provider.checkpoint(
                sandbox_id, directory, [process.process_id for process in active], leave_running=asked.leave_running
            )
            failpoints.reach("checkpoint.made")
            still = [process for process in active if not process.ended]
            await in_thread(write_manifest, directory, still)
            files = await self._files.keep(directory, asked.place, made.digests, fence, progress)
        return events.CheckpointStored(files=files, processes=len(still), pause_ms=made.pause_ms)

    async def failed(self, order: Order[CheckpointState], error: SandkeepError) -> Sequence[NewEvent]:
        """See `Operation.failed`. The sandbox keeps its old status, unless it has ended, which another task records."""
        outcome = [*await super().failed(order, error)]
        sandbox = self.core.state.sandboxes[order.subject.sandbox_id]
        if sandbox.status == "suspending":
            runtime = self._runtimes.by_id.get(sandbox.sandbox_id)
            pauses = runtime.instance.pauses if runtime is not None else None
            if pauses is not None and pauses.is_paused() and rules.may(sandbox, "sandbox.suspended"):
                outcome.append(NewEvent(sandbox.sandbox_id, events.SandboxSuspended(), sandbox.sandbox_id))
            elif rules.may(sandbox, "sandbox.suspend_failed"):
                kept = events.SandboxSuspendFailed(code=error.code, message=error.message)
                outcome.append(NewEvent(sandbox.sandbox_id, kept, sandbox.sandbox_id))
        return outcome

    async def roll_back(self, order: Order[CheckpointState]) -> None:
        """See `Operation.roll_back`. Resumes a sandbox that was suspended for the checkpoint; it may stay suspended."""
        sandbox = self.core.state.sandboxes[order.subject.sandbox_id]
        runtime = self._runtimes.by_id.get(sandbox.sandbox_id)
        if sandbox.status == "suspending" and runtime is not None and runtime.instance.pauses is not None:
            await runtime.instance.pauses.resume()

    async def undo(self, order: Order[CheckpointState]) -> None:
        await self._removal.clear(order.subject)

    async def answered(self, request: Request[Any], subject: CheckpointState) -> Checkpoint:  # noqa: ARG002
        if subject.requested.spec.shared is not None:
            await self._files.archives.publish(subject.sandbox_id)
        return subject.view()


class CheckpointRemoval(Removal[CheckpointState, Checkpoint]):
    """``checkpoint.delete``: with it go the kept files that only it needed."""

    method = "checkpoint.delete"
    view = "checkpoints"
    under_way = "deleting"

    def __init__(self, core: Core, layers: LayerReferences, files: CheckpointFiles) -> None:
        super().__init__(core)
        self._layers = layers
        self._files = files

    async def act(self, order: Order[CheckpointState]) -> Sequence[NewEvent]:
        await self.clear(order.subject)
        failpoints.reach("checkpoint.removed")
        return [NewEvent(order.stream, events.CheckpointDeleted(), order.subject.sandbox_id)]

    async def recorded(self, order: Order[CheckpointState], facts: Sequence[Recorded]) -> None:  # noqa: ARG002
        await self._layers.drop_plans(order.subject.requested.provider, [order.subject.requested.plan])

    async def clear(self, checkpoint: CheckpointState) -> None:
        """Remove all that there is of it besides its record, however often that takes."""
        checkpoint_id, asked = checkpoint.checkpoint_id, checkpoint.requested
        files = checkpoint.stored.files if checkpoint.stored is not None else []
        then = f"the removal of checkpoint {checkpoint_id} is on record, and will be carried out when it answers"

        async def remove() -> None:
            provider = self.core.providers.get(asked.provider)
            if provider is not None and provider.checkpoints is not None:
                await provider.checkpoints.discard(checkpoint_id)
            await self._files.remove(asked.place, files)

        await self.insist(checkpoint_id, remove, then, asked.provider)


class Checkpoints:
    """The handlers of ``checkpoint.*``."""

    def __init__(
        self, core: Core, sandboxes: Sandboxes, processes: Processes, layers: LayerReferences, files: CheckpointFiles
    ) -> None:
        self._core = core
        self._runtimes = sandboxes.runtimes
        self.files = files
        self._removal = CheckpointRemoval(core, layers, files)
        self._creation = CheckpointCreation(core, sandboxes.runtimes, files, self._removal)
        self.restoration = CheckpointRestoration(core, sandboxes, processes, files)
        self.returning = CheckpointReturn(core, sandboxes, processes, layers, files)
        self.operations: Sequence[Operation[Any, Any]] = (
            self._creation, self._removal, self.restoration, self.returning
        )  # fmt: skip

    # -- making -------------------------------------------------------------------------------------------------------

    async def create(self, request: Request[CheckpointCreate]) -> Checkpoint:
        """Keep a sandbox with all that runs in it."""
        command, core = request.params, self._core
        sandbox = rules.sandbox(core.state, command.sandbox_id)
        await self._runtimes.adopted(sandbox.sandbox_id)
        provider = checkpointing(core.provider(sandbox.requested.provider))
        why = provider.why_no_checkpoint(sandbox.requested.plan)
        if why is not None:
            raise SetupError("not_supported", why)
        checkpoint_id = ids.new_id(ids.CHECKPOINT)
        bucket = command.archive == "bucket" or sandbox.spec.shared is not None
        place = self.files.place(checkpoint_id, bucket=bucket)
        facts = await in_thread(provider.facts)
        core.quotas.require(request, sandbox.owner, "checkpoints")
        event = rules.create_checkpoint(sandbox, command, place, facts)
        await self._runtimes.standing(sandbox)
        return await self._creation.run(NewEvent(checkpoint_id, event, sandbox.sandbox_id, 0), request)

    async def sweep(self, abandoned: Sequence[str]) -> None:
        """Remove copies of checkpoints that earlier daemons left."""
        for directory in abandoned:
            await in_thread(remove_directory, directory)

    async def delete(self, request: Request[CheckpointDelete]) -> Checkpoint:
        """Delete a checkpoint. One that is deleted is answered as it is."""
        checkpoint = rules.checkpoint(self._core.state, request.params.checkpoint_id)
        if checkpoint.status == "creating":
            rules.require_ready(checkpoint, "checkpoint", checkpoint.checkpoint_id)
        event = events.CheckpointDeleteRequested()
        await self._removal.order(checkpoint.checkpoint_id, event, checkpoint.sandbox_id, request.meta)
        return await self._removal.answer(request, checkpoint.checkpoint_id)

    # -- into new sandboxes -------------------------------------------------------------------------------------------

    async def restore(self, request: Request[CheckpointRestore]) -> CheckpointRestoreResult:
        """Make sandboxes of a checkpoint, in which all goes on that ran."""
        command, core = request.params, self._core
        checkpoint = rules.ready_checkpoint(core.state, command.checkpoint_id)
        await require_here(core, checkpoint)
        spec = rules.like(rules.asked_spec(checkpoint.requested), command.labels)

        def intent(sandbox_ids: list[str]) -> NewEvent:
            event = events.CheckpointRestoreRequested(
                owner=checkpoint.owner,
                checkpoint_id=checkpoint.checkpoint_id,
                sandbox_ids=sandbox_ids,
                names=command.names,
            )
            return NewEvent(ids.new_id(ids.FORK), event, checkpoint.sandbox_id, 0)

        return await self.restoration.run_batch(checkpoint.owner, command.names, command.count, intent, request, spec)

    # -- reading ------------------------------------------------------------------------------------------------------

    def get_now(self, request: Request[CheckpointRef]) -> Checkpoint:
        """Show a checkpoint."""
        return rules.checkpoint(self._core.state, request.params.checkpoint_id).view()

    def list_now(self, request: Request[CheckpointQuery]) -> CheckpointList:
        """List the caller's checkpoints; an administrator sees all."""
        query = request.params
        mine = (c for c in self._core.state.checkpoints.values() if request.sees(c.owner) and matches(c, query))
        found, following = page(mine, lambda checkpoint: checkpoint.checkpoint_id, query.after, query.limit)
        return CheckpointList(checkpoints=[checkpoint.view() for checkpoint in found], next=following)
