"""Undoing of what a block began, if it fails."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager, suppress

import trio


@asynccontextmanager
async def undo_on_error(
    undo: Callable[..., Awaitable[object]], *args: object, ignored: Collection[type[Exception]] = ()
) -> AsyncIterator[None]:
    """Await `undo(*args)` if the block raises, also if it is cancelled. Errors of `undo` are raised, but for those that
    are `ignored`.
    """
    try:
        yield
    except BaseException:
        with trio.CancelScope(shield=True), suppress(*ignored):
            await undo(*args)
        raise
