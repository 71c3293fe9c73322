"""The witness beside a log: a log that lost its end, or is another one, is not taken for what it was."""

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from tests.store import stories

from sandkeep.errors import DaemonError
from sandkeep.events import Meta, ProcessStarted
from sandkeep_store import offline, witness
from sandkeep_store.log import EventLog, NewEvent
from sandkeep_store.repair import repair
from sandkeep_store.witness import SIZE_BYTES


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "state").mkdir()
    found = str(tmp_path / "state" / "events.db")
    stories.write(found, stories.tangle(2, steps=60))
    return found


def doubts(path: str) -> list[str]:
    log = EventLog.open(path)
    try:
        if log.doubts:
            with pytest.raises(DaemonError, match="store repair"):
                trio.run(log.append, [NewEvent("prc_x", ProcessStarted(pid=1))], Meta())
        assert log.verify()[: len(log.doubts)] == log.doubts
        return log.doubts
    finally:
        log.close()


def change(path: str, statement: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute(statement)
    db.close()


def seen(path: str) -> witness.Head:
    found = witness.read(witness.path_of(path))
    assert found is not None
    return found


def test_it_is_where_the_log_is_and_always_as_long(path: str) -> None:
    log = EventLog.open(path)
    head = log.head
    assert (seen(path).position, seen(path).log_id) == (head, log.log_id)
    log.close()
    stories.write(path, stories.execution("sbx_0", "prc_new"))
    assert seen(path).position == head + 3
    assert os.path.getsize(witness.path_of(path)) == SIZE_BYTES
    assert doubts(path) == []


def test_an_end_that_nobody_else_has_seen(path: str, tmp_path: Path) -> None:
    """The write-ahead log of a daemon that was killed is gone: SQLite finds nothing odd."""
    log = EventLog.open(path)
    head = log.head
    recorder = log._recorder
    recorder.know(["prc_last"])
    draft = stories.Draft("prc_last", 1, None, "process.started", 1, b'{"pid":1}', stories.META)
    recorder.insert([[draft]], time_us=stories.START_US)
    copy = shutil.copytree(os.path.dirname(path), tmp_path / "copy")
    log.close()
    (copy / "events.db-wal").unlink()
    (doubt,) = doubts(str(copy / "events.db"))
    assert f"ends at position {head}, but {copy}/events.head has seen position {head + 1}" in doubt
    assert offline.verify(str(copy)).problems[0] == doubt
    for refused in (lambda: offline.rebuild(str(copy)), lambda: offline.compact(str(copy), 0)):
        with pytest.raises(DaemonError, match="events were lost"):
            refused()
    report = repair(str(copy), yes=True)
    assert report.problems == [f"the event at position {head + 1} is missing"]
    assert doubts(str(copy / "events.db")) == []


def test_an_older_copy_in_its_place(path: str, tmp_path: Path) -> None:
    shutil.copy(path, tmp_path / "older")
    stories.write(path, stories.execution("sbx_0", "prc_new"))
    shutil.copy(tmp_path / "older", path)
    assert "events were lost" in doubts(path)[0]


def test_one_that_went_another_way(path: str, tmp_path: Path) -> None:
    shutil.copytree(os.path.dirname(path), tmp_path / "other")
    stories.write(path, stories.execution("sbx_0", "prc_new"))
    other = str(tmp_path / "other" / "events.db")
    stories.write(other, stories.execution("sbx_0", "prc_other"), every_us=stories.EVERY_US + 1)
    shutil.copy(other, path)
    assert "it is not the event that" in doubts(path)[0]


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE meta SET value = 'log_other' WHERE key = 'log_id'", "is log_other, but"),
        ("UPDATE meta SET value = 3 WHERE key = 'first_position'", "no gaps from position 3 on, not from 1 on"),
    ],
)
def test_facts_that_changed_by_themselves(path: str, statement: str, said: str) -> None:
    log_id = seen(path).log_id
    change(path, statement)
    assert said in doubts(path)[0]
    assert repair(os.path.dirname(path), yes=True).mended
    assert doubts(path) == []
    assert (seen(path).log_id, seen(path).first_position) == (log_id, 1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes().replace(b"position", b"Position")),
        lambda file: (file.unlink(), file.mkdir()),
        lambda file: (file.unlink(), file.symlink_to("/etc/passwd")),
    ],
)
def test_a_witness_that_cannot_be_believed(path: str, damage: Callable[[Path], object]) -> None:
    damage(Path(witness.path_of(path)))
    assert "cannot be believed" in doubts(path)[0]
    assert "is written anew" in repair(os.path.dirname(path), yes=True).problems[0]
    assert doubts(path) == []


def test_without_one_the_log_is_believed_and_gets_one(path: str) -> None:
    """So it is with logs of earlier versions."""
    os.unlink(witness.path_of(path))
    assert doubts(path) == []
    assert seen(path).position


@pytest.mark.parametrize("what", ["gone", "empty"])
def test_a_log_is_not_begun_where_there_was_one(path: str, what: str) -> None:
    os.unlink(path)
    if what == "empty":
        Path(path).touch()
    with pytest.raises(DaemonError, match=f"{what}, but .* restore the state directory"):
        EventLog.open(path)
    assert os.path.exists(path) == (what == "empty")
    os.unlink(witness.path_of(path))
    offline_trace = Path(os.path.dirname(path), "archive")
    offline_trace.mkdir()
    (offline_trace / "1-2-x.zst").touch()
    with pytest.raises(DaemonError, match="restore the state directory"):
        EventLog.open(path)
