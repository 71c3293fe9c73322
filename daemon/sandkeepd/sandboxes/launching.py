"""Launches of processes: in the background, or with their end as the answer.

The process is started in its sandbox's own nursery, where it is then followed to its end. The adoption of the sandbox
records the outcome of a launch that the daemon's death interrupted.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

import trio

from sandkeep import events, failpoints, ids
from sandkeep.errors import SandkeepError, SetupError, StateError
from sandkeep.model import ExecResult, Process
from sandkeep.protocol.methods import ProcessLaunch, SandboxExec
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.processes import ProcessState
from sandkeepd.contract.instance import Instance
from sandkeepd.contract.processes import Launch, Terminal
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import RUN_AGAIN, Core
from sandkeepd.core.operation import Operation, Order
from sandkeepd.sandboxes.cancellation import Cancellations
from sandkeepd.sandboxes.output_reader import OutputReader
from sandkeepd.sandboxes.process_lookup import ProcessLookup
from sandkeepd.sandboxes.process_supervisor import ProcessSupervisor
from sandkeepd.sandboxes.runtimes import Runtime, Runtimes, start_in

ENDING_PATIENCE_S = 10.0


class Launched(NamedTuple):
    """A launch, and the sandbox that it is in."""

    runtime: Runtime
    launch: Launch


class ProcessLaunching(Operation[ProcessState, Any]):
    """``process.launch``, and its handler."""

    method = "process.launch"
    failure = events.ProcessLaunchFailed
    view = "processes"
    recovers = False
    under_way = "starting"
    awaits_end: ClassVar[bool] = False
    """True if the start waits a moment for the end, so that both go on record in one append."""

    def __init__(
        self, core: Core, runtimes: Runtimes, supervisor: ProcessSupervisor, lookup: ProcessLookup,
        cancellations: Cancellations,
    ) -> None:  # fmt: skip
        super().__init__(core)
        self._runtimes = runtimes
        self._supervisor = supervisor
        self._lookup = lookup
        self._cancellations = cancellations

    async def launch(self, request: Request[ProcessLaunch]) -> Process:
        """Start a command in the background."""
        command = request.params
        stdin = None if command.tty else command.stdin or None
        process = await self._begin(request, command, command.name, stdin)
        launched: Process = await self.answered(request, process)
        return launched

    async def _begin(
        self,
        request: Request[SandboxExec] | Request[ProcessLaunch],
        command: SandboxExec | ProcessLaunch,
        name: str | None,
        stdin: bytes | bool | None,
    ) -> ProcessState:
        """Give the order to start a process."""
        core = self.core
        sandbox = rules.sandbox(core.state, command.sandbox_id)
        runtime = await self._runtimes.running(sandbox)
        core.quotas.require(request, sandbox.owner, "journals")
        key = f"{sandbox.sandbox_id}/{name or ''}"
        event = rules.launch(sandbox, command, name, taken=name is not None and self._lookup.naming.count(key) > 0)
        if event.tty:
            require_terminals(runtime.instance)
        process_id = ids.new_id(ids.PROCESS)
        launch = Launch(
            process_id=process_id,
            command=rules.argv_of(command.command),
            env=command.env,
            secrets=command.secrets,
            working_dir=command.working_dir,
            stdin=stdin,
            terminal=_terminal(process_id, event.name, command),
            quick=self.awaits_end,
        )
        new = NewEvent(process_id, event, sandbox.sandbox_id, 0)
        async with self._cancellations.excluded(request):
            with self._lookup.naming.held(key):
                order = await self.begin(new, request.meta, request, Launched(runtime, launch))
        return order.subject

    def spawn(self, order: Order[ProcessState], what: str) -> None:
        if not start_in(order.payload.runtime, partial(self._execute, order), self.core, what):
            self.core.start_task(partial(self._refuse, order), what)

    async def _refuse(self, order: Order[ProcessState]) -> None:
        """Fail an order whose sandbox is ending: after that end is on record, so that a session can come back then."""
        sandbox = self.core.state.sandboxes[order.subject.sandbox_id]
        with trio.move_on_after(ENDING_PATIENCE_S):
            while sandbox.status in rules.STANDING and self.is_current(order):
                await self.core.changed(sandbox.sandbox_id)
        await self.fail(order, StateError("not_ready", f"sandbox {sandbox.sandbox_id} is being ended"))

    async def act(self, order: Order[ProcessState]) -> Sequence[NewEvent]:
        """See `Operation.act`. Left is whether it has ended already."""
        runtime, process = order.payload.runtime, order.subject
        runtime.limits.begin(order.stream)
        pid = await runtime.instance.launch(order.payload.launch)
        failpoints.reach("launch.answered")
        facts: list[events.Event] = [events.ProcessStarted(pid=pid)]
        exited = await self._supervisor.early_end(runtime.instance, process, awaits=self.awaits_end)
        if exited is not None:
            facts.append(await self._supervisor.end_event(runtime, process, exited))
            order.context = True
        return [NewEvent(order.stream, fact, process.sandbox_id) for fact in facts]

    async def failed(self, order: Order[ProcessState], error: SandkeepError) -> Sequence[NewEvent]:
        runtime = order.payload.runtime
        runtime.limits.forget(order.stream)
        interrupted = error.code == "not_ready" and runtime.instance.never_started(order.stream)
        return [self.failure_of(order, error, interrupted=interrupted)]

    async def recorded(self, order: Order[ProcessState], facts: Sequence[Recorded]) -> None:  # noqa: ARG002
        runtime, process = order.payload.runtime, order.subject
        if order.context:
            runtime.instance.forget(order.stream)
        elif not process.ended:
            await self._supervisor.follow(runtime, process, order.intent)

    async def answered(self, request: Request[Any], subject: ProcessState) -> Any:  # noqa: ARG002
        """Wait until the process runs, and answer it."""
        await self.core.settled(subject.process_id, lambda: subject.status != "starting")
        if subject.status == "failed":
            raise rules.failure_of(subject)
        return subject.view()

    async def again(self, request: Request[Any], first: Recorded) -> Any:
        process = await self._lookup.find(request.params.sandbox_id, first.stream)
        await self.core.settled(process.process_id, lambda: process.status != "starting")
        return RUN_AGAIN if process.interrupted else await self.answered(request, process)


class Execution(ProcessLaunching):
    """``sandbox.exec``, and its handler."""

    method = "sandbox.exec"
    awaits_end = True

    def __init__(
        self, core: Core, runtimes: Runtimes, supervisor: ProcessSupervisor, lookup: ProcessLookup,
        cancellations: Cancellations, outputs: OutputReader,
    ) -> None:  # fmt: skip
        super().__init__(core, runtimes, supervisor, lookup, cancellations)
        self._outputs = outputs

    async def exec(self, request: Request[SandboxExec]) -> ExecResult:
        """Run a command to its end."""
        process = await self._begin(request, request.params, None, request.params.stdin)
        return await self.answered(request, process)

    async def answered(self, request: Request[SandboxExec], subject: ProcessState) -> ExecResult:
        """Wait until the process has ended, and return its exit, with the beginning of its output."""
        await self.core.settled(subject.process_id, lambda: subject.ended)
        if subject.status == "failed":
            raise rules.failure_of(subject)
        inline_bytes = request.params.inline_bytes
        out, err = (self._outputs.beginning(subject, stream, inline_bytes) for stream in ("stdout", "stderr"))
        return ExecResult(
            process_id=subject.process_id,
            sandbox_id=subject.sandbox_id,
            exit_code=subject.exit_code,
            timed_out=subject.timed_out,
            status=subject.status,
            stdout=out.data,
            stderr=err.data,
            stdout_bytes=out.size,
            stderr_bytes=err.size,
            stdout_truncated=out.size > len(out.data),
            stderr_truncated=err.size > len(err.data),
            duration_s=max(0.0, ((subject.ended_us or subject.requested_us) - subject.requested_us) / 1e6),
            error=subject.error[1] if subject.error else None,
            oom_killed=subject.oom_killed,
            limits_met=list(subject.limits_met),
        )


def require_terminals(instance: Instance) -> None:
    """Raise `not_supported` where processes can have no terminals."""
    if instance.no_terminals is not None:
        raise SetupError("not_supported", instance.no_terminals)


def _terminal(process_id: str, name: str | None, command: SandboxExec | ProcessLaunch) -> Terminal | None:
    if not isinstance(command, ProcessLaunch) or not command.tty:
        return None
    session = (name or process_id).replace(".", "_")  # as tmux does
    return Terminal(rows=command.rows, cols=command.cols, session=session)
