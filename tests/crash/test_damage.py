"""Random damage to a state directory: nothing wrong is taken for right, and a repair tells each event that it drops."""

import logging
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash import damage
from tests.crash.damage import Pristine
from tests.support import template
from tests.support.patience import patient
from tests.support.soak import times

from sandkeep import failpoints
from sandkeep_store.eventlog.database import repairing
from sandkeep_store.upkeep import offline
from sandkeep_store.upkeep.repair import QUARANTINE, REPORT, STEPS, repair

TRIES, TRIES_SOAK = 12, times(2000)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Pristine:
    return damage.build(str(tmp_path_factory.mktemp("pristine") / "state"))


@pytest.fixture(autouse=True)
def _quietly() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_without_damage_all_is_sound(pristine: Pristine, tmp_path: Path) -> None:
    copy = shutil.copytree(pristine.directory, tmp_path / "state")
    assert offline.verify(str(copy)).problems == []
    assert damage.check_start(pristine, str(copy))
    assert damage.check_repair(pristine, str(copy)) == []


@pytest.fixture
def quick_place(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, if there is such a place: hundreds of repairs wait for the disk each time else."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="skt-", dir="/dev/shm") as place:
        yield Path(place)


def test_damage_of_any_kind(pristine: Pristine, quick_place: Path) -> None:
    _try_many(pristine, quick_place, TRIES)


@pytest.mark.soak
def test_damage_of_any_kind_for_long(quick_place: Path) -> None:
    for seed in range(10):
        place = quick_place / str(seed)
        place.mkdir()
        _try_many(damage.build(str(place / "pristine"), seed), place, TRIES_SOAK // 10)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["events.db", "events.db-wal", "events.head"])
def test_every_page_and_every_part_of_it(pristine: Pristine, quick_place: Path, name: str) -> None:
    """A flipped bit in each part of each page, and each page gone: header, cells, free space, index and overflow pages,
    frames of the write-ahead log and their headers.
    """
    content = Path(pristine.directory, name).read_bytes()
    step = 509 if len(content) > damage.PAGE else 1
    for at in range(0, len(content), step):
        damage.try_with(pristine, str(quick_place), f"{name} {at}", lambda copy, at=at: _flip(Path(copy, name), at))
    for at in range(0, len(content), damage.PAGE):
        damage.try_with(
            pristine, str(quick_place), f"{name} zero {at}", lambda copy, at=at: _zero(Path(copy, name), at)
        )
        damage.try_with(
            pristine, str(quick_place), f"{name} cut {at}", lambda copy, at=at: os.truncate(f"{copy}/{name}", at)
        )


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << at % 8]))


def _zero(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + damage.PAGE] = bytes(len(content[at : at + damage.PAGE]))
    path.write_bytes(content)


def _try_many(pristine: Pristine, place: Path, tries: int) -> None:
    first = random.SystemRandom().randrange(10**9)
    for seed in range(first, first + tries):
        damage.try_once(pristine, str(place), seed)


def _kill(state_dir: str, step: str) -> int:
    """Repair, and die at that step. Answers how the repair ended."""
    command = [sys.executable, "-m", "sandkeep_store.main", "repair", "--yes", "--state-dir", state_dir]
    env = {**os.environ, failpoints.SETTING: step}
    return template.run(command, env, patient(60)).returncode


@pytest.mark.parametrize("step", STEPS)
def test_a_repair_that_is_killed_leaves_the_original_or_is_finished(
    pristine: Pristine, tmp_path: Path, step: str
) -> None:
    state_dir = str(shutil.copytree(pristine.directory, tmp_path / "state"))
    path = Path(state_dir, offline.LOG_NAME)
    for file in (path, *Path(state_dir, "archive").iterdir()):
        content = bytearray(file.read_bytes())
        content[len(content) // 2 : len(content) // 2 + 4096] = b"\x55" * 4096
        file.write_bytes(content)
    damaged = path.read_bytes()
    expected = repair(str(shutil.copytree(state_dir, tmp_path / "other")), yes=True)
    assert expected.mended
    assert _kill(state_dir, step) == -signal.SIGKILL
    after = STEPS.index(step)
    if after < STEPS.index("repair.marked"):
        assert path.read_bytes() == damaged
    if STEPS.index("repair.marked") <= after < STEPS.index("repair.done"):
        assert os.path.exists(repairing(str(path)))
        assert not damage.check_start(pristine, state_dir)
    told = damage.check_repair(pristine, state_dir) if after < STEPS.index("repair.done") else []
    lost = [problem for problem in expected.problems if " at position " in problem or " from position " in problem]
    if after >= STEPS.index("repair.done"):  # all is told, but nobody may have read it
        (report,) = Path(state_dir, QUARANTINE).glob(f"*/{REPORT}")
        told = report.read_text().splitlines()
        repair(state_dir, yes=True)
    assert [problem for problem in told if problem in lost] == lost
    assert not os.path.exists(f"{state_dir}/repair.work")
