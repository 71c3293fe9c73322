"""Sending whole lines to a client that may be slow, or may never read."""

import socket
from typing import Final

import trio

_MOST_AT_ONCE: Final = 1024 * 1024  # so that one large answer does not hold up the other tasks while it is copied


class Writer:
    """Sends lines whole and one after another, from any number of tasks.

    A line that the kernel takes at once costs no more than that call. Otherwise its task waits until the client has
    taken it, and those behind it wait their turn: what is not sent yet is held by the tasks that wait, never by a
    queue.
    """

    def __init__(self, sock: socket.socket, deadline_s: float) -> None:
        self._sock = sock
        self._deadline_s = deadline_s
        self._turn = trio.Lock()
        self._broken = False

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be sent."""
        return not self._turn.locked()

    async def send(self, data: bytes) -> None:
        """Send one or more lines. Raises OSError when the client is gone, `trio.TooSlowError` when it does not read.

        When that happens, or when the caller is cancelled, half a line may have been sent: nothing more can be.
        """
        if not self._turn.locked():
            sent = self._push(data)
            if sent == len(data):
                return
            self._turn.acquire_nowait()
        else:
            await self._turn.acquire()
            sent = 0
        try:
            await self._drain(memoryview(data)[sent:])
        except BaseException:
            self._broken = True
            raise
        finally:
            self._turn.release()

    async def _drain(self, rest: memoryview) -> None:
        with trio.fail_after(self._deadline_s):
            while rest:
                sent = self._push(rest[:_MOST_AT_ONCE])
                rest = rest[sent:]
                if not sent:
                    await trio.lowlevel.wait_writable(self._sock.fileno())

    def _push(self, data: bytes | memoryview) -> int:
        if self._broken:
            raise BrokenPipeError
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
