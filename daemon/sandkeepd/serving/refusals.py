"""Log lines about refused clients, of which a client that comes again and again cannot make many."""

import logging
from math import inf
from typing import Final

import trio

INTERVAL_S: Final = 60.0


class RefusalLog:
    """Warns of a refused client of a user at once, and of later ones in one line each `interval_s`, with their number.

    The last ones of a user are in no line if none is refused after `interval_s`.
    """

    def __init__(self, log: logging.Logger, interval_s: float = INTERVAL_S) -> None:
        self._log = log
        self._interval_s = interval_s
        self._last: dict[str, tuple[float, int]] = {}

    def count(self, user: str, reason: str) -> None:
        """Count a refused client of a user, and warn if it is time to."""
        now = trio.current_time()
        logged_at, count = self._last.get(user, (-inf, 0))
        if now - logged_at < self._interval_s:
            self._last[user] = (logged_at, count + 1)
            return
        self._log.warning("refused %d client%s of %s: %s", count + 1, "s" if count else "", user, reason)
        self._last[user] = (now, 0)
