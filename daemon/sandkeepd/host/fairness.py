"""Fairness on the event loop: tasks woken together yield to it in turn.

One commit, or a crowd of equal requests, wakes hundreds of tasks. The event loop runs all of them before it polls for
I/O, and each has files to open, or a program to wake. A small request that arrives meanwhile would wait for them all.
So a task that is about to do such work waits for its turn first: a few go each round.
"""

from typing import Final

import trio

_AT_ONCE: Final = 2
"""Tasks per round of the event loop. More would slow down other tasks."""


class _Turns(trio.abc.Instrument):
    """The turns in one run of the event loop. `given` are those of this round that were taken without waiting."""

    def __init__(self) -> None:
        self.given = 0
        self.few = trio.Semaphore(_AT_ONCE)

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002
        """A new round begins."""
        self.given = 0


_turns: Final = trio.lowlevel.RunVar[_Turns]("turns")


async def yield_to_loop() -> None:
    """Wait until it is this task's turn, first come, first served. Nothing is held afterwards.

    Where there is no crowd that takes no round of the event loop: an exec has half a dozen turns.
    """
    try:
        turns = _turns.get()
    except LookupError:
        turns = _Turns()
        _turns.set(turns)
        trio.lowlevel.add_instrument(turns)
    if turns.given < _AT_ONCE and turns.few.value == _AT_ONCE:  # no task waits, and this round has a turn left
        turns.given += 1
        return
    async with turns.few:  # getting it takes one round, also when it is free; the next have theirs then
        pass
