"""Checkpoints: sandboxes kept with all that runs in them; made, listed, deleted, and brought back.

The life of one is that of a snapshot::

    create_requested -> stored -> delete_requested -> deleted
                     -> failed

A sandbox that does not go on is suspended with its checkpoint, and what it is brought back from by ``sandbox.resume``
is its own: it does not need the checkpoint any more.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec
import trio

from sandkeep import events, failpoints, ids
from sandkeep.errors import SandkeepError, SetupError, StateError, error_from
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
from sandkeepd.checkpoints.files import CheckpointFiles, Had, remove_directory
from sandkeepd.contract.provider import Checkpointing, Ending, Exit, Instance, Pausing, Progress, Provider, Replacing
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import ANEW, Core, Tries, as_sandkeep_error
from sandkeepd.core.paging import page
from sandkeepd.core.retry import retry_until_done
from sandkeepd.sandboxes.oom import KILLED
from sandkeepd.sandboxes.processes import Processes
from sandkeepd.sandboxes.sandboxes import Maker, Pending, Runtime, Sandboxes, start_in
from sandkeepd.snapshots.layers import LayerReferences

INTERRUPTED: Final = "the daemon stopped while it was being made: make it again"
MANIFEST: Final = "processes.json"


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A process that runs in a checkpoint."""

    process_id: str
    requested: events.ProcessLaunchRequested


_manifest = msgspec.json.Decoder(list[Kept])


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
        intent = await core.intend(NewEvent(checkpoint_id, event, sandbox.sandbox_id, 0), request.meta)
        failpoints.reach("checkpoint.planned")
        carrier = partial(self._carry, checkpoint_id, sandbox, intent, request.progress)
        core.carry(carrier, f"checkpoint {checkpoint_id}")
        return await self.answer_create(checkpoint_id)

    async def _carry(self, checkpoint_id: str, sandbox: SandboxState, intent: Recorded, progress: Progress) -> None:
        core, sandbox_id = self._core, sandbox.sandbox_id
        asked = core.state.checkpoints[checkpoint_id].requested
        suspends = not asked.leave_running and sandbox.status == "running"
        try:
            if suspends:
                order = events.SandboxSuspendRequested()
                await core.record([NewEvent(sandbox_id, order, sandbox_id, sandbox.revision)], intent)
            with self._sandboxes.reading(sandbox_id):
                stored = await self._store(sandbox, asked, progress)
        except Exception as unforeseen:  # noqa: BLE001  # an outcome is recorded whatever happened
            await self._failed(checkpoint_id, sandbox, unforeseen, intent)
            return
        outcome = [NewEvent(checkpoint_id, stored, sandbox_id)]
        if suspends and rules.may(sandbox, "sandbox.suspended"):
            outcome.append(NewEvent(sandbox_id, events.SandboxSuspended(), sandbox_id))
        await core.record(outcome, intent)

    async def _store(
        self, sandbox: SandboxState, asked: events.CheckpointCreateRequested, progress: Progress
    ) -> events.CheckpointStored:
        core, sandbox_id = self._core, sandbox.sandbox_id
        provider = checkpointing(core.provider(asked.provider))
        fence = partial(self.files.fence, sandbox_id, asked.owner)
        fence()  # a lock that was lost is told before anything is saved
        async with self.files.making(asked.place) as directory:
            await progress("saving the sandbox")
            active = list(sandbox.active.values())
            made = await provider.checkpoint(
                sandbox_id, directory, [process.process_id for process in active], leave_running=asked.leave_running
            )
            failpoints.reach("checkpoint.made")
            still = [process for process in active if not process.ended]
            await trio.to_thread.run_sync(_write_manifest, directory, still)
            files = await self.files.keep(directory, asked.place, made.digests, fence, progress)
        return events.CheckpointStored(files=files, processes=len(still), pause_ms=made.pause_ms)

    async def _failed(
        self, checkpoint_id: str, sandbox: SandboxState, unforeseen: BaseException, intent: Recorded | None
    ) -> None:
        """No checkpoint came of it; the sandbox is what it was, unless it has ended, of which others tell."""
        error = as_sandkeep_error(unforeseen)
        failed = events.CheckpointFailed(code=error.code, message=error.message)
        outcome = [NewEvent(checkpoint_id, failed, sandbox.sandbox_id)]
        if sandbox.status == "suspending":
            await self._go_on(sandbox)
            runtime = self._sandboxes.runtimes.get(sandbox.sandbox_id)
            stands = runtime is not None and isinstance(runtime.instance, Pausing) and runtime.instance.is_paused()
            if stands and rules.may(sandbox, "sandbox.suspended"):
                outcome.append(NewEvent(sandbox.sandbox_id, events.SandboxSuspended(), sandbox.sandbox_id))
            elif rules.may(sandbox, "sandbox.suspend_failed"):
                kept = events.SandboxSuspendFailed(code=error.code, message=error.message)
                outcome.append(NewEvent(sandbox.sandbox_id, kept, sandbox.sandbox_id))
        await self._core.record(outcome, intent)

    async def _go_on(self, sandbox: SandboxState) -> None:
        """What was suspended for a checkpoint that failed afterwards is not to stay so."""
        runtime = self._sandboxes.runtimes.get(sandbox.sandbox_id)
        resume = getattr(runtime.instance, "resume", None) if runtime is not None else None
        if resume is not None:
            try:
                await resume()
            except Exception as unforeseen:  # noqa: BLE001  # it stays suspended then, which is seen
                as_sandkeep_error(unforeseen)

    async def undo(self, checkpoint_id: str) -> None:
        """What an earlier daemon had begun is as if it had never been."""
        checkpoint = self._core.state.checkpoints[checkpoint_id]
        await self._clear(checkpoint)
        failed = events.CheckpointFailed(code="not_ready", message=INTERRUPTED, interrupted=True)
        await self._core.record([NewEvent(checkpoint_id, failed, checkpoint.sandbox_id)], None)

    async def sweep(self, abandoned: Sequence[str]) -> None:
        """Remove what earlier daemons had copied of checkpoints."""
        for directory in abandoned:
            await trio.to_thread.run_sync(remove_directory, directory)

    async def answer_create(self, checkpoint_id: str) -> Checkpoint:
        """Wait until the checkpoint is made or failed, and answer it."""
        checkpoint = self._core.state.checkpoints[checkpoint_id]
        await self._core.settled(checkpoint_id, lambda: checkpoint.status != "creating")
        if checkpoint.error is not None:
            raise error_from(*checkpoint.error, {"checkpoint_id": checkpoint_id})
        return checkpoint.view()

    async def created_before(self, request: Request[Any], first: Recorded) -> Any:  # noqa: ARG002
        """The answer to a command that was given before."""
        checkpoint = self._core.state.checkpoints[first.stream]
        await self._core.settled(first.stream, lambda: checkpoint.status != "creating")
        return ANEW if checkpoint.interrupted else await self.answer_create(first.stream)

    # -- deleting -----------------------------------------------------------------------------------------------------

    async def delete(self, request: Request[CheckpointDelete]) -> Checkpoint:
        """Delete a checkpoint. One that is deleted is answered as it is."""
        core = self._core
        checkpoint = rules.checkpoint(core.state, request.params.checkpoint_id)
        if checkpoint.status == "creating":
            raise rules.checkpoint_not_ready(checkpoint)
        tries = Tries()
        while checkpoint.status == "ready":
            order = NewEvent(
                checkpoint.checkpoint_id, events.CheckpointDeleteRequested(), checkpoint.sandbox_id,
                checkpoint.revision,
            )  # fmt: skip
            try:
                intent = await core.intend(order, request.meta, essential=True)
            except StateError as conflict:
                await tries.again(conflict)  # somebody else did so at that instant
                continue
            what = f"deletion of {checkpoint.checkpoint_id}"
            core.carry(partial(self.finish_delete, checkpoint.checkpoint_id, intent), what)
        return await self.answer_delete(checkpoint.checkpoint_id)

    async def answer_delete(self, checkpoint_id: str) -> Checkpoint:
        """Wait until the checkpoint is deleted, and answer it."""
        checkpoint = self._core.state.checkpoints[checkpoint_id]
        await self._core.settled(checkpoint_id, lambda: checkpoint.status != "deleting")
        return checkpoint.view()

    async def finish_delete(self, checkpoint_id: str, intent: Recorded | None) -> None:
        """Carry out a deletion that is on record."""
        checkpoint = self._core.state.checkpoints[checkpoint_id]
        await self._clear(checkpoint)
        failpoints.reach("checkpoint.removed")
        await self._core.record([NewEvent(checkpoint_id, events.CheckpointDeleted(), checkpoint.sandbox_id)], intent)
        await self._layers.release_checkpoint(checkpoint)

    async def _clear(self, checkpoint: CheckpointState) -> None:
        """Remove all that there is of it besides its record, however often that takes."""
        checkpoint_id = checkpoint.checkpoint_id
        files = checkpoint.stored.files if checkpoint.stored is not None else []
        then = f"the end of checkpoint {checkpoint_id} is ordered, and will be carried out when that answers"
        with self._core.stalling([checkpoint_id], then) as told:
            remove = partial(self.files.remove, checkpoint.requested.place, files)
            await retry_until_done(remove, f"removing {checkpoint_id}", told=told)

    # -- into new sandboxes -------------------------------------------------------------------------------------------

    async def restore(self, request: Request[CheckpointRestore]) -> CheckpointRestoreResult:
        """Make sandboxes of a checkpoint, in which all goes on that ran."""
        command, core = request.params, self._core
        checkpoint = rules.ready_checkpoint(core.state, command.checkpoint_id)
        await self._require_here(checkpoint)
        rules.like(checkpoint.requested.spec, command.labels)
        restore_id = ids.new_id(ids.FORK)

        def order(sandbox_ids: list[str]) -> NewEvent:
            event = events.CheckpointRestoreRequested(
                owner=checkpoint.owner,
                checkpoint_id=checkpoint.checkpoint_id,
                sandbox_ids=sandbox_ids,
                names=command.names,
            )
            return NewEvent(restore_id, event, checkpoint.sandbox_id, 0)

        intent = await self._sandboxes.order(checkpoint.owner, command.names, command.count, order, request.meta)
        failpoints.reach("checkpoint.restore_planned")
        core.carry(partial(self._carry_restore, request, checkpoint, intent), f"restore of {checkpoint.checkpoint_id}")
        return await self.answer_restore(restore_id)

    async def _require_here(self, checkpoint: CheckpointState) -> Checkpointing:
        """Raise `not_supported` for a checkpoint that cannot be brought back on this machine."""
        asked = checkpoint.requested
        provider = checkpointing(self._core.provider(asked.provider))
        why = await trio.to_thread.run_sync(provider.why_not_here, asked.facts)
        if why is not None:
            words = f"checkpoint {checkpoint.checkpoint_id} cannot be brought back here: {why}"
            raise SetupError("not_supported", words, checkpoint_id=checkpoint.checkpoint_id)
        return provider

    async def _carry_restore(
        self, request: Request[CheckpointRestore], checkpoint: CheckpointState, intent: Recorded
    ) -> None:
        core, restore_id = self._core, intent.stream
        ordered = core.state.forks[restore_id]
        assert checkpoint.stored is not None
        try:
            try:
                place, files = checkpoint.requested.place, checkpoint.stored.files
                async with self.files.had(place, files, request.progress) as had:
                    kept = await trio.to_thread.run_sync(_read_manifest, had.directory)
                    created = [self._created(request, checkpoint, one) for one in ordered.sandbox_ids]
                    restored = NewEvent(restore_id, events.CheckpointRestored(), checkpoint.sandbox_id)
                    recorded = await core.record([restored, *created], intent)
                    for fact in recorded[1:]:
                        maker = _FromCheckpoint(self._processes, core, checkpoint, had, kept)
                        self._sandboxes.begin(fact, {}, maker=maker)
                    with suppress(SandkeepError):  # each of them tells
                        await had.check(request.progress)
            finally:
                self._sandboxes.unreserve(*ordered.sandbox_ids)
        except Exception as unforeseen:  # noqa: BLE001  # an outcome is recorded whatever happened
            error = as_sandkeep_error(unforeseen)
            failed = events.CheckpointRestoreFailed(code=error.code, message=error.message)
            await core.record([NewEvent(restore_id, failed, checkpoint.sandbox_id)], intent)

    def _created(self, request: Request[CheckpointRestore], checkpoint: CheckpointState, sandbox_id: str) -> NewEvent:
        """The intent to make one of them; from here on its plan is known to those that follow."""
        asked = checkpoint.requested
        provider = self._core.provider(asked.provider)
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

    async def answer_restore(self, restore_id: str) -> CheckpointRestoreResult:
        """Wait until all sandboxes run, and answer them. Raises what the restore failed with, or the first of them."""
        ordered = self._core.state.forks[restore_id]
        await self._core.settled(restore_id, lambda: ordered.done or ordered.error is not None)
        if ordered.error is not None:
            raise error_from(*ordered.error, {"checkpoint_id": ordered.checkpoint_id})
        made = [await self._sandboxes.answer_create(sandbox_id) for sandbox_id in ordered.sandbox_ids]
        assert ordered.checkpoint_id is not None
        return CheckpointRestoreResult(checkpoint_id=ordered.checkpoint_id, sandboxes=made)

    async def restored_before(self, request: Request[Any], first: Recorded) -> Any:
        """The answer to a command that was given before. Sandboxes that only a daemon's end kept from being made are
        made now.
        """
        ordered = self._core.state.forks[first.stream]
        undone = await self._sandboxes.undone(ordered)
        if undone is None:
            return ANEW
        if undone:
            checkpoint = rules.ready_checkpoint(self._core.state, ordered.checkpoint_id or "")
            await self._make_again(request, checkpoint, undone)
        return await self.answer_restore(first.stream)

    async def _make_again(self, request: Request[Any], checkpoint: CheckpointState, undone: Sequence[str]) -> None:
        """Make sandboxes after all, by the plans that they had."""
        assert checkpoint.stored is not None
        async with self.files.had(checkpoint.requested.place, checkpoint.stored.files, request.progress) as had:
            kept = await trio.to_thread.run_sync(_read_manifest, had.directory)
            for sandbox_id in undone:
                intent = await self._sandboxes.intend_again(sandbox_id)
                maker = _FromCheckpoint(self._processes, self._core, checkpoint, had, kept)
                self._sandboxes.begin(intent, {}, maker=maker)
            with suppress(SandkeepError):  # each of them tells
                await had.check(request.progress)

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
        provider: object = core.provider(sandbox.requested.provider)
        if isinstance(provider, Replacing) and any(isinstance(new.event, events.SandboxRestored) for new in outcome):
            await provider.drop_replaced(sandbox_id)
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
        assert isinstance(provider, Replacing)
        assert sandbox.isolation is not None
        try:
            await instance.aclose()
            if await provider.put_back(sandbox.sandbox_id, asked.plan, sandbox.handle):
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


class _FromCheckpoint(Maker):
    """Makes one sandbox of a checkpoint that is at hand. Processes get ids of their own in it."""

    def __init__(
        self, processes: Processes, core: Core, checkpoint: CheckpointState, had: Had, kept: Sequence[Kept]
    ) -> None:
        self._processes = processes
        self._core = core
        self._checkpoint = checkpoint
        self._had = had
        self._kept = kept
        self._found: list[NewEvent] = []
        had.hold()

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
                carrier = partial(processes.carriers.adopt, runtime, process, trio.Event())
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
    if isinstance(provider, Checkpointing):
        return provider
    words = f"the {provider.name} provider cannot keep what runs: make a snapshot, or use the gvisor provider"
    raise SetupError("not_supported", words)
