"""The answers of a bucket's service: their timeouts, and those that cannot be read."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from sandkeep.errors import ProviderError

T = TypeVar("T")

READ_S: Final = 60.0
"""Maximum seconds until the next byte of an answer."""

SHORTEST_READ_S: Final = 5.0
"""The same of a caller that has hardly any patience."""


def answer_s(patience_s: float) -> float:
    """Return the seconds until the next byte of an answer, for a caller with so much patience: half of that, so that it
    lasts for a second try when the service is silent.
    """
    return max(SHORTEST_READ_S, min(patience_s / 2, READ_S))


class UnreadableAnswerError(ProviderError):
    """An answer that is cut short, or not of the form that it has to have: the request may have been carried out."""


@contextmanager
def parsing(name: str) -> Iterator[None]:
    """Turn the errors of parsing an answer into `UnreadableAnswerError`. `name` is the URI of the object concerned."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise unreadable(name, error) from error


def unreadable(name: str, error: Exception) -> UnreadableAnswerError:
    """Return the error for an answer that cannot be read."""
    return UnreadableAnswerError(
        "provider_unavailable",
        f"the service's answer for {name} cannot be read ({type(error).__name__}): try again later",
    )


def ask_again(call: Callable[[], T]) -> T:
    """Return the result of a call, which is made once more if its answer cannot be read. The SDKs retry only requests
    without an answer, and those whose answer says that they failed.
    """
    try:
        return call()
    except UnreadableAnswerError:
        return call()
