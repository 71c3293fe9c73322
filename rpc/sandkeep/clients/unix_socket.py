"""Connection to the daemon's socket, for every client."""

import errno
import os
from _socket import AF_UNIX, SOCK_STREAM, socket  # wrapped by the socket module, whose import takes 3 ms

from sandkeep.clients.dial import cannot_connect


class Socket(socket):
    """A socket that is closed as soon as nobody refers to it: an interrupt may come between any two steps of its owner,
    also between its creation and the block that closes it.
    """

    __del__ = socket.close  # of C: Python ignores an interrupt in a finalizer of its own


def dial(path: str) -> Socket:
    """Connect to the Unix socket `path`; the caller closes it. Raises as `blocking.connect` does."""
    sock = Socket(AF_UNIX, SOCK_STREAM)
    try:
        sock.connect(path)
    except OSError as error:
        sock.close()
        raise cannot_connect(path, error) from None
    except BaseException:
        sock.close()
        raise
    return sock


def dial_at_once(path: str) -> Socket | None:
    """Return a connected socket that does not block; None while the daemon's queue of new clients is full, for which a
    Unix socket cannot be waited. Raises as `dial` does.
    """
    sock = Socket(AF_UNIX, SOCK_STREAM)
    sock.setblocking(False)
    number = sock.connect_ex(path)
    if number == 0:
        return sock
    sock.close()
    if number == errno.EAGAIN:
        return None
    raise cannot_connect(path, OSError(number, os.strerror(number)))
