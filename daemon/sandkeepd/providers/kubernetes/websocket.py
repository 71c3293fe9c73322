"""A websocket to the API server, as a client: wsproto's frames on a stream of trio.

No task reads ahead: whoever receives also answers pings and notices a peer that has gone. So a message costs one step
of the event loop each way, and a slow receiver slows down the sender.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

import trio
from h11 import LocalProtocolError as MalformedRequestError
from wsproto import ConnectionType, WSConnection
from wsproto.connection import Connection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

PING_S: Final = 20.0
"""Seconds without a message after which the peer is asked for a sign of life."""

SILENCE_PINGS: Final = 3
"""Unanswered pings after which the connection counts as broken: a minute, as for `kubectl`."""

PROBED_S: Final = 2.0
ANSWERED_S: Final = 4.0
"""Seconds without a message, after one was sent, until a peer is asked for a sign of life that has to be noticed soon,
and seconds until that has to come.
"""

CLOSE_S: Final = 1.0
"""Seconds that the closing handshake may take."""

MAX_HANDSHAKE_BYTES: Final = 64 * 1024
RECEIVE_BYTES: Final = 64 * 1024


class RejectedError(Exception):
    """Raised when the server answered the handshake with an HTTP error: `status`, and the `body` it came with."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body


class WebSocket:
    """One connection, which owns `stream`. One task at a time may receive; any number may send."""

    _protocol: Connection

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._events: Iterator[Event] = iter(())
        self._sending = trio.Lock()
        self._is_torn = False
        self._owed: Event | None = None
        self.is_probed = False
        """True if it is to be noticed soon when nothing comes after something was sent."""
        self._is_unanswered = False
        self._waiting: trio.CancelScope | None = None
        self.subprotocol: str | None = None
        self.close_reason = "it closed the connection"

    async def handshake(
        self, host: str, target: str, subprotocols: Sequence[str], headers: Sequence[tuple[str, str]]
    ) -> None:
        """Ask for the websocket. Raises `RejectedError`, and `trio.BrokenResourceError` for all that is no answer."""
        protocol = WSConnection(ConnectionType.CLIENT)
        extra = [(name.encode(), value.encode()) for name, value in headers]
        try:
            request = Request(host=host, target=target, subprotocols=list(subprotocols), extra_headers=extra)
            await self._stream.send_all(protocol.send(request))
            await self._answer(protocol)
        except (RemoteProtocolError, UnicodeError):
            raise trio.BrokenResourceError("its answer is not that of a websocket server") from None
        except (LocalProtocolError, MalformedRequestError):  # whose text quotes the token
            raise trio.BrokenResourceError("its address or token is malformed") from None

    async def _answer(self, protocol: WSConnection) -> None:
        """Read the answer to the handshake. An error's body is cut off at `MAX_HANDSHAKE_BYTES`."""
        read, status, body = 0, 0, b""
        while True:
            data = await self._stream.receive_some(RECEIVE_BYTES)
            read += len(data)
            protocol.receive_data(bytes(data) or None)
            for event in protocol.events():
                if isinstance(event, AcceptConnection):
                    self._accept(protocol, event)
                    return
                if isinstance(event, RejectConnection):
                    status = event.status_code
                elif isinstance(event, RejectData):
                    body += event.data
                if status and (not getattr(event, "has_body", True) or getattr(event, "body_finished", False)):
                    raise RejectedError(status, body)
            if not data or read > MAX_HANDSHAKE_BYTES:
                if status:
                    raise RejectedError(status, body[:MAX_HANDSHAKE_BYTES])
                raise trio.BrokenResourceError("it closed the connection without an answer")

    def _accept(self, protocol: WSConnection, event: AcceptConnection) -> None:
        """Go on with the frames alone: the parser of the handshake, with its buffers, is as large as all the rest."""
        assert protocol.connection is not None
        self.subprotocol = event.subprotocol
        self._protocol = protocol.connection
        self._events = self._protocol.events()

    async def send(self, message: bytes) -> None:
        """Send a binary message, in one frame. Cancelled, it may have been sent in part: only `aclose` is left then."""
        await self._send(BytesMessage(data=message))
        if self.is_probed and not self._is_unanswered:
            self._is_unanswered = True
            if self._waiting is not None:
                self._waiting.deadline = min(self._waiting.deadline, trio.current_time() + PROBED_S)

    async def _send(self, event: Event) -> None:
        try:
            self._sending.acquire_nowait()
        except trio.WouldBlock:
            await self._sending.acquire()
        try:
            if self._is_torn:
                raise trio.BrokenResourceError("the connection is closed")
            self._is_torn = True
            await self._stream.send_all(self._protocol.send(event))
            self._is_torn = isinstance(event, CloseConnection)
        except LocalProtocolError:
            raise trio.BrokenResourceError("the connection is closed") from None
        finally:
            self._sending.release()

    async def receive(self, timeout_s: float | None = None) -> tuple[bytes, bool] | None:
        """Return the next piece of a message, and True if it is the message's last; None when the peer has closed, as
        `close_reason` says.

        Raises `trio.BrokenResourceError` when the connection breaks, or nothing comes in `timeout_s`. Without that, a
        silent peer is pinged. Cancelled, nothing is lost.
        """
        while True:
            for event in self._events:
                match event:
                    case BytesMessage():
                        return bytes(event.data), event.message_finished
                    case TextMessage():
                        return event.data.encode(), event.message_finished
                    case CloseConnection():
                        self._events = iter((event,))  # the next call returns the same
                        self.close_reason = f"it closed the connection: {event.reason or int(event.code)}"
                        return None
                    case Ping():
                        self._send_soon(event.response())
            data = await self._receive_some(timeout_s)
            if not data:
                return None
            self._protocol.receive_data(data)
            self._events = self._protocol.events()

    async def _receive_some(self, timeout_s: float | None) -> bytes:
        pings, is_asked = 0, False
        while pings <= SILENCE_PINGS:
            with trio.move_on_after(self._patience_s(timeout_s, is_asked=is_asked)) as self._waiting:
                data = bytes(await self._stream.receive_some(RECEIVE_BYTES))
                self._is_unanswered = False
                return data
            if timeout_s is not None or (is_asked and self._is_unanswered):
                break
            if not self._sending.locked():  # else it has not read all of what came before the ping
                pings += 1
                is_asked = self._is_unanswered
                self._send_soon(Ping(payload=b"sandkeep"))
        raise trio.BrokenResourceError("it does not answer")

    def _patience_s(self, timeout_s: float | None, *, is_asked: bool) -> float:
        if timeout_s is not None:
            return timeout_s
        return (ANSWERED_S if is_asked else PROBED_S) if self._is_unanswered else PING_S

    def _send_soon(self, event: Event) -> None:
        """Send a control frame from a task of its own: a receiver that waits for room to send can wait for ever. Of
        several pings only the last is answered.
        """
        is_sending, self._owed = self._owed is not None, event
        if not is_sending:
            trio.lowlevel.spawn_system_task(self._send_owed)

    async def _send_owed(self) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while (event := self._owed) is not None:
                await self._send(event)
                self._owed = None if self._owed is event else self._owed

    async def aclose(self) -> None:
        """Close the connection; what was sent arrives, if the peer reads on within `CLOSE_S`. Safe to repeat."""
        try:
            with trio.move_on_after(CLOSE_S), suppress(*_GONE):
                await self._send(CloseConnection(code=CloseReason.NORMAL_CLOSURE))
                while await self.receive(CLOSE_S) is not None:
                    pass
        finally:
            await self.abort()

    async def abort(self) -> None:
        """Close the connection without a closing handshake."""
        await trio.aclose_forcefully(self._stream)


_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError, trio.BusyResourceError)
