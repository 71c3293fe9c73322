"""Long lists, page by page."""

from collections.abc import Callable
from typing import Any


def every(ask: Callable[..., Any], **query: Any) -> list[Any]:
    """Return all items of a list method, whose pages have them in their first field, and the next `after` in `next`."""
    page = ask(**query)
    field = page.__struct_fields__[0]
    items = list(getattr(page, field))
    while page.next is not None:
        page = ask(**query, after=page.next)
        items += getattr(page, field)
    return items
