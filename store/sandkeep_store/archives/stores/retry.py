"""Retry of operations while a provider is unavailable."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from sandkeep.errors import ProviderError
from sandkeep.system.backoff import Backoff
from sandkeep_store.archives.stores.types import Waiting

T = TypeVar("T")

PATIENCE_S: Final = 60.0
"""Seconds for which a transfer without progress is retried."""
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 5.0
HEARD_EVERY_S: Final = 0.5
"""Seconds between two calls of `waiting`, which may cancel the wait."""


class RetryLimit:
    """Retry with backoff, limited to so many seconds without progress."""

    def __init__(self, seconds: float, waiting: Waiting) -> None:
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S, seconds)
        self._waiting = waiting

    def wait(self, error: Exception, *, moved: bool) -> None:
        """Wait a while, or raise the error when it was long enough. `moved` says that it got somewhere this time."""
        if moved:
            self._backoff.reset()
        pause_s = self._backoff.pause()
        if pause_s is None:
            raise error
        end = time.monotonic() + pause_s
        while (left_s := end - time.monotonic()) > 0:
            self._waiting()
            time.sleep(min(left_s, HEARD_EVERY_S))


def retry_while_unavailable(seconds: float, waiting: Waiting, attempt: Callable[[], T]) -> T:
    """Return the result of `attempt`, retried for so many seconds while the provider is unavailable."""
    patience = RetryLimit(seconds, waiting)
    while True:
        try:
            return attempt()
        except ProviderError as error:
            patience.wait(error, moved=False)
