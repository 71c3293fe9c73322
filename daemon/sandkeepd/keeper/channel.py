"""The conversation with a keeper: requests, and facts about the sandbox's processes from its answers.

The keeper does not wait for a reader: answers that a daemon missed while it was away are still in `exits`. And as the
code inside can write there, too, reading is limited to a sandbox's share of the daemon's time.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Final

import trio

from sandkeep.errors import CallerError, ProviderError, StateError
from sandkeep.system.descriptors import closing_fd
from sandkeepd.contract.processes import Exit
from sandkeepd.keeper import fifo, journal, requests, terminal
from sandkeepd.keeper.allowance import Allowance
from sandkeepd.keeper.pause import Pause
from sandkeepd.keeper.processes import LOST_WITH_SANDBOX, EarlierAnswers, KnownProcess
from sandkeepd.keeper.shared_directory import CONTROL, SharedDirectory
from sandkeepd.keeper.watcher import Watcher

REQUEST_DEADLINE_S: Final = 30.0
"""Seconds a request may wait for room in the FIFO, and for the keeper's answer."""

LOOK_S: Final = 0.5
"""Seconds until processes are queried again after the code inside has corrupted the answers."""

LOOK_EACH_S: Final = 0.005
"""Additional seconds for each process: a keeper with many, on a busy machine, needs time to answer."""

EARLIER_S: Final = 600.0
"""Seconds that answers to an earlier daemon are kept; by then the new one has queried them anyway."""

REST_S: Final = 0.05
"""Seconds for which a sandbox with excessive output is ignored."""


class Channel:
    """Requests to one keeper, and its answers: each goes to its process in `processes`, then to `on_answer`."""

    def __init__(
        self, sandbox_id: str, shared: SharedDirectory, watcher: Watcher, on_answer: Callable[[journal.Answer], None]
    ) -> None:
        self.processes: dict[str, KnownProcess] = {}
        self.gone = trio.Event()
        """Set when the sandbox is gone, and there is nobody to talk to."""
        self.closed = False
        self.pause = Pause()
        self._sandbox_id = sandbox_id
        self._watcher = watcher
        self._on_answer = on_answer
        self._shared = shared
        self._turn = trio.Lock()
        self._earlier = EarlierAnswers()
        self._adopted = False
        self._allowance = Allowance()
        self._exits = journal.ExitsReader(shared.out)
        try:
            self._watch: int | None = watcher.add(self._exits.fd, self._read_some)
        except BaseException:
            self._exits.close()
            raise

    # Asking

    async def send(self, *lines: bytes) -> None:
        """Send requests, several together, waiting for room. Raises `not_ready` if it ended, `provider_unavailable`."""
        self.check_present()
        fd = self._shared.open_fifo(CONTROL)
        if fd is None:
            message = f"the control FIFO of sandbox {self._sandbox_id} is gone: terminate the sandbox"
            raise ProviderError("provider_unavailable", message)
        with closing_fd(fd), trio.move_on_after(REQUEST_DEADLINE_S) as scope:
            async with self._turn if len(lines) > 1 else nullcontext():
                for line in lines:
                    await fifo.write_line(fd, line)
        if scope.cancelled_caught:
            raise self.no_answer()
        if self._watch is not None:
            self._watcher.poll_soon(self._watch)

    async def wait_until(self, process: KnownProcess, enough: Callable[[], bool]) -> None:
        """Wait until answers are `enough`. Raises `provider_unavailable`; `not_ready` if the sandbox ended."""
        with self.pause.timeout(REQUEST_DEADLINE_S) as scope:
            process.awaited += 1
            try:
                while not enough():
                    self.check_present()
                    await process.changed.wait()
            finally:
                process.awaited -= 1
        if scope.cancelled_caught:
            raise self.no_answer()

    def no_answer(self) -> ProviderError:
        """The error for a keeper that has not taken a request, or not answered it, in time."""
        seconds = f"{REQUEST_DEADLINE_S:.0f} s"
        message = f"sandbox {self._sandbox_id} did not answer for {seconds}: terminate it if that goes on"
        return ProviderError("provider_unavailable", message, sandbox_id=self._sandbox_id)

    def check_present(self) -> None:
        """Raise `not_ready` when the sandbox is gone."""
        if self.gone.is_set():
            raise StateError(
                "not_ready", f"sandbox {self._sandbox_id} has ended: create another", sandbox_id=self._sandbox_id
            )

    def get_process(self, process_id: str) -> KnownProcess:
        """A process that was asked after. Raises `not_found`."""
        process = self.processes.get(process_id)
        if process is None:
            raise CallerError(
                "not_found", f"sandbox {self._sandbox_id} has no process {process_id[:80]!r}", process_id=process_id
            )
        return process

    def follow(self, process_id: str) -> KnownProcess:
        """Begin to follow a process, with the remembered answers to an earlier daemon."""
        process = self.processes[process_id] = KnownProcess()
        self._earlier.pass_on(process_id, process)
        return process

    def sweep(self) -> None:
        """Query processes whose ends may have been missed. Does not wait; repeated later if the FIFO is full."""
        self._watcher.cancel_call(self.sweep)
        running = [name for name, process in self.processes.items() if process.runs]
        awaited = [name for name, process in self.processes.items() if process.awaited and process.exit is None]
        if self._query(running, awaited):
            self._exits.spoilt = False

    def _query(self, process_ids: Sequence[str], awaited: Sequence[str]) -> bool:
        """Send the queries; return True if all were sent."""
        fd = None if self.closed or self.gone.is_set() or self.pause.is_on else self._shared.open_fifo(CONTROL)
        if fd is None:
            return False
        with closing_fd(fd), suppress(BlockingIOError):
            for line in requests.queries(process_ids, awaited):
                os.write(fd, line)
            return True
        return False

    # Hearing

    async def remember_earlier(self) -> None:
        """Take note of all that `exits` holds already, for the processes that a new daemon will ask after."""
        self._adopted = True
        self._watcher.call_later(self._forget_earlier, EARLIER_S)
        await self.catch_up()

    def _forget_earlier(self) -> None:
        """Drop the remembered answers, after all recorded processes were queried: the rest is from the code inside."""
        self._adopted = False
        self._earlier = EarlierAnswers()

    async def catch_up(self) -> None:
        """Read the present contents of `exits`, with checkpoints: the code inside may have written any amount."""
        for _ in range(journal.MAX_ROUNDS):
            if self.closed or not self._read_answers():
                return
            await trio.lowlevel.checkpoint()

    def _read_some(self) -> None:
        if self.closed or self._watch is None:
            return
        with self._allowance.spending():
            more = self._read_answers()
        if self._exits.spoilt:
            self._watcher.call_later(self.sweep, LOOK_S + LOOK_EACH_S * len(self.processes))
        if self._allowance.is_spent:
            self._stop_watching()
            self._watcher.call_later(self._resume_watching, REST_S)
        elif more:
            trio.lowlevel.current_trio_token().run_sync_soon(self._read_some)  # after other sandboxes' callbacks

    def _stop_watching(self) -> None:
        """Stop reading for now, as the code inside writes excessively."""
        if self._watch is not None:
            self._watcher.remove(self._watch, self._read_some)
            self._watch = None

    def reopen_answers(self) -> None:
        """The keeper answers in another file, which begins as the one before. Raises OSError, `NotAFileError`."""
        if self.closed:
            return
        self._stop_watching()
        self._exits.reopen()
        self._watcher.cancel_call(self._resume_watching)
        self._resume_watching()

    def _resume_watching(self) -> None:
        if self.closed:
            return
        self._watch = self._watcher.add(self._exits.fd, self._read_some)
        self._read_some()

    def _read_answers(self) -> bool:
        """Learn from the next answers; whether there may be more already."""
        answers, more = self._exits.read()
        for answer in answers:
            process = self.processes.get(answer.process_id)
            if process is not None:
                process.apply(answer.word)
            elif self._adopted and not terminal.is_viewer(answer.process_id):
                self._earlier.remember(answer)
            self._on_answer(answer)
        return more

    # The end

    def end_all_processes(self) -> None:
        """Handle the end of the sandbox: its processes have ended with it."""
        self.gone.set()
        for process in self.processes.values():
            if process.exit is None:
                process.end(Exit(exit_code=None, message=LOST_WITH_SANDBOX))
            process.notify()

    def close(self) -> None:
        """Listen no more, and let go of the processes' input. The sandbox goes on."""
        self.closed = True
        self._stop_watching()
        for callback in (self._resume_watching, self.sweep, self._forget_earlier):
            self._watcher.cancel_call(callback)
        self._exits.close()
        for process in self.processes.values():
            process.close_input()
