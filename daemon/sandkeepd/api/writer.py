"""Sending whole lines, and open descriptors with them, to a client that may be slow, or may never read."""

import fcntl
import socket
import struct
import termios
from collections.abc import Sequence
from typing import Final

import trio

from sandkeepd.serving.holdings import Share

_MOST_AT_ONCE: Final = 1024 * 1024  # so that one large answer does not hold up the other tasks while it is copied


class Writer:
    """Sends lines whole and one after another, from any number of tasks.

    If the kernel takes a line at once, that is one system call. Otherwise its task waits until the client has read, and
    later tasks queue behind it: unsent data is held by the waiting tasks, never by a queue.
    """

    def __init__(self, sock: socket.socket, deadline_s: float, share: Share) -> None:
        self._sock = sock
        self._deadline_s = deadline_s
        self._share = share
        self._turn = trio.Lock()
        self._broken = False
        self._descriptors_unread = 0

    @property
    def idle(self) -> bool:
        """True if nothing waits to be sent."""
        return not self._turn.locked()

    @property
    def descriptors_unread(self) -> int:
        """Number of descriptors sent since the client had last read everything: an upper bound of those in flight."""
        if self._descriptors_unread and not self._unread_bytes():
            self._descriptors_unread = 0
        return self._descriptors_unread

    async def send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send one or more lines; descriptors go with their first byte. Raises OSError when the client is gone,
        `trio.TooSlowError` when it does not read.

        When that happens, or when the caller is cancelled, half a line may have been sent: nothing more can be.
        """
        held = False
        if not self._turn.locked():
            sent = self._push(data, descriptors)
            if sent == len(data):
                return
            self._turn.acquire_nowait()
            held = True
        self._share.add(len(data))
        try:
            if not held:
                await self._turn.acquire()
                sent = 0
            await self._send_rest(memoryview(data)[sent:], () if sent else descriptors)
        finally:
            self._share.subtract(len(data))

    async def _send_rest(self, rest: memoryview, descriptors: Sequence[int]) -> None:
        """Send the rest of a line, holding the turn, and release it."""
        try:
            await self._drain(rest, descriptors)
        except BaseException:
            self._broken = True
            raise
        finally:
            self._turn.release()

    async def _drain(self, rest: memoryview, descriptors: Sequence[int]) -> None:
        with trio.fail_after(self._deadline_s):
            while rest:
                sent = self._push(rest[:_MOST_AT_ONCE], descriptors)
                rest = rest[sent:]
                if sent:
                    descriptors = ()
                    self._share.touch()
                else:
                    await trio.lowlevel.wait_writable(self._sock.fileno())

    def _push(self, data: bytes | memoryview, descriptors: Sequence[int]) -> int:
        """Send as much as the kernel takes now. The descriptors go with the first byte."""
        if self._broken:
            raise BrokenPipeError
        try:
            if not descriptors:
                return self._sock.send(data)
            sent = socket.send_fds(self._sock, [data], list(descriptors))
        except BlockingIOError:
            return 0
        self._descriptors_unread += len(descriptors)
        return sent

    def _unread_bytes(self) -> int:
        """Return the number of bytes that the kernel holds (on a Unix socket, until the client has read them)."""
        (count,) = struct.unpack("i", fcntl.ioctl(self._sock, termios.TIOCOUTQ, b"\0" * 4))
        return int(count)
