"""Fairness on the event loop: tasks woken together yield to it in turn, those of each owner in rotation.

One commit, or a crowd of equal requests, wakes hundreds of tasks. The event loop runs all of them before it polls for
I/O, and each has files to open, or a program to wake. A small request that arrives meanwhile would wait for them all.
So a task that is about to do such work waits for its turn first: a few go each round.
"""

from typing import Final

import trio

from sandkeep_store.threads import present_owner

_AT_ONCE: Final = 2
"""Tasks per round of the event loop. More would slow down other tasks."""


class _Turns(trio.abc.Instrument):
    """The turns in one run of the event loop. `given` are those of this round that were taken without waiting."""

    def __init__(self) -> None:
        self.given = 0
        self._free = _AT_ONCE
        self._waiting: dict[str, trio.lowlevel.ParkingLot] = {}
        """Tasks by owner; the owners in the order in which they go on."""

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002
        """A new round begins."""
        self.given = 0

    async def take(self, owner: str) -> None:
        """Wait for a turn, and give the next away in the round in which it is taken."""
        if self.given < _AT_ONCE and self._free == _AT_ONCE:  # no task waits, and this round has a turn left
            self.given += 1
        elif self._free:
            self._free -= 1
            try:
                await trio.lowlevel.checkpoint()
            finally:
                self._pass_on()
        else:
            tasks = self._waiting.setdefault(owner, trio.lowlevel.ParkingLot())
            try:
                await tasks.park()
            except trio.Cancelled:
                if not tasks and self._waiting.get(owner) is tasks:
                    del self._waiting[owner]
                raise
            self._pass_on()

    def _pass_on(self) -> None:
        """Give a turn to the next who waits. Those who were cancelled, and have not run since, are there no more."""
        while self._waiting:
            owner = next(iter(self._waiting))
            tasks = self._waiting.pop(owner)
            given = tasks.unpark()
            if tasks:
                self._waiting[owner] = tasks  # behind all others
            if given:
                return
        self._free += 1


_turns: Final = trio.lowlevel.RunVar[_Turns]("turns")


async def yield_to_loop(owner: str | None = None) -> None:
    """Wait until it is this task's turn: first come, first served among those of an owner, by default the one for whom
    the task works. Nothing is held afterwards.

    Where there is no crowd that takes no round of the event loop: an exec has half a dozen turns.
    """
    try:
        turns = _turns.get()
    except LookupError:
        turns = _Turns()
        _turns.set(turns)
        trio.lowlevel.add_instrument(turns)
    await turns.take(present_owner() if owner is None else owner)
