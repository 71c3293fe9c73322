"""Accepting clients on a listener, also when there are no descriptors left for them."""

import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

import trio

_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_S: Final = 0.1


async def accept_clients(
    listener: socket.socket, clients: trio.Nursery, serve: Callable[[socket.socket], Awaitable[None]]
) -> NoReturn:
    """Accept until cancelled, and `serve` each client in a task of its own. The listener does not block."""
    while True:
        await trio.lowlevel.wait_readable(listener.fileno())
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            continue
        except OSError as error:
            if error.errno in _NO_DESCRIPTORS:
                logging.getLogger(__name__).error(
                    "cannot accept a client: %s; raise the limit of open files", os.strerror(error.errno)
                )
                await trio.sleep(_PAUSE_S)
            continue
        clients.start_soon(serve, sock)
