"""A websocket connection over any socket, for both ends: trio-websocket's, with stricter guarantees.

It adds: detection of the other end's departure, also before the handshake is through; a reading task that no received
data can make fail; a bounded cost of a message in countless pieces; and senders that can wait for room in the socket
before they make their message.
"""

import contextlib
import select
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import h11
import trio
from trio_websocket import ConnectionClosed, ConnectionRejected, WebSocketConnection
from wsproto import ConnectionType, WSConnection
from wsproto.events import Event, Pong, RejectData, Request
from wsproto.utilities import ProtocolError

RECEIVE_BYTES: Final = 256 * 1024
MAX_PIECES: Final = 1024
"""In how many pieces a message may come. Each costs memory of its own, however little it holds."""

EVENTS_A_TURN: Final = 16
"""Frames handled before other tasks get a turn: thousands of empty ones fit into one read."""

CHARACTER_BYTES: Final = 4
"""Weight of a character of a client's text: its maximum size in memory."""

MESSAGE_S: Final = 30.0
"""Seconds that a client may take to send the rest of a message that it began."""

MAX_REFUSAL_BYTES: Final = 64 * 1024
"""Maximum size of a server's refusal. Ours is a sentence."""


class Turns:
    """A lock, had without a checkpoint if it is free: all senders of a message then send before the next."""

    def __init__(self) -> None:
        self._lock = trio.Lock()

    async def __aenter__(self) -> None:
        if self._lock.locked():
            await self._lock.acquire()
        else:
            self._lock.acquire_nowait()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


class Wire(trio.abc.Stream):
    """A connected socket, as trio-websocket wants it. `gone` is set when the other end is not there any more.

    `patience_bytes` is how much it may receive before it is `trusted`: nobody needs more for a handshake.
    """

    def __init__(self, sock: socket.socket, patience_bytes: int | None = None) -> None:
        self.gone = trio.Event()
        self.deadline = float("inf")
        """Until when something has to arrive; later it counts as the end."""
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self._patience = patience_bytes
        self._sending = Turns()
        self._broken = False
        self._room = select.poll()
        self._room.register(sock.fileno(), select.POLLOUT)

    def trust(self) -> None:
        """The handshake is through: from now on the protocol's own limits hold."""
        self._patience = None

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send all bytes. After a cancelled call nothing can be sent: the peer would take it for the rest."""
        async with self._sending:
            rest = memoryview(data)
            while rest and not self._broken:
                rest = rest[await self._send(rest, begun=len(rest) < len(data)) :]
            if rest:
                raise trio.BrokenResourceError

    async def _send(self, rest: memoryview, *, begun: bool) -> int:
        try:
            return await self._stream.socket.send(rest)
        except (OSError, trio.ClosedResourceError):
            self._broken = True
            self.gone.set()
            raise trio.BrokenResourceError from None
        except BaseException:
            self._broken = begun
            raise

    @property
    def has_room(self) -> bool:
        """True if the socket takes a message of moderate size at once."""
        return bool(self._room.poll(0))

    async def wait_send_all_might_not_block(self) -> None:
        """Wait until the socket has room."""
        if self.has_room:
            return
        async with self._sending:
            await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Return received bytes; nothing at the end."""
        data: bytes | bytearray = b""
        try:
            with trio.CancelScope(deadline=self.deadline):
                data = await self._stream.receive_some(max_bytes)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.gone.set()
            raise
        if data and self._patience is not None:
            self._patience -= len(data)
            if self._patience < 0:
                data = b""
        if not data:
            self.gone.set()
        return data

    async def departed(self) -> None:
        """Return when the other end will send no more, even if received data is unread."""
        number = self._stream.socket.fileno()
        if number >= 0:  # it is open
            with select.epoll() as watch:
                watch.register(number, select.EPOLLRDHUP)
                await trio.lowlevel.wait_readable(watch.fileno())
        self.gone.set()

    def cut(self) -> None:
        """Shut down the socket at once, even in the middle of a message."""
        with contextlib.suppress(OSError):
            self._stream.socket.shutdown(socket.SHUT_RDWR)

    async def aclose(self) -> None:
        """Let go of the socket."""
        self.gone.set()
        await self._stream.aclose()


class Connection(WebSocketConnection):
    """A websocket on a `Wire`, or on the `secure` stream over it. Its reading task is `read`; `rejection` is a server's
    refusal of the handshake.
    """

    def __init__(
        self,
        wire: Wire,
        side: ConnectionType,
        max_message_bytes: int,
        secure: trio.abc.Stream | None = None,
        **request: Any,
    ) -> None:
        super().__init__(
            secure or wire,
            WSConnection(side),
            max_message_size=max_message_bytes,
            receive_buffer_size=RECEIVE_BYTES,
            **request,
        )
        self.wire = wire
        self.rejection: ConnectionRejected | None = None
        self._reading = trio.CancelScope(shield=True)
        self._looked_at = 0
        self._in_hand = 0
        self.weigh: Callable[[int], None] = lambda _: None
        """Called with the change in bytes of received data that is not processed yet."""
        self.host = ""
        """The host that a client's request named."""

    async def read(self) -> None:
        """Read until the end, or until `stop_reading`, without raising for malformed input; cancellation alone does not
        stop it, as the closing handshake has still to be answered.
        """
        try:
            with self._reading:
                await self._reader_task()
        except ConnectionRejected as rejection:
            self.rejection = rejection
        except (ConnectionClosed, ProtocolError, h11.ProtocolError, UnicodeError):
            pass  # malformed input just ends the connection
        finally:
            self.wire.gone.set()
            with trio.CancelScope(shield=True):
                await self._abort_web_socket()

    def stop_reading(self) -> None:
        """End `read`: nothing more is to come, or nobody waits for it."""
        self._reading.cancel()

    async def room(self) -> None:
        """Wait until the socket takes a message of moderate size at once."""
        await self.wire.wait_send_all_might_not_block()

    async def opened(self) -> bool:
        """Wait until the handshake is through, or cannot be any more."""
        async with self._while_connected():
            await self._open_handshake.wait()
        return self._open_handshake.is_set()

    async def proposed(self) -> Any:
        """The client's request, as soon as it is here; None when it will not come."""
        request = None
        async with self._while_connected():
            request = await self._get_request()
        return request  # noqa: RET504  # still None when the block was cancelled

    @asynccontextmanager
    async def _while_connected(self) -> AsyncIterator[None]:
        """Cancel the block when the other end has gone."""
        async with trio.open_nursery() as nursery:

            async def give_up() -> None:
                await self.wire.gone.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(give_up)
            yield
            nursery.cancel_scope.cancel()

    async def _send(self, event: Event) -> None:
        try:
            await self._stream.send_all(self._wsproto.send(event))  # which takes turns by itself
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await self._abort_web_socket()
            raise ConnectionClosed(self._close_reason) from None

    async def _handle_request_event(self, event: Request) -> None:
        self.host = event.host
        await super()._handle_request_event(event)

    async def _handle_reject_data_event(self, event: RejectData) -> None:
        if len(self._reject_body) + len(event.data) > MAX_REFUSAL_BYTES:
            raise ProtocolError("the refusal is too long")
        await super()._handle_reject_data_event(event)

    async def _handle_pong_event(self, event: Pong) -> None:
        await self._give_turns()
        await super()._handle_pong_event(event)

    async def _handle_message_event(self, event: Any) -> None:
        await self._give_turns()
        if not event.data and not event.message_finished:
            return
        if len(self._message_parts) == MAX_PIECES:
            self._message_parts = [type(event.data)().join(self._message_parts)]
        if self.is_server:
            self._weigh_piece(event)
        if event.message_finished and self._is_full():
            await self._deliver_late(event)
        else:
            await super()._handle_message_event(event)

    def _weigh_piece(self, event: Any) -> None:
        self._message_size += _weight(event.data) - len(event.data)
        self.weigh(_weight(event.data))
        if event.message_finished:
            self.wire.deadline = float("inf")
        elif not self._message_parts:
            self.wire.deadline = trio.current_time() + MESSAGE_S

    async def get_message(self) -> str | bytes:
        """The next message. Until the one after it is asked for, it counts as in hand."""
        self.weigh(-self._in_hand)
        self._in_hand = 0
        message = await super().get_message()
        self._in_hand = _weight(message)
        return message

    async def _give_turns(self) -> None:
        self._looked_at += 1
        if self._looked_at % EVENTS_A_TURN == 0:
            await trio.lowlevel.checkpoint()

    def _is_full(self) -> bool:
        """Return True if an arriving message has to wait until one is taken from the queue."""
        queue = self._send_channel.statistics()
        return queue.current_buffer_used >= queue.max_buffer_size

    async def _deliver_late(self, event: Any) -> None:
        """Wait with a message until it is asked for. Meanwhile nothing is read, so an end must be looked for."""
        self.weigh(RECEIVE_BYTES)  # so much may have been read with it
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.wire.departed)
            await super()._handle_message_event(event)
            nursery.cancel_scope.cancel()
        self.weigh(-RECEIVE_BYTES)


def _weight(data: str | bytes | bytearray) -> int:
    return CHARACTER_BYTES * len(data) if isinstance(data, str) else len(data)
