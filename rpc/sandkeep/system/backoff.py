"""Exponential backoff: how long to pause between attempts at the same thing, and when to give up.

Nothing here sleeps: a thread, a task of Trio's and a pure client wait each in their own way.
"""

import math
import time
from collections.abc import Callable, Iterator


def pauses(first_s: float, longest_s: float, *, growth: float = 2.0) -> Iterator[float]:
    """Yield pauses in seconds, for ever: each `growth` times as long as the one before, up to the longest."""
    pause_s = first_s
    while True:
        yield pause_s
        pause_s = min(growth * pause_s, longest_s)


class Backoff:
    """The pauses between attempts at one thing, which end when `patience_s` have gone by without success.

    With `at_once` an attempt without a pause comes first, however little patience there is. `clock` answers seconds and
    only goes forward.
    """

    def __init__(
        self,
        first_s: float,
        longest_s: float,
        patience_s: float = math.inf,
        *,
        growth: float = 2.0,
        at_once: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._patience_s = patience_s
        self._growth = growth
        self._at_once = at_once
        self._clock = clock
        self._deadline: float | None = None
        self._pauses: Iterator[float] | None = None

    @property
    def remaining_s(self) -> float:
        """For how many more seconds there are attempts; less than 0 when that is over."""
        return self._patience_s if self._deadline is None else self._deadline - self._clock()

    def begin(self) -> None:
        """Start the patience now, unless it has begun. The first pause does so by itself."""
        if self._deadline is None:
            self._deadline = self._clock() + self._patience_s

    def reset(self) -> None:
        """Forget the failures so far: an attempt has succeeded."""
        self._deadline = self._pauses = None

    def pause(self) -> float | None:
        """Return the seconds to wait before the next attempt, the last at the end of the patience; None to give up."""
        self.begin()
        remaining_s = self.remaining_s
        if self._pauses is None:
            self._pauses = pauses(self._first_s, self._longest_s, growth=self._growth)
            if self._at_once:
                return 0.0
        return min(next(self._pauses), remaining_s) if remaining_s > 0 else None
