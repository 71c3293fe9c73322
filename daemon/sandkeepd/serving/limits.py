"""Per-connection and per-user limits on calls in flight."""

from typing import Final

import trio

MAX_CALLS: Final = 64
MAX_BYTES: Final = 16 * 1024 * 1024
MAX_DESCRIPTORS: Final = 16
MAX_DESCRIPTORS_OF_USER: Final = 256
"""Descriptors that calls under way may give, and those that were given and lie unread in the kernel."""


class CallLimits:
    """Limits a connection's calls in flight and the bytes that they hold. One task takes, any gives back."""

    def __init__(self) -> None:
        self.calls = 0
        self.bytes = 0
        self._changed = trio.Event()

    def try_acquire(self, calls: int, weight: int) -> bool:
        """Take room if there is enough. A request larger than any room is admitted alone."""
        if self.calls and (self.calls + calls > MAX_CALLS or self.bytes + weight > MAX_BYTES):
            return False
        self.calls += calls
        self.bytes += weight
        return True

    async def acquire(self, calls: int, weight: int) -> None:
        """Wait until there is room, and take it."""
        while not self.try_acquire(calls, weight):
            await self._changed.wait()

    async def wait_empty(self) -> None:
        """Wait until nothing is under way."""
        while self.calls:
            await self._changed.wait()

    def release(self, calls: int, weight: int) -> None:
        """Let go of room that was taken."""
        self.calls -= calls
        self.bytes -= weight
        self._changed.set()
        self._changed = trio.Event()
