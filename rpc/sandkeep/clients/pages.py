"""Long lists, page by page."""

from collections.abc import Callable
from typing import Any


def every(ask: Callable[..., Any], field: str, **query: Any) -> list[Any]:
    """All items of a list method, whose answers have them in `field` and tell in `next` where to go on."""
    page = ask(**query)
    items = list(getattr(page, field))
    while page.next is not None:
        page = ask(**query, after=page.next)
        items += getattr(page, field)
    return items
