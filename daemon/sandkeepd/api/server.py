"""Serving JSON-RPC on Unix sockets: accepting clients, and stopping in good order."""

import logging
import socket
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any, Final

import trio
from msgspec import Struct
from trio import TaskStatus

from sandkeep.errors import StateError
from sandkeep.protocol import jsonrpc
from sandkeepd.api.connection import Connection
from sandkeepd.api.routes import routes_of
from sandkeepd.core.call import Call, Handler
from sandkeepd.core.peer import Peer, peer_of
from sandkeepd.serving.accept import accept_clients
from sandkeepd.serving.holdings import Holdings
from sandkeepd.serving.refusals import RefusalLog

__all__ = ["Call", "Handler", "Peer", "Server", "ServerStatistics", "serve"]

log: Final = logging.getLogger(__name__)

SEND_DEADLINE_S: Final = 30.0
"""Seconds a client may take to read one answer, or to send the rest of a line that it began."""

GRACE_S: Final = 10.0
"""Seconds that calls that change something may go on when the server stops."""

MAX_CONNECTIONS: Final = 512
"""Maximum connections of a user; root may have as many as there are descriptors."""

_FEW: Final = 4


class ServerStatistics(Struct, frozen=True, kw_only=True):
    """Counters of a server: `answers` since its start, the others at this moment."""

    connections: int
    calls_in_flight: int
    answers: int


class Server:
    """Answers the calls of all clients, by one handler.

    Several listeners can be served at once, each by a `serve` of its own.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        send_deadline_s: float = SEND_DEADLINE_S,
        grace_s: float = GRACE_S,
        max_connections: int = MAX_CONNECTIONS,
        holdings: Holdings | None = None,
    ) -> None:
        self._handler = handler
        self._routes = routes_of(handler)
        self._send_deadline_s = send_deadline_s
        self._grace_s = grace_s
        self._max_connections = max_connections
        self._holdings = holdings or Holdings()
        self._connections: set[Connection] = set()
        self._of_uid: Counter[int] = Counter()
        self._answers = 0
        self._refusals = RefusalLog(log)

    def statistics(self) -> ServerStatistics:
        """Figures for the daemon's status."""
        return ServerStatistics(
            connections=len(self._connections),
            calls_in_flight=sum(connection.calls_in_flight for connection in self._connections),
            answers=self._answers + sum(connection.answered for connection in self._connections),
        )

    async def serve(
        self,
        listener: trio.SocketListener | socket.socket,
        *,
        task_status: TaskStatus["Server"] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve a listener until cancelled. `task_status.started` gives this server.

        Resource handling
            The listener is taken over, and closed at the end. Cancelled, it accepts no more, connections read no
            more, calls that only read are cancelled; those that change something have `grace_s` to end and be
            answered.

        Error handling
            A client that fails, or makes a handler fail, ends at most its own connection. Without descriptors for more
            clients it says so in the log, and accepts again a moment later.
        """
        stopping = trio.Event()
        with _taken_over(listener) as sock:
            async with trio.open_nursery() as nursery:
                clients: trio.Nursery = await nursery.start(self._hold_connections, stopping)
                try:
                    task_status.started(self)
                    await accept_clients(sock, clients, self._serve_client)
                finally:
                    sock.close()
                    stopping.set()

    async def _hold_connections(self, stopping: trio.Event, *, task_status: TaskStatus[trio.Nursery]) -> None:
        """Own the connections of one listener, shielded from its cancellation: they are stopped, and given time."""
        with trio.CancelScope(shield=True) as scope:
            async with trio.open_nursery() as clients:
                task_status.started(clients)
                await stopping.wait()
                scope.deadline = trio.current_time() + self._grace_s
                for connection in self._connections:
                    connection.stop()

    async def _serve_client(self, sock: socket.socket) -> None:
        with sock:
            sock.setblocking(False)
            try:
                peer = peer_of(sock)
                if self._admit(peer):
                    await self._run(self._connection(sock, peer), peer)
                else:
                    self._refuse(sock, peer)
            except Exception:
                log.exception("a connection failed by a defect of the daemon")

    def _admit(self, peer: Peer) -> bool:
        return peer.uid == 0 or self._of_uid[peer.uid] < self._max_connections

    def _refuse(self, sock: socket.socket, peer: Peer) -> None:
        """Send the reason, in one packet that a new socket always has room for: the client is not waited for."""
        limit = self._max_connections
        self._refusals.count(peer.owner, f"it has {limit} connections")
        message = (
            f"you have {limit} connections to the daemon, the most for one user: end programs that hold some, "
            "or make their calls through one client, which shares its connections"
        )
        error = StateError("quota_exceeded", message, quota="connections", used=self._of_uid[peer.uid], limit=limit)
        with suppress(OSError):
            sock.send(jsonrpc.error(jsonrpc.NULL_ID, error) + b"\n")

    def _connection(self, sock: socket.socket, peer: Peer) -> Connection:
        given = partial(self._descriptors_of, peer.uid)
        return Connection(
            sock, peer, self._handler, self._routes, self._send_deadline_s, self._is_quiet, self._is_shared, given,
            self._holdings,
        )  # fmt: skip

    def _descriptors_of(self, uid: int) -> int:
        """Return the number of descriptors in flight to a user."""
        return sum(connection.descriptors for connection in self._connections if connection.uid == uid)

    def _is_quiet(self) -> bool:
        """Return True if there are so few connections that polling twice before sleeping is cheap."""
        return len(self._connections) <= _FEW

    def _is_shared(self) -> bool:
        """Return True if several users are connected."""
        return len(self._of_uid) > 1

    async def _run(self, connection: Connection, peer: Peer) -> None:
        self._connections.add(connection)
        self._of_uid[peer.uid] += 1
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            self._of_uid -= Counter({peer.uid: 1})
            self._answers += connection.answered


async def serve(
    listener: trio.SocketListener | socket.socket,
    handler: Handler,
    *,
    task_status: TaskStatus[Server] = trio.TASK_STATUS_IGNORED,
    **limits: Any,
) -> None:
    """Serve one listener with a server of its own; see `Server` for the limits, and `Server.serve` for the rest."""
    await Server(handler, **limits).serve(listener, task_status=task_status)


def _taken_over(listener: trio.SocketListener | socket.socket) -> socket.socket:
    """The plain socket of a listener: accepting and reading without trio's wrapper costs a third less."""
    sock = socket.socket(fileno=listener.socket.detach()) if isinstance(listener, trio.SocketListener) else listener
    sock.setblocking(False)
    return sock
