"""Receipts."""


def euros(cents: int) -> str:
    """Return a price as text, with two decimals."""
    return f"{cents / 100} EUR"
