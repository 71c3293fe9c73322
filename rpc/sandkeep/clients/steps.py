"""The steps of calls, which all clients share: whether on threads, trio or asyncio.

A generator does all that does not wait, and yields the waits one by one, each as an operation, the socket that it is
about, and an argument. A client is a function that carries out one of them.
"""

import errno
import os
import time
from _socket import AF_UNIX, SOCK_STREAM, socket  # wrapped by the socket module, whose import takes 3 ms
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, TypeAlias, TypeVar

from sandkeep.clients.dial import cannot_connect

T = TypeVar("T")

Step: TypeAlias = tuple[Any, Any, Any]
Steps: TypeAlias = Generator[Step, Any, T]

CONNECT: Final = "connect"
"""Connect the socket, which does not block, to the path that is the argument, and answer as ``connect_ex`` does."""

READABLE: Final = "readable"
"""Wait until the socket can be read, for the seconds of the argument; None is no limit. Answer False after that. A
client whose sockets block may return at once if there is no limit: the read will wait.
"""

WRITABLE: Final = "writable"
"""Wait until the socket can be written to. The argument is None."""

PAUSE: Final = "pause"
"""Wait for the argument, in seconds."""

_CONNECT_S: Final = 10.0
_QUEUE_PAUSE_S: Final = 0.01


class Socket(socket):
    """A socket that is closed as soon as nobody refers to it: an interrupt may come between any two steps of its owner,
    also between its creation and the block that closes it.
    """

    __del__ = socket.close  # of C: Python ignores an interrupt in a finalizer of its own


def dial(path: str) -> Steps[Socket]:
    """Connect to the Unix socket `path`, and while the daemon's queue of new clients is full try again: a Unix socket
    cannot be waited for. The caller closes it. Raises `not_ready`, `permission_denied`, `not_configured`.
    """
    give_up = time.monotonic() + _CONNECT_S
    while True:
        sock = Socket(AF_UNIX, SOCK_STREAM)
        sock.setblocking(False)
        number = yield CONNECT, sock, path
        if number == 0:
            return sock
        sock.close()
        if number != errno.EAGAIN or time.monotonic() >= give_up:
            raise cannot_connect(path, OSError(number, os.strerror(number)))
        yield PAUSE, None, _QUEUE_PAUSE_S


def send(sock: Any, data: bytes) -> Steps[None]:
    """Send all bytes. Raises OSError."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[sock.send(rest) :]
        except BlockingIOError:
            yield WRITABLE, sock, None


def run(carry_out: Callable[..., Any], steps: Steps[T]) -> T:
    """Carry out steps, each by a call of that function, and return the value of the generator."""
    try:
        step = next(steps)
        while True:
            step = steps.send(carry_out(*step))
    except StopIteration as done:
        value: T = done.value
        return value
    finally:
        steps.close()


async def run_async(carry_out: Callable[..., Awaitable[Any]], steps: Steps[T]) -> T:
    """The same, where the function is awaited."""
    try:
        step = next(steps)
        while True:
            step = steps.send(await carry_out(*step))
    except StopIteration as done:
        value: T = done.value
        return value
    finally:
        steps.close()
