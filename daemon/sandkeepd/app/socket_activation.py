"""Adopt listening sockets passed by systemd (`LISTEN_FDS`).

They keep listening while no daemon runs: a client that connects during a restart waits in their queue instead of being
refused. Their mode, owner and file are the opener's, and stay as they are.
"""

import contextlib
import ipaddress
import os
import socket
import stat
from collections.abc import MutableMapping
from typing import Final

from msgspec import Struct, field

from sandkeep.errors import SandkeepError, SetupError
from sandkeep.settings import daemon
from sandkeepd.api.listener import refuse_descriptors

FIRST: Final = 3
"""The first descriptor after the standard streams."""

MOST_DIGITS: Final = 20
"""Of a number in the environment: enough for 64 bits."""

RPC: Final = ("rpc", "sandkeep.sock")
STREAM: Final = ("stream", "stream.sock")
"""Names of descriptors. One with another name, such as its unit's, is identified by its address."""


class PassedSockets(Struct, frozen=True, kw_only=True):
    """The passed sockets: listening, close-on-exec and non-blocking, to be closed but never unlinked."""

    rpc: socket.socket | None = None
    stream: list[socket.socket] = field(default_factory=list)


def take_passed(environ: MutableMapping[str, str] = os.environ) -> PassedSockets:
    """Return the sockets that the environment names. Its variables are removed, even if meant for another process.

    Raises `not_configured`, naming the descriptor and the remedy, when one cannot be served; it is closed then.
    """
    count, pid = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_PID", "")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not (count.isascii() and count.isdecimal()) or not count.strip("0"):
        return PassedSockets()
    if len(count) > MOST_DIGITS or int(count) > os.sysconf("SC_OPEN_MAX") - FIRST:
        raise _useless(f"LISTEN_FDS={count[: MOST_DIGITS + 1]}", "is more than a process can have")
    rpc: list[socket.socket] = []
    stream: list[socket.socket] = []
    with contextlib.ExitStack() as undo:
        for position, fd in enumerate(range(FIRST, FIRST + int(count))):
            sock = undo.enter_context(contextlib.closing(_listener(fd)))
            if any(os.path.sameopenfile(fd, other.fileno()) for other in (*rpc, *stream)):
                raise _useless(f"descriptor {fd}", "is the same socket as an earlier one")
            name = names[position] if position < len(names) else ""
            (rpc if _is_rpc(sock, name, fd) else stream).append(sock)
        if len(rpc) > 1:
            raise _useless(f"descriptor {rpc[1].fileno()}", "is a second socket for the API, of which there is one")
        undo.pop_all()
    return PassedSockets(rpc=rpc[0] if rpc else None, stream=stream)


def address_of(listener: socket.socket, scheme: str = "tls") -> str:
    """The address of a listener as `SANDKEEP_STREAM` writes it, with `scheme` if it is TCP's."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{os.fsdecode(name)}"
    host = f"[{name[0]}]" if listener.family == socket.AF_INET6 else name[0]
    return f"{scheme}://{host}:{name[1]}"


def _listener(fd: int) -> socket.socket:
    """The descriptor as a socket that can be accepted from, private to this process."""
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            raise _useless(f"descriptor {fd}", "is no socket")
        os.set_inheritable(fd, False)
        sock = socket.socket(fileno=fd)
    except OSError as error:
        raise _useless(f"descriptor {fd}", f"is not usable ({error.strerror})") from None
    try:
        _check(sock, fd)
    except SandkeepError:
        sock.close()
        raise
    sock.setblocking(False)
    refuse_descriptors(sock)
    return sock


def _check(sock: socket.socket, fd: int) -> None:
    if sock.type != socket.SOCK_STREAM or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise _useless(f"descriptor {fd}", "is no listening stream socket: use ListenStream= and Accept=no")
    if sock.family == socket.AF_UNIX:
        return
    inet = sock.family in (socket.AF_INET, socket.AF_INET6)
    if not (inet and ipaddress.ip_address(sock.getsockname()[0]).is_loopback):
        raise _useless(f"descriptor {fd}", "is neither a Unix socket nor one of the loopback interface")


def _is_rpc(sock: socket.socket, name: str, fd: int) -> bool:
    """Return True if the socket is the API's: by its name, else by its address. Otherwise it is the stream's."""
    unix = sock.family == socket.AF_UNIX
    if name in RPC and not unix:
        raise _useless(f"descriptor {fd}", "is called rpc, and the API is served on a Unix socket only")
    if name in RPC or name in STREAM:
        return name in RPC
    if not unix:
        return False
    address = address_of(sock)
    if address == f"unix:{daemon.SOCKET()}":
        return True
    if address not in daemon.STREAM():
        raise _useless(
            f"descriptor {fd}",
            f"listens on {address.removeprefix('unix:')}, which neither {daemon.SOCKET.name} nor "
            f"{daemon.STREAM.name} says: call it rpc or stream by FileDescriptorName=, or set those",
        )
    return False


def _useless(what: str, why: str) -> SetupError:
    return SetupError(
        "not_configured", f"the sockets that were passed cannot be used: {what} {why}", setting="LISTEN_FDS"
    )
