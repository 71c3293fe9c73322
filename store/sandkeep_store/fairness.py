"""Long work in a thread that leaves the interpreter to others in between: each time they would wait milliseconds."""

import time
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")

STRIDE: Final = 100
PAUSE_S: Final = 0.0002


def yielding(items: Iterable[T], stride: int = STRIDE, pause_s: float = PAUSE_S) -> Iterator[T]:
    """The items, with a pause after every `stride` of them."""
    for number, item in enumerate(items):
        if number % stride == 0:
            time.sleep(pause_s)
        yield item
