"""A limit on the daemon's time for the output of one sandbox's keeper: as much as it can need."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SHARE: Final = 0.2
"""The part of the daemon's time that is given to one sandbox on average. A keeper at its fastest needs half of it."""

WAKING_S: Final = 0.00005
"""Cost in seconds of a wake-up for new output."""

SAVED_S: Final = 0.1
"""Maximum seconds that can be saved up."""


class Allowance:
    """The remaining allowance, in seconds of this thread's CPU time."""

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
            spent = time.thread_time() - before + WAKING_S
            self._left = min(SAVED_S, self._left + (now - self._at) * SHARE) - spent
            self._at = now

    @property
    def is_spent(self) -> bool:
        """True if nothing is left for the moment."""
        return self._left <= 0
