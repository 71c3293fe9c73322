"""The daemon's side of a keeper: an `Instance` over the two directories that it shares with a sandbox.

    in/   .control      FIFO of requests; the keeper's standard input, so it needs no name inside
          .keeper       the script
          ID            how to start a process      ID.stdin   its input: a file, or a FIFO
    out/  exits         the keeper's answers        p/ID.{stdout,stderr,pid}   written inside, only read here

Nothing is awaited for a reader's sake: journals are files, and what a daemon missed while it was away is still in
`exits`.
"""

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from signal import Signals
from typing import Any, Final

import msgspec
import trio

from sandkeep import failpoints
from sandkeep.errors import CallerError, ProviderError, SandkeepError, StateError
from sandkeep.ids import PROCESS, new_id
from sandkeep.model import Isolation
from sandkeepd.hostprocess import Identity, identify
from sandkeepd.keeper import fifo, files, journal, pipes, requests, terminal
from sandkeepd.keeper.allowance import Allowance
from sandkeepd.keeper.channel import REQUEST_DEADLINE_S, Channel
from sandkeepd.keeper.pausing import Pause
from sandkeepd.keeper.processes import LOST_END, LOST_WITH_SANDBOX, Earlier, Known
from sandkeepd.keeper.pty import open_pty
from sandkeepd.keeper.watcher import Watcher, grown
from sandkeepd.providers.base import Chunk, Ending, Exit, InputNote, Launch, Terminal, unnoted
from sandkeepd.turns import my_turn

HELPER_OUTPUT_BYTES: Final = 64 * 1024
"""How much of what a helper command says is read, if no more is expected: the code inside can add any amount."""

TIDY_UP_S: Final = 25.0
"""How long a helper command that is not wanted any more has for removing what it began."""

LAST_WORDS_S: Final = 1.0
"""How long the end of one that was killed is waited for: the code inside can keep that from being told."""

ASK_AGAIN_S: Final = 1.0
"""How often it is told so meanwhile."""

ENDS: Final = ("", ".stdin", ".program", ".pane", ".told")
"""What the names of a process's files in `in` end in."""

KILL_DEADLINE_S: Final = 20.0
"""How long the keeper has for telling the end of a process that was killed."""

LOOK_S: Final = 0.5
"""How soon after something was told, or somebody who could tell has gone, it is asked whether all is well."""

EARLIER_S: Final = 600.0
"""How long it is kept what an earlier daemon was told, or would have been; by then the new one has asked after all."""

LOOK_EACH_S: Final = 0.005
"""How much later for each process: a keeper with many, on a machine with much to do, takes its time for that."""

REST_S: Final = 0.05
"""How long a sandbox is not listened to that says more than it can need to."""

STUCK_S: Final = KILL_DEADLINE_S / 2
"""How long a killed process's tmux has for noticing; then it is killed, too."""


class KeeperInstance:
    """A sandbox that has a keeper. A provider's subclass knows how the sandbox itself is found and how it ends.

    `directory` holds `in` and `out`. `leader` are the words that put a process into a group of its own, with default
    signals; `input_owner` is the uid and gid that must be able to open a process's input; `inside` is what the code
    inside calls `directory`, when that is not the same.
    """

    def __init__(
        self,
        sandbox_id: str,
        directory: str,
        watcher: Watcher,
        *,
        isolation: Isolation,
        handle: dict[str, Any],
        leader: Sequence[str],
        env: Mapping[str, str],
        working_dir: str,
        input_owner: tuple[int, int] | None = None,
        inside: str | None = None,
    ) -> None:
        self.sandbox_id = sandbox_id
        self.isolation = isolation
        self.handle = handle
        self._in = f"{directory}/in"
        self._out = f"{directory}/out"
        self._watcher = watcher
        self._leader = leader
        self._env = dict(env)
        self._working_dir = working_dir
        self._input_owner = input_owner
        self._journals = f"{inside or directory}/out/p"
        self._attaching: set[str] = set()
        self._processes: dict[str, Known] = {}
        self._earlier = Earlier()
        self._earlier_viewers: frozenset[str] = frozenset()
        self._channel = Channel(sandbox_id, f"{self._in}/.control")
        self._gone = trio.Event()
        self.pause = Pause()
        self._ending = Ending(kind="failed", message="it is gone")
        self._closed = False
        self._adopted = False
        self._exits = journal.ExitsReader(self._out)
        self._allowance = Allowance()
        try:
            self._watch: int | None = watcher.add(self._exits.fd, self._hear, closings=True)
        except BaseException:
            self._exits.close()
            raise

    # Processes

    async def launch(self, launch: Launch, opening: bytes = b"") -> int:
        """See `Instance.launch`. `opening` are commands of a shell that open more descriptors for the process."""
        process_id = requests.check_process_id(launch.process_id)
        self._check_present()
        if process_id in self._processes or _exists(f"{self._out}/p/{process_id}.pid"):
            raise StateError(
                "conflict", f"process {process_id} was started before: use another id", process_id=process_id
            )
        secrets = list(requests.secret_requests(process_id, launch.secrets))
        await self._write_script(process_id, launch, opening)
        failpoints.reach("launch.written")
        await my_turn()
        process = self._processes[process_id] = Known()
        await self._send(*secrets, requests.request("run", process_id, _mode(launch)))
        failpoints.reach("launch.sent")
        await self._news(process, lambda: process.pid is not None or process.answer == "none")
        if process.pid is None:
            raise self._not_started(process_id, launch)
        return process.pid

    def _not_started(self, process_id: str, launch: Launch) -> SandkeepError:
        said = self.read(process_id, "stderr", 0, 500).data if launch.terminal else b""
        del self._processes[process_id]
        self._unlink(*(process_id + end for end in ENDS))
        if launch.terminal:
            return terminal.not_started(said)
        message = "the sandbox could not start another process: it is out of processes, memory or disk"
        return ProviderError("provider_unavailable", message, process_id=process_id)

    async def _write_script(self, process_id: str, launch: Launch, opening: bytes) -> None:
        env = {name: value for name, value in {**self._env, **launch.env}.items() if name not in launch.secrets}
        where = launch.working_dir or self._working_dir
        try:
            if launch.terminal:
                await self._write_terminal(process_id, launch.terminal, launch.command, env, where)
                return
            text = requests.script(self._leader, launch.command, env, where, opening)
            if launch.stdin is True:
                await self._make_fifo(f"{process_id}.stdin")
            elif isinstance(launch.stdin, bytes):
                await self._write(f"{process_id}.stdin", launch.stdin)
            await self._write(process_id, text)
        except FileExistsError:
            raise StateError(
                "conflict", f"process {process_id} was started before: use another id", process_id=process_id
            ) from None
        except OSError as error:
            self._unlink(*(process_id + end for end in ENDS))
            raise _no_room(error) from None

    async def _write_terminal(
        self, process_id: str, wanted: Terminal, command: Sequence[str], env: Mapping[str, str], working_dir: str
    ) -> None:
        """Write what starts a process in a terminal, which belongs to a session of its own already."""
        text = terminal.script(self._journals, process_id, wanted)
        program = requests.script(self._leader[1:], command, env, working_dir, terminal.BEGIN)
        await self._make_fifo(f"{process_id}.told")
        await self._write(f"{process_id}.program", program)
        await self._write(f"{process_id}.pane", terminal.PANE)
        await self._write(process_id, text)

    async def _write(self, name: str, data: bytes) -> None:
        """Make a file. A small one, too, may have to wait until the file system has flushed what others wrote."""
        await trio.to_thread.run_sync(_write_new, f"{self._in}/{name}", data)

    async def _make_fifo(self, name: str) -> None:
        await trio.to_thread.run_sync(_make_fifo, f"{self._in}/{name}", self._input_owner)

    async def find(self, process_id: str) -> int | None:
        """See `Instance.find`. The question goes behind what may still wait in the FIFO, so its answer is final."""
        requests.check_process_id(process_id)
        process = self._processes.get(process_id)
        if process is None:
            process = self._processes[process_id] = Known()
            self._earlier.tell(process_id, process)
        if process.pid is None and not self._gone.is_set():
            process.answer = None
            await self._send(requests.request("check", process_id))
            await self._news(process, lambda: process.pid is not None or process.answer in ("none", "live"))
        if process.pid is None and process.answer == "live":
            process.pid = journal.read_pid(self._out, process_id) or 0
        if process.pid is None:
            self._processes.pop(process_id, None)
            return None
        if process.exit is None:
            await self._send(requests.request("check", process_id))
        return process.pid

    async def wait(self, process_id: str) -> Exit:
        """See `Instance.wait`."""
        process = self._processes.get(process_id)
        if process is None:
            await self.find(process_id)
            process = self._known(process_id)
        await process.ended.wait()
        assert process.exit is not None
        return process.exit

    def exit_of(self, process_id: str) -> Exit | None:
        """See `Instance.exit_of`."""
        process = self._processes.get(process_id)
        return process.exit if process else None

    async def signal(self, process_id: str, signal: int, *, order: int | None = None) -> None:
        """See `Instance.signal`.

        After SIGKILL it returns when the process's end is known, and at the latest when it ought to be.
        """
        process = self._known(process_id)
        if process.exit is None:
            argument = str(int(signal)) if order is None else f"{int(signal)} {order}"
            await self._send(requests.request("kill", process_id, argument))
            if order is not None:
                process.note_order(order)
            if signal == Signals.SIGKILL:
                await self._killed(process_id, process)

    async def was_signalled(self, process_id: str, order: int) -> bool:
        """See `Instance.was_signalled`. The question goes behind what an earlier daemon left in the FIFO."""
        process = self._known(process_id)
        if process.exit is None and order not in process.orders:
            process.answer = None
            await self._send(requests.request("check", process_id))
            await self._news(process, lambda: process.answer is not None or process.exit is not None)
        return process.exit is not None or order in process.orders

    async def _killed(self, process_id: str, process: Known) -> None:
        """The code inside can stop or end whoever would tell. That must not keep those waiting who had it killed."""
        with self.pause.patience(KILL_DEADLINE_S):
            with self.pause.patience(STUCK_S):
                await process.ended.wait()
            if process.exit is None:
                self._end_terminal(process_id)
            await process.ended.wait()
        if process.exit is None:
            process.end(Exit(exit_code=None, message=LOST_END))
            process.tell()

    def forget(self, process_id: str) -> None:
        """See `Instance.forget`."""
        process = self._processes.get(process_id)
        if process and process.exit:
            del self._processes[process_id]
        self._unlink(*(process_id + end for end in ENDS))
        _unlink(f"{self._out}/p/{process_id}.tmux")

    # Input and output

    async def write_stdin(
        self, process_id: str, data: bytes, *, eof: bool, done: int = 0, note: InputNote = unnoted
    ) -> int:
        """See `Instance.write_stdin`."""
        process = self._known(process_id)
        async with process.input_lock:
            self._open_input(process_id, process)
            taken = await fifo.write_all(lambda: process.input_fd, data, done, note)
            if taken < len(data):
                raise StateError("not_ready", f"process {process_id} ended after {taken} bytes of input", taken=taken)
            if eof:
                note(len(data) + 1, 0)  # the end counts as one more, and can be told twice
                await self._send(requests.request("eof", process_id))
                process.close_input()
                self._unlink(f"{process_id}.stdin")
        return taken

    def _open_input(self, process_id: str, process: Known) -> None:
        if process.exit is None and process.input_fd is None:
            process.input_fd = fifo.open_fifo(f"{self._in}/{process_id}.stdin")
        if process.input_fd is None:
            raise StateError(
                "not_ready",
                f"process {process_id} takes no input: it has none, or it was closed",
                process_id=process_id,
            )

    # Terminals

    async def open_terminal(self, process_id: str, *, rows: int, cols: int, term: str, read_only: bool = False) -> int:
        """See `Terminals.open_terminal`."""
        if self._known(process_id).exit:
            raise StateError("not_ready", f"process {process_id} has ended", process_id=process_id)
        fd, number = self._open_pty(rows, cols)
        viewer = new_id(terminal.VIEWER)
        self._attaching.add(viewer)
        try:
            command = terminal.viewer(self._journals, process_id, number, term, read_only=read_only)
            await self.launch(Launch(process_id=viewer, command=command, working_dir=self._journals))
            if not await terminal.shown(fd, self._processes[viewer].ended):
                raise terminal.not_attached(self.read(viewer, "stderr", 0, 500).data)
        except BaseException:
            trio.lowlevel.notify_closing(fd)
            os.close(fd)  # which ends the viewer
            raise
        finally:
            self._attaching.discard(viewer)
            if viewer not in self._processes or self.exit_of(viewer):
                self._remove_viewer(viewer)
        return fd

    def _open_pty(self, rows: int, cols: int) -> tuple[int, int]:
        """A new terminal in the sandbox. Its first process is looked at last, as its pid may become another's."""
        pid = self.handle["first"]["pid"]
        fd, number = open_pty(f"/proc/{pid}/root", self._input_owner, rows, cols)
        if identify(pid) == msgspec.convert(self.handle["first"], Identity):
            return fd, number
        os.close(fd)
        raise StateError("not_ready", f"sandbox {self.sandbox_id} has ended: create another")

    def _remove_viewers(self) -> None:
        with suppress(OSError):
            for viewer in filter(terminal.is_viewer, os.listdir(self._in)):
                self._remove_viewer(viewer)

    def _remove_viewer(self, viewer: str) -> None:
        """A viewer has gone: nothing shall stay of it, whichever daemon it came to."""
        if viewer not in self._attaching:
            self._processes.pop(viewer, None)
            self._remove(viewer)

    def _end_terminal(self, process_id: str) -> None:
        """Have the tmux of a killed process killed, if it has one: it may hang, and so nobody knows of the end."""
        fd = fifo.open_fifo(f"{self._in}/{process_id}.told")
        if fd is not None:
            with suppress(OSError):  # it is full
                os.write(fd, terminal.STUCK)
            os.close(fd)

    async def resize_terminal(self, process_id: str, *, rows: int, cols: int) -> None:
        """See `Terminals.resize_terminal`."""
        await self._ask_tmux(terminal.resize(self._journals, process_id, rows, cols))

    async def type_into(self, process_id: str, data: bytes, *, eof: bool) -> int:
        """See `Terminals.type_into`."""
        async with self._known(process_id).input_lock:
            if typed := terminal.typed(data, eof=eof):
                await self._ask_tmux(terminal.typing(self._journals, process_id, new_id(terminal.VIEWER)), typed)
        return len(data)

    async def _ask_tmux(self, command: Sequence[str], stdin: bytes | None = None) -> None:
        try:
            with trio.fail_after(terminal.DEADLINE_S):
                code, _, stderr = await self.run_command(command, stdin, working_dir=self._journals)
        except trio.TooSlowError:
            raise terminal.silent() from None
        if code != 0:
            raise terminal.refused(stderr)

    def read(self, process_id: str, stream: str, offset: int, max_bytes: int) -> Chunk:
        """See `Instance.read`."""
        return journal.read_journal(self._out, requests.check_process_id(process_id), stream, offset, max_bytes)

    async def wait_output(self, process_id: str, stdout_offset: int, stderr_offset: int) -> None:
        """See `Instance.wait_output`."""
        process = self._known(process_id)
        more = trio.Event()
        with ExitStack() as stack:
            process.followers.add(more.set)
            stack.callback(process.followers.discard, more.set)
            for stream, offset in (("stdout", stdout_offset), ("stderr", stderr_offset)):
                if process.exit or self._follow(process_id, stream, offset, more, stack):
                    return
            await more.wait()

    def _follow(self, process_id: str, stream: str, offset: int, more: trio.Event, stack: ExitStack) -> bool:
        """Have `more` set when the stream grows; whether it is longer than `offset` already."""
        try:
            fd = journal.open_journal(self._out, process_id, stream)
        except (OSError, journal.NotAFileError):
            return False
        try:
            stack.enter_context(self._watcher.watching(fd, more.set))
            return grown(fd, offset)
        finally:
            os.close(fd)

    def sync(self, process_id: str) -> None:
        """See `Instance.sync`."""
        for stream in ("stdout", "stderr"):
            try:
                fd = journal.open_journal(self._out, process_id, stream)
            except (OSError, journal.NotAFileError):
                continue
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    # The sandbox as a whole

    async def run_command(
        self,
        command: Sequence[str],
        stdin: bytes | None = None,
        *,
        working_dir: str | None = None,
        most_bytes: int = HELPER_OUTPUT_BYTES,
    ) -> tuple[int | None, bytes, bytes]:
        """See `Instance.run_command`. Its journals are removed when it is done."""
        process_id = new_id(pipes.HELPER)
        try:
            launch = Launch(process_id=process_id, command=command, stdin=stdin, working_dir=working_dir)
            await self.launch(launch)
            how = await self.wait(process_id)
            stdout = await trio.to_thread.run_sync(self.read, process_id, "stdout", 0, most_bytes)
            stderr = self.read(process_id, "stderr", 0, HELPER_OUTPUT_BYTES)
            return how.exit_code, stdout.data, stderr.data
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + REQUEST_DEADLINE_S):
                await self._drop(process_id)

    @asynccontextmanager
    async def run_piped(
        self, command: Sequence[str], *, incoming: bool, working_dir: str | None = None
    ) -> AsyncIterator[pipes.Piped]:
        """See `Piping.run_piped`."""
        process_id = new_id(pipes.HELPER)
        piped: pipes.Piped | None = None
        try:
            with pipes.Ends(self._in, process_id, self._input_owner) as ends:
                launch = Launch(process_id=process_id, command=command, working_dir=working_dir)
                await self.launch(launch, ends.opening(incoming=incoming))
                piped = pipes.Piped(self, process_id, ends.data(incoming=incoming), ends.control())
                try:
                    with self.pause.patience(REQUEST_DEADLINE_S) as patience:
                        await piped.expect("ready")
                    if patience.cancelled_caught:
                        raise self._channel.silent(REQUEST_DEADLINE_S)
                    ends.let_go()
                    yield piped
                finally:
                    piped.close()
        finally:
            if piped is None or not piped.left_alone or self.exit_of(process_id):
                with trio.CancelScope(shield=True, deadline=trio.current_time() + REQUEST_DEADLINE_S):
                    await self._drop(process_id)

    async def _drop(self, process_id: str) -> None:
        process = self._processes.get(process_id)
        if process:
            with trio.move_on_after(TIDY_UP_S):  # a helper removes what it had not finished
                await self._ask_to_go(process_id, process)
        if process and process.exit is None and not self._gone.is_set():
            for _ in range(2):  # of one whose pid is not known the second takes what it would be told by
                await self._send(requests.request("kill", process_id, "9"))
                with trio.move_on_after(LAST_WORDS_S):
                    await process.ended.wait()
                    break
        self.forget(process_id)
        self._remove(process_id)

    async def _ask_to_go(self, process_id: str, process: Known) -> None:
        """Again and again: a shell that starts a program at that moment takes the signal from it, and waits for it. And
        what the code inside has stopped goes on, to go.
        """
        while process.exit is None and not self._gone.is_set():
            for number in (Signals.SIGTERM, Signals.SIGCONT):
                await self._send(requests.request("kill", process_id, str(int(number))))
            with trio.move_on_after(ASK_AGAIN_S):
                await process.ended.wait()

    def _remove(self, process_id: str) -> None:
        """Remove every file of a helper command."""
        self._unlink(process_id, *(process_id + end for end in (".stdin", *pipes.ENDS)))
        for part in ("stdout", "stderr", "pid"):
            _unlink(f"{self._out}/p/{process_id}.{part}")

    async def is_alive(self) -> bool:
        """See `Instance.is_alive`."""
        if self.pause.is_on:
            return False
        token = new_id(PROCESS)
        process = self._processes[token] = Known()
        try:
            await self._send(requests.request("check", token))
            await self._news(process, lambda: process.answer == "none")
        except SandkeepError:
            return False
        finally:
            del self._processes[token]
        return not self._gone.is_set()

    def is_paused(self) -> bool:
        """See `Pausing.is_paused`. The provider says it, by `pause`."""
        return self.pause.is_on

    async def pause_changed(self, paused: bool) -> None:
        """See `Pausing.pause_changed`."""
        await self.pause.changed(paused)

    async def read_file(self, path: str) -> bytes:
        """See `Instance.read_file`."""
        return await files.read_file(self, path)

    async def write_file(self, path: str, data: bytes) -> None:
        """See `Instance.write_file`."""
        await files.write_file(self, path, data)

    async def ended(self) -> Ending:
        """See `Instance.ended`."""
        await self._gone.wait()
        return self._ending

    async def share_secrets(self, secrets: Mapping[str, str]) -> None:
        """Give secrets to all processes that start from now on."""
        await self._send(*requests.secret_requests("-", secrets))

    def sweep(self) -> None:
        """Ask after the processes whose watchers may have been killed, or whose ends were not told, and have what ended
        reaped. Nothing is waited for: what finds no room in the FIFO is asked another time.
        """
        self._watcher.never(self._look)
        if self._ask_after([name for name, process in self._processes.items() if process.runs]):
            self._exits.spoilt = False

    def _look(self) -> None:
        """A watcher has gone, perhaps without a word; or the code inside has spoilt what was said."""
        if self._exits.spoilt:
            self.sweep()
        elif any(process.exit is None for process in self._processes.values()):
            self._ask_after(())

    def _ask_after(self, process_ids: Sequence[str]) -> bool:
        """Whether all could be asked."""
        fd = None if self._closed or self._gone.is_set() or self.pause.is_on else fifo.open_fifo(f"{self._in}/.control")
        if fd is None:
            return False
        try:
            for line in requests.questions(process_ids):
                os.write(fd, line)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
        return True

    async def remember_earlier(self) -> None:
        """Take note of all that `exits` holds already, for the processes that a new daemon will ask after."""
        self._adopted = True
        self._earlier_viewers = frozenset(filter(terminal.is_viewer, os.listdir(self._in)))
        self._watcher.later(self._forget_earlier, EARLIER_S)
        await self._catch_up()
        await self._end_earlier_helpers()

    def _forget_earlier(self) -> None:
        """Whoever had to be asked after was: what else the code inside has told is not kept."""
        self._adopted = False
        self._earlier = Earlier()

    async def _end_earlier_helpers(self) -> None:
        """End the helper commands that an earlier daemon did not see to their end, and remove what is left of them."""
        for process_id in pipes.left_behind(self._in):
            with suppress(SandkeepError):  # it is ending
                await self._send(requests.request("kill", process_id, str(int(Signals.SIGTERM))))
            self._remove(process_id)

    async def _catch_up(self) -> None:
        """Read what `exits` holds by now, letting others go on: the code inside may have written any amount."""
        for _ in range(journal.MAX_ROUNDS):
            if self._closed or not self._read_answers():
                return
            await trio.lowlevel.checkpoint()

    async def went(self, ending: Ending) -> None:
        """The sandbox is gone, for the provider to say: what still ran in it has ended with it."""
        if self._gone.is_set():
            return
        await self._catch_up()
        self._ending = ending
        self._gone.set()
        self._remove_viewers()
        for process in self._processes.values():
            if process.exit is None:
                process.end(Exit(exit_code=None, message=LOST_WITH_SANDBOX))
            process.tell()

    async def aclose(self) -> None:
        """See `Instance.aclose`."""
        if self._closed:
            return
        self._closed = True
        self._rest()
        for callback in (self._hear_again, self._look, self._forget_earlier):
            self._watcher.never(callback)
        self._exits.close()
        for process in self._processes.values():
            process.close_input()
        await trio.lowlevel.checkpoint()

    # Requests and answers

    def _hear(self) -> None:
        if self._closed or self._watch is None:
            return
        self._watcher.later(self._look, LOOK_S + LOOK_EACH_S * len(self._processes))
        with self._allowance.spending():
            more = self._read_answers()
        if self._allowance.is_spent:
            self._rest()
            self._watcher.later(self._hear_again, REST_S)
        elif more:
            trio.lowlevel.current_trio_token().run_sync_soon(self._hear)  # after what others have to say

    def _rest(self) -> None:
        """Listen no more for now, as the code inside writes what nobody needs."""
        if self._watch is not None:
            self._watcher.remove(self._watch, self._hear)
            self._watch = None

    def _hear_again(self) -> None:
        if self._closed:
            return
        try:
            self._watch = self._watcher.add(self._exits.fd, self._hear, closings=True)
        except ProviderError:  # there is no watch to be had
            self._watcher.later(self._hear_again, REST_S)
        else:
            self._hear()

    def _read_answers(self) -> bool:
        answers, more = self._exits.read()
        for answer in answers:
            process = self._processes.get(answer.process_id)
            if process is not None:
                process.learn(answer.word)
            if terminal.is_viewer(answer.process_id):
                if answer.says_end and (process is not None or answer.process_id in self._earlier_viewers):
                    self._remove_viewer(answer.process_id)
            elif process is None and self._adopted:
                self._earlier.remember(answer)
        return more

    async def _send(self, *lines: bytes) -> None:
        self._check_present()
        await self._channel.send(*lines, deadline_s=REQUEST_DEADLINE_S)

    async def _news(self, process: Known, enough: Callable[[], bool]) -> None:
        """Wait until the keeper's answers are `enough`.

        Raises `provider_unavailable`, or `not_ready` when it is gone.
        """
        with self.pause.patience(REQUEST_DEADLINE_S) as patience:
            while not enough():
                self._check_present()
                await process.news.wait()
        if patience.cancelled_caught:
            raise self._channel.silent(REQUEST_DEADLINE_S)

    def _check_present(self) -> None:
        if self._gone.is_set():
            raise StateError(
                "not_ready", f"sandbox {self.sandbox_id} has ended: create another", sandbox_id=self.sandbox_id
            )

    def _known(self, process_id: str) -> Known:
        process = self._processes.get(process_id)
        if process is None:
            raise CallerError(
                "not_found", f"sandbox {self.sandbox_id} has no process {process_id[:80]!r}", process_id=process_id
            )
        return process

    def _unlink(self, *names: str) -> None:
        for name in names:
            _unlink(f"{self._in}/{name}")


def _mode(launch: Launch) -> str:
    """What the keeper calls the kind of input that a process has."""
    if launch.terminal:
        return "tty"
    return {None: "none", False: "none", True: "pipe"}.get(launch.stdin, "file")  # type: ignore[arg-type]


def _no_room(error: OSError) -> SandkeepError:
    from sandkeep.errors import DaemonError

    return DaemonError("storage_unavailable", f"the state directory cannot be written: {error.strerror}")


def _write_new(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with open(fd, "wb", buffering=0) as file:
        while data:
            data = data[file.write(data) :]


def _make_fifo(path: str, owner: tuple[int, int] | None) -> None:
    os.mkfifo(path, 0o600)
    if owner:
        os.chown(path, *owner)


def _exists(path: str) -> bool:
    return os.path.lexists(path)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return
