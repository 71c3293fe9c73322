"""Quantities as Kubernetes and Docker write them."""

import pytest

from sandkeepd.http import quantities


@pytest.mark.parametrize(("text", "cores"), [("2", 2), ("1.5", 1.5), (".5", 0.5), ("500m", 0.5), (" 100m ", 0.1)])
def test_cpus(text: str, cores: float) -> None:
    assert quantities.cpus(text) == cores


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512", 512),
        ("512Mi", 512 * 2**20),
        ("1.5Gi", 3 * 2**29),
        ("2G", 2 * 10**9),
        ("1k", 1000),
        ("512m", 512 * 2**20),
        ("2g", 2**31),
        ("64kb", 2**16),
    ],
)
def test_size(text: str, size: int) -> None:
    assert quantities.size(text) == size


@pytest.mark.parametrize(
    "text", ["", "-1", "1e9", "m", "1 Gi", "1Xi", "0x10", "\u0661", "1" * 40, "nan", "inf", "1.5.2"]
)
def test_neither(text: str) -> None:
    for parse in (quantities.cpus, quantities.size):
        with pytest.raises(ValueError, match="must be"):
            parse(text)


@pytest.mark.parametrize("text", ["512Mi", "3Gi", "1000", "1Pi"])
def test_shown_sizes_parse_to_the_same(text: str) -> None:
    assert quantities.shown_size(quantities.size(text)) == text


def test_shown_cpus() -> None:
    assert [quantities.shown_cpus(cores) for cores in (None, 0.5, 2.0)] == [None, "0.5", "2"]
