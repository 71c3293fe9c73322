"""Paging of lists."""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def page(
    items: Iterable[T], key: Callable[[T], str], after: str | None, limit: int, *, backwards: bool = False
) -> tuple[list[T], str | None]:
    """Return up to `limit` items in their own order or `backwards`, beginning behind the one that `after` names, and
    the next `after`.

    An `after` that is not among them any more begins at the front, so that nothing is missed.
    """
    found = list(items)
    if backwards:
        found.reverse()
    if after is not None:
        start = next((i + 1 for i, item in enumerate(found) if key(item) == after), 0)
        found = found[start:]
    part = list(islice(found, limit))
    return part, key(part[-1]) if len(part) < len(found) else None
