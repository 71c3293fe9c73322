"""Streams of a process's output, of events, of a terminal. Each is an asynchronous iterator, some with actions."""

from collections import deque
from typing import Final

import trio
from trio_websocket import ConnectionClosed

from sandkeep.errors import DaemonError, StateError
from sandkeep.model import Event
from sandkeep.protocol import frames
from sandkeep.protocol.frames import CaughtUp, Detached, EventBatch, Exit, FromServer, Note, Output, Time, Times
from sandkeep.protocol.wire import Connection
from sandkeep.stream.dial import Dialer, close, decode, next_message, output_of, raise_lost

_NORMAL: Final = 1000
_SEND_BYTES: Final = 256 * 1024


class Stream:
    """A stream that continues over successive connections."""

    def __init__(self, dialer: Dialer, nursery: trio.Nursery) -> None:
        self._dialer = dialer
        self._nursery = nursery
        self._connection: Connection | None = None
        self._backoff = dialer.backoff()
        self.caught_up = False
        """True once all data that existed at some moment since the beginning has been returned."""

    def _target(self) -> str:
        """Return the target of a request that resumes the stream."""
        raise NotImplementedError

    async def begin(self) -> None:
        """Open the first connection."""
        self._connection = await self._dialer.open(self._nursery, self._target())

    async def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            await close(self._connection)
            self._connection = None

    async def _receive(self) -> bytes | FromServer | None:
        """The next message, over as many connections as it takes; None when the server has no more."""
        while True:
            if self._connection is None:
                self._connection = await self._dialer.open_again(self._nursery, self._target(), self._backoff)
            try:
                message = await self._connection.get_message()
            except ConnectionClosed as closed:
                await self.close()
                if closed.reason is not None and closed.reason.code == _NORMAL:
                    return None
                pause_s = self._backoff.pause()
                if pause_s is None:
                    raise_lost(closed)
                await trio.sleep(pause_s)
            else:
                self._backoff.reset()
                return decode(message)


class LogStream(Stream):
    """An asynchronous iterator over pieces of a process's output: `Output`, with its stream, offset and bytes.

    `stdout_offset` and `stderr_offset` are behind the data returned so far: to resume there later, give them to `logs`.
    When the iteration is over, `exit` describes the process's end, and is None if it still runs and was not followed.
    `notes` report journals that were cut or replaced from inside, and dropped data that was skipped. `times` are those
    of the last piece, oldest first, if they were asked for.
    """

    def __init__(
        self,
        dialer: Dialer,
        nursery: trio.Nursery,
        sandbox_id: str,
        name: str,
        offsets: tuple[int, int],
        *,
        follow: bool,
        times: bool = False,
    ) -> None:
        super().__init__(dialer, nursery)
        self._where = (sandbox_id, name)
        self._asked = {"follow": follow, "times": times or None}
        self._over = False
        self.stdout_offset, self.stderr_offset = offsets
        self.exit: Exit | None = None
        self.notes: list[Note] = []
        self.times: list[Time] = []

    def _target(self) -> str:
        offsets = {"stdout": self.stdout_offset, "stderr": self.stderr_offset}
        return frames.target("logs", *self._where, **offsets, **self._asked)

    def __aiter__(self) -> "LogStream":
        return self

    async def __anext__(self) -> Output:
        while not self._over:
            message = await self._receive()
            if isinstance(message, bytes):
                return self._advance(output_of(message))
            self._learn(message)
        raise StopAsyncIteration

    def _learn(self, message: FromServer | None) -> None:
        if isinstance(message, CaughtUp):
            self.caught_up = True
        elif isinstance(message, Note):
            self.notes.append(message)
            if message.first is not None:  # the beginning of this stream was dropped
                self._move_to(f"{message.stream}_offset", message.first)
        elif isinstance(message, Times):
            self.times = message.times
        elif isinstance(message, Exit) or message is None:
            self.exit = message
            self._over = True

    def _move_to(self, attribute: str, offset: int) -> None:
        setattr(self, attribute, max(offset, getattr(self, attribute)))

    def _advance(self, piece: Output) -> Output:
        """Step behind a piece, which must be the next one of its stream."""
        attribute = {frames.STDOUT: "stdout_offset", frames.STDERR: "stderr_offset"}.get(piece.stream)
        if attribute is None or piece.offset != getattr(self, attribute):
            raise DaemonError("internal", "the stream server skipped or repeated a piece of the output")
        self._move_to(attribute, piece.offset + len(piece.data))
        return piece


class EventStream(Stream):
    """An asynchronous iterator over events, which does not end by itself. `token` is behind the last one answered."""

    def __init__(
        self, dialer: Dialer, nursery: trio.Nursery, after: str | None, sandbox_id: str | None, type: str | None
    ) -> None:
        super().__init__(dialer, nursery)
        self._asked = {"sandbox": sandbox_id, "type": type}
        self._received = after
        self._waiting: deque[Event] = deque()
        self.token = after

    def _target(self) -> str:
        return frames.target("events", after=self._received, **self._asked)

    def __aiter__(self) -> "EventStream":
        return self

    async def __anext__(self) -> Event:
        while not self._waiting:
            self._handle(await self._receive())
        event = self._waiting.popleft()
        log_id = (self._received or "").rpartition(":")[0]
        self.token = f"{log_id}:{event.position}" if self._waiting else self._received
        return event

    def _handle(self, message: bytes | FromServer | None) -> None:
        if isinstance(message, EventBatch):
            self.caught_up = False
            self._waiting.extend(message.events)
            self._received = message.token
        elif isinstance(message, CaughtUp):
            self.caught_up = True
            self._received = self.token = message.token
        elif message is None:
            raise StateError("not_ready", "the stream server ended the stream of events: request it again")


class Attached:
    """An attached process: an asynchronous iterator over its output, and methods to act on it.

    Of a terminal each piece has the stream `frames.TERMINAL`. When the iteration is over, `exit` says how the process
    ended, or is None if it still runs.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.exit: Exit | None = None

    def __aiter__(self) -> "Attached":
        return self

    async def __anext__(self) -> Output:
        while True:
            message = await next_message(self._connection)
            if isinstance(message, bytes):
                return output_of(message)
            if isinstance(message, Exit):
                self.exit = message
            if isinstance(message, Exit | Detached):
                raise StopAsyncIteration

    async def send(self, data: bytes) -> None:
        """Type these bytes, or write them to the process's input."""
        for at in range(0, len(data), _SEND_BYTES):
            await self._say(data[at : at + _SEND_BYTES])

    async def send_eof(self) -> None:
        """Close the process's input; in a terminal, type its end-of-file character."""
        await self._say(frames.Eof())

    async def signal(self, signal: str) -> None:
        """Send a signal, such as ``INT``, to the process and its group."""
        await self._say(frames.SendSignal(signal=signal))

    async def resize(self, rows: int, cols: int) -> None:
        """Tell the size of one's own terminal."""
        await self._say(frames.Resize(rows=rows, cols=cols))

    async def _say(self, message: bytes | frames.Message) -> None:
        data = message if isinstance(message, bytes) else frames.encode(message).decode()
        try:
            await self._connection.send_message(data)
        except ConnectionClosed as closed:
            raise_lost(closed)
