"""Checkpoints: sandboxes kept with all that runs in them; made, listed, deleted, and brought back.

The life of one is that of a snapshot::

    create_requested -> stored -> delete_requested -> deleted
                     -> failed

A sandbox that does not go on is suspended with its checkpoint, and what it is brought back from by ``sandbox.resume``
is its own: it does not need the checkpoint any more.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import trio

from sandkeep import events, failpoints, ids
from sandkeep.errors import SandkeepError, SetupError
from sandkeep.model import Checkpoint, CheckpointList, CheckpointRestoreResult, Sandbox
from sandkeep.protocol.methods import (
    CheckpointCreate,
    CheckpointDelete,
    CheckpointQuery,
    CheckpointRef,
    CheckpointRestore,
    SandboxRestore,
)
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.checkpoints import CheckpointState
from sandkeep_store.views.processes import ProcessState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.snapshots import ForkState
from sandkeepd.checkpoints.files import CheckpointFiles, Had, remove_directory
from sandkeepd.contract.caller import Progress
from sandkeepd.contract.checkpoints import Checkpointing
from sandkeepd.contract.instance import Ending, Instance
from sandkeepd.contract.processes import Exit
from sandkeepd.contract.provider import Provider
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core, as_sandkeep_error
from sandkeepd.core.operation import Creation, Operation, Order, Removal
from sandkeepd.core.paging import page
from sandkeepd.sandboxes.batch import SandboxBatch
from sandkeepd.sandboxes.oom import KILLED
from sandkeepd.sandboxes.processes import Processes
from sandkeepd.sandboxes.sandboxes import Maker, Pending, Runtime, Sandboxes, start_in
from sandkeepd.snapshots.layers import LayerReferences

MANIFEST: Final = "processes.json"


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A process that runs in a checkpoint."""

    process_id: str
    requested: events.ProcessLaunchRequested


_manifest = msgspec.json.Decoder(list[Kept])


class AtHand(NamedTuple):
    """A checkpoint, its files, and what runs in it."""

    checkpoint: CheckpointState
    had: Had
    kept: Sequence[Kept]


class CheckpointCreation(Creation[CheckpointState]):
    """``checkpoint.create``: a provider saves a sandbox, which goes on or is suspended with that."""

    method = "checkpoint.create"
    interrupted = "the daemon stopped while it was being made: make it again"

    def __init__(self, core: Core, sandboxes: Sandboxes, files: CheckpointFiles, removal: "CheckpointRemoval") -> None:
        super().__init__(core)
        self._sandboxes = sandboxes
        self._files = files
        self._removal = removal

    @property
    def subjects(self) -> Mapping[str, CheckpointState]:
        """See `Operation.subjects`."""
        return self.core.state.checkpoints

    async def act(self, order: Order[CheckpointState]) -> Sequence[NewEvent]:
        """See `Operation.act`."""
        core, asked, sandbox_id = self.core, order.subject.requested, order.subject.sandbox_id
        sandbox = core.state.sandboxes[sandbox_id]
        suspends = not asked.leave_running and sandbox.status == "running"
        if suspends:
            suspend = events.SandboxSuspendRequested()
            await core.record([NewEvent(sandbox_id, suspend, sandbox_id, sandbox.revision)], order.intent)
        with self._sandboxes.reading(sandbox_id):
            stored = await self._store(sandbox, asked, order.progress)
        outcome = [NewEvent(order.stream, stored, sandbox_id)]
        if suspends and rules.may(sandbox, "sandbox.suspended"):
            outcome.append(NewEvent(sandbox_id, events.SandboxSuspended(), sandbox_id))
        return outcome

    async def _store(
        self, sandbox: SandboxState, asked: events.CheckpointCreateRequested, progress: Progress
    ) -> events.CheckpointStored:
        core, sandbox_id = self.core, sandbox.sandbox_id
        provider = checkpointing(core.provider(asked.provider))
        fence = partial(self._files.fence, sandbox_id, asked.owner)
        fence()  # a lock that was lost is told before anything is saved
        async with self._files.making(asked.place) as directory:
            await progress("saving the sandbox")
            active = list(sandbox.active.values())
            made = await provider.checkpoint(
                sandbox_id, directory, [process.process_id for process in active], leave_running=asked.leave_running
            )
            failpoints.reach("checkpoint.made")
            still = [process for process in active if not process.ended]
            await trio.to_thread.run_sync(_write_manifest, directory, still)
            files = await self._files.keep(directory, asked.place, made.digests, fence, progress)
        return events.CheckpointStored(files=files, processes=len(still), pause_ms=made.pause_ms)

    async def failed(self, order: Order[CheckpointState], error: SandkeepError) -> Sequence[NewEvent]:
        """See `Operation.failed`. The sandbox is what it was, unless it has ended, of which others tell."""
        outcome = [*self.failure(order.subject, error, interrupted=False)]
        sandbox = self.core.state.sandboxes[order.subject.sandbox_id]
        if sandbox.status == "suspending":
            await self._go_on(sandbox)
            runtime = self._sandboxes.runtimes.get(sandbox.sandbox_id)
            pauses = runtime.instance.pauses if runtime is not None else None
            if pauses is not None and pauses.is_paused() and rules.may(sandbox, "sandbox.suspended"):
                outcome.append(NewEvent(sandbox.sandbox_id, events.SandboxSuspended(), sandbox.sandbox_id))
            elif rules.may(sandbox, "sandbox.suspend_failed"):
                kept = events.SandboxSuspendFailed(code=error.code, message=error.message)
                outcome.append(NewEvent(sandbox.sandbox_id, kept, sandbox.sandbox_id))
        return outcome

    async def _go_on(self, sandbox: SandboxState) -> None:
        """What was suspended for a checkpoint that failed afterwards is not to stay so."""
        runtime = self._sandboxes.runtimes.get(sandbox.sandbox_id)
        pauses = runtime.instance.pauses if runtime is not None else None
        if pauses is not None:
            try:
                await pauses.resume()
            except Exception as unforeseen:  # noqa: BLE001  # it stays suspended then, which is seen
                as_sandkeep_error(unforeseen)

    def failure(self, subject: CheckpointState, error: SandkeepError, *, interrupted: bool) -> Sequence[NewEvent]:
        """See `Creation.failure`."""
        failed = events.CheckpointFailed(code=error.code, message=error.message, interrupted=interrupted)
        return [NewEvent(subject.checkpoint_id, failed, subject.sandbox_id)]

    def told(self, subject: CheckpointState) -> dict[str, Any]:
        """See `Creation.told`."""
        return {"checkpoint_id": subject.checkpoint_id}

    async def undo(self, order: Order[CheckpointState]) -> None:
        """See `Creation.undo`."""
        await self._removal.clear(order.subject)

    async def answered(self, request: Request[Any], subject: CheckpointState) -> Checkpoint:  # noqa: ARG002
        """See `Operation.answered`."""
        return subject.view()


class CheckpointRemoval(Removal[CheckpointState]):
    """``checkpoint.delete``: with it go the kept files that only it needed."""

    method = "checkpoint.delete"
    under_way = "deleting"

    def __init__(self, core: Core, layers: LayerReferences, files: CheckpointFiles) -> None:
        super().__init__(core)
        self._layers = layers
        self._files = files

    @property
    def subjects(self) -> Mapping[str, CheckpointState]:
        """See `Operation.subjects`."""
        return self.core.state.checkpoints

    async def act(self, order: Order[CheckpointState]) -> Sequence[NewEvent]:
        """See `Operation.act`."""
        await self.clear(order.subject)
        failpoints.reach("checkpoint.removed")
        return [NewEvent(order.stream, events.CheckpointDeleted(), order.subject.sandbox_id)]

    async def recorded(self, order: Order[CheckpointState], facts: Sequence[Recorded]) -> None:  # noqa: ARG002
        """See `Operation.recorded`."""
        await self._layers.release_checkpoint(order.subject)

    async def clear(self, checkpoint: CheckpointState) -> None:
        """Remove all that there is of it besides its record, however often that takes."""
        checkpoint_id = checkpoint.checkpoint_id
        files = checkpoint.stored.files if checkpoint.stored is not None else []
        then = f"the end of checkpoint {checkpoint_id} is ordered, and will be carried out when that answers"
        await self.insist(checkpoint_id, partial(self._files.remove, checkpoint.requested.place, files), then)

    async def answered(self, request: Request[Any], subject: CheckpointState) -> Checkpoint:  # noqa: ARG002
        """See `Operation.answered`."""
        return subject.view()


class CheckpointRestoration(SandboxBatch):
    """``checkpoint.restore``: sandboxes of a checkpoint, in which all goes on that ran."""

    method = "checkpoint.restore"
    interrupted = "the daemon stopped while the checkpoint was being restored: restore it again"

    def __init__(self, core: Core, sandboxes: Sandboxes, processes: Processes, files: CheckpointFiles) -> None:
        super().__init__(core, sandboxes)
        self._processes = processes
        self._files = files

    def owns(self, subject: ForkState) -> bool:
        """See `Operation.owns`."""
        return subject.checkpoint_id is not None

    async def act(self, order: Order[ForkState]) -> Sequence[NewEvent]:
        """See `Operation.act`."""
        request, batch = order.request, order.subject
        assert request is not None
        checkpoint = self.core.state.checkpoints[batch.checkpoint_id or ""]
        order.context = await order.resources.enter_async_context(self._at_hand(checkpoint, order.progress))
        created = [self._created(request, checkpoint, one) for one in batch.sandbox_ids]
        return [NewEvent(order.stream, events.CheckpointRestored(), checkpoint.sandbox_id), *created]

    @asynccontextmanager
    async def _at_hand(self, checkpoint: CheckpointState, progress: Progress) -> AsyncIterator[AtHand]:
        """A checkpoint and what runs in it, for the length of a block."""
        assert checkpoint.stored is not None
        async with self._files.had(checkpoint.requested.place, checkpoint.stored.files, progress) as had:
            yield AtHand(checkpoint, had, await trio.to_thread.run_sync(_read_manifest, had.directory))

    def _created(self, request: Request[CheckpointRestore], checkpoint: CheckpointState, sandbox_id: str) -> NewEvent:
        """The intent to make one of them; from here on its plan is known to those that follow."""
        asked = checkpoint.requested
        provider = self.core.provider(asked.provider)
        spec = rules.like(asked.spec, request.params.labels)
        planned = self._sandboxes.plan(provider, sandbox_id, asked.image_id, spec, request.caller, checkpoint.owner)
        plan = checkpointing(provider).plan_like(asked.plan, planned)
        name = self._sandboxes.give(sandbox_id, provider.name, plan)
        event = events.SandboxCreateRequested(
            owner=checkpoint.owner,
            image_id=asked.image_id,
            provider=provider.name,
            spec=spec,
            secrets=asked.secrets,
            plan=plan,
            forked_from=checkpoint.sandbox_id,
            restored_from=checkpoint.checkpoint_id,
            needs_image=asked.needs_image,
            name=name,
        )
        return NewEvent(sandbox_id, event, sandbox_id, 0)

    async def recorded(self, order: Order[ForkState], facts: Sequence[Recorded]) -> None:
        """See `Operation.recorded`."""
        if order.subject.error is None:
            for intent in facts[1:]:
                self._begin(intent, order.context)
            await _checked(order.context, order.progress)

    def _begin(self, intent: Recorded, at_hand: AtHand) -> None:
        self._sandboxes.begin(intent, {}, maker=_FromCheckpoint(self._processes, self.core, at_hand))

    def failure(self, subject: ForkState, error: SandkeepError, *, interrupted: bool) -> Sequence[NewEvent]:
        """See `Creation.failure`."""
        failed = events.CheckpointRestoreFailed(code=error.code, message=error.message, interrupted=interrupted)
        return [NewEvent(subject.fork_id, failed, subject.sandbox_id)]

    def told(self, subject: ForkState) -> dict[str, Any]:
        """See `Creation.told`."""
        return {"checkpoint_id": subject.checkpoint_id}

    async def answered(self, request: Request[Any], subject: ForkState) -> CheckpointRestoreResult:  # noqa: ARG002
        """See `Operation.answered`. Raises what the first sandbox failed with that was not made."""
        made = [await self._sandboxes.answer_create(sandbox_id) for sandbox_id in subject.sandbox_ids]
        assert subject.checkpoint_id is not None
        return CheckpointRestoreResult(checkpoint_id=subject.checkpoint_id, sandboxes=made)

    async def make_again(self, request: Request[Any], batch: ForkState, sandbox_ids: Sequence[str]) -> None:
        """See `SandboxBatch.make_again`."""
        checkpoint = rules.ready_checkpoint(self.core.state, batch.checkpoint_id or "")
        async with self._at_hand(checkpoint, request.progress) as at_hand:
            for sandbox_id in sandbox_ids:
                self._begin(await self._sandboxes.intend_again(sandbox_id), at_hand)
            await _checked(at_hand, request.progress)


class Checkpoints:
    """The handlers of ``checkpoint.*``, and of ``sandbox.restore`` for checkpoints."""

    def __init__(
        self, core: Core, sandboxes: Sandboxes, processes: Processes, layers: LayerReferences, files: CheckpointFiles
    ) -> None:
        self._core = core
        self._sandboxes = sandboxes
        self._processes = processes
        self._layers = layers
        self.files = files
        self._removal = CheckpointRemoval(core, layers, files)
        self._creation = CheckpointCreation(core, sandboxes, files, self._removal)
        self.restoration = CheckpointRestoration(core, sandboxes, processes, files)
        self.operations: Sequence[Operation[Any]] = (self._creation, self._removal, self.restoration)

    # -- making -------------------------------------------------------------------------------------------------------

    async def create(self, request: Request[CheckpointCreate]) -> Checkpoint:
        """Keep a sandbox with all that runs in it."""
        command, core = request.params, self._core
        sandbox = rules.sandbox(core.state, command.sandbox_id)
        await self._sandboxes.adopted(sandbox.sandbox_id)
        provider = checkpointing(core.provider(sandbox.requested.provider))
        why = provider.why_no_checkpoint(sandbox.requested.plan)
        if why is not None:
            raise SetupError("not_supported", why)
        checkpoint_id = ids.new_id(ids.CHECKPOINT)
        place = self.files.place(checkpoint_id, bucket=command.archive == "bucket")
        facts = await trio.to_thread.run_sync(provider.facts)
        event = rules.create_checkpoint(sandbox, command, place, facts)
        await self._sandboxes.held(sandbox)
        made: Checkpoint = await self._creation.run(NewEvent(checkpoint_id, event, sandbox.sandbox_id, 0), request)
        return made

    async def sweep(self, abandoned: Sequence[str]) -> None:
        """Remove what earlier daemons had copied of checkpoints."""
        for directory in abandoned:
            await trio.to_thread.run_sync(remove_directory, directory)

    async def delete(self, request: Request[CheckpointDelete]) -> Checkpoint:
        """Delete a checkpoint. One that is deleted is answered as it is."""
        checkpoint = rules.checkpoint(self._core.state, request.params.checkpoint_id)
        if checkpoint.status == "creating":
            raise rules.checkpoint_not_ready(checkpoint)
        event = events.CheckpointDeleteRequested()
        await self._removal.order(checkpoint.checkpoint_id, event, checkpoint.sandbox_id, request.meta)
        deleted: Checkpoint = await self._removal.answer(request, checkpoint.checkpoint_id)
        return deleted

    # -- into new sandboxes -------------------------------------------------------------------------------------------

    async def restore(self, request: Request[CheckpointRestore]) -> CheckpointRestoreResult:
        """Make sandboxes of a checkpoint, in which all goes on that ran."""
        command, core = request.params, self._core
        checkpoint = rules.ready_checkpoint(core.state, command.checkpoint_id)
        await self._require_here(checkpoint)
        rules.like(checkpoint.requested.spec, command.labels)

        def intent(sandbox_ids: list[str]) -> NewEvent:
            event = events.CheckpointRestoreRequested(
                owner=checkpoint.owner,
                checkpoint_id=checkpoint.checkpoint_id,
                sandbox_ids=sandbox_ids,
                names=command.names,
            )
            return NewEvent(ids.new_id(ids.FORK), event, checkpoint.sandbox_id, 0)

        restored: CheckpointRestoreResult = await self.restoration.run_batch(
            checkpoint.owner, command.names, command.count, intent, request
        )
        return restored

    async def _require_here(self, checkpoint: CheckpointState) -> Checkpointing:
        """Raise `not_supported` for a checkpoint that cannot be brought back on this machine."""
        asked = checkpoint.requested
        provider = checkpointing(self._core.provider(asked.provider))
        why = await trio.to_thread.run_sync(provider.why_not_here, asked.facts)
        if why is not None:
            words = f"checkpoint {checkpoint.checkpoint_id} cannot be brought back here: {why}"
            raise SetupError("not_supported", words, checkpoint_id=checkpoint.checkpoint_id)
        return provider

    # -- into the same sandbox ----------------------------------------------------------------------------------------

    async def return_to(self, request: Request[SandboxRestore]) -> Sandbox:
        """Have a sandbox be what it was at a checkpoint of it."""
        command, core = request.params, self._core
        assert command.checkpoint_id is not None
        sandbox = rules.sandbox(core.state, command.sandbox_id)
        checkpoint = rules.ready_checkpoint(core.state, command.checkpoint_id)
        await self._sandboxes.adopted(sandbox.sandbox_id)
        rules.return_to(sandbox, checkpoint)
        provider = await self._require_here(checkpoint)
        event = events.SandboxRestoreRequested(
            checkpoint_id=checkpoint.checkpoint_id,
            plan=provider.plan_like(checkpoint.requested.plan, sandbox.requested.plan),
            needs_image=checkpoint.requested.needs_image,
        )
        new = NewEvent(sandbox.sandbox_id, event, sandbox.sandbox_id, sandbox.revision)
        intent = await core.intend(new, request.meta)
        self._sandboxes.changing[sandbox.sandbox_id] = Pending()
        carrier = partial(self._carry_return, sandbox, checkpoint, intent, request.progress)
        core.carry(carrier, f"restore of {sandbox.sandbox_id}")
        return await self._sandboxes.answer_restore(sandbox)

    async def _carry_return(
        self, sandbox: SandboxState, checkpoint: CheckpointState, intent: Recorded, progress: Progress
    ) -> None:
        core, sandbox_id = self._core, sandbox.sandbox_id
        old = sandbox.plans
        outcome: list[NewEvent] = []
        back: list[str] = []
        instance: Instance | None = None
        with self._sandboxes.carrying(sandbox_id):
            if sandbox.status == "restoring":  # its end was not ordered at that instant
                instance, outcome, back = await self._returned(sandbox, checkpoint, progress)
        if not await self._sandboxes.record_restore(sandbox, outcome, intent):
            return
        if instance is not None:
            self._look_after(self._sandboxes.keep(instance), back)
            failpoints.reach("replace.recorded")
        replacement = core.provider(sandbox.requested.provider).replacement
        if replacement is not None and any(isinstance(new.event, events.SandboxRestored) for new in outcome):
            await replacement.drop_replaced(sandbox_id)
        await self._layers.drop_plans(sandbox.requested.provider, old)

    async def _returned(
        self, sandbox: SandboxState, checkpoint: CheckpointState, progress: Progress
    ) -> tuple[Instance | None, list[NewEvent], list[str]]:
        """Bring it back; answer what runs, what to record, and which processes go on."""
        sandbox_id, asked = sandbox.sandbox_id, sandbox.requested
        provider = checkpointing(self._core.provider(asked.provider))
        assert checkpoint.stored is not None
        runtime: Runtime | None = None
        instance: Instance | None = None
        ended: list[NewEvent] = []
        try:
            async with self.files.had(checkpoint.requested.place, checkpoint.stored.files, progress) as had:
                await had.check(progress)
                kept = await trio.to_thread.run_sync(_read_manifest, had.directory)
                old, new = sandbox.plans
                runtime = await self._sandboxes.stop_keeping(sandbox_id)
                failpoints.reach("checkpoint.returning")
                ended = self._sandboxes.last_words(sandbox, _exit_of(runtime), KILLED)
                instance = await provider.return_to(
                    sandbox_id, asked.image_id, sandbox.spec, (old, new), sandbox.handle, had.directory
                )
                back = await _found(instance, checkpoint, [(one.process_id, one) for one in kept])
        except Exception as unforeseen:  # noqa: BLE001  # an outcome is recorded whatever happened
            error = as_sandkeep_error(unforeseen)
            same = runtime.instance if runtime is not None else None  # it goes on, or its end is told in a moment
            gone = False
            if instance is not None:
                same = await self._undo_return(sandbox, instance)
                gone = same is None
            failed = events.SandboxRestoreFailed(code=error.code, message=error.message, ended=gone)
            words = ended if gone else []
            return same, [*words, NewEvent(sandbox_id, failed, sandbox_id)], list(sandbox.active)
        restored = events.SandboxRestored(
            checkpoint_id=checkpoint.checkpoint_id, isolation=instance.isolation, handle=instance.handle
        )
        names = [event.stream for event in back]
        outcome = [*(word for word in ended if word.stream not in names), *back]
        return instance, [*outcome, NewEvent(sandbox_id, restored, sandbox_id)], names

    async def _undo_return(self, sandbox: SandboxState, instance: Instance) -> Instance | None:
        """Have what was brought back, and does not answer, be what it was before; None: nothing of it runs any more."""
        asked = sandbox.requested
        provider = self._core.provider(asked.provider)
        assert provider.replacement is not None
        assert sandbox.isolation is not None
        try:
            await instance.aclose()
            if await provider.replacement.put_back(sandbox.sandbox_id, asked.plan, sandbox.handle):
                return None
            spec, isolation, handle = asked.spec, sandbox.isolation, sandbox.handle
            found = await provider.adopt(sandbox.sandbox_id, spec, asked.plan, isolation, handle)
            return None if isinstance(found, Ending) else found
        except Exception as unforeseen:  # noqa: BLE001  # what it was stays aside
            as_sandkeep_error(unforeseen)
            return None

    def _look_after(self, runtime: Runtime, process_ids: Sequence[str]) -> None:
        look_after(self._core, self._processes, runtime, process_ids)

    # -- reading ------------------------------------------------------------------------------------------------------

    def get_now(self, request: Request[CheckpointRef]) -> Checkpoint:
        """Show a checkpoint."""
        return rules.checkpoint(self._core.state, request.params.checkpoint_id).view()

    def list_now(self, request: Request[CheckpointQuery]) -> CheckpointList:
        """List the caller's checkpoints; an administrator sees all."""
        query = request.params
        mine = (c for c in self._core.state.checkpoints.values() if request.sees(c.owner) and _matches(c, query))
        found, following = page(mine, lambda checkpoint: checkpoint.checkpoint_id, query.after, query.limit)
        return CheckpointList(checkpoints=[checkpoint.view() for checkpoint in found], next=following)


async def _checked(at_hand: AtHand, progress: Progress) -> None:
    """Verify what was not yet; those that are made of it tell what is wrong."""
    with suppress(SandkeepError):
        await at_hand.had.check(progress)


class _FromCheckpoint(Maker):
    """Makes one sandbox of a checkpoint that is at hand. Processes get ids of their own in it."""

    def __init__(self, processes: Processes, core: Core, at_hand: AtHand) -> None:
        self._processes = processes
        self._core = core
        self._checkpoint, self._had, self._kept = at_hand
        self._found: list[NewEvent] = []
        self._had.hold()

    async def make(self, provider: Provider, sandbox: SandboxState, secrets: object) -> Instance:  # noqa: ARG002
        """See `Maker.make`. Secrets are in what is brought back."""
        able, asked, sandbox_id = checkpointing(provider), sandbox.requested, sandbox.sandbox_id
        instance = await able.create_saved(
            sandbox_id, asked.image_id, asked.spec, asked.plan, asked.secrets, self._had.directory
        )
        try:
            await self._had.checked()
            named = [(ids.new_id(ids.PROCESS), one) for one in self._kept]
            for process_id, one in named:
                await able.rename(sandbox_id, one.process_id, process_id)
            self._found = await _found(instance, self._checkpoint, named, sandbox_id)
            failpoints.reach("checkpoint.named")
        except BaseException:
            with trio.CancelScope(shield=True):
                await provider.terminate(sandbox_id, asked.plan, instance.handle)
            raise
        return instance

    def found(self) -> list[NewEvent]:
        """See `Maker.found`."""
        return self._found

    def begun(self, runtime: Runtime) -> None:
        """See `Maker.begun`."""
        look_after(self._core, self._processes, runtime, [event.stream for event in self._found])

    def done(self) -> None:
        """See `Maker.done`."""
        self._had.let_go()


def _exit_of(runtime: Runtime | None) -> Callable[[str], Exit | None]:
    return runtime.instance.exit_of if runtime is not None else lambda _: None


def look_after(core: Core, processes: Processes, runtime: Runtime, process_ids: Sequence[str]) -> None:
    """Start the carriers of processes that were brought back, once there is a nursery for them."""

    async def begin() -> None:
        await runtime.opened()
        for process_id in process_ids:
            process = core.state.processes.get(process_id)
            if process is not None:
                carrier = partial(processes.supervisor.adopt, runtime, process, trio.Event())
                start_in(runtime, carrier, core, f"process {process_id}")

    core.carry(begin, f"processes of {runtime.instance.sandbox_id}")


async def _found(
    instance: Instance,
    checkpoint: CheckpointState,
    named: Sequence[tuple[str, Kept]],
    sandbox_id: str | None = None,
) -> list[NewEvent]:
    """What is to be recorded of processes that go on; one that ended in that instant is left out."""
    found = []
    for process_id, one in named:
        pid = await instance.find(process_id)
        if pid is None:
            continue
        requested = one.requested
        if sandbox_id is not None:
            requested = msgspec.structs.replace(requested, sandbox_id=sandbox_id)
        event = events.ProcessRestored(
            checkpoint_id=checkpoint.checkpoint_id, restored_from=one.process_id, requested=requested, pid=pid
        )
        found.append(NewEvent(process_id, event, sandbox_id or requested.sandbox_id))
    return found


def _write_manifest(directory: str, running: Sequence[ProcessState]) -> None:
    kept = [Kept(process_id=process.process_id, requested=process.requested) for process in running]
    with open(f"{directory}/{MANIFEST}", "wb") as file:
        file.write(msgspec.json.encode(kept))


def _read_manifest(directory: str) -> list[Kept]:
    with open(f"{directory}/{MANIFEST}", "rb") as file:
        return _manifest.decode(file.read())


def _matches(checkpoint: CheckpointState, query: CheckpointQuery) -> bool:
    asked = checkpoint.requested
    return (
        (query.all or not checkpoint.ended)
        and query.sandbox_id in (None, asked.sandbox_id)
        and query.name in (None, asked.name)
        and query.labels.items() <= asked.labels.items()
    )


def checkpointing(provider: Provider) -> Checkpointing:
    """What makes checkpoints. Raises `not_supported` where nothing does."""
    if provider.checkpoints is not None:
        return provider.checkpoints
    words = f"the {provider.name} provider cannot keep what runs: make a snapshot, or use the gvisor provider"
    raise SetupError("not_supported", words)
