"""Websocket server: accepting clients, admitting or refusing them, and a clean shutdown.

The memory that a client takes is bounded: a handshake of a few kilobytes for a few seconds, of which each user, and all
of TCP together, have a limited number; then one arriving message of at most `frames.MAX_MESSAGE_BYTES`, and one piece
that is being sent. There are no queues. `holdings` counts the unprocessed data of a user's clients.
"""

import contextlib
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Final

import trio
from msgspec import Struct
from trio import TaskStatus
from trio_websocket import ConnectionClosed, WebSocketRequest
from wsproto import ConnectionType

from sandkeep.errors import CallerError, DaemonError, SandkeepError, StateError, only_error
from sandkeep.protocol import frames
from sandkeep.protocol.frames import Failed, Refusal
from sandkeep.protocol.tls import SecureStream
from sandkeep.protocol.wire import Connection, Wire
from sandkeepd.core.peer import Peer, peer_of
from sandkeepd.serving import defects
from sandkeepd.serving.accept import accept_clients
from sandkeepd.serving.holdings import Holdings
from sandkeepd.stream import authentication, cloud_run
from sandkeepd.stream.authentication import RefusedError
from sandkeepd.stream.cloud_run import CloudRun, Guest
from sandkeepd.stream.endpoints import CLOUD_RUN
from sandkeepd.stream.session import Client, Endpoint, Handler, Session
from sandkeepd.stream.tokens import Tokens

log: Final = logging.getLogger(__name__)

HANDSHAKE_S: Final = 10.0
HANDSHAKE_BYTES: Final = 32 * 1024
"""Maximum duration of an opening handshake, and size of its request."""

MAX_HANDSHAKES: Final = 64
"""Maximum handshakes at once, of one user or over TCP. One more drops the oldest."""

MAX_CONNECTIONS: Final = 512
"""Maximum websockets of a user; root may have as many as there are descriptors."""

CLOSE_S: Final = 5.0
STOP_S: Final = 1.0
"""Seconds for the closing handshake, and for a client's last messages once it has gone; less on a stop."""

TCP_SEND_BYTES: Final = 256 * 1024
"""Maximum bytes in the kernel for a stalled reader on TCP; the default would be megabytes."""

_STATUS: Final[dict[str, HTTPStatus]] = {
    "not_found": HTTPStatus.NOT_FOUND,
    "invalid": HTTPStatus.BAD_REQUEST,
    "permission_denied": HTTPStatus.FORBIDDEN,
    "compacted": HTTPStatus.GONE,
    "not_supported": HTTPStatus.NOT_IMPLEMENTED,
    "timeout": HTTPStatus.GATEWAY_TIMEOUT,
    "provider_unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
    "storage_unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
    "internal": HTTPStatus.INTERNAL_SERVER_ERROR,
}
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
_NORMAL, _GOING_AWAY, _REFUSED, _DEFECT = 1000, 1001, 1008, 1011


class Limits(Struct, frozen=True, kw_only=True):
    """The limits of the server."""

    handshake_s: float = HANDSHAKE_S
    handshakes: int = MAX_HANDSHAKES
    connections: int = MAX_CONNECTIONS
    close_s: float = CLOSE_S


class StreamServer:
    """Serves `endpoints`, by the first part of the path after ``/v1/``, on any number of listeners."""

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        tokens: Tokens,
        origins: Sequence[str] = (),
        limits: Limits | None = None,
        holdings: Holdings | None = None,
        advertised: Sequence[str] = (),
    ) -> None:
        self._endpoints = endpoints
        self._hosts = [one.partition("://")[2].partition("#")[0].rpartition(":")[0].lower() for one in advertised]
        self._tokens = tokens
        self._origins = origins
        self._limits = limits or Limits()
        self._holdings = holdings or Holdings()
        self._open: Counter[int | str] = Counter()
        """Websockets of each user, by the uid, and of guests of each sandbox, by its id."""
        self._handshakes: dict[int | None, dict[trio.CancelScope, None]] = {}

    @property
    def connections(self) -> int:
        """Number of open websockets."""
        return self._open.total()

    async def serve(
        self,
        listener: socket.socket,
        tls: ssl.SSLContext | None = None,
        *,
        task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve a listener until cancelled, with `tls` if given; then clients are told that the daemon goes away."""
        async with trio.open_nursery() as clients:
            task_status.started()
            await accept_clients(listener, clients, partial(self._serve_client, tls=tls))

    async def _serve_client(self, sock: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        try:
            sock.setblocking(False)
            peer = _prepare(sock)
            connection = _connection(Wire(sock, HANDSHAKE_BYTES), tls)
        except OSError:  # it has gone already
            sock.close()
            return
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.read)
                try:
                    await self._handle(connection, peer)
                finally:
                    connection.stop_reading()
        except* ConnectionClosed:  # it went, at the moment at which we stop
            pass
        except* Exception:
            log.exception("a websocket failed by a defect of the daemon")
        finally:
            with trio.CancelScope(shield=True):
                await connection.wire.aclose()

    async def _handle(self, connection: Connection, peer: Peer | None) -> None:
        """Let a client in and serve it, or refuse it."""
        with self._in_handshake(peer) as scope:
            request = await connection.proposed()
            try:
                if request is None:
                    return
                client = self._authenticate(request, connection.host, peer)
                entitled = contextlib.nullcontext() if peer else self._tokens.while_valid(client.peer.uid)
                with entitled, self._count_connection(client), self._account_memory(connection, client.peer):
                    with _refusing():
                        handler = await self._endpoint(client.target)(client)
                    connection.wire.trust()  # beforehand, as the client may send at once
                    await request.accept(subprotocol=authentication.subprotocol(request))
                    scope.deadline = float("inf")
                    self._end_handshake(peer, scope)
                    await self._serve_messages(connection, handler)
            except RefusedError as refused:
                with contextlib.suppress(ConnectionClosed):
                    await _refuse(request, refused)
            except ConnectionClosed:
                return

    @contextlib.contextmanager
    def _in_handshake(self, peer: Peer | None) -> Iterator[trio.CancelScope]:
        """Count a client among those in the handshake, which ends when its time is up or its place is needed."""
        handshakes = self._handshakes.setdefault(_uid(peer), {})
        if len(handshakes) >= self._limits.handshakes:
            oldest = next(iter(handshakes))
            del handshakes[oldest]
            oldest.cancel()
        with trio.move_on_after(self._limits.handshake_s) as scope:
            handshakes[scope] = None
            try:
                yield scope
            finally:
                self._end_handshake(peer, scope)

    def _end_handshake(self, peer: Peer | None, scope: trio.CancelScope) -> None:
        handshakes = self._handshakes.get(_uid(peer), {})
        handshakes.pop(scope, None)
        if not handshakes:
            self._handshakes.pop(_uid(peer), None)

    @contextlib.contextmanager
    def _count_connection(self, client: Client) -> Iterator[None]:
        """Count a client among its user's, or among the guests of its sandbox."""
        whose: int | str = client.sandbox_id if isinstance(client, Guest) else client.peer.uid
        limit = cloud_run.GUESTS if isinstance(client, Guest) else self._limits.connections
        if whose != 0 and self._open[whose] >= limit:
            message = f"you have {limit} websockets open: close some"
            raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, StateError("not_ready", message))
        self._open[whose] += 1
        try:
            yield
        finally:
            self._open -= Counter({whose: 1})

    @contextlib.contextmanager
    def _account_memory(self, connection: Connection, peer: Peer) -> Iterator[None]:
        """Charge a client's unprocessed data to its user."""

        def drop() -> None:
            log.warning("dropped a websocket of %s: its user's clients hold too much", peer.owner)
            connection.wire.cut()

        share = self._holdings.share(peer.uid, drop)
        connection.weigh = share.add
        try:
            yield
        finally:
            share.close()

    def _authenticate(self, request: WebSocketRequest, host: str, peer: Peer | None) -> Client:
        """Identify the peer and its target. Raises `RefusedError`."""
        with _refusing():
            authentication.check_origin(request, self._origins)
            target = frames.parse_target(request.path)
            client = Client(peer, target) if peer else self._client(request, host, target)
            authentication.subprotocol(request)
            return client

    def _client(self, request: WebSocketRequest, host: str, target: frames.Target) -> Client:
        """Return the client of a TCP request, by its user's token, or by that of the sandbox that it attaches to.

        The latter makes a guest of a sandbox that was given up, too, to be told where it goes on; but a user's own
        token lets it be taken back.
        """
        authentication.check_host(host, self._hosts)
        served, given = self._endpoints.get(CLOUD_RUN), target.query.get("sandbox_token", b"")
        sandbox = None
        if isinstance(served, CloudRun) and target.parts[0] == "attach" and len(target.parts) == 2:
            sandbox = served.sandbox_of_token(target.parts[1], given.decode("ascii", "replace"))
        if sandbox is not None and sandbox.owner.startswith("uid:"):
            user = authentication.user_by_token(request, self._tokens)
            if user is None or (user.owner != sandbox.owner and not sandbox.hidden):
                return Guest(authentication.peer_of_owner(sandbox.owner), target, sandbox.sandbox_id)
        return Client(authentication.peer_by_token(request, self._tokens), target)

    def _endpoint(self, target: frames.Target) -> Endpoint:
        if target.parts[0] in cloud_run.PATHS and len(target.parts) == 1 + (target.parts[0] == "attach"):
            return self._endpoints[CLOUD_RUN]
        version, name = (*target.parts, "", "")[:2]
        found = self._endpoints.get(name) if version == "v1" else None
        if found is None or len(target.parts) != _LENGTHS[name]:
            raise CallerError("not_found", f"no such path: use one of {', '.join(frames.PATHS)}")
        return found

    async def _serve_messages(self, connection: Connection, handler: Handler) -> None:
        session = Session(connection)
        code = _GOING_AWAY
        try:
            try:
                await self._run_handler(connection, lambda: handler(session))
                code = _NORMAL
            except Exception as error:  # noqa: BLE001  # it is told, and reported
                failure = _failure(error)
                code = _DEFECT if isinstance(failure, DaemonError) else _REFUSED
                await session.send(Failed(error=frames.wire_error(failure)))
        finally:
            with trio.move_on_after(STOP_S if code == _GOING_AWAY else self._limits.close_s) as scope:
                scope.shield = code == _GOING_AWAY
                await connection.aclose(code)

    async def _run_handler(self, connection: Connection, handler: Callable[[], Awaitable[None]]) -> None:
        """Run a talk; cancel it soon after the client has gone, as its last messages may never be read."""
        async with trio.open_nursery() as nursery:

            async def cancel_later() -> None:
                await connection.wire.gone.wait()
                await trio.sleep(self._limits.close_s)
                raise ConnectionClosed(None)

            nursery.start_soon(cancel_later)
            await handler()
            nursery.cancel_scope.cancel()


_LENGTHS: Final = {path.split("/")[2]: path.count("/") for path in frames.PATHS}


def _uid(peer: Peer | None) -> int | None:
    return None if peer is None else peer.uid


def _connection(wire: Wire, tls: ssl.SSLContext | None) -> Connection:
    """A websocket to come. The TLS handshake is part of the first read, and so of the time and bytes of a stranger."""
    secure = SecureStream(wire, tls, server_side=True, plain_answer=_PLAIN) if tls is not None else None
    return Connection(wire, ConnectionType.SERVER, frames.MAX_MESSAGE_BYTES, secure)


def _prepare(sock: socket.socket) -> Peer | None:
    """Return the peer of a Unix socket. On TCP return None and set keepalive: a peer may die unnoticed."""
    if sock.family == socket.AF_UNIX:
        return peer_of(sock)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, TCP_SEND_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    return None


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Translate exceptions of the handshake into refusals."""
    try:
        yield
    except SandkeepError as error:
        raise RefusedError(_STATUS.get(error.code, HTTPStatus.CONFLICT), error) from None
    except RefusedError:
        raise
    except Exception as defect:  # noqa: BLE001  # it is reported
        failure = defects.report(only_error(defect), "the stream server", None)
        raise RefusedError(HTTPStatus.INTERNAL_SERVER_ERROR, failure) from None


def _plain_answer() -> bytes:
    """Return the answer to a client that speaks HTTP to the TLS port."""
    message = (
        "this port speaks TLS 1.3 only: connect to tls://, with the token and the pin that `stream.access` answers"
    )
    body = frames.encode(Refusal(error=frames.wire_error(CallerError("invalid", message))))
    lines = ["HTTP/1.1 400 Bad Request", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


_PLAIN: Final = _plain_answer()


async def _refuse(request: WebSocketRequest, refused: RefusedError) -> None:
    body = frames.encode(Refusal(error=frames.wire_error(refused.error)))
    headers = [(b"Content-Type", b"application/json"), (b"Connection", b"close")]
    if refused.status == HTTPStatus.UNAUTHORIZED:
        headers.append((b"WWW-Authenticate", b"Bearer"))
    await request.reject(refused.status, extra_headers=headers, body=body)


def _failure(error: Exception) -> SandkeepError:
    """Return the error that ended a handler, without nurseries' groups. Raises ConnectionClosed if the client went."""
    found = defects.first_of(error, ConnectionClosed, SandkeepError)
    if isinstance(found, ConnectionClosed):
        raise found
    return found if isinstance(found, SandkeepError) else defects.report(error, "the stream server", None)
