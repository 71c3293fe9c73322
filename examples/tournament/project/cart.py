"""Prices of a cart, in cents."""


def total(items: list[tuple[str, int, int]]) -> int:
    """Return the price of items, each a name, a quantity, and the price of one."""
    return sum(price for _, _, price in items)


def discounted(cents: int, percent: int) -> int:
    """Return a price less a discount, rounded down."""
    return cents - cents * percent
