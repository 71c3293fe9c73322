"""Amounts in words."""

import pytest

from sandkeep.protocol.amounts import of_total, size


@pytest.mark.parametrize(
    ("count", "shown"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (1536, "1.5 KB"), (512 * 1024**2, "512 MB"), (3 * 1024**4, "3.0 TB")],
)
def test_sizes_take_at_most_six_columns(count: int | None, shown: str) -> None:
    assert size(count) == shown


@pytest.mark.parametrize(
    ("done", "total", "shown"),
    [
        (0, 1024, "0 B of 1.0 KB, 0 %"),
        (1023, 1024, "1.0 KB of 1.0 KB, 99 %"),
        (1024, 1024, "1.0 KB of 1.0 KB, 100 %"),
        (1025, 1024, "1.0 KB"),
        (5, None, "5 B"),
        (5, 0, "5 B"),
    ],
)
def test_what_is_done_of_a_total(done: int, total: int | None, shown: str) -> None:
    assert of_total(done, total) == shown
