"""Many tasks that are woken at once take turns, so that the event loop looks at its sockets in between.

One commit, or a crowd that asks for the same at once, wakes hundreds of tasks. The event loop runs all of them before
it looks at what came in, and each has files to open, or a program to wake. Whoever asks for something small meanwhile
would wait for them all. So a task that is about to do such things waits for its turn first: a few go each time round.
"""

from typing import Final

import trio

_AT_ONCE: Final = 2
"""How many go each time round. More let no more be done, and take longer."""

_few: Final = trio.lowlevel.RunVar[trio.Semaphore]("few")


async def my_turn() -> None:
    """Wait until it is this task's turn, first come, first served. Nothing is held afterwards."""
    try:
        few = _few.get()
    except LookupError:
        few = trio.Semaphore(_AT_ONCE)
        _few.set(few)
    async with few:  # getting it takes one round of the event loop, also when it is free; the next have theirs then
        pass
