"""However many commands have run: what is archived leaves memory, disk and the next start as they were."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.support.busy import Size
from tests.support.soak import times

from sandkeepd.keeper.journal import MAX_BACKLOG_BYTES

MIB = 1024**2


def sizes_of(tmp_path: Path, rounds: int, execs: int) -> list[Size]:
    """How large a daemon is after each round of commands."""
    (tmp_path / "source").mkdir()
    command = [sys.executable, "-m", "tests.support.busy", str(tmp_path / "state"), str(tmp_path / "source")]
    root = Path(__file__).parents[3]
    said = subprocess.run([*command, str(rounds), str(execs)], stdout=subprocess.PIPE, check=True, cwd=root).stdout
    return [msgspec.json.decode(line, type=Size) for line in said.splitlines()]


ANSWERS_BYTES = 3 * MAX_BACKLOG_BYTES + MIB
"""How long what the keeper has answered may become before its beginning is dropped."""


def check(sizes: list[Size]) -> None:
    first, last = sizes[0], sizes[-1]
    assert last.resident_bytes <= 1.1 * first.resident_bytes + 4 * MIB, sizes
    assert last.disk_bytes <= 1.1 * first.disk_bytes + ANSWERS_BYTES, sizes
    assert last.files <= first.files + 100, sizes
    assert sizes[-1].execs == len(sizes) * first.execs


def test_hundreds_of_commands(tmp_path: Path) -> None:
    check(sizes_of(tmp_path, 3, 150))


@pytest.mark.soak
def test_a_hundred_thousand_commands(tmp_path: Path) -> None:
    sizes = sizes_of(tmp_path, times(10), 10_000)
    check(sizes)
    assert sizes[-1].fold_s <= 3 * sizes[0].fold_s + 0.1, sizes
