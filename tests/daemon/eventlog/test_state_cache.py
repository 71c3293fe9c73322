"""A daemon and its cached fold: used at a start, written when it is worth it, and what it spared is looked at later."""

import contextlib
import sqlite3
from pathlib import Path

import pytest
from tests.support import disks, log_stories
from tests.support.inside import inside

from sandkeep.errors import DaemonError
from sandkeep_store.eventlog import reader
from sandkeep_store.eventlog.log import EventLog
from sandkeep_store.upkeep import offline, state_cache
from sandkeepd.app import daemon as app
from sandkeepd.eventlog import state_cache as caching


@pytest.fixture
def state_dir(tmp_path: Path) -> str:
    log_stories.write(str(tmp_path / "events.db"), log_stories.tangle(3))
    return str(tmp_path)


def _cache(state_dir: str) -> None:
    log = EventLog.open(f"{state_dir}/events.db")
    state_cache.save(state_dir, offline.fold(log), log)
    log.close()


async def test_a_small_log_is_folded_whole(state_dir: str) -> None:
    async with inside(state_dir) as daemon:
        caching.save_final(daemon.core.state, daemon.core.log, state_dir)
    assert not Path(state_dir, state_cache.FILE_NAME).exists()


async def test_a_large_one_is_cached_after_a_fold_and_at_the_end(
    state_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caching, "WORTH_EVENTS", 100)
    log = EventLog.open(f"{state_dir}/events.db")
    state, problems = app.fold(log, state_dir)
    assert (problems, state.cached_upto) == ([], 0)
    first = Path(state_dir, state_cache.FILE_NAME).read_bytes()
    again, problems = app.fold(log, state_dir)
    assert (problems, again.cached_upto) == ([], log.head)
    caching.save_final(again, log, state_dir)
    assert Path(state_dir, state_cache.FILE_NAME).read_bytes() == first
    log.close()


async def test_damage_that_the_start_did_not_see_is_found_afterwards(
    state_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caching, "END_EVENTS", 100)
    _cache(state_dir)
    with sqlite3.connect(f"{state_dir}/events.db") as db:
        db.execute("UPDATE events SET data = CAST('{}' AS BLOB) WHERE position = 700")
    db.close()
    async with inside(state_dir) as daemon:
        assert daemon.core.problems == []
        await caching.check(daemon.core, 699)
        assert daemon.core.problems == []
        await caching.check(daemon.core, daemon.core.state.cached_upto)
        (problem,) = daemon.core.problems
        assert "position 700" in problem


async def test_the_last_events_are_checked_at_every_start(state_dir: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caching, "END_EVENTS", 100)
    _cache(state_dir)
    with sqlite3.connect(f"{state_dir}/events.db") as db:
        (last,) = db.execute("SELECT max(position) FROM events").fetchone()
        db.execute("UPDATE events SET data = CAST('{}' AS BLOB) WHERE position = ?", (last - 50,))
    db.close()
    async with inside(state_dir) as daemon:
        (problem,) = daemon.core.problems
        assert f"position {last - 50}" in problem


async def test_an_index_that_lacks_an_event_is_found_after_the_start(
    state_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row is as it was, so the state is right; but who asks for a sandbox's events would not get them all."""
    with sqlite3.connect(f"{state_dir}/events.db") as db:
        db.execute("PRAGMA writable_schema = ON")
        sql = "CREATE INDEX events_of_sandbox ON events (sandbox) WHERE sandbox IS NOT NULL AND position != 700"
        before = db.execute("SELECT sql FROM sqlite_master WHERE name = 'events_of_sandbox'").fetchone()[0]
        db.execute("DROP INDEX events_of_sandbox")
        db.execute(sql)
        db.execute("UPDATE sqlite_master SET sql = ? WHERE name = 'events_of_sandbox'", (before,))
    db.close()
    log = EventLog.open(f"{state_dir}/events.db")
    assert log.reader.check(0, log.head, log.head) == log.head
    problems = log.reader.check_structure(lambda: False)
    assert "row 700 missing from index events_of_sandbox" in problems[0]
    assert "store repair" in problems[0]
    monkeypatch.setattr(reader, "_STEPS_BETWEEN_LOOKS", 10)
    assert log.reader.check_structure(lambda: True) == []  # who gives up is told nothing
    log.close()


async def test_a_file_that_becomes_unreadable_stops_changes_and_not_the_daemon(
    state_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caching, "CHECK_AFTER_S", 0)
    async with inside(state_dir) as daemon:
        for name in ("events.db", "events.db-wal"):
            disks.overwrite(f"{state_dir}/{name}")
        daemon.core.log._database._idle.clear()  # they know the first page by heart
        await caching.check_later(daemon.core)
        (problem,) = daemon.core.problems
        assert "cannot be read (file is not a database)" in problem
        assert "store repair" in problem
        assert (await daemon.call("sandbox.list")).sandboxes


async def test_damage_behind_it_is_found_at_the_start(state_dir: str) -> None:
    _cache(state_dir)
    log_stories.write(f"{state_dir}/events.db", log_stories.execution("sbx_0", "prc_new"))
    with sqlite3.connect(f"{state_dir}/events.db") as db:
        (last,) = db.execute("SELECT max(position) FROM events").fetchone()
        db.execute("UPDATE events SET data = CAST('{}' AS BLOB) WHERE position = ?", (last - 1,))
    db.close()
    async with inside(state_dir) as daemon:
        (problem,) = daemon.core.problems
        assert f"position {last - 1}" in problem
        assert daemon.core.state.position == last - 2


async def test_with_a_log_that_becomes_unreadable_a_sandbox_is_ended(tmp_path: Path) -> None:
    """A look at whether that was ordered before is not possible either."""
    (tmp_path / "source").mkdir()
    async with inside(str(tmp_path / "state")) as daemon:
        image = await daemon.image(str(tmp_path / "source"))
        box = (await daemon.call("sandbox.create", image_id=image)).sandbox_id
        assert await daemon.provider.found() == ([box], [image])
        for name in ("events.db", "events.db-wal"):
            disks.overwrite(str(tmp_path / "state" / name))
        daemon.core.log._database._idle.clear()
        with pytest.raises(DaemonError, match="cannot be read"):
            await daemon.call("sandbox.exec", sandbox_id=box, command=["true"], command_id="cmd_1")
        with contextlib.suppress(DaemonError):  # SQLite may go on for a while in what it has in memory
            await daemon.call("sandbox.terminate", sandbox_id=box, command_id="cmd_2")
        assert await daemon.provider.found() == ([], [image])
