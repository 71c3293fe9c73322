"""How much of the daemon's time one sandbox gets for what it says: as much as it can need, and no more."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SHARE: Final = 0.2
"""The part of the daemon's time that is given to one sandbox on average. A keeper at its fastest needs half of it."""

SAVED_S: Final = 0.1
"""How much of it can be saved up."""


class Allowance:
    """What is left of it, in seconds of this thread's time on a processor."""

    def __init__(self) -> None:
        self._left = SAVED_S
        self._at = time.monotonic()

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Account for the time that a block takes."""
        before = time.thread_time()
        try:
            yield
        finally:
            now = time.monotonic()
            self._left = min(SAVED_S, self._left + (now - self._at) * SHARE) - (time.thread_time() - before)
            self._at = now

    @property
    def is_spent(self) -> bool:
        """Whether there is nothing left for the moment."""
        return self._left <= 0
