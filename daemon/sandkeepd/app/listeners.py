"""The daemon's listening sockets: opened in one place, before anything else: a failure leaves nothing behind."""

import contextlib
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from sandkeep.errors import SetupError
from sandkeep.settings import daemon
from sandkeepd.api.listener import listening
from sandkeepd.app.socket_activation import PassedSockets, address_of

_BACKLOG: Final = 128


class StreamListener(Struct, frozen=True):
    """A socket of the stream server's, and its address, whose scheme says whether there is TLS on it."""

    socket: socket.socket
    address: str

    @property
    def is_secure(self) -> bool:
        """True if it serves TLS."""
        return self.address.startswith("tls://")


class Listeners(Struct, frozen=True, kw_only=True):
    """Sockets that listen, non-blocking: the API's, the stream server's, and the HTTP gateway's."""

    api: socket.socket
    stream: tuple[StreamListener, ...] = ()
    http: tuple[socket.socket, ...] = ()


@contextlib.contextmanager
def opened(
    api_path: str, stream_addresses: Sequence[str], passed: PassedSockets, http_addresses: Sequence[str] = ()
) -> Iterator[Listeners]:
    """Listen on all addresses but those of passed sockets; close all afterwards.

    Raises `not_configured` and `conflict`, naming the setting.
    """
    for address in stream_addresses:
        daemon.refuse_plaintext(address)
    with contextlib.ExitStack() as stack:
        access = who_may_connect()
        given = [_named(stack.enter_context(listener), stream_addresses) for listener in passed.stream]
        if passed.rpc is not None:
            api = stack.enter_context(passed.rpc)
        else:
            api = stack.enter_context(listening(api_path, *access))
        missing = [address for address in stream_addresses if address not in {one.address for one in given}]
        made = [stack.enter_context(_stream_listener(address, *access)) for address in missing]
        http = [stack.enter_context(_http_listener(address, *access)) for address in http_addresses]
        yield Listeners(api=api, stream=(*given, *made), http=tuple(http))


def _named(listener: socket.socket, stream_addresses: Sequence[str]) -> StreamListener:
    """Name a passed socket. One on TCP is for TLS, unless the setting names it without."""
    plain = address_of(listener, "tcp")
    return StreamListener(listener, plain if plain in stream_addresses else address_of(listener))


def who_may_connect() -> tuple[int, str | None]:
    """The Unix sockets' mode and group.

    A root daemon tells users apart by the credentials that the kernel gives, so all may connect unless a group is
    named. A user's daemon runs everything as that user, so nobody else may.
    """
    if os.geteuid() != 0:
        return 0o600, None
    group = daemon.SOCKET_GROUP()
    return (0o660, group) if group else (0o666, None)


@contextlib.contextmanager
def _stream_listener(address: str, mode: int, group: str | None) -> Iterator[StreamListener]:
    kind, _, path = address.partition(":")
    if kind == "unix":
        with listening(path, mode, group, daemon.STREAM.name) as listener:
            yield StreamListener(listener, address_of(listener))
    else:
        with _tcp_listener(address, daemon.STREAM.name) as listener:
            yield StreamListener(listener, address_of(listener, kind))


@contextlib.contextmanager
def _http_listener(address: str, mode: int, group: str | None) -> Iterator[socket.socket]:
    kind, _, path = address.partition(":")
    setting = daemon.HTTP.name
    with listening(path, mode, group, setting) if kind == "unix" else _tcp_listener(address, setting) as listener:
        yield listener


def _tcp_listener(address: str, setting: str) -> socket.socket:
    host, port = daemon.tcp_address(address)
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        why = error.strerror or error
        message = f"{address} cannot be listened on: {why}; set {setting} to another port"
        raise SetupError("not_configured", message, setting=setting) from None
    return listener
