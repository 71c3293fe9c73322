"""Threads for blocking work, shared out by owner: the work of one owner waits only for other work of that owner.

There is no limit over all owners: it would be a queue in which everybody waits for whoever is slowest. No work may wait
for a lock in its thread; what takes turns waits for its turn before it asks for a thread.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Final, TypeVar, TypeVarTuple
from weakref import WeakValueDictionary

import trio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_owner: Final[ContextVar[str]] = ContextVar("owner of blocking work", default="")
"""The daemon itself by default. A task inherits it from the task that started it."""


@contextmanager
def working_for(owner: str) -> Iterator[None]:
    """Charge the blocking work of a block, and of the tasks that it starts, to an owner's share of the threads."""
    token = _owner.set(owner)
    try:
        yield
    finally:
        _owner.reset(token)


def check_cancelled() -> None:
    """Raise in a thread of `Threads` once its call is cancelled. Call it at least a few times a second in long work."""
    with suppress(RuntimeError):  # a thread of another origin, which nobody cancels
        trio.from_thread.check_cancelled()


class Threads:
    """Threads for one kind of blocking work: each owner has `at_once` of them, and a queue of its own, first come
    first served. See `working_for`.

        in_thread = Threads(16)
        names = await in_thread(os.listdir, path)

    A call that is cancelled in its queue ends at once. Later it waits until the function has returned, which
    `check_cancelled` and programs that the function runs do soon. With `abandon_on_cancel` it leaves the thread to
    itself, and drops the function's result: nothing that has to be closed.
    """

    def __init__(self, at_once: int, *, abandon_on_cancel: bool = False) -> None:
        self._at_once = at_once
        self._abandon_on_cancel = abandon_on_cancel
        self._shares: WeakValueDictionary[str, trio.CapacityLimiter] = WeakValueDictionary()

    @property
    def share(self) -> trio.CapacityLimiter:
        """The threads of the owner for whom the present task works."""
        return self._shares.setdefault(_owner.get(), trio.CapacityLimiter(self._at_once))

    async def __call__(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Run a function in a thread, as soon as the owner's share allows, and return its result."""
        return await trio.to_thread.run_sync(
            work, *arguments, limiter=self.share, abandon_on_cancel=self._abandon_on_cancel
        )


in_thread: Final = Threads(16)
"""For work that takes milliseconds, whatever callers and sandboxes do."""

in_abandoned_thread: Final = Threads(16, abandon_on_cancel=True)
"""For reads that may wait for a disk, a pipe or a network, and whose results nobody has to release."""
