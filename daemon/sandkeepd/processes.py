"""Processes: launched, followed to their end, signalled, read.

A process has one carrier, in the nursery of its sandbox. It starts the process, records that it started and how it
ended (in one append when the end came first), and enforces its time limit. The daemon is not in the way of what the
process writes: that goes to a journal, from which `read` answers by byte offset.
"""

import logging
import math
from functools import partial
from signal import Signals
from typing import Any

import msgspec
import trio

from sandkeep import events, failpoints, ids
from sandkeep.clock import now_us
from sandkeep.errors import CallerError, DataError, SandkeepError, SetupError, StateError
from sandkeep.methods import (
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
from sandkeep.model import ExecResult, Process, ProcessList, ProcessOutput
from sandkeep.settings import RETAIN_OUTPUT
from sandkeep_store.codec import CODEC
from sandkeep_store.commands import Past
from sandkeep_store.log import NewEvent, Recorded
from sandkeep_store.views.processes import ProcessState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.state import State
from sandkeepd import decide
from sandkeepd.access import Request
from sandkeepd.core import ANEW, Core
from sandkeepd.insisting import insist
from sandkeepd.providers.base import Chunk, Exit, Instance, Launch, Terminal, Terminals
from sandkeepd.query import page
from sandkeepd.sandboxes import Runtime, Sandboxes, start_in
from sandkeepd.turns import my_turn

logger = logging.getLogger("sandkeepd")

GRACE_S = 0.1
"""How long the start of an ``exec`` waits for its end, so that both go on record in one append."""


class Processes:
    """The handlers of ``process.*`` and of ``sandbox.exec``."""

    def __init__(self, core: Core, sandboxes: Sandboxes) -> None:
        self._core = core
        self._sandboxes = sandboxes
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
        sandbox = decide.sandbox(core.state, command.sandbox_id)
        runtime = await self._sandboxes.runtime(sandbox)
        event = decide.launch(sandbox, command, name, self._naming)
        if event.tty:
            terminals_of(runtime.instance)
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
            command=decide.words(command.command),
            env=command.env,
            secrets=command.secrets,
            working_dir=command.working_dir,
            stdin=stdin,
            terminal=_terminal(process, command),
        )
        work = partial(self._carry, runtime, process, launch, intent, eager=eager)
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
            raise decide.failure_of(process)
        return process.view()

    async def answer_exec(self, process: ProcessState, inline_bytes: int) -> ExecResult:
        """Wait until the process has ended, and answer how, with the beginning of what it wrote."""
        await self._core.settled(process.process_id, lambda: process.ended)
        if process.status == "failed":
            raise decide.failure_of(process)
        out, err = (self._beginning(process, stream, inline_bytes) for stream in ("stdout", "stderr"))
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

    def _beginning(self, process: ProcessState, stream: str, max_bytes: int) -> Chunk:
        """What a stream begins with: nothing, of some length, when that is not kept any more."""
        chunk = self.read_journal(process, stream, 0, max_bytes)
        if is_gone(process, chunk):
            size = process.stdout_bytes if stream == "stdout" else process.stderr_bytes
            return Chunk(offset=0, data=b"", size=size or 0)
        return chunk if chunk.offset == 0 else Chunk(offset=0, data=b"", size=chunk.size)

    # -- carrying -----------------------------------------------------------------------------------------------------

    async def _carry(
        self, runtime: Runtime, process: ProcessState, launch: Launch, intent: Recorded, *, eager: bool
    ) -> None:
        """Start the process and follow it to its end."""
        try:
            pid = await runtime.instance.launch(launch)
            failpoints.reach("launch.answered")
        except SandkeepError as error:
            await self._record(
                process, events.ProcessLaunchFailed(code=error.code, message=error.message), cause=intent
            )
            return
        started = events.ProcessStarted(pid=pid)
        exited = runtime.instance.exit_of(process.process_id)
        if exited is None and not eager:
            grace = min(GRACE_S, process.requested.timeout_s or GRACE_S)
            exited = await _wait(runtime.instance, process.process_id, grace)
        if exited is not None:
            await self._end(runtime, process, exited, intent, started)
            return
        await self._record(process, started, cause=intent)
        await self.follow(runtime, process, intent)

    async def follow(self, runtime: Runtime, process: ProcessState, intent: Recorded | None) -> None:
        """Wait for the end of a process that is on record as started; kill it when its time is up."""
        instance = runtime.instance
        exited = await _wait(instance, process.process_id, _time_left(process))
        if exited is None:
            await self._sandboxes.awake(process.sandbox_id)  # what stands still cannot be killed, nor tell its end
            exited = instance.exit_of(process.process_id) or await self._time_out(instance, process, intent)
        await self._end(runtime, process, exited, intent)

    async def _time_out(self, instance: Instance, process: ProcessState, intent: Recorded | None) -> Exit:
        assert process.requested.timeout_s is not None
        if not process.timed_out:
            await self._record(process, events.ProcessTimedOut(timeout_s=process.requested.timeout_s), cause=intent)
        await instance.signal(process.process_id, Signals.SIGKILL)
        return await instance.wait(process.process_id)

    async def adopt(self, runtime: Runtime, process: ProcessState, found: trio.Event) -> None:
        """Take over a process of an earlier daemon: one that was started, or that nobody knows whether it was.

        `found` is set once the instance knows it, or it is certain that it will not.
        """
        try:
            pid = await self._find(runtime, process, found)
        except StateError:
            return  # the sandbox has ended, and whoever keeps it tells how its processes did
        if pid is None:
            await self._record(process, _never_seen(process))
            return
        if process.status == "starting":
            await self._record(process, events.ProcessStarted(pid=pid))
        await self.follow(runtime, process, None)

    async def _find(self, runtime: Runtime, process: ProcessState, asked: trio.Event) -> int | None:
        """Ask a sandbox after a process, again and again until it answers: who follows a process does not give up.

        Raises `not_ready` when the sandbox has ended, of which another task tells.
        """

        async def find() -> int | None:
            try:
                return await runtime.instance.find(process.process_id)
            finally:
                asked.set()

        return await insist(find, f"adopting {process.process_id}", passing=(StateError,))

    async def _end(
        self, runtime: Runtime, process: ProcessState, exited: Exit, intent: Recorded | None, *before: events.Event
    ) -> None:
        instance, process_id = runtime.instance, process.process_id
        if process.requested.durable:
            await self._sync(instance, process_id)
        outcome: events.Event
        if exited.exit_code is None:
            outcome = events.ProcessLost(message=exited.message or "nobody saw how the process ended")
        else:
            sizes = [instance.read(process_id, stream, 0, 0).size for stream in ("stdout", "stderr")]
            outcome = events.ProcessExited(exit_code=exited.exit_code, stdout_bytes=sizes[0], stderr_bytes=sizes[1])
        await self._record(process, *before, outcome, cause=intent)
        instance.forget(process_id)

    async def _sync(self, instance: Instance, process_id: str) -> None:
        """Have the journals on the disk. One that fails to write them may never do so, and the end has to be told."""
        try:
            await trio.to_thread.run_sync(instance.sync, process_id)
        except OSError as error:
            why = error.strerror or str(error)
            logger.error("its output may not survive a power cut", extra={"process_id": process_id, "why": why})

    async def _record(self, process: ProcessState, *facts: events.Event, cause: Recorded | None = None) -> None:
        await self._core.record([NewEvent(process.process_id, fact, process.sandbox_id) for fact in facts], cause)

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

        See `Terminals.open_terminal`. Raises `not_supported` for a process without a terminal, `not_ready` for one
        that has ended.
        """
        terminals = await self.reach_terminal(process)
        return await terminals.open_terminal(process.process_id, rows=rows, cols=cols, term=term, read_only=read_only)

    async def reach_terminal(self, process: ProcessState) -> Terminals:
        """What acts on the terminal of a process that runs. Raises as `open_terminal` does."""
        if not process.requested.tty:
            message = f"process {process.name!r} has no terminal: follow its output, or launch it with tty"
            raise SetupError("not_supported", message, name=process.name)
        runtime = await self._reach(process)
        if runtime is None:
            raise StateError("not_ready", f"process {process.name!r} has ended", name=process.name)
        return terminals_of(runtime.instance)

    async def _reach(self, process: ProcessState) -> Runtime | None:
        """The runtime of a process that runs, once it was started; None when it has ended."""
        runtime = None
        if not process.ended:
            runtime = await self._sandboxes.runtime(decide.sandbox(self._core.state, process.sandbox_id))
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
        if query.sandbox_id is not None:
            request.require_sandbox(state, query.sandbox_id)
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
        query = request.params
        process = await self.find(query.sandbox_id, query.name)
        deadline = trio.current_time() + query.wait_s
        while True:
            ended = process.ended  # looked at before the journal: what is read after the end is all there is
            out = self.read_journal(process, "stdout", query.stdout_offset, query.max_bytes)
            err = self.read_journal(process, "stderr", query.stderr_offset, query.max_bytes)
            if err.missing:  # of one that is there, it is told what the other lacks
                require_kept(process, out)
            moved = (out.offset, err.offset) != (query.stdout_offset, query.stderr_offset)
            if out.data or err.data or moved or ended or trio.current_time() >= deadline or query.max_bytes == 0:
                return _output(process, out, err, ended=ended)
            with trio.move_on_at(deadline):
                await self.wait_for_more(process, query.stdout_offset, query.stderr_offset)

    async def wait_for_more(self, process: ProcessState, stdout_offset: int, stderr_offset: int) -> None:
        """Return when a journal holds more than that, or the process has ended; it may also return early."""
        if process.ended:
            return
        if process.sandbox_id in self._sandboxes.adopting:
            await self._sandboxes.adopted(process.sandbox_id)
            return
        runtime = self._sandboxes.runtimes.get(process.sandbox_id)
        if runtime is None or process.status == "starting" or runtime.instance.exit_of(process.process_id) is not None:
            before = process.status
            await self._core.settled(process.process_id, lambda: process.status != before)
        else:
            await runtime.instance.wait_output(process.process_id, stdout_offset, stderr_offset)

    def read_journal(self, process: ProcessState, stream: str, offset: int, max_bytes: int) -> Chunk:
        """Read a piece of a journal, also when the sandbox has ended. Never blocks."""
        runtime = self._sandboxes.runtimes.get(process.sandbox_id)
        if runtime is not None:
            chunk = runtime.instance.read(process.process_id, stream, offset, max_bytes)
        else:
            sandbox = self._core.state.sandboxes[process.sandbox_id]
            provider = self._core.provider(sandbox.requested.provider)
            chunk = provider.read_ended(process.sandbox_id, process.process_id, stream, offset, max_bytes)
        return _compared(chunk, stream, process.stdout_bytes if stream == "stdout" else process.stderr_bytes)

    async def find(self, sandbox_id: str, name: str) -> ProcessState:
        """A process by its name or id; one too old for the view is read from its stream in the log. Raises
        `not_found`.
        """
        sandbox = decide.sandbox(self._core.state, sandbox_id)
        found = sandbox.named.get(name) or self._core.state.processes.get(name) or await self._from_log(sandbox, name)
        if found is None or found.sandbox_id != sandbox_id:
            raise CallerError(
                "not_found", f"sandbox {sandbox_id} has no process {name!r}", sandbox_id=sandbox_id, name=name
            )
        return found

    async def _from_log(self, sandbox: SandboxState, process_id: str) -> ProcessState | None:
        if not process_id.startswith(ids.PROCESS + "_"):
            return None
        facts: list[Recorded] = []
        while more := await self._core.log.read(facts[-1].position if facts else 0, 100, stream=process_id):
            facts += more
        return fold_process(facts, sandbox.sandbox_id)


def is_gone(process: ProcessState, chunk: Chunk) -> bool:
    """Whether a chunk is none because the journals of the process, which it had, are not kept any more."""
    return chunk.missing and process.ended and process.started_us is not None


def require_kept(process: ProcessState, chunk: Chunk) -> None:
    """Refuse to pass off as empty what is not kept any more: `compacted`."""
    if is_gone(process, chunk):
        raise DataError(
            "compacted",
            f"the output of process {process.name!r} is not kept any more: {RETAIN_OUTPUT.name} says how much is, or "
            "the code in the sandbox removed it",
            name=process.name,
        )


def _unknown_input(process: ProcessState, past: Past) -> StateError:
    words = (
        f"the daemon stopped while it wrote to process {process.name!r}: of the {past.trying} bytes after the first "
        f"{past.taken} nobody knows how many it took; see what it made of them, then write the rest by a new command"
    )
    return StateError("conflict", words, written_bytes=past.taken, uncertain_bytes=past.trying)


def terminals_of(instance: Instance) -> Terminals:
    """The terminals of an instance. Raises `not_supported` where there are none."""
    if isinstance(instance, Terminals):
        return instance
    raise SetupError("not_supported", "this provider gives no terminals: launch the process without tty")


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


def _never_seen(process: ProcessState) -> events.Event:
    """What is told of a process that its sandbox knows nothing of, when a daemon adopts it."""
    if process.status == "starting":
        message = "the daemon stopped before the process was started: launch it again"
        return events.ProcessLaunchFailed(code="not_ready", message=message, interrupted=True)
    return events.ProcessLost(message="the sandbox has no record of the process any more")


def parse_signal(text: str) -> int:
    """A signal's number from its name, with or without SIG, or from its digits. Raises `invalid`."""
    try:
        return Signals(int(text)) if text.isdigit() else Signals["SIG" + text.removeprefix("SIG")]
    except (KeyError, ValueError):
        raise CallerError(
            "invalid", f"signal: {text!r} is not a signal: use a name such as TERM or a number", field="signal"
        ) from None


async def _wait(instance: Instance, process_id: str, seconds: float) -> Exit | None:
    """How the process ended, or None if it still runs after so many seconds."""
    known = instance.exit_of(process_id)
    if known is not None:  # it had ended before anybody waited, however little time is left
        return known
    with trio.move_on_after(seconds):
        exited = await instance.wait(process_id)
        await my_turn()
        return exited
    return instance.exit_of(process_id)


def _time_left(process: ProcessState) -> float:
    limit = process.requested.timeout_s
    if limit is None or process.started_us is None:
        return math.inf
    gone = max(0.0, (now_us() - process.started_us) / 1e6)  # a clock that was put back gives nobody more time
    return max(0.0, limit - gone)


def _compared(chunk: Chunk, stream: str, recorded: int | None) -> Chunk:
    """A piece of a journal, with a note if that is shorter than it was when its process ended. It may be longer: what
    the process left behind may go on writing.
    """
    if recorded is None or chunk.size >= recorded or chunk.note is not None:
        return chunk
    lost = f"the journal of {stream} holds {chunk.size} of the {recorded} bytes that were recorded: the rest is lost"
    return msgspec.structs.replace(chunk, note=lost)


def _output(process: ProcessState, out: Chunk, err: Chunk, *, ended: bool) -> ProcessOutput:
    after_out, after_err = out.offset + len(out.data), err.offset + len(err.data)
    return ProcessOutput(
        process_id=process.process_id,
        status=process.status,
        stdout=out.data,
        stderr=err.data,
        stdout_offset=out.offset,
        stderr_offset=err.offset,
        next_stdout_offset=after_out,
        next_stderr_offset=after_err,
        ended=ended and after_out >= out.size and after_err >= err.size,
        exit_code=process.exit_code,
        timed_out=process.timed_out,
        note=out.note or err.note,
    )
