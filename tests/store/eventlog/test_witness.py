"""The witness beside a log: a log that lost its end, or is another one, is not taken for what it was."""

import contextlib
import logging
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
from tests.store.upkeep.test_compaction import opened, positions_in_log
from tests.store.upkeep.test_redaction import Redacting
from tests.support import log_stories

from sandkeep.errors import DaemonError
from sandkeep.events import Meta, ProcessStarted
from sandkeep_store.eventlog import witness
from sandkeep_store.eventlog.log import EventLog, NewEvent
from sandkeep_store.eventlog.witness import SIZE_BYTES
from sandkeep_store.upkeep import offline, segments
from sandkeep_store.upkeep.repair import repair


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "state").mkdir()
    found = str(tmp_path / "state" / "events.db")
    log_stories.write(found, log_stories.tangle(2, steps=60))
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
    log_stories.write(path, log_stories.execution("sbx_0", "prc_new"))
    assert seen(path).position == head + 3
    assert os.path.getsize(witness.path_of(path)) == SIZE_BYTES
    assert doubts(path) == []


def test_an_end_that_nobody_else_has_seen(path: str, tmp_path: Path) -> None:
    """The write-ahead log of a daemon that was killed is gone: SQLite finds nothing odd."""
    log = EventLog.open(path)
    head = log.head
    recorder = log._recorder
    recorder.know(["prc_last"])
    draft = log_stories.Draft("prc_last", 1, None, "process.started", 1, b'{"pid":1}', log_stories.META)
    recorder.insert([[draft]], time_us=log_stories.START_US)
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
    log_stories.write(path, log_stories.execution("sbx_0", "prc_new"))
    shutil.copy(tmp_path / "older", path)
    assert "events were lost" in doubts(path)[0]


def test_one_that_went_another_way(path: str, tmp_path: Path) -> None:
    shutil.copytree(os.path.dirname(path), tmp_path / "other")
    log_stories.write(path, log_stories.execution("sbx_0", "prc_new"))
    other = str(tmp_path / "other" / "events.db")
    log_stories.write(other, log_stories.execution("sbx_0", "prc_other"), every_us=log_stories.EVERY_US + 1)
    shutil.copy(other, path)
    assert "it is not the event that" in doubts(path)[0]
    report = repair(os.path.dirname(path), yes=True)
    assert report.problems == [
        f"events.head has seen another event at position {seen(path).position}; it is written anew"
    ]
    assert report.mended
    assert doubts(path) == []


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
        lambda file: file.write_bytes(b"\n"),
        lambda file: file.write_bytes(bytes(SIZE_BYTES)),
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


def test_an_empty_one_is_what_a_power_cut_left_and_is_begun_anew(path: str, caplog: pytest.LogCaptureFixture) -> None:
    head = seen(path)
    Path(witness.path_of(path)).write_bytes(b"")
    assert repair(os.path.dirname(path), yes=True).problems == []
    with caplog.at_level(logging.WARNING, "sandkeepd"):
        caplog.clear()
        assert doubts(path) == []
    assert [record.getMessage() for record in caplog.records if "events.head is empty" in record.getMessage()]
    assert seen(path) == head


def test_a_first_start_that_the_power_cut_ended(tmp_path: Path) -> None:
    """Of the files of a log that had just been made there are only the names."""
    path = str(tmp_path / "events.db")
    for name in (path, witness.path_of(path)):
        Path(name).touch()
    assert doubts(path) == []


def test_a_new_one_reaches_the_disk_once_and_not_with_each_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = watch(monkeypatch, "fdatasync")
    path = str(tmp_path / "events.db")
    log_stories.write(path, log_stories.tangle(2, steps=60))
    assert synced == [witness.path_of(path)]


def test_one_that_a_repair_wrote_is_on_the_disk_before_it_is_in_its_place(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(path, "DELETE FROM events WHERE position = 5")
    synced = watch(monkeypatch, "fsync")
    assert repair(os.path.dirname(path), yes=True).mended
    assert f"{os.path.dirname(path)}/repair.work/new.head" in synced


def watch(monkeypatch: pytest.MonkeyPatch, call: str) -> list[str]:
    """The paths of the files that are brought to the disk from now on by that call."""
    paths = []
    sync = getattr(os, call)

    def noted(descriptor: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        sync(descriptor)

    monkeypatch.setattr(os, call, noted)
    return paths


@contextlib.contextmanager
def unsyncable(log: EventLog) -> Iterator[None]:
    """The witness takes what is written, and does not bring it to the disk."""
    descriptor = log._database.witness._descriptor
    assert descriptor is not None
    kept, null = os.dup(descriptor), os.open("/dev/null", os.O_WRONLY)
    os.dup2(null, descriptor)
    try:
        yield
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)
        os.close(null)


@contextlib.contextmanager
def behind(path: str) -> Iterator[None]:
    """After the block, the witness is as it was before: a power cut kept its page from the disk."""
    before = Path(witness.path_of(path)).read_bytes()
    yield
    Path(witness.path_of(path)).write_bytes(before)


def test_one_that_has_not_heard_of_a_compaction(path: str) -> None:
    state_dir = os.path.dirname(path)
    with behind(path):
        assert offline.compact(state_dir, 0).first_position > 1
    report = repair(state_dir, yes=True)
    assert (report.problems, report.mended) == ([], False)
    assert doubts(path) == []
    offline.rebuild(state_dir)
    assert offline.verify(state_dir).problems == []


def test_what_a_compaction_says_of_another_position_is_no_reason(path: str) -> None:
    """Nor is what a damaged row says."""
    first = offline.compact(os.path.dirname(path), 0).first_position
    change(path, f"UPDATE meta SET value = {first + 1} WHERE key = 'first_position'")
    assert f"no gaps from position {first + 1} on, not from {first} on" in doubts(path)[0]
    said = f"replace(CAST(data AS TEXT), '\"first_position\":{first}', '\"first_position\":{first + 1}')"
    change(path, f"UPDATE events SET data = CAST({said} AS BLOB) WHERE type = 'log.compacted'")
    assert f"no gaps from position {first + 1} on, not from {first} on" in doubts(path)[0]


async def test_a_compaction_archives_nothing_before_the_witness_is_on_the_disk(path: str) -> None:
    directory = Path(path).parent
    before = positions_in_log(directory)
    async with opened(directory) as here:
        with unsyncable(here.log), pytest.raises(DaemonError, match="head cannot be written"):
            await here.compact()
        assert set(before) <= {fact.position for fact in await here.log.read(0, 1000)}
        assert (await here.compact()).events
    assert segments.verify(str(directory), seen(path).log_id) == []
    assert doubts(path) == []


async def redact_last(path: str) -> int:
    """Redact the last event; answer its position."""
    async with opened(Path(path).parent, Redacting) as here:
        position = here.log.head
        await here.redact(position)
    return position


def with_an_end_of_a_caller(path: str) -> None:
    """The last event is one that is changed by its redaction."""
    log_stories.write(path, [[("prc_last", "sbx_0", log_stories.launch("sbx_0"))]])
    log_stories.write(
        path, [[("prc_last", "sbx_0", log_stories.events.ProcessLaunchFailed(code="no", message="secret"))]]
    )


async def test_one_that_has_not_heard_of_a_redaction(path: str) -> None:
    with_an_end_of_a_caller(path)
    with behind(path):
        position = await redact_last(path)
    assert seen(path).position == position
    state_dir = os.path.dirname(path)
    assert await trio.to_thread.run_sync(lambda: repair(state_dir, yes=True).problems) == []
    assert await trio.to_thread.run_sync(doubts, path) == []


async def test_a_redaction_changes_nothing_before_the_witness_is_on_the_disk(path: str) -> None:
    with_an_end_of_a_caller(path)
    async with opened(Path(path).parent, Redacting) as here:
        position = here.log.head
        before = here.log.reader.row_checksum(position)
        with unsyncable(here.log), pytest.raises(DaemonError, match="head cannot be written"):
            await here.redact(position)
        assert here.log.reader.row_checksum(position) == before
        await here.finish(position)
        assert here.log.reader.row_checksum(position) != before


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
