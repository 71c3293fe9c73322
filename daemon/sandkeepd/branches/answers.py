"""Paths in answers: as text, and no more of them than a message holds."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")

MOST_BYTES: Final = 1_500_000
"""Maximum bytes of paths and lines in one answer. In JSON each may become six, and a message has 16 MiB."""


def text_of(path: bytes) -> tuple[str, bytes | None]:
    """Return a path as text, and its bytes if it is not UTF-8."""
    try:
        return path.decode(), None
    except UnicodeDecodeError:
        return path.decode("utf-8", "backslashreplace"), path


def as_many_as_fit(items: Iterable[T], size: Callable[[T], int]) -> Iterator[T]:
    """Yield items as long as an answer has room for them: the first in any case."""
    room = MOST_BYTES
    for item in items:
        yield item
        room -= size(item)
        if room <= 0:
            return
