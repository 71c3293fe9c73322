"""Processes: launched, followed to their end, signalled, read.

Each has a task of the `ProcessSupervisor`'s, which starts it and follows it to its end. The daemon is not in the way of
what it writes: that goes to a journal, from which is read by byte offset (`output_reader`).
"""

import math
from functools import partial
from signal import Signals
from typing import Any

import trio

from sandkeep import events, failpoints, ids
from sandkeep.errors import CallerError, SetupError, StateError
from sandkeep.model import ExecResult, Process, ProcessList, ProcessOutput
from sandkeep.protocol.methods import (
    ProcessLaunch,
    ProcessQuery,
    ProcessRead,
    ProcessRef,
    ProcessSignal,
    ProcessWait,
    ProcessWriteStdin,
    SandboxExec,
    Written,
)
from sandkeep_store.eventlog.codec import CODEC
from sandkeep_store.eventlog.eventless_commands import Past
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.processes import ProcessState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.state import State
from sandkeepd.contract.instance import Instance
from sandkeepd.contract.processes import Launch, Terminal
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import ANEW, Core
from sandkeepd.core.paging import page
from sandkeepd.sandboxes.output_reader import OutputReader
from sandkeepd.sandboxes.process_supervisor import ProcessSupervisor
from sandkeepd.sandboxes.sandboxes import Runtime, Sandboxes, start_in


class Processes:
    """The handlers of ``process.*`` and of ``sandbox.exec``."""

    def __init__(self, core: Core, sandboxes: Sandboxes) -> None:
        self._core = core
        self._sandboxes = sandboxes
        self.supervisor = ProcessSupervisor(core, sandboxes)
        self.outputs = OutputReader(core, sandboxes)
        self._naming: set[tuple[str, str]] = set()

    # -- starting -----------------------------------------------------------------------------------------------------

    async def exec(self, request: Request[SandboxExec]) -> ExecResult:
        """Run a command to its end."""
        command = request.params
        process = await self._begin(request, command, None, command.stdin, eager=False)
        return await self.answer_exec(process, command.inline_bytes)

    async def launch(self, request: Request[ProcessLaunch]) -> Process:
        """Start a command in the background."""
        command = request.params
        stdin = None if command.tty else command.stdin or None
        process = await self._begin(request, command, command.name, stdin, eager=True)
        return await self.answer_launch(process)

    async def _begin(
        self,
        request: Request[SandboxExec] | Request[ProcessLaunch],
        command: SandboxExec | ProcessLaunch,
        name: str | None,
        stdin: bytes | bool | None,
        *,
        eager: bool,
    ) -> ProcessState:
        """Put the intent on record and start the process's carrier."""
        core = self._core
        sandbox = rules.sandbox(core.state, command.sandbox_id)
        runtime = await self._sandboxes.runtime(sandbox)
        event = rules.launch(sandbox, command, name, self._naming)
        if event.tty:
            require_terminals(runtime.instance)
        process_id = ids.new_id(ids.PROCESS)
        key = (sandbox.sandbox_id, name or process_id)
        self._naming.add(key)
        try:
            intent = await core.intend(NewEvent(process_id, event, sandbox.sandbox_id, 0), request.meta)
        finally:
            self._naming.remove(key)
        process = core.state.processes[process_id]
        launch = Launch(
            process_id=process_id,
            command=rules.words(command.command),
            env=command.env,
            secrets=command.secrets,
            working_dir=command.working_dir,
            stdin=stdin,
            terminal=_terminal(process, command),
            quick=not eager,
        )
        work = partial(self.supervisor.carry, runtime, process, launch, intent, eager=eager)
        if not start_in(runtime, work, core, f"process {process_id}") and not process.ended:
            failed = events.ProcessLaunchFailed(
                code="not_ready", message=f"sandbox {sandbox.sandbox_id} is being ended"
            )
            await core.record([NewEvent(process_id, failed, sandbox.sandbox_id)], intent)
        return process

    async def executed_before(self, request: Request[SandboxExec], first: Recorded) -> Any:
        """The answer to a command that was given before, from its journals."""
        process = await self._settled_before(request, first)
        return ANEW if process.interrupted else await self.answer_exec(process, request.params.inline_bytes)

    async def launched_before(self, request: Request[ProcessLaunch], first: Recorded) -> Any:
        """The answer to a command that was given before."""
        process = await self._settled_before(request, first)
        return ANEW if process.interrupted else await self.answer_launch(process)

    async def _settled_before(
        self, request: Request[SandboxExec] | Request[ProcessLaunch], first: Recorded
    ) -> ProcessState:
        process = await self.find(request.params.sandbox_id, first.stream)
        await self._core.settled(process.process_id, lambda: process.status != "starting")
        return process

    async def answer_launch(self, process: ProcessState) -> Process:
        """Wait until the process runs, and answer it."""
        await self._core.settled(process.process_id, lambda: process.status != "starting")
        if process.status == "failed":
            raise rules.failure_of(process)
        return process.view()

    async def answer_exec(self, process: ProcessState, inline_bytes: int) -> ExecResult:
        """Wait until the process has ended, and answer how, with the beginning of what it wrote."""
        await self._core.settled(process.process_id, lambda: process.ended)
        if process.status == "failed":
            raise rules.failure_of(process)
        out, err = (self.outputs.beginning(process, stream, inline_bytes) for stream in ("stdout", "stderr"))
        return ExecResult(
            process_id=process.process_id,
            sandbox_id=process.sandbox_id,
            exit_code=process.exit_code,
            timed_out=process.timed_out,
            status=process.status,
            stdout=out.data,
            stderr=err.data,
            stdout_bytes=out.size,
            stderr_bytes=err.size,
            stdout_truncated=out.size > len(out.data),
            stderr_truncated=err.size > len(err.data),
            duration_s=max(0.0, ((process.ended_us or process.requested_us) - process.requested_us) / 1e6),
            error=process.error[1] if process.error else None,
            oom_killed=process.oom_killed,
        )

    # -- acting on ----------------------------------------------------------------------------------------------------

    async def signal(self, request: Request[ProcessSignal]) -> Process:
        """Send a signal to the process's group. One that has ended is answered as it is."""
        number = parse_signal(request.params.signal)
        process = await self.find(request.params.sandbox_id, request.params.name)
        runtime = await self._reach(process)
        if runtime is None:
            return process.view()
        event = events.ProcessSignalled(signal=Signals(number).name.removeprefix("SIG"))
        order = await self._core.intend(NewEvent(process.process_id, event, process.sandbox_id), request.meta)
        if not process.ended:  # it may have, while that went to the disk
            await runtime.instance.signal(process.process_id, number, order=order.position)
            failpoints.reach("signal.sent")
        return process.view()

    async def signalled_before(self, request: Request[ProcessSignal], first: Recorded) -> Process:
        """The answer to a command that was given before; a daemon that died then may not have sent the signal."""
        process = await self.find(request.params.sandbox_id, first.stream)
        runtime = await self._reach(process)
        if runtime is not None and not await runtime.instance.was_signalled(process.process_id, first.position):
            number = parse_signal(request.params.signal)
            await runtime.instance.signal(process.process_id, number, order=first.position)
        return process.view()

    async def write_stdin(self, request: Request[ProcessWriteStdin]) -> Written:
        """Write to a process's input, or close it. Into a terminal it is typed.

        Of a command given again, what was written before is not written again.
        """
        command, past = request.params, request.past or Past.unremembered()
        process = await self.find(command.sandbox_id, command.name)
        if past.trying:
            raise _unknown_input(process, past)
        try:
            await self._input(process, command, past)
        except StateError:
            if not past.earlier or not past.taken >= max(1, len(command.data)):
                raise  # otherwise all had been written, and only that was not told; an end of input needs no telling
        return Written(written_bytes=len(command.data))

    async def _input(self, process: ProcessState, command: ProcessWriteStdin, past: Past) -> None:
        if process.requested.tty:
            terminals = await self.reach_terminal(process)
            past.note(0, max(1, len(command.data)))
            await terminals.type_into(process.process_id, command.data, eof=command.eof)
            past.note(len(command.data), 0)
            return
        runtime = await self._reach(process) if process.requested.stdin else None
        if runtime is None:
            why = "has ended" if process.ended else "was started without an input: launch it with stdin"
            raise StateError("not_ready", f"process {command.name!r} {why}", name=command.name, status=process.status)
        write = runtime.instance.write_stdin
        done = min(past.taken, len(command.data))
        await write(process.process_id, command.data, eof=command.eof, done=done, note=past.note)
        failpoints.reach("stdin.written")

    async def wrote_before(self, request: Request[ProcessWriteStdin]) -> Written:
        """The answer to a command that was carried out before."""
        await self.find(request.params.sandbox_id, request.params.name)
        return Written(written_bytes=len(request.params.data))

    async def open_terminal(
        self, process: ProcessState, rows: int, cols: int, term: str, *, read_only: bool = False
    ) -> int:
        """Attach a new viewer to the terminal of a process; answer its controlling side, which the caller closes.

        See `Instance.open_terminal`. Raises `not_supported` for a process without a terminal, `not_ready` for one
        that has ended.
        """
        instance = await self.reach_terminal(process)
        return await instance.open_terminal(process.process_id, rows=rows, cols=cols, term=term, read_only=read_only)

    async def reach_terminal(self, process: ProcessState) -> Instance:
        """The instance that has the terminal of a process that runs. Raises as `open_terminal` does."""
        if not process.requested.tty:
            message = f"process {process.name!r} has no terminal: follow its output, or launch it with tty"
            raise SetupError("not_supported", message, name=process.name)
        runtime = await self._reach(process)
        if runtime is None:
            raise StateError("not_ready", f"process {process.name!r} has ended", name=process.name)
        require_terminals(runtime.instance)
        return runtime.instance

    async def _reach(self, process: ProcessState) -> Runtime | None:
        """The runtime of a process that runs, once it was started; None when it has ended."""
        runtime = None
        if not process.ended:
            runtime = await self._sandboxes.runtime(rules.sandbox(self._core.state, process.sandbox_id))
            await self._core.settled(process.process_id, lambda: process.status != "starting")
        return None if process.ended else runtime

    # -- reading ------------------------------------------------------------------------------------------------------

    async def get(self, request: Request[ProcessRef]) -> Process:
        """Show a process."""
        return (await self.find(request.params.sandbox_id, request.params.name)).view()

    async def wait(self, request: Request[ProcessWait]) -> Process:
        """Wait until a process has ended."""
        query = request.params
        process = await self.find(query.sandbox_id, query.name)
        with trio.move_on_after(query.timeout_s if query.timeout_s is not None else math.inf):
            await self._core.settled(process.process_id, lambda: process.ended)
        if not process.ended:
            raise StateError(
                "timeout", f"process {query.name!r} still runs after {query.timeout_s:g} s", name=query.name
            )
        return process.view()

    async def list(self, request: Request[ProcessQuery]) -> ProcessList:
        """List the processes of one sandbox, or of all that the caller has."""
        query, state = request.params, self._core.state
        shown = (
            p
            for p in state.processes.values()
            if (query.sandbox_id in (None, p.sandbox_id))
            and (query.all or not p.ended)
            and request.sees(state.owner_of("", p.sandbox_id))
        )
        found, following = page(shown, lambda process: process.process_id, query.after, query.limit)
        return ProcessList(processes=[process.view() for process in found], next=following)

    async def read(self, request: Request[ProcessRead]) -> ProcessOutput:
        """Read a journal from byte offsets, waiting a while for more when there is nothing new.

        Raises `compacted` when nothing of it is kept any more.
        """
        process = await self.find(request.params.sandbox_id, request.params.name)
        return await self.outputs.read(process, request.params)

    async def find(self, sandbox_id: str, name: str) -> ProcessState:
        """A process by its name or id; one too old for the view is read from its stream in the log. Raises
        `not_found`.
        """
        sandbox = rules.sandbox(self._core.state, sandbox_id)
        found = sandbox.named.get(name) or self._core.state.processes.get(name)
        if found is None or found.sandbox_id != sandbox_id:  # another sandbox's is looked for as long as none at all
            found = await self._from_log(sandbox, name)
        if found is None:
            raise CallerError(
                "not_found", f"sandbox {sandbox_id} has no process {name!r}", sandbox_id=sandbox_id, name=name
            )
        return found

    async def _from_log(self, sandbox: SandboxState, process_id: str) -> ProcessState | None:
        if not process_id.startswith(ids.PROCESS + "_"):
            return None
        facts: list[Recorded] = []
        while more := await self._core.log.read(
            facts[-1].position if facts else 0, 100, stream=process_id, sandbox_id=sandbox.sandbox_id
        ):
            facts += more
        return fold_process(facts, sandbox.sandbox_id)


def _unknown_input(process: ProcessState, past: Past) -> StateError:
    words = (
        f"the daemon stopped while it wrote to process {process.name!r}: of the {past.trying} bytes after the first "
        f"{past.taken} nobody knows how many it took; see what it made of them, then write the rest by a new command"
    )
    return StateError("conflict", words, written_bytes=past.taken, uncertain_bytes=past.trying)


def require_terminals(instance: Instance) -> None:
    """Raise `not_supported` where processes can have no terminals."""
    if instance.no_terminals is not None:
        raise SetupError("not_supported", instance.no_terminals)


def _terminal(process: ProcessState, command: SandboxExec | ProcessLaunch) -> Terminal | None:
    if not isinstance(command, ProcessLaunch) or not command.tty:
        return None
    return Terminal(rows=command.rows, cols=command.cols, session=process.view().tmux_session or process.process_id)


def fold_process(facts: list[Recorded], sandbox_id: str) -> ProcessState | None:
    """The state of one process, from the events of its stream alone; None when it is of another sandbox."""
    apart = State()
    for fact in facts:
        if fact.sandbox_id != sandbox_id:
            return None
        apart.apply(CODEC.decode(fact.position, fact.type, fact.version, fact.data), fact)
    return next(iter(apart.processes.values()), None)


def parse_signal(text: str) -> int:
    """A signal's number from its name, with or without SIG, or from its digits. Raises `invalid`."""
    try:
        return Signals(int(text)) if text.isdigit() else Signals["SIG" + text.removeprefix("SIG")]
    except (KeyError, ValueError):
        raise CallerError(
            "invalid", f"signal: {text!r} is not a signal: use a name such as TERM or a number", field="signal"
        ) from None
