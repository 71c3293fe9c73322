"""Restores of checkpoints: into new sandboxes, or into the one that a checkpoint is of."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import msgspec
import trio

from sandkeep import events, failpoints, ids
from sandkeep.errors import SandkeepError, SetupError
from sandkeep.model import CheckpointRestoreResult, Sandbox, SandboxSpec
from sandkeep.protocol.methods import CheckpointRestore, SandboxRestore
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.threads import in_thread
from sandkeep_store.views.checkpoints import CheckpointState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.snapshots import ForkState
from sandkeepd.checkpoints.files import CheckpointCopy, CheckpointFiles
from sandkeepd.checkpoints.manifest import SavedProcess, read_manifest
from sandkeepd.contract.caller import Progress
from sandkeepd.contract.checkpoints import Checkpointing
from sandkeepd.contract.instance import Ending, Instance
from sandkeepd.contract.provider import Provider
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Order
from sandkeepd.host.undo import undo_on_error
from sandkeepd.sandboxes.batch import SandboxBatch
from sandkeepd.sandboxes.creation import Maker
from sandkeepd.sandboxes.oom import KILLED
from sandkeepd.sandboxes.process_ends import process_ends
from sandkeepd.sandboxes.processes import Processes
from sandkeepd.sandboxes.runtimes import Runtime, start_in
from sandkeepd.sandboxes.sandboxes import Sandboxes
from sandkeepd.snapshots.layers import LayerReferences
from sandkeepd.snapshots.restore import FileReplacement, Replacement


class OpenCheckpoint(NamedTuple):
    """A checkpoint, its files, and its processes."""

    checkpoint: CheckpointState
    copy: CheckpointCopy
    kept: Sequence[SavedProcess]


class CheckpointRestoration(SandboxBatch[CheckpointRestoreResult]):
    """``checkpoint.restore``: sandboxes of a checkpoint, whose processes go on running."""

    method = "checkpoint.restore"
    named = "checkpoint_id"
    failure = events.CheckpointRestoreFailed
    interrupted = "the daemon stopped while the checkpoint was being restored: restore it again"

    def __init__(self, core: Core, sandboxes: Sandboxes, processes: Processes, files: CheckpointFiles) -> None:
        super().__init__(core, sandboxes)
        self._processes = processes
        self._files = files

    def owns(self, subject: ForkState) -> bool:
        return subject.checkpoint_id is not None

    async def act(self, order: Order[ForkState]) -> Sequence[NewEvent]:
        request, batch = order.request, order.subject
        assert request is not None
        checkpoint = self.core.state.checkpoints[batch.checkpoint_id or ""]
        order.context = await order.resources.enter_async_context(self._open(checkpoint, order.progress))
        created = [self._created(request, checkpoint, one) for one in batch.sandbox_ids]
        return [NewEvent(order.stream, events.CheckpointRestored(), checkpoint.sandbox_id), *created]

    @asynccontextmanager
    async def _open(self, checkpoint: CheckpointState, progress: Progress) -> AsyncIterator[OpenCheckpoint]:
        """Yield a checkpoint with its files and processes, for the length of a block."""
        assert checkpoint.stored is not None
        async with self._files.opened(checkpoint.requested.place, checkpoint.stored.files, progress) as copy:
            yield OpenCheckpoint(checkpoint, copy, await in_thread(read_manifest, copy.directory))

    async def begin_one(
        self, request: Request[CheckpointRestore], checkpoint: CheckpointState, sandbox_id: str, spec: SandboxSpec,
        **facts: Any,
    ) -> None:  # fmt: skip
        """Begin to make one sandbox, whose name is reserved; it is on record when this returns. The checkpoint need not
        be on record; its plan is this machine's own. `facts` are further fields of the event.
        """
        provider = await require_here(self.core, checkpoint)
        new = self._sandboxes.reservations.intent(
            sandbox_id, self.core.provider(checkpoint.requested.provider), checkpoint.requested.image_id, spec,
            request.caller, checkpoint.requested.secrets, lambda plan: provider.plan_like(plan, plan),
            restored_from=checkpoint.checkpoint_id, **facts,
        )  # fmt: skip
        async with self._open(checkpoint, request.progress) as opened:
            await opened.copy.check(request.progress)
            await self._sandboxes.creation.begin(new, request.meta, request, self._maker(opened))

    def _created(self, request: Request[CheckpointRestore], checkpoint: CheckpointState, sandbox_id: str) -> NewEvent:
        """Return the intent to make one of them; from here on its plan is known to those that follow."""
        asked = checkpoint.requested
        provider = self.core.provider(asked.provider)
        return self._sandboxes.reservations.intent(
            sandbox_id, provider, asked.image_id, rules.like(rules.asked_spec(asked), request.params.labels),
            request.caller, asked.secrets, lambda plan: checkpointing(provider).plan_like(asked.plan, plan),
            forked_from=checkpoint.sandbox_id, restored_from=checkpoint.checkpoint_id, needs_image=asked.needs_image,
        )  # fmt: skip

    async def succeeded(self, order: Order[ForkState], facts: Sequence[Recorded]) -> None:
        self.start_each(facts, partial(self._maker, order.context))
        await _checked(order.context, order.progress)

    def _maker(self, opened: OpenCheckpoint) -> Maker:
        return _FromCheckpoint(self._processes, self.core, opened)

    async def answered(self, request: Request[Any], subject: ForkState) -> CheckpointRestoreResult:  # noqa: ARG002
        """See `Operation.answered`. Raises the error of the first sandbox that failed."""
        assert subject.checkpoint_id is not None
        return CheckpointRestoreResult(checkpoint_id=subject.checkpoint_id, sandboxes=await self.each_made(subject))

    async def make_again(self, request: Request[Any], batch: ForkState, sandbox_ids: Sequence[str]) -> None:
        checkpoint = rules.ready_checkpoint(self.core.state, batch.checkpoint_id or "")
        async with self._open(checkpoint, request.progress) as opened:
            await self.begin_each_again(request, sandbox_ids, partial(self._maker, opened))
            await _checked(opened, request.progress)


class Return(Replacement):
    """The progress of a sandbox's return to a checkpoint: also the ends of its old processes, and the processes of the
    instance that runs now.
    """

    ended: list[NewEvent] = msgspec.field(default_factory=list)
    process_ids: Sequence[str] = ()


class CheckpointReturn(FileReplacement):
    """``sandbox.restore`` of a checkpoint, into the sandbox that it is of. `payload` is the checkpoint."""

    def __init__(
        self, core: Core, sandboxes: Sandboxes, processes: Processes, layers: LayerReferences, files: CheckpointFiles
    ) -> None:
        super().__init__(core, sandboxes.runtimes, layers)
        self._processes = processes
        self._files = files

    async def return_to(self, request: Request[SandboxRestore]) -> Sandbox:
        """Return a sandbox to its state at a checkpoint of it."""
        command, core = request.params, self.core
        assert command.checkpoint_id is not None
        sandbox = rules.sandbox(core.state, command.sandbox_id)
        checkpoint = rules.ready_checkpoint(core.state, command.checkpoint_id)
        await self.runtimes.adopted(sandbox.sandbox_id)
        rules.return_to(sandbox, checkpoint)
        provider = await require_here(core, checkpoint)
        if core.provider(sandbox.requested.provider).replacement is None:
            message = f"{sandbox.requested.provider} sandboxes cannot be restored in place: restore it as new sandboxes"
            raise SetupError("not_supported", message, checkpoint_id=checkpoint.checkpoint_id)
        event = events.SandboxRestoreRequested(
            checkpoint_id=checkpoint.checkpoint_id,
            plan=provider.plan_like(checkpoint.requested.plan, sandbox.requested.plan),
            needs_image=checkpoint.requested.needs_image,
        )
        new = NewEvent(sandbox.sandbox_id, event, sandbox.sandbox_id, sandbox.revision)
        await self.begin(new, request.meta, request, checkpoint)
        return await self.answer(request, sandbox.sandbox_id)

    async def act(self, order: Order[SandboxState]) -> Sequence[NewEvent]:
        checkpoint, sandbox, sandbox_id = order.payload, order.subject, order.stream
        order.context = under_way = Return(sandbox.plans)
        asked, progress = sandbox.requested, order.progress
        provider = checkpointing(self.core.provider(asked.provider))
        async with self._files.opened(checkpoint.requested.place, checkpoint.stored.files, progress) as copy:
            await copy.check(progress)
            kept = await in_thread(read_manifest, copy.directory)
            under_way.runtime = runtime = await self.runtimes.drop(sandbox_id)
            failpoints.reach("checkpoint.returning")
            exit_of = runtime.instance.exit_of if runtime is not None else lambda _: None
            under_way.ended = process_ends(self.core, sandbox, exit_of, KILLED, runtime=runtime)
            old, new = under_way.plans
            under_way.instance = made = await provider.restore_in_place(
                sandbox_id, asked.image_id, sandbox.spec, (old, new), sandbox.handle, copy.directory
            )
            restored_processes = await _found(made, checkpoint, [(one.process_id, one) for one in kept])
        under_way.process_ids = [event.stream for event in restored_processes]
        ended = [word for word in under_way.ended if word.stream not in under_way.process_ids]
        restored = events.SandboxRestored(
            checkpoint_id=checkpoint.checkpoint_id, isolation=made.isolation, handle=made.handle
        )
        return [*ended, *restored_processes, NewEvent(sandbox_id, restored, sandbox_id)]

    async def failed(self, order: Order[SandboxState], error: SandkeepError) -> Sequence[NewEvent]:
        under_way: Return = order.context
        under_way.process_ids = list(order.subject.active)
        failed = events.SandboxRestoreFailed(code=error.code, message=error.message, ended=under_way.gone)
        return [*(under_way.ended if under_way.gone else []), NewEvent(order.stream, failed, order.stream)]

    async def roll_back(self, order: Order[SandboxState]) -> None:
        """See `Operation.roll_back`. Return to the old runtime: it goes on, or records its end soon, unless a new
        instance was made.
        """
        under_way: Return = order.context
        restored, under_way.instance = under_way.instance, None
        if restored is not None:
            under_way.gone = True  # unless the old instance runs again
            under_way.instance = await self._put_back(order.subject, restored)
            under_way.gone = under_way.instance is None
        elif under_way.runtime is not None:
            under_way.instance = under_way.runtime.instance

    async def _put_back(self, sandbox: SandboxState, instance: Instance) -> Instance | None:
        """Replace a restored instance that does not answer by the old one; return None if nothing runs any more. After
        an error the old files stay aside.
        """
        asked = sandbox.requested
        provider = self.core.provider(asked.provider)
        assert provider.replacement is not None
        assert sandbox.isolation is not None
        await instance.aclose()
        if await provider.replacement.put_back(sandbox.sandbox_id, asked.plan, sandbox.handle):
            return None
        spec, isolation, handle = asked.spec, sandbox.isolation, sandbox.handle
        found = await provider.adopt(sandbox.sandbox_id, spec, asked.plan, isolation, handle)
        return None if isinstance(found, Ending) else found

    def supervise(self, progress: Return) -> Runtime:
        runtime = super().supervise(progress)
        look_after(self.core, self._processes, runtime, progress.process_ids)
        return runtime


async def require_here(core: Core, checkpoint: CheckpointState) -> Checkpointing:
    """Return the provider that restores a checkpoint. Raises `not_supported` if that is impossible on this machine."""
    asked = checkpoint.requested
    provider = checkpointing(core.provider(asked.provider))
    why = await in_thread(provider.why_not_here, asked.facts)
    if why is not None:
        message = f"checkpoint {checkpoint.checkpoint_id} cannot be restored here: {why}"
        raise SetupError("not_supported", message, checkpoint_id=checkpoint.checkpoint_id)
    return provider


class _FromCheckpoint(Maker):
    """Makes one sandbox of a checkpoint that is at hand. Processes get ids of their own in it."""

    def __init__(self, processes: Processes, core: Core, opened: OpenCheckpoint) -> None:
        super().__init__({})
        self._processes = processes
        self._core = core
        self._checkpoint, self._copy, self._kept = opened
        self._found: list[NewEvent] = []
        self._copy.hold()

    async def make(self, provider: Provider, sandbox: SandboxState) -> Instance:
        """See `Maker.make`. Secrets are in the checkpoint itself."""
        able, asked, sandbox_id = checkpointing(provider), sandbox.requested, sandbox.sandbox_id
        instance = await able.create_from_checkpoint(
            sandbox_id, asked.image_id, asked.spec, asked.plan, asked.secrets, self._copy.directory
        )
        async with undo_on_error(provider.terminate, sandbox_id, asked.plan, instance.handle):
            await self._copy.checked()
            named = [(ids.new_id(ids.PROCESS), one) for one in self._kept]
            for process_id, one in named:
                await able.rename(sandbox_id, one.process_id, process_id)
            await in_thread(self._inherit_times, sandbox_id, named)
            self._found = await _found(instance, self._checkpoint, named, sandbox_id)
            failpoints.reach("checkpoint.named")
        return instance

    def _inherit_times(self, sandbox_id: str, named: Sequence[tuple[str, SavedProcess]]) -> None:
        """Give processes the times of the output that they wrote before; on a full disk they have none."""
        source, until_us = self._checkpoint.sandbox_id, self._checkpoint.requested_us
        with suppress(OSError):
            for process_id, one in named:
                self._processes.times.inherit((sandbox_id, process_id), (source, one.process_id), until_us)

    def found(self) -> list[NewEvent]:
        return self._found

    def begun(self, runtime: Runtime) -> None:
        look_after(self._core, self._processes, runtime, [event.stream for event in self._found])

    def done(self) -> None:
        super().done()
        self._copy.release()


async def _checked(opened: OpenCheckpoint, progress: Progress) -> None:
    """Verify the large files; the sandboxes made of them report errors."""
    with suppress(SandkeepError):
        await opened.copy.check(progress)


def look_after(core: Core, processes: Processes, runtime: Runtime, process_ids: Sequence[str]) -> None:
    """Start the tasks of restored processes, once there is a nursery for them."""

    async def begin() -> None:
        await runtime.opened()
        for process_id in process_ids:
            process = core.state.processes.get(process_id)
            if process is not None:
                task = partial(processes.supervisor.adopt, runtime, process, trio.Event())
                start_in(runtime, task, core, f"process {process_id}")

    core.start_task(begin, f"processes of {runtime.instance.sandbox_id}")


async def _found(
    instance: Instance,
    checkpoint: CheckpointState,
    named: Sequence[tuple[str, SavedProcess]],
    sandbox_id: str | None = None,
) -> list[NewEvent]:
    """Return the events of restored processes; one that ended in that instant is left out."""
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


def checkpointing(provider: Provider) -> Checkpointing:
    """Return the provider's checkpoints. Raises `not_supported` if it has none."""
    if provider.checkpoints is not None:
        return provider.checkpoints
    message = f"the {provider.name} provider cannot save running processes: make a snapshot, or use the gvisor provider"
    raise SetupError("not_supported", message)
