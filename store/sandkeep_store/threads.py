"""Threads for blocking work, shared out by owner: the work of one owner waits only for other work of that owner.

A limit over all owners would be a queue in which everybody waits for whoever is slowest; so there is none but `Turns`,
which long work takes, and from which it is moved on. No work may wait for a lock in its thread; what takes turns waits
for its turn before it asks for a thread.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Final, TypeVar, TypeVarTuple
from weakref import WeakValueDictionary

import trio

from sandkeep_store.budgets import charging
from sandkeep_store.turns import Turn, Turns

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


_owner: Final[ContextVar[str]] = ContextVar("owner of blocking work", default="")
"""The daemon itself by default. A task inherits it from the task that started it."""

_is_urgent: Final[ContextVar[bool]] = ContextVar("blocking work is urgent", default=False)

_turn: Final[ContextVar[Turn | None]] = ContextVar("turn of the work in this thread", default=None)
_UNLIMITED: Final = trio.CapacityLimiter(math.inf)


@contextmanager
def working_for(owner: str, *, is_urgent: bool = False) -> Iterator[None]:
    """Charge the blocking work of a block, and of the tasks that it starts, to an owner's share of the threads. Urgent
    work, such as an administrator's, has its turns before all other.
    """
    tokens = _owner.set(owner), _is_urgent.set(is_urgent)
    try:
        yield
    finally:
        _owner.reset(tokens[0])
        _is_urgent.reset(tokens[1])


def present_owner() -> str:
    """Return the owner for whom the present task works."""
    return _owner.get()


def check_cancelled() -> None:
    """Raise in a thread of `Threads` once its call is cancelled. Call it at least a few times a second in long work: it
    is where the work waits while others have their turns.
    """
    _raise_if_cancelled()
    if (turn := _turn.get()) is not None:
        turn.renew(_raise_if_cancelled)


def _raise_if_cancelled() -> None:
    with suppress(RuntimeError):  # a thread of another origin, which nobody cancels
        trio.from_thread.check_cancelled()


class Threads:
    """Threads for one kind of blocking work: each owner has `at_once` of them, and a queue of its own, first come
    first served. See `working_for`.

        in_thread = Threads(16)
        names = await in_thread(os.listdir, path)

    A call that is cancelled in its queue ends at once. Later it waits until the function has returned, which
    `check_cancelled` and programs that the function runs do soon. With `abandon_on_cancel` it leaves the thread to
    itself, and drops the function's result: nothing that has to be closed. With `turns` the function runs while it has
    one of these, and its memory is charged to the owner: see `budgets`.
    """

    def __init__(self, at_once: int, *, abandon_on_cancel: bool = False, turns: Turns | None = None) -> None:
        self._at_once = at_once
        self._turns = turns
        self._abandon_on_cancel = abandon_on_cancel
        self._shares: WeakValueDictionary[str, trio.CapacityLimiter] = WeakValueDictionary()

    @property
    def share(self) -> trio.CapacityLimiter:
        """The threads of the owner for whom the present task works."""
        return self._shares.setdefault(present_owner(), trio.CapacityLimiter(self._at_once))

    async def __call__(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Run a function in a thread, as soon as the owner's share allows, and return its result."""
        if self._turns is not None:
            async with self.share:
                return await self._in_turns(self._turns, work, *arguments)
        return await trio.to_thread.run_sync(
            work, *arguments, limiter=self.share, abandon_on_cancel=self._abandon_on_cancel
        )

    async def _in_turns(self, turns: Turns, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        turn = Turn(turns, present_owner(), is_urgent=_is_urgent.get())
        await turn.begin()
        token = _turn.set(turn)
        try:
            with charging(turn.owner):
                return await trio.to_thread.run_sync(work, *arguments, limiter=_UNLIMITED)
        finally:
            _turn.reset(token)
            turn.end()


in_thread: Final = Threads(16)
"""For work that takes milliseconds, whatever callers and sandboxes do."""

in_abandoned_thread: Final = Threads(16, abandon_on_cancel=True)
"""For reads that may wait for a disk, a pipe or a network, and whose results nobody has to release."""
