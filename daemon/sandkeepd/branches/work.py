"""Threads for work whose length callers choose: each has one of its own, and an owner only so many at once.

A user can make a comparison of his files as long as he likes, and stop the programs that write as him. So this work
takes no thread that others wait for.
"""

from collections.abc import Callable
from typing import Final, TypeVar
from weakref import WeakValueDictionary

import trio

from sandkeepd.contract.caller import Progress
from sandkeepd.host.threads import Meter, run_in_thread

T = TypeVar("T")

AT_ONCE: Final = 3
"""Maximum of such work of one owner at once, and of programs that write as one user."""


class Work:
    """Runs such work in turns, by whose it is."""

    def __init__(self) -> None:
        self._busy: WeakValueDictionary[str, trio.Semaphore] = WeakValueDictionary()

    async def compute(self, owner: str, work: Callable[[Meter], T], progress: Progress, doing: str) -> T:
        """Run work on files of an owner; see `run_in_thread`."""
        async with self._turn(owner):
            return await run_in_thread(work, progress, doing, limiter=trio.CapacityLimiter(1))

    async def read(self, owner: str, work: Callable[[], T]) -> T:
        """Read what is kept of an owner's."""
        async with self._turn(owner):
            return await trio.to_thread.run_sync(work, limiter=trio.CapacityLimiter(1))

    async def ask(self, uid: int, call: Callable[[], T]) -> T:
        """Run a call of a program that has a user's rights. A cancellation ends the program."""
        async with self._turn(f"program of {uid}"):
            return await trio.to_thread.run_sync(call, limiter=trio.CapacityLimiter(1))

    def _turn(self, whose: str) -> trio.Semaphore:
        return self._busy.setdefault(whose, trio.Semaphore(AT_ONCE))
