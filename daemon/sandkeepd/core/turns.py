"""Exclusive execution by keys, such as the ids of commands."""

from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

import trio


class Turns:
    """Lets one block at a time run for each key. Nothing is kept of a key that nobody uses."""

    def __init__(self) -> None:
        self._running: dict[Hashable, trio.Event] = {}

    def is_taken(self, key: Hashable) -> bool:
        """Tell if a block runs for the key."""
        return key in self._running

    @asynccontextmanager
    async def of(self, key: Hashable) -> AsyncIterator[None]:
        """Wait until no other block runs for the key, and run this one."""
        while key in self._running:
            await self._running[key].wait()
        self._running[key] = trio.Event()
        try:
            yield
        finally:
            self._running.pop(key).set()
