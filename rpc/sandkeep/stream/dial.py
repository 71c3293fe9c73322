"""Connections to the stream server: sockets, websockets, and errors."""

import errno
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

import msgspec
import trio
from trio_websocket import ConnectionClosed
from wsproto import ConnectionType

from sandkeep.clients import dial
from sandkeep.errors import CallerError, DaemonError, SandkeepError, SetupError, StateError
from sandkeep.protocol import frames, tls
from sandkeep.protocol.frames import Failed, FromServer, Output
from sandkeep.protocol.wire import Connection, Wire
from sandkeep.settings import daemon
from sandkeep.system.backoff import Backoff

CONNECT_S: Final = 10.0
CLOSE_S: Final = 5.0
MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of a server's message: an append of events is never split."""

_FIRST_PAUSE_S: Final = 0.02
_LONGEST_PAUSE_S: Final = 1.0


class Dialer:
    """Opens websockets at one address, with one token, which on TCP only the server with that pin is sent.

    The pin may be part of the address: ``tls://HOST:PORT#PIN``.
    """

    def __init__(self, address: str | None, token: str | None, pin: str | None, patience_s: float) -> None:
        self._address = address if address is not None else _default_address()
        if self._address.startswith("tls://"):
            self._address, _, its_pin = self._address.partition("#")
            pin = pin or its_pin
        self._token = token
        self._pin = _checked_pin(self._address, pin)
        self._patience_s = patience_s

    async def open(self, nursery: trio.Nursery, target: str) -> Connection:
        """Open a websocket, whose reading task is in `nursery`; `close` it. Raises SandkeepError."""
        wire = Wire(await _connect(self._address))
        connection = Connection(
            wire,
            ConnectionType.CLIENT,
            MAX_MESSAGE_BYTES,
            await _secured(wire, self._address, self._pin) if self._pin else None,
            host="localhost" if self._address.startswith("unix:") else self._address.partition("://")[2],
            path=target,
            client_subprotocols=[frames.PROTOCOL],
            client_extra_headers=[(b"Authorization", b"Bearer " + self._token.encode())] if self._token else [],
        )
        nursery.start_soon(connection.read)
        opened = False
        try:
            with trio.move_on_after(CONNECT_S):
                opened = await connection.opened()
        finally:
            if not opened:
                await close(connection)
        if not opened:
            raise _refusal(connection, self._address)
        return connection

    async def open_again(self, nursery: trio.Nursery, target: str, backoff: Backoff) -> Connection:
        """Open a websocket in place of one that was lost, as soon as the daemon is there again."""
        while True:
            try:
                return await self.open(nursery, target)
            except StateError as error:
                pause_s = backoff.pause() if error.code == "not_ready" else None
                if pause_s is None:
                    raise
                await trio.sleep(pause_s)

    def backoff(self) -> Backoff:
        """The pauses before one stream's lost connection is opened again."""
        return Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, self._patience_s, clock=trio.current_time)


async def close(connection: Connection) -> None:
    """Close a websocket with any peer, and end its reading task."""
    with trio.CancelScope(shield=True):
        with trio.move_on_after(CLOSE_S if not connection.wire.gone.is_set() else 0):
            await connection.aclose()
        connection.stop_reading()
        await connection.wire.aclose()


def _default_address() -> str:
    addresses = daemon.STREAM()
    if not addresses:
        raise SetupError("not_configured", "SANDKEEP_STREAM is none: set it to the stream server's address")
    return addresses[0]


async def _connect(address: str) -> socket.socket:
    """Return a connected socket. Raises the errors of `sandkeep.clients.dial`."""
    kind, _, path = address.partition(":")
    try:
        place = ("", 0) if kind == "unix" else daemon.remote_address(address)
    except ValueError as error:
        raise CallerError("invalid", f"{address!r} is not an address of a stream server: {error}") from None
    try:
        with trio.fail_after(CONNECT_S):
            stream = await trio.open_unix_socket(path) if kind == "unix" else await trio.open_tcp_stream(*place)
    except trio.TooSlowError:
        failure: OSError = TimeoutError(errno.ETIMEDOUT, "it does not answer")
    except OSError as error:
        failure = _first_cause(error)
    else:
        family, number = stream.socket.family, stream.socket.detach()
        plain = socket.socket(family, socket.SOCK_STREAM, fileno=number)
        plain.setblocking(False)
        return plain
    if kind != "unix" and failure.errno not in (errno.ECONNREFUSED, errno.ETIMEDOUT):
        message = f"{address} cannot be reached from here: {failure.strerror or failure}"
        raise StateError("not_ready", message, address=address) from None
    raise dial.cannot_connect(path if kind == "unix" else address, failure) from None


def _first_cause(error: OSError) -> OSError:
    """Return why the first of several addresses did not answer: trio raises an error about all of them."""
    cause: BaseException | None = error.__cause__
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return cause if isinstance(cause, OSError) else error


def _checked_pin(address: str, pin: str | None) -> str | None:
    """The pin if the address needs one. Raises `invalid`, and `not_configured` for an address without TLS."""
    daemon.refuse_plaintext(address)
    if not address.startswith("tls://"):
        return None
    try:
        return tls.parse_pin(pin or "")
    except ValueError as error:
        message = f"{address} needs the server's pin: give the one that `stream.access` returns on the daemon's socket"
        raise CallerError("invalid", f"{message} ({error})", field="pin") from None


async def _secured(wire: Wire, address: str, pin: str) -> tls.SecureStream:
    """TLS with the server that has the pin. Nothing was sent to any other. Raises SandkeepError."""
    stream = tls.SecureStream(wire, tls.client_context(), server_side=False)
    try:
        with trio.fail_after(CONNECT_S):
            await stream.handshake()
        if not stream.has_pin(pin):
            raise _impostor(address)
    except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError) as error:
        await trio.aclose_forcefully(wire)
        raise _no_tls(address, error) from None
    except BaseException:
        await trio.aclose_forcefully(wire)
        raise
    return stream


def _impostor(address: str) -> CallerError:
    message = (
        f"the server on {address} does not have the pinned key, and was sent nothing: call `stream.access` on the "
        "daemon's socket; if it returns the same pin, another program has taken the port"
    )
    return CallerError("permission_denied", message, address=address)


def _no_tls(address: str, error: Exception) -> StateError:
    if isinstance(error.__cause__, ssl.SSLError) and error.__cause__.reason == "WRONG_VERSION_NUMBER":
        why = "does not speak TLS"
    else:
        why = "does not answer as a stream server does"
    return StateError("not_ready", f"the server on {address} {why}, and was sent nothing", address=address)


def _refusal(connection: Connection, address: str) -> SandkeepError:
    """Return the error for a failed handshake."""
    if connection.rejection is not None:
        error = frames.refusal_of(connection.rejection.body or b"")
        if error is not None:
            return error
    return StateError("not_ready", f"the server on {address} does not answer as a stream server does", address=address)


@contextmanager
def unwrap_single_exception() -> Iterator[None]:
    """Unwrap a single exception from the groups of the nursery around a caller's code."""
    try:
        yield
    except BaseExceptionGroup as group:
        sole: BaseException = group
        while isinstance(sole, BaseExceptionGroup) and len(sole.exceptions) == 1:
            sole = sole.exceptions[0]
        cause, context = sole.__cause__, sole.__context__
        try:
            raise sole
        finally:
            sole.__cause__, sole.__context__ = cause, context


# -- messages ---------------------------------------------------------------------------------------------------------


def decode(message: str | bytes) -> bytes | FromServer:
    """A message of the server's; one that tells of an error is raised."""
    if isinstance(message, bytes):
        return message
    try:
        parsed: FromServer = frames.decode_from_server(message)
    except msgspec.DecodeError:
        raise DaemonError("internal", "the stream server sent a message that this client does not know") from None
    if isinstance(parsed, Failed):
        raise frames.as_exception(parsed.error)
    return parsed


def output_of(message: bytes) -> Output:
    """A piece of output."""
    try:
        return frames.parse_output(message)
    except ValueError as error:
        raise DaemonError("internal", f"the stream server sent an invalid frame: {error}") from None


async def next_message(connection: Connection) -> bytes | FromServer:
    """The next message of a connection that cannot be had again."""
    try:
        return decode(await connection.get_message())
    except ConnectionClosed as closed:
        raise_lost(closed)


def raise_lost(closed: ConnectionClosed) -> NoReturn:
    """Raise `not_ready` for a lost connection, with the reason."""
    why = closed.reason.reason if closed.reason is not None and closed.reason.reason else "it went away"
    raise StateError("not_ready", f"the stream server closed the connection: {why}") from None
