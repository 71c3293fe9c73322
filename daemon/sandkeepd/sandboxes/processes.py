"""Operations on processes: signals, input, output. See `launching` for their starts.

Each has a task of the `ProcessSupervisor`'s, which starts it and follows it to its end. Output does not pass through
the daemon: it goes to a journal, which is read by byte offset (`output_reader`).
"""

import logging
import math
import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from signal import Signals
from typing import Final

import trio
from msgspec.structs import replace

from sandkeep import events, failpoints
from sandkeep.errors import CallerError, SandkeepError, SetupError, StateError
from sandkeep.events import Meta
from sandkeep.model import Attachment, OpenOutput, Process, ProcessList, ProcessOutput
from sandkeep.protocol.methods import (
    CancelledLaunch,
    ProcessAttach,
    ProcessCancel,
    ProcessQuery,
    ProcessRead,
    ProcessRef,
    ProcessResize,
    ProcessSignal,
    ProcessWait,
    ProcessWriteStdin,
    Written,
)
from sandkeep_store.eventlog.eventless_commands import CommandProgress
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.processes import ProcessState
from sandkeepd.contract.instance import Instance
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Command, DirectCommand, eventless_command
from sandkeepd.core.paging import page
from sandkeepd.sandboxes.cancellation import Cancellations
from sandkeepd.sandboxes.launching import Execution, ProcessLaunching, require_terminals
from sandkeepd.sandboxes.output_reader import OutputReader, require_kept
from sandkeepd.sandboxes.output_times import OutputTimes
from sandkeepd.sandboxes.process_lookup import ProcessLookup
from sandkeepd.sandboxes.process_supervisor import ProcessSupervisor
from sandkeepd.sandboxes.runtimes import Runtime, Runtimes

logger: Final = logging.getLogger("sandkeepd")

CANCEL_S: Final = 2.0
"""Seconds that a process has for its end after INT, when its launch was cancelled."""


class Processes:
    """The handlers of ``process.*`` but for launches."""

    def __init__(self, core: Core, runtimes: Runtimes) -> None:
        self._core = core
        self._runtimes = runtimes
        self.lookup = ProcessLookup(core)
        self.times = times = OutputTimes.open(core.log.directory)
        self.supervisor = ProcessSupervisor(core, runtimes, times)
        self.outputs = OutputReader(core, runtimes, times)
        self._cancellations = Cancellations(core, self.lookup)
        parts = (core, runtimes, self.supervisor, self.lookup, self._cancellations)
        self.launching = ProcessLaunching(*parts)
        self.execution = Execution(*parts, self.outputs)
        self.commands: Sequence[Command] = (
            self.launching, self.execution, DirectCommand("process.signal", self._signal_again),
            eventless_command("process.cancel", self._cancelled),
            eventless_command("process.write_stdin", self._written), eventless_command("process.resize", self.get),
        )  # fmt: skip

    # -- acting on ----------------------------------------------------------------------------------------------------

    async def signal(self, request: Request[ProcessSignal]) -> Process:
        """Send a signal to the process's group. One that has ended is answered as it is."""
        number = parse_signal(request.params.signal)
        process = await self.lookup.find(request.params.sandbox_id, request.params.name)
        await self._send(process, number, request.meta)
        return process.view()

    async def _send(self, process: ProcessState, number: int, meta: Meta, *, later: bool = False) -> None:
        runtime = await self._reach(process, later=later)
        if runtime is None:
            return
        event = events.ProcessSignalled(signal=Signals(number).name.removeprefix("SIG"))
        order = await self._core.intend(NewEvent(process.process_id, event, process.sandbox_id), meta)
        if not process.ended:  # it may have, while that went to the disk
            await runtime.instance.signal(process.process_id, number, order=order.position)
            failpoints.reach("signal.sent")

    async def _signal_again(self, request: Request[ProcessSignal], first: Recorded) -> Process:
        """The answer to a command that was given before; a daemon that died then may not have sent the signal."""
        process = await self.lookup.find(request.params.sandbox_id, first.stream)
        runtime = await self._reach(process)
        if runtime is not None and not await runtime.instance.was_signalled(process.process_id, first.position):
            number = parse_signal(request.params.signal)
            await runtime.instance.signal(process.process_id, number, order=first.position)
        return process.view()

    async def cancel(self, request: Request[ProcessCancel]) -> CancelledLaunch:
        """End the process of a launch, which its caller gave up: by INT, and by KILL a little later."""
        process = await self._cancellations.cancel(request)
        if process is None:
            return CancelledLaunch()
        if not process.ended:
            meta = replace(request.meta, command_id=None, command=None)  # those of this call, which makes no event
            end = partial(self._end, process, meta)
            self._core.start_task(end, f"the end of {process.process_id}, which was cancelled")
        return CancelledLaunch(process_id=process.process_id)

    async def _end(self, process: ProcessState, meta: Meta) -> None:
        try:
            await self._send(process, Signals.SIGINT, meta, later=True)
            with trio.move_on_after(CANCEL_S):
                await self._core.settled(process.process_id, lambda: process.ended)
            await self._send(process, Signals.SIGKILL, meta, later=True)
        except SandkeepError as error:  # its sandbox is suspended, or ending
            logger.info("not ended", extra={"process_id": process.process_id, "error": error.message})

    async def _cancelled(self, request: Request[ProcessCancel]) -> CancelledLaunch:
        process = await self._cancellations.find(request)
        return CancelledLaunch(process_id=process.process_id if process is not None else None)

    async def write_stdin(self, request: Request[ProcessWriteStdin]) -> Written:
        """Write to a process's input, or close it. For a terminal it is typed.

        A repeated command does not write the same bytes again.
        """
        command, past = request.params, request.past or CommandProgress()
        process = await self.lookup.find(command.sandbox_id, command.name)
        if past.trying:
            raise _unknown_input(process, past)
        try:
            await self._input(process, command, past)
        except StateError:
            if not past.earlier or not past.taken >= max(1, len(command.data)):
                raise  # otherwise all had been written, and only that was not told; an end of input needs no telling
        return Written(written_bytes=len(command.data))

    async def _input(self, process: ProcessState, command: ProcessWriteStdin, past: CommandProgress) -> None:
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

    async def _written(self, request: Request[ProcessWriteStdin]) -> Written:
        await self.lookup.find(request.params.sandbox_id, request.params.name)
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

    async def attach(self, request: Request[ProcessAttach]) -> Attachment:
        """Give the caller the controlling side of a terminal in which tmux shows the process."""
        query = request.params
        process = await self.lookup.find(query.sandbox_id, query.name)
        fd = await self.open_terminal(process, query.rows, query.cols, query.term, read_only=query.read_only)
        try:
            await request.give([fd])
        finally:
            os.close(fd)
        return Attachment(process=process.view())

    async def resize(self, request: Request[ProcessResize]) -> Process:
        """Give the process's terminal a size."""
        query = request.params
        process = await self.lookup.find(query.sandbox_id, query.name)
        terminals = await self.reach_terminal(process)
        await terminals.resize_terminal(process.process_id, rows=query.rows, cols=query.cols)
        return process.view()

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

    async def _reach(self, process: ProcessState, *, later: bool = False) -> Runtime | None:
        """The runtime of a process that runs, once it was started; None when it has ended. Raises
        `provider_unavailable` if it cannot be reached now, unless what is asked of it may be done `later`.
        """
        runtime = None
        if not process.ended:
            runtime = await self._runtimes.running(rules.sandbox(self._core.state, process.sandbox_id))
            await self._core.settled(process.process_id, lambda: process.status != "starting")
            if not later and not process.ended:
                await runtime.instance.require_reachable()
        return None if process.ended else runtime

    # -- reading ------------------------------------------------------------------------------------------------------

    async def get(self, request: Request[ProcessRef]) -> Process:
        """Show a process."""
        return (await self.lookup.find(request.params.sandbox_id, request.params.name)).view()

    async def wait(self, request: Request[ProcessWait]) -> Process:
        """Wait until a process has ended."""
        query = request.params
        process = await self.lookup.find(query.sandbox_id, query.name)
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
        process = await self.lookup.find(request.params.sandbox_id, request.params.name)
        return await self.outputs.read(process, request.params)

    async def open_output(self, request: Request[ProcessRef]) -> OpenOutput:
        """Give the caller both journals of a process, which may have ended, as may its sandbox.

        Raises `compacted` when they are not kept any more, `not_supported` where that would be more than to let it be
        read.
        """
        process = await self.lookup.find(request.params.sandbox_id, request.params.name)
        view = process.view()  # looked at before the journals: with an ended process, they are all there is
        require_kept(process, self.outputs.read_journal(process, "stdout", 0, 0))
        provider = self._core.provider(self._core.state.sandboxes[process.sandbox_id].requested.provider)
        with ExitStack() as opened:
            given = []
            for stream in ("stdout", "stderr"):
                given.append(provider.open_journal(process.sandbox_id, process.process_id, stream, request.caller.uid))
                opened.callback(os.close, given[-1])
            stdout_bytes, stderr_bytes = (os.fstat(descriptor).st_size for descriptor in given)
            await request.give(given)
        return OpenOutput(process=view, stdout_bytes=stdout_bytes, stderr_bytes=stderr_bytes)


def _unknown_input(process: ProcessState, past: CommandProgress) -> StateError:
    message = (
        f"the daemon stopped while it wrote to process {process.name!r}: of the {past.trying} bytes after the first "
        f"{past.taken} it is unknown how many it took; check the process, then write the rest with a new command"
    )
    return StateError("conflict", message, written_bytes=past.taken, uncertain_bytes=past.trying)


def parse_signal(text: str) -> int:
    """A signal's number from its name, with or without SIG, or from its digits. Raises `invalid`."""
    try:
        return Signals(int(text)) if text.isdigit() else Signals["SIG" + text.removeprefix("SIG")]
    except (KeyError, ValueError):
        raise CallerError(
            "invalid", f"signal: {text!r} is not a signal: use a name such as TERM or a number", field="signal"
        ) from None
