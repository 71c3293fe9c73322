"""Times as the wire has them: RFC 3339 text, in UTC, with microseconds and a final ``Z``."""

import time
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def now_us() -> int:
    """Microseconds since 1970, by the machine's wall clock."""
    return time.time_ns() // 1000


def rfc3339(time_us: int) -> str:
    """Text such as ``2026-11-21T07:40:31.000001Z`` for microseconds since 1970."""
    return (_EPOCH + timedelta(microseconds=time_us)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def optional_rfc3339(time_us: int | None) -> str | None:
    """The same, or None for a moment that has not come."""
    return None if time_us is None else rfc3339(time_us)
