"""What the log says to a file that is damaged, foreign, shortened or in use, and to a disk that fails."""

import contextlib
import errno
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.support import log_stories

from sandkeep.errors import DaemonError, SandkeepError
from sandkeep.events import Meta, ProcessStarted, SandboxFailed
from sandkeep_store.eventlog.codec import UnknownEvent
from sandkeep_store.eventlog.log import EventLog, NewEvent, Recorded
from sandkeep_store.upkeep import offline
from sandkeep_store.upkeep.repair import repair

NOBODY = Meta(command_id="cmd_1")


def _write(directory: Path, count: int) -> str:
    """A log of `count` events; answers its file's path."""
    path = str(directory / "events.db")
    log = EventLog.open(path)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(log.run)
            for number in range(count):
                await log.append([NewEvent(f"prc_{number}", ProcessStarted(pid=number + 1000), "sbx_1")], NOBODY)
            nursery.cancel_scope.cancel()

    trio.run(main)
    log.close()
    return path


def _change(path: str, statement: str, *values: Any) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(statement, values)
    connection.close()


def _opening(path: str) -> SandkeepError:
    with pytest.raises(SandkeepError) as caught:
        EventLog.open(path)
    return caught.value


@pytest.fixture
def log_of_ten(tmp_path: Path) -> str:
    return _write(tmp_path, 10)


# -- one daemon at a time ---------------------------------------------------------------------------------------------

_HOLD = """
import sys
from sandkeep_store.eventlog.log import EventLog
log = EventLog.open(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_process_is_refused_until_the_first_is_killed(log_of_ten: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, log_of_ten], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        error = _opening(log_of_ten)
        assert error.code == "conflict"
        assert "another daemon uses this state directory" in error.message
        holder.kill()
    log = EventLog.open(log_of_ten)
    assert log.head == 10
    log.close()


def test_another_program_cannot_touch_an_open_log(log_of_ten: str) -> None:
    log = EventLog.open(log_of_ten)
    script = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('DELETE FROM events')"
    done = subprocess.run([sys.executable, "-c", script, log_of_ten], capture_output=True, text=True, check=False)
    assert "locked" in done.stderr
    assert log.scan(lambda _: None) == 10
    log.close()


def test_only_its_owner_may_read_the_files(tmp_path: Path) -> None:
    log = EventLog.open(str(tmp_path / "events.db"))
    assert {name: os.stat(tmp_path / name).st_mode & 0o777 for name in os.listdir(tmp_path)} == {
        "ballast": 0o600,
        "events.db": 0o600,
        "events.db-wal": 0o600,
        "events.head": 0o600,
    }
    log.close()


def test_commits_wait_for_the_disk_also_after_reopening(log_of_ten: str) -> None:
    log = EventLog.open(log_of_ten)
    recorder = log._writer._recorder
    for _ in range(2):
        settings = [
            log._database.writer.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("synchronous", "journal_mode", "auto_vacuum")
        ]
        assert settings == [2, "wal", 2]
        recorder.reopen()
    log.close()


async def test_a_log_that_cannot_be_written_anew_is_tried_again_until_it_can(log_of_ten: str) -> None:
    """Also when it is a file that cannot be removed, or a name that cannot be given, and not SQLite that says so."""
    log = EventLog.open(log_of_ten)
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        log._writer._distrusted = True
        os.mkdir(f"{log_of_ten}.copy")
        for _ in range(2):
            with pytest.raises(SandkeepError, match="repair the disk"):
                await log.append([NewEvent("prc_new", ProcessStarted(pid=1), "sbx_1")], NOBODY)
            await log.try_again()
            await log.answers()
        os.rmdir(f"{log_of_ten}.copy")
        await log.try_again()
        assert log.failure is None
        assert (await log.append([NewEvent("prc_new", ProcessStarted(pid=1), "sbx_1")], NOBODY))[0].position == 11
        nursery.cancel_scope.cancel()
    log.close()


# -- files that are no logs of ours -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prepare", "sentence"),
    [
        ("UPDATE meta SET value = 7 WHERE key = 'schema'", "its schema is 7, not 2"),
        ("DELETE FROM meta", "its schema is None"),
        ("DROP TABLE meta", "its schema is None"),
    ],
)
def test_a_log_of_another_version_is_refused_and_left_alone(log_of_ten: str, prepare: str, sentence: str) -> None:
    _change(log_of_ten, prepare)
    before = Path(log_of_ten).read_bytes()
    error = _opening(log_of_ten)
    assert error.code == "storage_unavailable"
    assert sentence in error.message
    assert "run the version that wrote it" in error.message
    assert Path(log_of_ten).read_bytes() == before


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "events.db"
    path.write_text("not a database, but long enough to be read as one\n" * 100)
    error = _opening(str(path))
    assert error.code == "storage_unavailable"
    assert "is not an event log" in error.message
    assert path.read_text().startswith("not a database")


def test_a_directory_that_is_not_there_is_told_in_one_sentence(tmp_path: Path) -> None:
    error = _opening(str(tmp_path / "absent" / "events.db"))
    assert error.code == "storage_unavailable"
    assert "No such file or directory" in error.message


def test_a_file_that_was_made_but_never_filled_becomes_a_log(tmp_path: Path) -> None:
    (tmp_path / "events.db").touch()
    assert _write(tmp_path, 1)


# -- damage -----------------------------------------------------------------------------------------------------------


def _flip(path: str, needle: bytes) -> None:
    content = bytearray(Path(path).read_bytes())
    at = content.index(needle)
    content[at + len(needle) - 1] ^= 1
    Path(path).write_bytes(content)


def _refusals(path: str) -> Iterator[SandkeepError]:
    """How `scan` and a page refuse the log."""
    log = EventLog.open(path)
    with pytest.raises(DaemonError) as scanned:
        log.scan(lambda _: None)
    with pytest.raises(DaemonError) as paged:
        trio.run(log.read, 0, 100)
    assert log.verify() != []
    log.close()
    yield from (scanned.value, paged.value)


def test_a_flipped_bit_in_an_event_is_found_with_its_position(log_of_ten: str) -> None:
    _flip(log_of_ten, b'{"pid":1004')
    for error in _refusals(log_of_ten):
        assert error.code == "storage_unavailable"
        assert error.data == {"position": 5}
        assert "position 5" in error.message


@pytest.mark.parametrize("key", ["log_id", "first_position"])
@pytest.mark.parametrize("damage", ["key = upper(key)", "value = x'ff'", "value = NULL"])
def test_what_the_log_says_of_itself_is_damaged(log_of_ten: str, key: str, damage: str) -> None:
    _change(log_of_ten, f"UPDATE meta SET {damage} WHERE key = ?", key)
    error = _opening(log_of_ten)
    assert error.code == "storage_unavailable"
    assert "store repair" in error.message
    assert repair(os.path.dirname(log_of_ten), yes=True).kept == 10
    EventLog.open(log_of_ten).close()


@pytest.mark.parametrize(
    "column", ["stream", "revision", "sandbox", "type", "version", "time", "data", "meta", "command_id", "more"]
)
def test_the_checksum_covers_every_column(log_of_ten: str, column: str) -> None:
    value: Any = {"type": "process.lost", "data": b'{"pid":1}', "meta": b"{}", "command_id": "cmd_2"}.get(column, 99)
    _change(log_of_ten, f"UPDATE events SET {column} = ? WHERE position = 5", value)
    for error in _refusals(log_of_ten):
        assert error.data == {"position": 5}


@pytest.mark.parametrize("damage", ["UPDATE streams SET name = 'prc_other'", "DELETE FROM streams"])
def test_the_name_of_a_stream_is_covered_too(log_of_ten: str, damage: str) -> None:
    _change(log_of_ten, f"{damage} WHERE name = 'prc_4'")
    for error in _refusals(log_of_ten):
        assert error.code == "storage_unavailable"


def test_an_event_that_is_gone_from_the_middle_is_missed(log_of_ten: str) -> None:
    _change(log_of_ten, "DELETE FROM events WHERE position = 5")
    log = EventLog.open(log_of_ten)
    with pytest.raises(DaemonError, match="position 5: this event is missing"):
        log.scan(lambda _: None)
    assert "the events from position 5 to 5 are missing" in log.verify()
    log.close()


def test_an_end_that_is_gone_is_missed_when_the_log_is_opened(log_of_ten: str) -> None:
    _change(log_of_ten, "DELETE FROM events WHERE position > 8")
    error = _opening(log_of_ten)
    assert "its last event is 8, but it had reached 10" in error.message
    assert error.data == {"position": 9}


def test_verify_finds_a_wrong_revision_and_half_an_append(log_of_ten: str) -> None:
    log = EventLog.open(log_of_ten)
    rows = list(log._database.writer.execute("SELECT * FROM events WHERE position IN (4, 7)"))
    from sandkeep_store.eventlog.row import checksum

    for row, revision, more in zip(rows, (9, 1), (0, 3), strict=True):
        fields = (*row[:2], revision, *row[3:10], more)
        log._database.writer.execute(
            "REPLACE INTO events VALUES (?,?,?,?,?,?,?,?,?,?,?,?)", (*fields, checksum(*fields))
        )
    assert log.verify() == [
        "the event at position 4 has revision 9, where 1 was due",
        "the event at position 8 is not the rest of the append before it",
    ]
    log.close()


def test_a_log_shorter_than_what_others_saw_of_it_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path, 1)
    log = EventLog.open(path)
    log._database.writer.execute("PRAGMA wal_autocheckpoint = 0")

    async def more() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(log.run)
            for number in range(20):
                await log.append([NewEvent(f"prc_more_{number}", ProcessStarted(pid=1))], NOBODY)
            nursery.cancel_scope.cancel()

    trio.run(more)
    # As after a power cut on a disk that lied about its fsync: the end of the write-ahead log is not there.
    wal = Path(path + "-wal").read_bytes()
    main = Path(path).read_bytes()
    log.close()
    (tmp_path / "cut").mkdir()
    cut = tmp_path / "cut" / "events.db"
    cut.write_bytes(main)
    Path(f"{cut}-wal").write_bytes(wal[: len(wal) // 2])
    log = EventLog.open(str(cut))
    assert 1 < log.head < 21
    assert log.scan(lambda _: None) == log.head
    log.close()


def test_an_event_of_a_newer_version_stops_the_fold_and_is_passed_on_to_readers(log_of_ten: str) -> None:
    log = EventLog.open(log_of_ten)
    from sandkeep_store.eventlog.eventsourcing_recorder import Draft

    for type, version in (("process.teleported", 1), ("process.started", 2)):
        draft = Draft("prc_new", 1 if version == 1 else 2, None, type, version, b'{"anything":[1]}', b"{}")
        log._writer._recorder.know([draft.stream])
        log._writer._recorder.insert([[draft]], time_us=1)
    log.close()

    log = EventLog.open(log_of_ten)
    seen: list[Recorded] = []
    with pytest.raises(UnknownEvent) as caught:
        log.scan(seen.append)
    assert (caught.value.position, caught.value.type, caught.value.version) == (11, "process.teleported", 1)
    assert len(seen) == 10
    with pytest.raises(UnknownEvent, match="newest version known is 1"):
        log.scan(seen.append, after=11)
    passed_on = trio.run(log.read, 10, 10)
    assert [(event.type, event.version, event.data) for event in passed_on] == [
        ("process.teleported", 1, b'{"anything":[1]}'),
        ("process.started", 2, b'{"anything":[1]}'),
    ]
    log.close()


# -- a disk that fails ------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "disk"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(directory)], check=True)
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)  # a test that failed holds the log open


@pytest.mark.needs("root")
def test_on_a_full_disk_only_what_is_essential_is_written_until_there_is_space(small_disk: Path) -> None:
    log = EventLog.open(str(small_disk / "events.db"))
    acknowledged: list[int] = []
    large = SandboxFailed(message="x" * 30_000)

    async def append(*, essential: bool = False) -> None:
        (recorded,) = await log.append([NewEvent("sbx_1", large)], NOBODY, essential=essential)
        acknowledged.append(recorded.position)

    async def append_refused(wanted: int) -> None:
        for _ in range(wanted):
            with pytest.raises(DaemonError) as caught:
                await append()
            assert caught.value.code == "storage_unavailable"
            assert f"free space on {small_disk}" in caught.value.message

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(log.run)
            with pytest.raises(DaemonError):  # noqa: PT012
                while True:
                    await append()
            assert log.failure == f"the disk is full: free space on {small_disk}"
            await append_refused(2)
            await append(essential=True)
            assert not (small_disk / "ballast").exists()
            await append_refused(2)  # what was let go of is not for them
            await append(essential=True)
            assert log.failure is not None
            assert [event.position for event in await log.read(0, 1000)] == acknowledged
            _grow(small_disk)
            await append()
            assert log.failure is None
            assert (small_disk / "ballast").stat().st_blocks * 512 >= 1024 * 1024
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert log.verify() == []
    log.close()
    log = EventLog.open(str(small_disk / "events.db"))
    assert acknowledged == list(range(1, log.head + 1))
    log.close()


@pytest.mark.needs("root")
def test_nothing_leaves_the_log_for_the_archive_on_a_full_disk(small_disk: Path) -> None:
    log_stories.write(str(small_disk / "events.db"), log_stories.tangle(1))
    offline.rebuild(str(small_disk))
    with (small_disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"x" * 4096)
    before = offline.verify(str(small_disk)).events
    with pytest.raises(DaemonError, match="free space on"):
        offline.compact(str(small_disk), 0.001)
    report = offline.verify(str(small_disk))
    assert (report.events, report.problems) == (before, [])
    (small_disk / "filler").unlink()
    assert offline.compact(str(small_disk), 0.001).events
    assert offline.verify(str(small_disk)).problems == []


def _grow(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=16m", str(disk)], check=True)


@pytest.mark.parametrize("taken", [False, True])
def test_killed_while_it_goes_over_to_a_new_file(log_of_ten: str, tmp_path: Path, taken: bool) -> None:
    """Once that is complete, it is the log; whatever is left of the old files is not mixed with it."""
    log = EventLog.open(log_of_ten)
    log._database._write_fresh(log.head)
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("events.db", "events.db-wal", "events.db.fresh", "events.head"):
        (copy / name).write_bytes((tmp_path / name).read_bytes())
    log.close()
    (copy / "events.db.copy").write_bytes(b"half of it")
    if taken:
        (copy / "events.db-wal").unlink()
    log = EventLog.open(str(copy / "events.db"))
    assert (log.head, log.verify()) == (10, [])
    assert sorted(os.listdir(copy)) == ["ballast", "events.db", "events.db-wal", "events.head"]
    log.close()


def test_nobody_takes_a_new_file_from_under_a_daemon(log_of_ten: str) -> None:
    fresh = Path(f"{log_of_ten}.fresh")
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, log_of_ten], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        fresh.write_bytes(b"not finished by us")
        assert _opening(log_of_ten).code == "conflict"
        holder.kill()
    assert fresh.read_bytes() == b"not finished by us"


class _Faulty(sqlite3.Connection):
    """A connection whose commits reach the file and are then said to have failed, as by an fsync with an error."""

    failing = False

    def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
        cursor = super().execute(sql, *rest)
        if sql == "COMMIT" and type(self).failing:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error
        return cursor


def test_after_a_failed_fsync_nothing_that_was_refused_is_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, factory=_Faulty, **options))
    log = EventLog.open(str(tmp_path / "events.db"))
    told: list[int] = []
    log.on_commit.append(lambda events: told.extend(event.position for event in events))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(log.run)
            await log.append([NewEvent("sbx_1", ProcessStarted(pid=1))], NOBODY)
            _Faulty.failing = True
            for stream in ("sbx_2", "sbx_1"):
                with pytest.raises(DaemonError, match="cannot be written"):
                    await log.append([NewEvent(stream, ProcessStarted(pid=2))], NOBODY)
            assert log.failure is not None
            _Faulty.failing = False
            (recorded,) = await log.append([NewEvent("sbx_1", ProcessStarted(pid=3), None, 1)], NOBODY)
            assert (recorded.position, recorded.revision) == (2, 2)
            assert log.failure is None
            (recorded,) = await log.append([NewEvent("sbx_3", ProcessStarted(pid=4), "sbx_2", 0)], NOBODY)
            assert (recorded.position, recorded.revision) == (3, 1)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert told == [1, 2, 3]
    seen: list[Recorded] = []
    log.scan(seen.append)
    assert [event.data for event in seen] == [b'{"pid":1}', b'{"pid":3}', b'{"pid":4}']
    assert log.verify() == []
    log.close()


def test_what_is_essential_gets_through_when_a_commit_fails_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **options: connect(*args, factory=_Once, **options))
    log = EventLog.open(str(tmp_path / "events.db"))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(log.run)
            _Once.errors = [errno.EIO]
            (recorded,) = await log.append([NewEvent("sbx_1", ProcessStarted(pid=1))], NOBODY, essential=True)
            assert recorded.position == 1
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert log.verify() == []
    log.close()


class _Once(sqlite3.Connection):
    """A connection that fails at as many commits as there are `errors`."""

    errors: list[int] = []  # noqa: RUF012

    def execute(self, sql: str, *rest: Any) -> sqlite3.Cursor:
        if sql == "COMMIT" and type(self).errors:
            type(self).errors.pop()
            raise sqlite3.OperationalError("disk I/O error")
        return super().execute(sql, *rest)
