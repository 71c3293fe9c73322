"""HTTP/1.1 on listeners: hypercorn's protocol for each connection, and our limits around it.

hypercorn's own `serve` bounds neither connections nor the time in which a client takes its answer, sends in a shielded
scope, and can wait for good when an answer comes before the end of its request. So the daemon accepts by itself, as it
does on its other sockets, and gives hypercorn a stream that ends.
"""

import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from typing import Any, Final

import trio
from h11 import Connection as Connection11
from hypercorn.config import Config
from hypercorn.protocol import ProtocolWrapper
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from msgspec import Struct
from trio import TaskStatus

from sandkeepd.core.peer import peer_of
from sandkeepd.http.keys import NOBODY
from sandkeepd.http.strict import MAX_HEAD_BYTES, make_strict
from sandkeepd.serving.accept import accept_clients
from sandkeepd.serving.holdings import Holdings, Share
from sandkeepd.serving.refusals import RefusalLog

log: Final = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Scope = MutableMapping[str, Any]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CONNECTION: Final = "sandkeep.connection"
"""The key of the `Connection` in an ASGI scope."""

MAX_CONNECTIONS: Final = 512
"""Maximum connections of a user of a Unix socket, and of all of TCP. One more takes the place of an idle one."""

IDLE_S: Final = 60.0
"""Seconds for which an idle connection is kept, and within which the head of a request has to be complete."""

STALLED_S: Final = 30.0
"""Seconds in which a client has to take a piece of an answer, or to send another piece of a request."""

LINGER_S: Final = 2.0
"""Seconds for which the rest of a request is read that was answered before its end: cut off while it sends, a client
may not see the answer.
"""

GRACE_S: Final = 3.0
"""Seconds that calls that change something may go on when the server stops."""


class Limits(Struct, frozen=True, kw_only=True):
    """The limits of the server."""

    connections: int = MAX_CONNECTIONS
    idle_s: float = IDLE_S
    stalled_s: float = STALLED_S
    grace_s: float = GRACE_S


class Connection:
    """A client's connection. `drop` ends it, with everything that is done for it."""

    def __init__(self, sock: socket.socket, group: int | None, limits: Limits, holdings: Holdings) -> None:
        self._plain = sock
        self._socket = trio.socket.from_stdlib_socket(sock)
        self._stream = trio.SocketStream(self._socket)
        self._held = b""
        self.is_corked = False
        """True while what is sent is held, to go out with what is sent next."""
        self._scope = trio.CancelScope()
        self._limits = limits
        self.group = group
        self.requests = 0
        """Number of requests that were let in and are not answered yet."""
        self.lasting = 0
        """Number of calls whose answers are waited for when the server stops."""
        self.share: Share = holdings.share(NOBODY if group is None else group, self.drop)

    @property
    def socket(self) -> trio.socket.SocketType:
        """The socket, which hypercorn asks for its addresses."""
        return self._socket

    async def send_all(self, data: bytes) -> None:
        """Send, unless the client does not take it in time. Raises BrokenResourceError, ClosedResourceError.

        hypercorn's lock around it is a checkpoint; one more here would cost a third of a small answer's time.
        """
        if self._held:
            data, self._held = self._held + data, b""
        if self.is_corked:
            self._held = data
            return
        try:
            sent = self._plain.send(data) if data else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            raise trio.BrokenResourceError from None
        if sent < len(data):
            await self._send_rest(memoryview(data)[sent:])

    async def _send_rest(self, data: memoryview) -> None:
        self.share.add(len(data))
        try:
            with trio.fail_after(self._limits.stalled_s):
                await self._stream.send_all(data)
        except trio.TooSlowError:
            log.info("dropped an HTTP client: it did not read its answer")
            self.drop()
            raise trio.BrokenResourceError from None
        finally:
            self.share.subtract(len(data))

    async def receive_some(self, max_bytes: int) -> bytes:
        """Return received bytes, none at the end. Raises BrokenResourceError, ClosedResourceError."""
        while True:
            if self._plain.fileno() < 0:
                raise trio.ClosedResourceError
            await trio.lowlevel.wait_readable(self._plain)
            try:
                return self._plain.recv(max_bytes)
            except BlockingIOError:
                continue
            except OSError:
                raise trio.BrokenResourceError from None

    async def send_eof(self) -> None:
        """Say that no more is sent."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """Close the socket."""
        await self._stream.aclose()

    def drop(self) -> None:
        """End the connection now. The socket is shut down first: hypercorn sends in shielded scopes."""
        with contextlib.suppress(OSError):  # it has gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._scope.cancel()

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` until it is done, or the connection is dropped; close the socket."""
        try:
            with self._scope:
                await work()
        finally:
            self.share.close()
            self._socket.close()


class HttpServer:
    """Serves an ASGI application on any number of listeners, each by a `serve` of its own."""

    def __init__(self, app: App, limits: Limits | None = None, holdings: Holdings | None = None) -> None:
        self._app = app
        self._limits = limits or Limits()
        self._holdings = holdings or Holdings()
        self._config = _config(self._limits)
        self._connections: dict[Connection, None] = {}
        self._refusals = RefusalLog(log)

    async def serve(self, listener: socket.socket, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve a listener until cancelled; then calls that change something have `grace_s` to end and be answered."""
        context = WorkerContext(None)
        stopping = trio.Event()
        async with trio.open_nursery() as nursery:
            clients: trio.Nursery = await nursery.start(self._hold_connections, context, stopping)
            try:
                task_status.started()
                await accept_clients(listener, clients, partial(self._serve_client, context=context))
            finally:
                listener.close()
                stopping.set()

    async def _hold_connections(
        self, context: WorkerContext, stopping: trio.Event, *, task_status: TaskStatus[trio.Nursery]
    ) -> None:
        """Own the connections of one listener, shielded from its cancellation: they are stopped, and given time."""
        with trio.CancelScope(shield=True):
            async with trio.open_nursery() as timer:
                async with trio.open_nursery() as clients:
                    task_status.started(clients)
                    await stopping.wait()
                    await context.terminated.set()  # answers close their connections from now on
                    for connection in [one for one in self._connections if not one.lasting]:
                        connection.drop()
                    timer.start_soon(self._drop_later)
                timer.cancel_scope.cancel()

    async def _drop_later(self) -> None:
        await trio.sleep(self._limits.grace_s)
        for connection in list(self._connections):
            connection.drop()

    async def _serve_client(self, sock: socket.socket, context: WorkerContext) -> None:
        try:
            sock.setblocking(False)
            group = peer_of(sock).uid if sock.family == socket.AF_UNIX else None
        except OSError:  # it has gone already
            sock.close()
            return
        if not self._make_room(group):
            user = "HTTP over TCP" if group is None else f"HTTP of uid:{group}"
            self._refusals.count(user, f"there are {self._limits.connections} connections")
            sock.close()
            return
        connection = Connection(sock, group, self._limits, self._holdings)
        self._connections[connection] = None
        try:
            # Of a stream hypercorn uses just what a `Connection` has.
            stream: Any = connection
            server = _Server(partial(self._handle, connection), self._config, context, {}, stream)
            await connection.run(server.run)
        except* Exception:
            log.exception("an HTTP connection failed by a defect of the daemon")
        finally:
            self._connections.pop(connection, None)

    def _make_room(self, group: int | None) -> bool:
        """Drop the oldest idle connection of a group that has all it may have; False if none is idle."""
        of_group = [connection for connection in self._connections if connection.group == group]
        if len(of_group) < self._limits.connections:
            return True
        idle = next((connection for connection in of_group if not connection.requests), None)
        if idle is not None:
            del self._connections[idle]  # now, or those who come before its task ends would all take its place
            idle.drop()
        return idle is not None

    async def _handle(self, connection: Connection, scope: Scope, receive: Receive, send: Send, *_: Any) -> None:
        """Serve one request. The rest of hypercorn's arguments is for WSGI."""
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        scope[CONNECTION] = connection
        exchange = _Exchange(connection, receive, send)
        if _has_doubtful_length(scope):
            await send({"type": "http.response.start", "status": 400, "headers": [(b"content-length", b"0")]})
            connection.drop()
            return
        await self._app(scope, exchange.receive, exchange.send)


def _has_doubtful_length(scope: Scope) -> bool:
    """Tell if a proxy may see the end of a request elsewhere, and another request behind that (RFC 9112, 6.1)."""
    return scope["http_version"] == "1.0" and any(name == b"transfer-encoding" for name, _ in scope["headers"])


class _Http1(H11Protocol):
    """HTTP/1.1 without hypercorn's ways on to HTTP/2, where neither its limits of time nor ours would hold."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        assert isinstance(self.connection, Connection11)
        make_strict(self.connection)

    async def _check_protocol(self, event: Any) -> None:
        pass


class _Server(TCPServer):
    """Speaks HTTP/1.1 only."""

    @property
    def protocol(self) -> Any:
        """The protocol of the connection."""
        return self._http1

    @protocol.setter
    def protocol(self, chosen: ProtocolWrapper) -> None:
        self._http1 = _Http1(
            chosen.app, chosen.config, chosen.context, chosen.task_group, chosen.state, chosen.ssl, chosen.client,
            chosen.server, chosen.send,
        )  # fmt: skip


class _Exchange:
    """One request and its answer. The request is read to its end before the answer ends."""

    def __init__(self, connection: Connection, receive: Receive, send: Send) -> None:
        self._connection = connection
        self._receive = receive
        self._send = send
        self._ended = False

    async def receive(self) -> Message:
        message = await self._receive()
        self._ended = message["type"] == "http.disconnect" or not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        # The head of an answer goes out with its body: the client is woken once.
        self._connection.is_corked = message["type"] == "http.response.start"
        if self._ended or message["type"] != "http.response.body" or message.get("more_body", False):
            await self._send(message)
            return
        # hypercorn would wait to hand us the rest of the request before it ends the answer, and we for that.
        await self._send({**message, "more_body": True})
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._connection.send_all(b"")  # the head, if there is no body that took it along
        with trio.move_on_after(LINGER_S):
            while not self._ended:
                await self.receive()
        if not self._ended:
            self._connection.drop()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def _config(limits: Limits) -> Config:
    config = Config()
    config.errorlog = log
    config.accesslog = None
    config.h11_max_incomplete_size = MAX_HEAD_BYTES
    config.keep_alive_timeout = limits.idle_s
    config.keep_alive_max_requests = 2**62  # by default it closes a connection after a thousand
    config.include_server_header = False
    return config
