"""The daemon's side of a keeper: an `Instance` over the two directories that it shares with a sandbox.

`shared_directory` has the files, `channel` the requests and answers, `launch` starts processes, `journal` reads their
output, `viewers` shows their terminals, `helpers` runs unrecorded commands. This module combines them.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack
from signal import Signals
from typing import Any, Final

import trio

from sandkeep.errors import SandkeepError, StateError
from sandkeep.ids import PROCESS, new_id
from sandkeep.model import FileContent, Isolation
from sandkeep.system.descriptors import closing_fd
from sandkeepd.contract.instance import Directory, Ending
from sandkeepd.contract.pauses import Pausing
from sandkeepd.contract.processes import Chunk, Exit, InputNote, Launch, unnoted
from sandkeepd.host.cgroups.usage import oom_kills
from sandkeepd.host.hostile_files import HostileTree, NotAFileError
from sandkeepd.keeper import fifo, files, input_files, journal, pipes, requests
from sandkeepd.keeper.channel import Channel
from sandkeepd.keeper.helpers import HELPER_OUTPUT_BYTES, Helpers
from sandkeepd.keeper.launch import Launcher
from sandkeepd.keeper.processes import LOST_END, KnownProcess
from sandkeepd.keeper.shared_directory import SharedDirectory
from sandkeepd.keeper.viewers import Viewers
from sandkeepd.keeper.watcher import Watcher

KILL_DEADLINE_S: Final = 20.0
"""Seconds the keeper has to report the end of a killed process."""

PID_S: Final = 2.0
"""Seconds to wait for the pid of a process that is being started: the code inside can suppress the report."""

STUCK_S: Final = KILL_DEADLINE_S / 2
"""Seconds a killed process's tmux has to notice; then it is killed, too."""


class KeeperInstance:
    """A sandbox that has a keeper. A provider's subclass knows how to find and end the sandbox itself.

    `directory` holds `in` and `out`. `input_owner` is the uid and gid that must be able to open a process's input;
    `inside` is the path of `directory` inside. With `fed` the code inside cannot open our FIFOs, and reads its input
    from growing files. With `own_disk` the directory lies on a disk that it can fill. Whoever pauses the sandbox sets
    `pause`.
    """

    no_terminals: str | None = None
    no_copies: str | None = None
    pauses: Pausing | None = None

    def __init__(
        self,
        sandbox_id: str,
        directory: HostileTree,
        watcher: Watcher,
        *,
        isolation: Isolation,
        handle: dict[str, Any],
        env: Mapping[str, str],
        working_dir: str,
        input_owner: tuple[int, int] | None = None,
        inside: str,
        fed: bool = False,
        own_disk: bool = False,
    ) -> None:
        self.sandbox_id = sandbox_id
        self.isolation = isolation
        self.working_dir = working_dir
        self.handle = handle
        self.cgroups: Mapping[str, str] = {}
        self._ending = Ending(kind="failed", message="it is gone")
        self._shared = SharedDirectory(directory, inside, input_owner, fed=fed, own_disk=own_disk)
        self._watcher = watcher
        self._channel = Channel(sandbox_id, self._shared, watcher, self._on_answer)
        self.pause = self._channel.pause
        self._launcher = Launcher(self._channel, self._shared, env=env, working_dir=working_dir)
        self._helpers = Helpers(self, self._channel, self._shared, self._launcher, watcher)
        self._viewers = self._make_viewers()

    def _make_viewers(self) -> Viewers:
        return Viewers(self, self._channel, self._shared, self.handle)

    def _on_answer(self, answer: journal.Answer) -> None:
        self._viewers.on_answer(answer)

    async def require_reachable(self) -> None:
        """See `Instance.require_reachable`. A keeper on this machine reads what it is asked at once."""

    # Processes

    async def launch(self, launch: Launch) -> int:
        """See `Instance.launch`."""
        return await self._launcher.launch(launch)

    async def find(self, process_id: str) -> int | None:
        """See `Instance.find`. The question queues behind earlier requests in the FIFO, so its answer is final."""
        requests.check_process_id(process_id)
        process = self._channel.processes.get(process_id) or self._channel.follow(process_id)
        if process.pid is None and not self._channel.gone.is_set():
            process.answer = None
            await self._channel.send(requests.request("check", process_id))
            await self._channel.wait_until(
                process, lambda: process.pid is not None or process.answer in ("none", "live")
            )
        if process.pid is None and process.answer == "live":  # it is just being started
            await self._await_pid(process)
        if process.pid is None:
            self._channel.processes.pop(process_id, None)
            return None
        if process.exit is None:
            await self._channel.send(requests.request("check", process_id))
        return process.pid

    async def _await_pid(self, process: KnownProcess) -> None:
        with self.pause.timeout(PID_S) as scope:
            await self._channel.wait_until(process, lambda: process.pid is not None)
        if scope.cancelled_caught:
            process.pid = 0

    async def wait(self, process_id: str) -> Exit:
        """See `Instance.wait`."""
        process = self._channel.processes.get(process_id)
        if process is None:
            await self.find(process_id)
            process = self._channel.get_process(process_id)
        await process.ended.wait()
        assert process.exit is not None
        return process.exit

    def exit_of(self, process_id: str) -> Exit | None:
        """See `Instance.exit_of`."""
        process = self._channel.processes.get(process_id)
        return process.exit if process else None

    def never_started(self, process_id: str) -> bool:
        """See `Instance.never_started`. The keeper makes the journal first, so a process without one did not begin."""
        process = self._channel.processes.get(process_id)
        if not self._channel.gone.is_set() or (process is not None and process.pid is not None):
            return False
        return self._shared.has_journals() and not self._shared.was_started(process_id)

    async def signal(self, process_id: str, signal: int, *, order: int | None = None) -> None:
        """See `Instance.signal`. After SIGKILL it waits for the process's end, at most `KILL_DEADLINE_S`."""
        process = self._channel.get_process(process_id)
        if process.exit is None:
            argument = str(int(signal)) if order is None else f"{int(signal)} {order}"
            await self._channel.send(requests.request("kill", process_id, argument))
            if order is not None:
                process.note_order(order)
            if signal == Signals.SIGKILL:
                await self._killed(process_id, process)

    async def was_signalled(self, process_id: str, order: int) -> bool:
        """See `Instance.was_signalled`. The question queues behind requests of an earlier daemon in the FIFO."""
        process = self._channel.get_process(process_id)
        if process.exit is None and order not in process.orders:
            process.answer = None
            await self._channel.send(requests.request("check", process_id))
            await self._channel.wait_until(process, lambda: process.answer is not None or process.exit is not None)
        return process.exit is not None or order in process.orders

    async def _killed(self, process_id: str, process: KnownProcess) -> None:
        """Wait for the end of a killed process, with a deadline: the code inside can stop or end the keeper."""
        with self.pause.timeout(KILL_DEADLINE_S):
            with self.pause.timeout(STUCK_S):
                await process.ended.wait()
            if process.exit is None:
                self._viewers.kill_stuck_tmux(process_id)
            await process.ended.wait()
        if process.exit is None:
            process.end(Exit(exit_code=None, message=LOST_END))
            process.notify()

    def forget(self, process_id: str) -> None:
        """See `Instance.forget`."""
        process = self._channel.processes.get(process_id)
        if process and process.exit:
            del self._channel.processes[process_id]
        self._shared.reserve.end(process_id)
        if process is None or process.has_files:
            self._shared.remove_ended(process_id)

    # Input and output

    async def write_stdin(
        self, process_id: str, data: bytes, *, eof: bool, done: int = 0, note: InputNote = unnoted
    ) -> int:
        """See `Instance.write_stdin`."""
        process = self._channel.get_process(process_id)
        async with process.input_lock:
            if self._shared.fed:
                taken = await input_files.feed(self._channel, self._shared, process_id, data, done, note)
            else:
                self._open_input(process_id, process)
                taken = await fifo.write_all(lambda: process.input_fd, data, done, note)
            if taken < len(data):
                raise StateError("not_ready", f"process {process_id} ended after {taken} bytes of input", taken=taken)
            if eof:
                note(len(data) + 1, 0)  # the end counts as one more, and can be told twice
                end = requests.read_more(process_id, "stdin", over=True)
                await self._channel.send(end if self._shared.fed else requests.request("eof", process_id))
                process.close_input()
                self._shared.remove_input(process_id)
        return taken

    def _open_input(self, process_id: str, process: KnownProcess) -> None:
        if process.exit is None and process.input_fd is None:
            process.input_fd = self._shared.open_fifo(f"{process_id}.stdin")
        if process.input_fd is None:
            raise input_files.no_input(process_id)

    def read(self, process_id: str, stream: str, offset: int, max_bytes: int) -> Chunk:
        """See `Instance.read`."""
        return journal.read_journal(self._shared.out, requests.check_process_id(process_id), stream, offset, max_bytes)

    def sizes(self, process_id: str) -> tuple[int, int]:
        """See `Instance.sizes`."""
        return journal.sizes(self._shared.out, requests.check_process_id(process_id))

    async def wait_output(self, process_id: str, stdout_offset: int, stderr_offset: int) -> None:
        """See `Instance.wait_output`."""
        process = self._channel.get_process(process_id)
        more = trio.Event()
        with ExitStack() as stack:
            stack.enter_context(process.followed_by(more.set))
            for stream, offset in (("stdout", stdout_offset), ("stderr", stderr_offset)):
                if process.exit or self._watch_journal(process_id, stream, offset, more, stack):
                    return
            await more.wait()

    def _watch_journal(self, process_id: str, stream: str, offset: int, more: trio.Event, stack: ExitStack) -> bool:
        """Set `more` when the journal grows; return True if it is longer than `offset` already."""
        try:
            fd = journal.open_journal(self._shared.out, process_id, stream)
        except (OSError, NotAFileError):
            return False
        with closing_fd(fd):
            stack.enter_context(self._watcher.watching(fd, more.set))
            return os.fstat(fd).st_size > offset

    def sync(self, process_id: str) -> None:
        """See `Instance.sync`."""
        journal.sync(self._shared.out, process_id)

    # Terminals

    async def open_terminal(self, process_id: str, *, rows: int, cols: int, term: str, read_only: bool = False) -> int:
        """See `Instance.open_terminal`."""
        return await self._viewers.attach(process_id, rows=rows, cols=cols, term=term, read_only=read_only)

    async def resize_terminal(self, process_id: str, *, rows: int, cols: int) -> None:
        """See `Instance.resize_terminal`."""
        await self._viewers.resize(process_id, rows, cols)

    async def type_into(self, process_id: str, data: bytes, *, eof: bool) -> int:
        """See `Instance.type_into`."""
        return await self._viewers.type_into(process_id, data, eof=eof)

    # Helper commands

    async def run_command(
        self,
        command: Sequence[str],
        stdin: bytes | None = None,
        *,
        working_dir: str | None = None,
        most_bytes: int = HELPER_OUTPUT_BYTES,
    ) -> tuple[int | None, bytes, bytes]:
        """See `Instance.run_command`. Its journals are removed when it is done."""
        return await self._helpers.run(command, stdin, working_dir=working_dir, most_bytes=most_bytes)

    def run_piped(
        self, command: Sequence[str], *, incoming: bool, working_dir: str | None = None
    ) -> AbstractAsyncContextManager[pipes.Piped]:
        """See `Instance.run_piped`."""
        return self._helpers.piped(command, incoming=incoming, working_dir=working_dir)

    async def read_piece(self, path: str, offset: int, max_bytes: int) -> FileContent:
        """See `Instance.read_piece`."""
        return await files.read_piece(self, path, offset, max_bytes)

    async def write_whole(self, path: str, data: bytes, *, mode: int | None = None, parents: bool = False) -> None:
        """See `Instance.write_whole`."""
        await files.write_whole(self, path, data, mode=mode, parents=parents)

    async def list_directory(self, path: str, after: bytes, limit: int) -> Directory:
        """See `Instance.list_directory`."""
        return await files.list_directory(self, path, after, limit)

    # The sandbox as a whole

    async def is_alive(self) -> bool:
        """See `Instance.is_alive`."""
        if self.pause.is_on:
            return False
        token = new_id(PROCESS)
        process = self._channel.processes[token] = KnownProcess()
        try:
            await self._channel.send(requests.request("check", token))
            await self._channel.wait_until(process, lambda: process.answer == "none")
        except SandkeepError:
            return False
        finally:
            del self._channel.processes[token]
        return not self._channel.gone.is_set()

    async def share_secrets(self, secrets: Mapping[str, str]) -> None:
        """Give secrets to all processes that start from now on."""
        await self._channel.send(*requests.secret_requests("-", secrets))

    async def remember_earlier(self) -> None:
        """Load the answers to an earlier daemon, and end its unfinished helpers and viewers."""
        self._viewers.remember_earlier()
        await self._channel.remember_earlier()
        await self._helpers.end_earlier()

    @property
    def is_idle(self) -> bool:
        """True if no process runs and no answer about one is awaited, as far as is known."""
        return not any(process.runs or process.awaited for process in self._channel.processes.values())

    def sweep(self) -> None:
        """Ask after ends that were not told. Nothing is waited for."""
        self._channel.sweep()

    @property
    def has_own_disk(self) -> bool:
        """See `Instance.has_own_disk`."""
        return self._shared.own_disk

    def disk_is_full(self) -> bool:
        """See `Instance.disk_is_full`."""
        return self._shared.is_full()

    def oom_kills(self) -> int | None:
        """See `Instance.oom_kills`."""
        return oom_kills(self.cgroups)

    async def measure_memory(self) -> None:
        """See `Instance.measure_memory`. The kernel's count is read wherever it is wanted."""

    async def measure_disk(self) -> None:
        """See `Instance.measure_disk`."""

    def disk_usage(self) -> tuple[int | None, int | None]:
        """See `Instance.disk_usage`."""
        return None, None

    async def ended(self) -> Ending:
        """See `Instance.ended`."""
        await self._channel.gone.wait()
        return self._ending

    async def went(self, ending: Ending) -> None:
        """Handle the end of the sandbox, reported by the provider: its processes have ended with it."""
        if self._channel.gone.is_set():
            return
        await self._channel.catch_up()
        self._ending = ending
        self._viewers.remove_all()
        self._channel.end_all_processes()

    @property
    def is_closed(self) -> bool:
        """True if it was released."""
        return self._channel.closed

    async def aclose(self) -> None:
        """See `Instance.aclose`."""
        if not self._channel.closed:
            self._viewers.close()
            self._channel.close()
            await trio.lowlevel.checkpoint()
