"""Times as the wire has them: RFC 3339 text, in UTC, with microseconds and a final ``Z``; read with any offset. Lengths
of time as people write them.
"""

import functools
import math
import re
import time
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS_S = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1, "ms": 0.001}
_DURATION = re.compile("".join(rf"(?:(\d+(?:\.\d*)?|\.\d+){unit})?" for unit in _UNITS_S), re.ASCII)
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,6})\d*)?(?:([Zz])|([+-]\d\d:\d\d))?", re.ASCII)


def now_us() -> int:
    """Microseconds since 1970, by the machine's wall clock."""
    return time.time_ns() // 1000


@functools.lru_cache(maxsize=4096)  # views are made often, of the same few moments
def rfc3339(time_us: int) -> str:
    """Text such as ``2026-11-21T07:40:31.000001Z`` for microseconds since 1970."""
    moment = _EPOCH + timedelta(microseconds=time_us)
    return f"{moment.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"  # half the time of strftime


def optional_rfc3339(time_us: int | None) -> str | None:
    """The same, or None for a moment that has not come."""
    return None if time_us is None else rfc3339(time_us)


def parse_rfc3339(text: str) -> int:
    """Microseconds since 1970 of a time such as ``2026-11-22T09:00:00Z``, also with a blank for the ``T``, and with any
    offset; digits after the sixth of a second are left out. Raises ValueError, with half a sentence.
    """
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise ValueError("is not a time: give one such as 2026-11-22T09:00:00Z")
    date, clock, fraction, utc, offset = found.groups()
    if not (utc or offset):
        raise ValueError("has no time zone: end it with Z for UTC, or with an offset such as +01:00")
    try:
        moment = datetime.fromisoformat(f"{date}T{clock}.{(fraction or '').ljust(6, '0')}{offset or '+00:00'}")
        return (moment - _EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError):
        raise ValueError("is out of range: give a time such as 2026-11-22T09:00:00Z") from None


def parse_duration(text: str) -> float:
    """Seconds from text such as ``90``, ``10s``, ``1h30m`` or ``500ms``. Raises ValueError, with half a sentence.

    A number without a unit counts seconds. It may be negative, which callers refuse in their own words.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is not None and any(found.groups()):
        return sum(float(count) * unit for count, unit in zip(found.groups(), _UNITS_S.values(), strict=True) if count)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise ValueError("is not a length of time: give one such as 90 (seconds), 10s or 1h30m")
    return seconds
