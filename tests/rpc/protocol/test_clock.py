"""Times in RFC 3339: as they are written, and as callers may give them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkeep.protocol.clock import parse_rfc3339, rfc3339

NINE = 1_795_338_000_000_000
"""2026-11-22 at nine o'clock, UTC."""


@pytest.mark.parametrize(
    ("text", "time_us"),
    [
        ("2026-11-22T09:00:00Z", NINE),
        ("2026-11-22t09:00:00z", NINE),
        ("2026-11-22 09:00:00Z", NINE),
        ("2026-11-22T10:30:00+01:30", NINE),
        ("2026-11-22 04:00:00-05:00", NINE),
        ("2026-11-22T09:00:00.5Z", NINE + 500_000),
        ("2026-11-22T09:00:00.000001Z", NINE + 1),
        ("2026-11-22T09:00:00.1234567899Z", NINE + 123_456),
    ],
)
def test_a_time_is_read(text: str, time_us: int) -> None:
    assert parse_rfc3339(text) == time_us


@given(st.integers(0, 2**57))
def test_what_was_written_is_read(time_us: int) -> None:
    assert parse_rfc3339(rfc3339(time_us)) == time_us


@pytest.mark.parametrize(
    "text",
    ["", "5", "now", "2026-11-22", "2026-11-22T09:00Z", "2026-11-22T09:00:00.Z", "2026-11-22T09:00:00+0100",
     "2026-11-22T09:00:00Z\n", "\uff12026-11-22T09:00:00Z", "2026-W47-7T09:00:00Z"],
)  # fmt: skip
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as"):
        parse_rfc3339(text)


@pytest.mark.parametrize(
    "text", ["2026-02-30T09:00:00Z", "2026-11-22T25:00:00Z", "2026-11-22T09:00:60Z", "2026-11-22T09:00:00+24:00"]
)
def test_what_cannot_be_a_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is out of range"):
        parse_rfc3339(text)


def test_a_time_of_nowhere_is_refused() -> None:
    with pytest.raises(ValueError, match="end it with Z"):
        parse_rfc3339("2026-11-22T09:00:00")
