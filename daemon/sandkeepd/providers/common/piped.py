"""Helper commands with pipes in sandboxes elsewhere: `keeper -x` has a command's ends, over a stream of its own.

What a stream carries::

    in    to it: [length, 4 bytes][data]..., [0], then control words         from it: the command's stdout
    out   to it: control words       from it: [1: data, 2: stdout][length, 4 bytes][bytes]...

The data passes through a pipe of the daemon's, so that each side waits for the other; nothing is kept on a disk. The
end of the connection is the end of the command's pipes: it then undoes its work.
"""

import fcntl
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from signal import Signals
from typing import Final

import trio

from sandkeep.errors import ProviderError, SandkeepError, SetupError
from sandkeepd.contract.commands import CommandFailedError
from sandkeepd.contract.instance import Instance
from sandkeepd.keeper.channel import REQUEST_DEADLINE_S
from sandkeepd.keeper.client import KeeperInstance
from sandkeepd.keeper.helpers import CLEAN_UP_S, SIGNAL_PERIOD_S
from sandkeepd.keeper.pipes import MAX_LINE_BYTES, PIPE_BYTES, Piped, unwritten_stderr
from sandkeepd.providers.common.remote import BrokenExecError, Remote, RemoteStream
from sandkeepd.providers.common.remote_commands import kill, parse_pid, reporting_argv

PIECE_BYTES: Final = 128 * 1024

MAX_OUTPUT_BYTES: Final = 64 * 1024
"""Maximum bytes of a command's stdout that wait to be read; more is dropped."""

MAX_UNREAD_BYTES: Final = 16 * 1024**2
"""Maximum bytes of data that are received, and dropped, after their reader has gone."""

DATA: Final = 1
STDOUT: Final = 2
_HEADER_BYTES: Final = 5
_END_OF_DATA: Final = bytes(4)


class Frames:
    """Takes the frames of an outgoing command apart, of any length and in any pieces."""

    def __init__(self) -> None:
        self._header = b""
        self._left = 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the tag and the bytes of each piece of a frame. Raises `provider_unavailable` for an unknown tag."""
        view = memoryview(data)
        while view:
            if not self._left:
                missing = _HEADER_BYTES - len(self._header)
                self._header += view[:missing]
                view = view[missing:]
                if len(self._header) < _HEADER_BYTES:
                    return
                self._left = int.from_bytes(self._header[1:])
                if self._header[0] not in (DATA, STDOUT):
                    raise ProviderError("provider_unavailable", "the sandbox's keeper sent a malformed frame")
            piece, view = view[: self._left], view[self._left :]
            self._left -= len(piece)
            yield self._header[0], bytes(piece)
            if not self._left:
                self._header = b""


class PipedExec(Piped):
    """A helper command over a stream. See `PipedCommand`."""

    def __init__(self, instance: Instance, remote: Remote, stream: RemoteStream, *, incoming: bool) -> None:
        reading, writing = os.pipe()
        ours, theirs = (reading, writing) if incoming else (writing, reading)
        super().__init__(instance, "", theirs, -1)
        with suppress(OSError):  # a user's pages are limited; a smaller pipe works, too
            fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._source = trio.lowlevel.FdStream(ours) if incoming else None
        self._target = None if incoming else trio.lowlevel.FdStream(ours)
        self._remote = remote
        self._stream = stream
        self._pid: int | None = None
        self._is_finishing = False
        self._output = bytearray()
        self._unread_bytes = 0
        self._words = bytearray()
        self._changed = trio.Event()
        self._error: SandkeepError | None = None
        self.ended = trio.Event()
        self.tasks = [trio.CancelScope(shield=True) for _ in range(2)]
        """The scopes of `send` and `receive`, which go on until the command has ended when the caller is cancelled."""

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def tell(self, word: str) -> None:
        """See `PipedCommand.tell`. The word goes to an incoming command after all its data."""
        self._words += word.encode() + b"\n"
        self._note_change()

    async def _read_line(self) -> str | None:
        while b"\n" not in self._output:
            if self.ended.is_set():
                return None
            if len(self._output) >= MAX_LINE_BYTES:
                return ""
            await self._changed.wait()
        line, _, _ = self._output.partition(b"\n")
        del self._output[: len(line) + 1]
        return line.decode("utf-8", "backslashreplace")

    async def end(self) -> str:
        """See `PipedCommand.end`. Raises `provider_unavailable` when the connection broke."""
        await self.ended.wait()
        if self._error is not None:
            raise self._error
        outcome = self._stream.outcome
        if outcome is None or outcome.exit_code != 0:
            raise self._failure(*(outcome.exit_code, outcome.message) if outcome else (None, None))
        return self._output[:MAX_LINE_BYTES].decode("utf-8", "backslashreplace")

    def _failure(self, exit_code: int | None, message: str | None) -> CommandFailedError:
        stderr = self._stream.stderr or unwritten_stderr(self._instance) or (message or "").encode()
        return CommandFailedError(exit_code, stderr)

    async def send(self) -> None:
        """Send what the command is to read, until `finish`: an incoming one its data, to the end of the daemon's pipe,
        then the control words as they are told.
        """
        with self.tasks[0], suppress(BrokenExecError):  # whoever receives reports it
            if self._source is not None:
                await self._send_data(self._source)
            while not self._is_finishing or self._words:
                if words := bytes(self._words):
                    self._words.clear()
                    await self._stream.send_all(words)
                else:
                    await self._changed.wait()
            with suppress(SetupError):  # then the command gets the signal alone
                await self._stream.close_stdin()

    async def _send_data(self, source: trio.lowlevel.FdStream) -> None:
        with suppress(trio.ClosedResourceError):  # by `_close_pipe`
            while data := await source.receive_some(PIECE_BYTES):
                await self._stream.send_all(len(data).to_bytes(4) + data)
        await self._stream.send_all(_END_OF_DATA)

    async def receive(self) -> None:
        """Receive all output; the data of an outgoing command goes into the daemon's pipe."""
        with self.tasks[1]:
            try:
                await self._receive_all()
            except BrokenExecError as error:
                self._error = self._stream.unavailable(error)
            except ProviderError as error:
                self._error = error
            finally:
                self.ended.set()
                self._note_change()
                await self._close_pipe()

    async def _receive_all(self) -> None:
        frames = Frames()
        while received := await self._stream.receive_some():
            for tag, piece in frames.feed(received) if self._target is not None else ((STDOUT, received),):
                await self._take(tag, piece)

    async def _close_pipe(self) -> None:
        """Close this task's end of the pipe; a caller who writes on gets EPIPE, as from any reader that has gone."""
        pipe = self._source or self._target
        if pipe is not None:
            await trio.aclose_forcefully(pipe)

    async def _take(self, tag: int, piece: bytes) -> None:
        if tag == STDOUT:
            self._output += piece[: MAX_OUTPUT_BYTES - len(self._output)]
            self._note_change()
        elif self._target is not None:
            try:
                await self._target.send_all(piece)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                # Its reader or `finish` has closed it: the command goes on, to its end, if that comes.
                self._unread_bytes += len(piece)
                if self._unread_bytes > MAX_UNREAD_BYTES:
                    message = "the command in the sandbox goes on without a reader: it was cut off"
                    raise ProviderError("provider_unavailable", message) from None

    async def begin(self) -> None:
        """Wait until the command is ready. Raises `provider_unavailable` when it takes too long."""
        with trio.move_on_after(REQUEST_DEADLINE_S) as scope:
            self._pid = parse_pid((await self._read_line() or "").encode())
            await self.expect("ready")
        if scope.cancelled_caught:
            raise ProviderError(
                "provider_unavailable", f"the command in the sandbox did not begin in {REQUEST_DEADLINE_S} s"
            )

    async def finish(self) -> None:
        """End the command, unless it is left alone, and wait for its end, at most `CLEAN_UP_S`."""
        self.close()
        self._is_finishing = True
        await self._close_pipe()
        self._note_change()
        with trio.move_on_after(CLEAN_UP_S):
            while not self.ended.is_set():
                await self._terminate()
        if not self.left_alone and not self.ended.is_set():
            await kill(self._remote, self._pid, Signals.SIGKILL)

    async def _terminate(self) -> None:
        """Signal the command, unless it is left alone, and wait a while. SIGCONT wakes what the code inside stopped."""
        if not self.left_alone:
            for signal in (Signals.SIGTERM, Signals.SIGCONT):
                await kill(self._remote, self._pid, signal)
        with trio.move_on_after(SIGNAL_PERIOD_S):
            await self.ended.wait()


@asynccontextmanager
async def run_piped(
    instance: KeeperInstance,
    remote: Remote,
    program: str,
    command: Sequence[str],
    *,
    incoming: bool,
    working_dir: str | None = None,
) -> AsyncIterator[PipedExec]:
    """Run a helper command for the length of a block. See `Instance.run_piped`.

    `program` is the keeper's path in the sandbox.
    """
    failed: BaseException | None = None
    argv = [program, "-x", "in" if incoming else "out", *reporting_argv(command, working_dir or instance.working_dir)]
    async with remote.exec(argv) as stream:
        async with trio.open_nursery() as nursery:
            made = PipedExec(instance, remote, stream, incoming=incoming)
            nursery.start_soon(made.receive)
            nursery.start_soon(made.send)
            try:
                await made.begin()
                yield made
            except BaseException as error:  # noqa: BLE001  # raised again, but not in a group
                failed = error
            with trio.CancelScope(shield=True):
                await made.finish()
            for task in made.tasks:
                task.cancel()
        if failed is not None:
            raise failed
