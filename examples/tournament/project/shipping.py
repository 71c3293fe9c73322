"""Costs of shipping, in cents."""


def shipping(cents: int) -> int:
    """Return the costs for a cart of that price. From 50 euros on there are none."""
    return 0 if cents > 5000 else 490
