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
        for name in names:
            self._counts[name] += 1
        try:
            yield
        finally:
            for name in names:
                self._counts[name] -= 1
                if not self._counts[name]:
                    del self._counts[name]

    def count(self, name: str) -> int:
        """Count the blocks that hold a name."""
        return self._counts[name]
