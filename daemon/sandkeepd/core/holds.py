"""Counts of users of a resource that are not on record yet."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Holds:
    """Names that are held, each by so many blocks."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    @contextmanager
    def held(self, *names: str) -> Iterator[None]:
        """Hold these for the length of a block."""
        self._counts.update(names)
        try:
            yield
        finally:
            self._counts.subtract(names)
            self._counts += Counter()  # drops those that are at 0

    def count(self, name: str) -> int:
        """Count the blocks that hold a name."""
        return self._counts[name]
