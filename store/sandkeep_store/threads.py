"""Run blocking functions in threads, with a limit of their own for each kind of work."""

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Threads:
    """Threads for one kind of blocking work, so that it takes none from other kinds.

        in_thread = Threads(trio.CapacityLimiter(16))
        names = await in_thread(os.listdir, path)

    Cancelled, a call waits until the function has returned. With `abandon_on_cancel` it leaves the thread to itself,
    and drops what the function returns: nothing that has to be closed.
    """

    def __init__(self, limiter: trio.CapacityLimiter, *, abandon_on_cancel: bool = False) -> None:
        self.limiter = limiter
        self._abandon_on_cancel = abandon_on_cancel

    async def __call__(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Run a function in a thread, as soon as the limit allows, and return its result."""
        return await trio.to_thread.run_sync(
            work, *arguments, limiter=self.limiter, abandon_on_cancel=self._abandon_on_cancel
        )
