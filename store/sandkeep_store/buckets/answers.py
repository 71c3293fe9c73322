"""Timeouts of the answers of a bucket's service."""

from typing import Final

READ_S: Final = 60.0
"""Maximum seconds until the next byte of an answer."""

SHORTEST_READ_S: Final = 5.0
"""The same of a caller that has hardly any patience."""


def answer_s(patience_s: float) -> float:
    """Return the seconds until the next byte of an answer, for a caller with so much patience: half of that, so that it
    lasts for a second try when the service is silent.
    """
    return max(SHORTEST_READ_S, min(patience_s / 2, READ_S))
