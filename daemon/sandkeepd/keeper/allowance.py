"""How much attention one sandbox gets: what it says is read at once, until it says more than a sandbox can need to."""

from typing import Final

PER_SECOND: Final = 2000
AT_MOST: Final = 1000
"""Reads for nothing that may be done each second on average, and how many of them can be saved up."""

BYTES: Final = 256
"""What costs as much to read as the reading itself."""


class Allowance:
    """What is left of it. A keeper that starts 600 processes a second, which is all that it can, needs half."""

    def __init__(self, now: float) -> None:
        self._left = float(AT_MOST)
        self._at = now

    def take(self, size_bytes: int, now: float) -> bool:
        """Account for a read of so much; whether there may be another one at once."""
        self._left = min(AT_MOST, self._left + (now - self._at) * PER_SECOND)
        self._at = now
        self._left -= 1 + size_bytes / BYTES
        return self._left > 0
