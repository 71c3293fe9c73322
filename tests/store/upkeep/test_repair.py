"""Repair: everything that can be read is kept, what is lost is told exactly, and the daemon starts again."""

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import log_stories

from sandkeep.errors import DaemonError, StateError
from sandkeep_store import metadata_files
from sandkeep_store.eventlog.database import repairing
from sandkeep_store.eventlog.log import EventLog, Recorded
from sandkeep_store.upkeep import offline
from sandkeep_store.upkeep.repair import QUARANTINE, repair
from sandkeep_store.views.metadata import document


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory with a log, which each test has a copy of."""
    directory = tmp_path_factory.mktemp("original")
    log_stories.write(str(directory / "events.db"), log_stories.tangle(1))
    offline.rebuild(str(directory))
    return directory


@pytest.fixture
def path(original: Path, tmp_path: Path) -> str:
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    return str(tmp_path / "events.db")


def everything(path: str) -> dict[int, bytes]:
    log = EventLog.open(path)
    seen: list[Recorded] = []
    log.scan(seen.append)
    log.close()
    return {event.position: event.data for event in seen if event.type != "log.event_lost"}


def change(path: str, statement: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute(statement)
    db.close()


def check(path: str, before: dict[int, bytes], lost: set[int]) -> None:
    """Only what is lost is gone, positions go on behind it all, and everything else fits together."""
    state_dir = os.path.dirname(path)
    assert everything(path) == {position: data for position, data in before.items() if position not in lost}
    assert left_over(path) == []
    assert offline.verify(state_dir).last_position == max(before)
    assert not os.path.exists(repairing(path))


def test_a_sound_log_is_left_alone(path: str) -> None:
    before = Path(path).read_bytes()
    report = repair(os.path.dirname(path), yes=True)
    assert (report.problems, report.mended, report.quarantine) == ([], False, None)
    assert Path(path).read_bytes() == before


@pytest.mark.parametrize("position", [1, 5, 400])
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE events SET data = CAST('{}' AS BLOB)",
        "UPDATE events SET stream = 12345",
        "UPDATE events SET time = 'x'",
        "DELETE FROM events",
    ],
)
def test_an_event_that_is_damaged_is_lost_and_no_other(path: str, damage: str, position: int) -> None:
    before = everything(path)
    change(path, f"{damage} WHERE position = {position}")
    state_dir = os.path.dirname(path)
    damaged = Path(path).read_bytes()
    told = repair(state_dir, yes=False)
    assert not told.mended
    assert any(f"position {position} " in problem for problem in told.problems)
    assert Path(path).read_bytes() == damaged
    report = repair(state_dir, yes=True)
    assert report.mended
    assert report.problems == told.problems
    assert report.kept == len(before) - 1
    assert report.quarantine is not None
    assert Path(report.quarantine, "events.db").read_bytes() == damaged
    check(path, before, {position})


def test_several_events_of_one_stream(path: str) -> None:
    before = everything(path)
    change(path, "UPDATE events SET crc = crc + 1 WHERE position BETWEEN 100 AND 160")
    assert repair(os.path.dirname(path), yes=True).mended
    check(path, before, set(range(100, 161)))


def test_an_end_that_was_cut_off_but_that_others_have_seen(path: str, tmp_path: Path) -> None:
    before = everything(path)
    log = EventLog.open(path)
    state = offline.fold(log)
    log._database.reopen(log.head - 30)
    log.close()
    assert state.position == max(before)
    newest = metadata_files.newest_seen(f"{tmp_path}/sandboxes", log.log_id)
    assert repair(str(tmp_path), yes=True).mended
    check(path, {p: data for p, data in before.items() if p <= newest}, set(range(max(before) - 29, newest + 1)))


@pytest.mark.parametrize("seed", range(8))
def test_a_page_of_garbage(path: str, seed: int) -> None:
    """Whatever page it is, but for the first few, which say what the file is."""
    before = everything(path)
    content = bytearray(Path(path).read_bytes())
    pages = len(content) // 4096
    at = 4096 * (20 + seed * (pages - 20) // 8)
    content[at : at + 4096] = bytes((seed * 37 + n * 11) % 256 for n in range(4096))
    Path(path).write_bytes(content)
    report = repair(os.path.dirname(path), yes=True)
    assert report.mended or not report.problems
    after = everything(path)
    assert after.items() <= before.items()
    assert len(after) > len(before) // 2
    assert left_over(path) == []


def left_over(path: str) -> list[str]:
    """What verify finds, but for the folders of sandboxes whose first event is lost: a person has to look at them."""
    problems = offline.verify(os.path.dirname(path)).problems
    return [problem for problem in problems if "belongs to no sandbox on record" not in problem]


def test_a_file_that_was_cut_in_half(path: str) -> None:
    before = everything(path)
    os.truncate(path, os.path.getsize(path) // 4096 // 2 * 4096)
    report = repair(os.path.dirname(path), yes=True)
    assert report.mended
    assert everything(path).items() < before.items()
    assert left_over(path) == []


def test_what_is_no_database_is_left_as_it_is(path: str) -> None:
    content = bytearray(Path(path).read_bytes())
    content[:4096] = b"x" * 4096
    Path(path).write_bytes(content)
    with pytest.raises(DaemonError, match="restore the state directory from a backup"):
        repair(os.path.dirname(path), yes=True)
    assert Path(path).read_bytes() == content


def test_not_while_a_daemon_uses_it(path: str) -> None:
    log = "from sandkeep_store.eventlog.log import EventLog"
    hold = f"import sys; {log}; EventLog.open(sys.argv[1]); print(1, flush=1); input()"
    with subprocess.Popen([sys.executable, "-c", hold, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdout is not None
        daemon.stdout.readline()
        with pytest.raises(StateError, match="a daemon uses"):
            repair(os.path.dirname(path), yes=True)
        daemon.kill()


def test_one_that_was_cut_off_keeps_daemons_away_and_is_finished(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(path)
    change(path, "DELETE FROM events WHERE position = 9")
    rename = os.rename

    def dies(source: str, target: str, **directories: int | None) -> None:
        if target == path:
            raise KeyboardInterrupt
        rename(source, target, **directories)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", dies)
        with pytest.raises(KeyboardInterrupt):
            repair(os.path.dirname(path), yes=True)
    with pytest.raises(DaemonError, match="store repair"):
        EventLog.open(path)
    assert repair(os.path.dirname(path), yes=True).mended
    check(path, before, {9})


def test_the_command_says_what_it_would_do(path: str) -> None:
    change(path, "DELETE FROM events WHERE position = 9")
    command = [sys.executable, "-m", "sandkeep_store.main", "repair", "--state-dir", os.path.dirname(path)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 1
    assert "the event at position 9 is missing" in told.stdout
    assert "--yes" in told.stdout
    done = subprocess.run([*command, "--yes"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "mended" in done.stdout
    assert QUARANTINE in done.stdout


def test_documents_are_those_of_what_is_left(path: str, tmp_path: Path) -> None:
    change(path, "UPDATE events SET crc = 0 WHERE position = 200")
    repair(str(tmp_path), yes=True)
    log = EventLog.open(path)
    for sandbox in offline.fold(log).sandboxes.values():
        found = metadata_files.read(f"{tmp_path}/sandboxes", sandbox.sandbox_id)
        assert found == document(sandbox, log.log_id)
    log.close()
