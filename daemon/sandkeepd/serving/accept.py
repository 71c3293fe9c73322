"""Accepting clients on a listener, also when there are no descriptors left for them."""

import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from math import inf
from typing import Final, NoReturn

import trio

from sandkeepd.serving.refusals import INTERVAL_S

_NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_S: Final = 0.1
_AT_ONCE: Final = 16
"""Maximum accepts before accepted clients get their turn. One at a time, each would wait until all of them had one, and
hundreds that come at once would wait for seconds.
"""


async def accept_clients(
    listener: socket.socket, clients: trio.Nursery, serve: Callable[[socket.socket], Awaitable[None]]
) -> NoReturn:
    """Accept until cancelled, and `serve` each client in a task of its own. The listener does not block."""
    shortage = _Shortage()
    while True:
        await trio.lowlevel.wait_readable(listener.fileno())
        for _ in range(_AT_ONCE):
            try:
                sock = listener.accept()[0]
            except BlockingIOError:
                break
            except OSError as error:
                await shortage.pause(error)
                break
            clients.start_soon(serve, sock)


class _Shortage:
    """The want of descriptors on one listener, which is logged once in a while, as any user can bring it about."""

    def __init__(self) -> None:
        self._logged_at = -inf

    async def pause(self, error: OSError) -> None:
        """A client that went again is nothing; without descriptors for more, others have to go first."""
        if error.errno not in _NO_DESCRIPTORS:
            return
        if trio.current_time() - self._logged_at >= INTERVAL_S:
            self._logged_at = trio.current_time()
            logging.getLogger(__name__).error(
                "cannot accept a client: %s; raise the limit of open files", os.strerror(error.errno)
            )
        await trio.sleep(_PAUSE_S)
