"""Compaction: what is not needed any more leaves the log, is never in neither place, and the state is the same."""

import os
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
from tests.support import log_stories

from sandkeep import events, model
from sandkeep.errors import DaemonError, DataError
from sandkeep.events import LOG_STREAM, Meta
from sandkeep.model import CompactReport
from sandkeep_store.eventlog.log import EventLog, NewEvent
from sandkeep_store.upkeep import compaction, offline, repair, segments, state_cache
from sandkeep_store.upkeep.compaction import Compaction
from sandkeep_store.views.locks import RECENT_LOCKS
from sandkeep_store.views.metadata import document
from sandkeep_store.views.state import State

NOBODY = Meta()
LATER_US = 4_000_000_000_000_000
"""After all that the stories tell, and all that is appended here."""


class Opened:
    """A log that runs, a state that follows it, and what compaction was told to forget."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.state = offline.fold(log)
        self.forgotten: list[str] = []
        self.forgotten_processes: dict[str, list[str]] = {}
        log.on_commit.append(self._follow)

    def _follow(self, recorded: Sequence[Any]) -> None:
        for fact in recorded:
            self.state.apply(fact.event, fact)

    async def _forget(self, sandboxes: Sequence[str]) -> None:
        self.forgotten += sandboxes

    async def _forget_processes(self, sandbox_id: str, process_ids: Sequence[str]) -> None:
        self.forgotten_processes[sandbox_id] = [*self.forgotten_processes.get(sandbox_id, ()), *process_ids]

    async def compact(self, before_us: int = LATER_US, **options: Any) -> CompactReport:
        return await Compaction(self.log, self.state, self._forget, self._forget_processes).run(
            before_us, NOBODY, **options
        )


Kind = TypeVar("Kind", bound=Opened)


@asynccontextmanager
async def opened(directory: Path, kind: Callable[[EventLog], Kind] = Opened) -> AsyncIterator[Kind]:  # type: ignore[assignment]
    log = EventLog.open(str(directory / "events.db"))
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(log.run)
            yield kind(log)
            nursery.cancel_scope.cancel()
    finally:
        log.close()


def positions_in_log(directory: Path) -> list[int]:
    with sqlite3.connect(directory / "events.db") as db:
        found = [row[0] for row in db.execute("SELECT position FROM events ORDER BY position")]
    db.close()
    return found


def positions_in_archive(directory: Path) -> list[int]:
    folder = directory / segments.FOLDER
    return [line.position for name in segments.names(str(directory)) for line in segments.events(f"{folder}/{name}")]


def bytes_of(state: State, log: EventLog) -> list[bytes]:
    return list(state_cache.records(state, log))


def ended_in(state: State) -> set[str]:
    """The sandboxes that have ended, but for those of which there are checkpoints."""
    needed = {checkpoint.sandbox_id for checkpoint in state.checkpoints.values() if checkpoint.alive}
    return {name for name, sandbox in state.sandboxes.items() if sandbox.hidden and name not in needed}


@pytest.mark.parametrize("seed", range(4))
async def test_the_state_stays_as_it_was_but_for_what_ended(tmp_path: Path, seed: int) -> None:
    log_stories.write(str(tmp_path / "events.db"), [*log_stories.tangle(seed), *log_stories.crowded("sbx_big", seed)])
    async with opened(tmp_path) as here:
        before, head = here.state, here.log.head
        ended = ended_in(before)
        kept = {name: document(s, "log") for name, s in before.sandboxes.items() if name not in ended}
        report = await here.compact()
        assert set(here.forgotten) == ended
        assert (report.sandboxes, report.first_position) == (len(ended), here.log.first_position)
        assert {name: document(s, "log") for name, s in here.state.sandboxes.items()} == kept
        fresh = offline.fold(here.log)
        assert bytes_of(fresh, here.log) == bytes_of(here.state, here.log)
        assert here.log.verify() == []
        assert segments.verify(str(tmp_path), here.log.log_id) == []
        assert here.log.reader.count() == head + 2 - report.events
    archived = positions_in_archive(tmp_path)
    assert len(archived) == report.events
    assert sorted([*archived, *positions_in_log(tmp_path)]) == list(range(1, head + 3))


async def test_of_locks_those_that_are_held_and_the_last_of_the_others_stay(tmp_path: Path) -> None:
    """More than a view shows; some ended before the moment that counts, some after it, and some are held since."""
    count = RECENT_LOCKS + 50
    held = [log_stories.lock(n, events.LockAcquired(fence=n)) for n in range(2)]
    over = [log_stories.lock(n, *log_stories.LOCK_ENDS[n % 5]) for n in range(2, count)]
    log_stories.write(str(tmp_path / "events.db"), [append for life in [*held, *over] for append in life])
    async with opened(tmp_path) as here:
        assert len(here.state.locks) == 2 + RECENT_LOCKS
        middle = here.log.at(here.log.head // 2)
        assert middle is not None
        await here.compact(middle.time_us)
        assert bytes_of(offline.fold(here.log), here.log) == bytes_of(here.state, here.log)
        ended = [lock.ended_us for lock in here.state.locks.values() if lock.ended_us is not None]
        assert min(ended) >= middle.time_us
        await here.compact()
        assert bytes_of(offline.fold(here.log), here.log) == bytes_of(here.state, here.log)
        assert sorted(here.state.locks) == ["lck_0", "lck_1"]
        assert here.log.verify() == []


async def test_a_lock_that_is_held_stays_when_the_sandbox_of_its_name_is_archived(tmp_path: Path) -> None:
    log_stories.write(str(tmp_path / "events.db"), log_stories.tangle(1))
    async with opened(tmp_path) as here:
        ended = next(name for name, sandbox in here.state.sandboxes.items() if sandbox.hidden)
        asked = events.LockAcquireRequested(owner="uid:0", name=ended, where="/locks", owner_id="me")
        for event in (asked, events.LockAcquired(fence=1)):
            await here.log.append([NewEvent("lck_held", event, ended)], NOBODY)
        await here.compact()
        assert ended not in here.state.sandboxes
        assert here.state.locks["lck_held"].status == "held"
        assert bytes_of(offline.fold(here.log), here.log) == bytes_of(here.state, here.log)
        assert here.log.verify() == []


async def test_snapshots_that_are_no_more_go_from_a_sandbox_that_stays(tmp_path: Path) -> None:
    place = model.Place(where="state", base="/a", path="b/c", uri="/a/b/c")
    log_stories.write(str(tmp_path / "events.db"), log_stories.crowded("sbx_a", 1))
    async with opened(tmp_path) as here:
        asked = events.SnapshotCreateRequested(
            owner="uid:0", kind="full", format="tar.gz", places=[place], sandbox_id="sbx_a"
        )
        for event in (asked, events.SnapshotFailed(code="internal", message="it failed")):
            await here.log.append([NewEvent("snp_1", event, "sbx_a")], NOBODY)
        await here.compact()
        assert here.state.snapshots == {}
        assert bytes_of(offline.fold(here.log), here.log) == bytes_of(here.state, here.log)


async def test_of_a_sandbox_that_runs_what_its_view_shows_stays(tmp_path: Path) -> None:
    log_stories.write(str(tmp_path / "events.db"), log_stories.crowded("sbx_a", 1))
    async with opened(tmp_path) as here:
        sandbox = here.state.sandboxes["sbx_a"]
        execs, shown = sandbox.exec_count, sorted(here.state.processes)
        await here.compact()
        types = [event.type for event in await here.log.read(0, 1000, sandbox_id="sbx_a")]
        assert types[:2] == ["sandbox.create_requested", "sandbox.created"]
        assert types.count("process.launch_requested") == len(shown)
    async with opened(tmp_path) as here:
        assert (here.state.sandboxes["sbx_a"].exec_count, sorted(here.state.processes)) == (execs, shown)
        stories_of_today = await here.log.read(here.log.first_position - 1, 1000)
        assert [event.type for event in stories_of_today][-2:] == ["log.compact_requested", "log.compacted"]


async def test_of_files_that_were_written_into_what_is_here_the_last_stays(tmp_path: Path) -> None:
    path, box = str(tmp_path / "events.db"), "sbx_a"
    written = events.SandboxFileWritten(path="/f", kind="file", size_bytes=1)
    log_stories.write(path, [[(box, box, log_stories.requested())], [(box, box, log_stories.created())]])
    log_stories.write(path, [[(f"{box}/files", box, written)] for _ in range(50)])
    async with opened(tmp_path) as here:
        before = here.state.sandboxes[box]
        activity = (before.position, before.last_activity_us)
        assert (await here.compact()).events == 49
        assert bytes_of(offline.fold(here.log), here.log) == bytes_of(here.state, here.log)
        after = here.state.sandboxes[box]
        assert (after.position, after.last_activity_us) == activity
        (more,) = await here.log.append([NewEvent(f"{box}/files", written, box)], NOBODY)
        assert more.revision == 51
        assert here.log.verify() == []
    repaired = repair.repair(str(tmp_path), yes=False)
    assert repaired.problems == []


async def test_what_is_younger_stays(tmp_path: Path) -> None:
    """A sandbox that ended, but not before the moment; and a process that began before it and ended after."""
    path = str(tmp_path / "events.db")
    log_stories.write(
        path, [[("sbx_a", "sbx_a", log_stories.requested())], [("sbx_a", "sbx_a", log_stories.created())]]
    )
    first, _ = log_stories.execution("sbx_a", "prc_1")
    log_stories.write(path, [first, *log_stories.ending("sbx_a")])
    async with opened(tmp_path) as here:
        nothing = await here.compact(log_stories.START_US + 5 * log_stories.EVERY_US)  # that is when it ended
        assert nothing.events == 0
        assert here.log.head == 5
        assert (await here.compact(log_stories.START_US + 5 * log_stories.EVERY_US + 1)).sandboxes == 1
        assert here.state.sandboxes == {}


async def test_a_name_that_stands_for_an_image_lasts_as_long_as_the_image(tmp_path: Path) -> None:
    asked = events.ImageCreateRequested(owner="uid:7", provider="fake", kind="directory", source="/src")
    made = events.ImageCreated(digest="sha256:0", size_bytes=1, file_count=1)
    life = [asked, made]
    log_stories.write(str(tmp_path / "events.db"), [[("img_1", None, event)] for event in life])
    reused = [asked, events.ImageReused(image_id="img_1")]
    log_stories.write(str(tmp_path / "events.db"), [[("img_2", None, event)] for event in reused])
    async with opened(tmp_path) as here:
        assert (await here.compact()).images == 0
    log_stories.write(str(tmp_path / "events.db"), [[("img_1", None, events.ImageRemoveRequested())]])
    log_stories.write(str(tmp_path / "events.db"), [[("img_1", None, events.ImageRemoved())]])
    async with opened(tmp_path) as here:
        assert (await here.compact()).images == 1
        assert (await here.compact()).images == 1
        assert here.state.images == {}


async def test_who_followed_from_before_is_told(tmp_path: Path) -> None:
    log_stories.write(str(tmp_path / "events.db"), [*log_stories.crowded("sbx_a", 1)])
    async with opened(tmp_path) as here:
        token = here.log.token(5)
        assert here.log.parse_token(token) == 5
        await here.compact()
        with pytest.raises(DataError) as caught:
            here.log.parse_token(token)
        assert (caught.value.code, caught.value.data) == ("compacted", {"first": here.log.first_position})
        assert here.log.parse_token(token, gaps=True) == 5
        assert here.log.parse_token(here.log.token(here.log.first_position - 1)) > 5


async def test_an_id_can_be_used_again(tmp_path: Path) -> None:
    lives = [[("sbx_a", "sbx_a", log_stories.requested())], [("sbx_a", "sbx_a", log_stories.created())]]
    log_stories.write(
        str(tmp_path / "events.db"), [*lives, *log_stories.execution("sbx_a", "prc_1"), *log_stories.ending("sbx_a")]
    )
    async with opened(tmp_path) as here:
        await here.compact()
    log_stories.write(str(tmp_path / "events.db"), [*lives, *log_stories.execution("sbx_a", "prc_1")])
    async with opened(tmp_path) as here:
        assert (here.state.sandboxes["sbx_a"].status, here.state.sandboxes["sbx_a"].exec_count) == ("running", 1)
        assert here.log.verify() == []


# -- crashes ----------------------------------------------------------------------------------------------------------


class _KilledError(Exception):
    """Stands for the end of the process."""


STEPS = ("append", "raise_first", "remove")


def _kill_at(here: Opened, monkeypatch: pytest.MonkeyPatch, instant: int) -> Callable[[], int]:
    """Let the process end before or after the n-th durable step: after it all, memory is lost and files stay."""
    done = [0]

    def kills(step: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def killed(*args: Any, **options: Any) -> Any:
            if done[0] == instant:
                raise _KilledError
            done[0] += 1
            answer = await step(*args, **options)
            if done[0] == instant:
                raise _KilledError
            done[0] += 1
            return answer

        return killed

    for name in STEPS:
        monkeypatch.setattr(here.log, name, kills(getattr(here.log, name)))
    write = segments.write

    def write_or_die(*args: Any) -> str:
        if done[0] == instant:
            raise _KilledError
        done[0] += 1
        return write(*args)

    monkeypatch.setattr(segments, "write", write_or_die)
    return lambda: done[0]


async def test_killed_at_any_step_every_event_is_somewhere_and_the_next_one_finishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = tmp_path / "story"
    story.mkdir()
    log_stories.write(str(story / "events.db"), log_stories.tangle(5, steps=300))
    monkeypatch.setattr(compaction, "SEGMENT_EVENTS", 100)
    monkeypatch.setattr(compaction, "BATCH_EVENTS", 40)
    everything = positions_in_log(story)
    async with opened(story) as here:
        ended = ended_in(here.state)
        alive = {name: document(s, "log") for name, s in here.state.sandboxes.items() if name not in ended}
        state_cache.save(str(story), here.state, here.log)
    instant, finished = 0, False
    while not finished:
        directory = tmp_path / str(instant)
        subprocess.run(["cp", "-r", str(story), str(directory)], check=True)
        with monkeypatch.context() as patch:
            async with opened(directory) as here:
                steps = _kill_at(here, patch, instant)
                try:
                    await here.compact()
                    finished = True
                except _KilledError:
                    assert steps() == instant
                forgotten = set(here.forgotten)
        found = {*positions_in_log(directory), *positions_in_archive(directory)}
        assert set(everything) <= found, f"lost at step {instant}"
        async with opened(directory) as here:
            assert here.log.verify() == []
            assert state_cache.difference(str(directory), here.log, offline.fold(here.log)) == []
            assert here.state.sandboxes.keys() in (alive.keys(), alive.keys() | ended)
            assert alive == {n: document(s, "log") for n, s in here.state.sandboxes.items() if n in alive}
            await here.compact()
            assert forgotten | set(here.forgotten) == ended
            assert alive == {n: document(s, "log") for n, s in here.state.sandboxes.items()}
            assert not here.state.log.compacting
            assert bytes_of(offline.fold(here.log), here.log) == bytes_of(here.state, here.log)
            assert not await _left(here, ended)
        assert set(everything) <= {*positions_in_log(directory), *positions_in_archive(directory)}
        instant += 1
    assert instant > 15


async def _left(here: Opened, sandboxes: set[str]) -> list[int]:
    return [event.position for name in sandboxes for event in await here.log.read(0, 1000, sandbox_id=name)]


async def test_a_damaged_event_stops_it(tmp_path: Path) -> None:
    log_stories.write(str(tmp_path / "events.db"), [*log_stories.crowded("sbx_a", 1), *log_stories.ending("sbx_a")])
    async with opened(tmp_path) as here:
        here.log._database.writer.execute("UPDATE events SET data = CAST('{}' AS BLOB) WHERE position = 9")
        with pytest.raises(DaemonError, match="position 9"):
            await here.compact()
        assert here.log.reader.count() == here.log.head


# -- segments ---------------------------------------------------------------------------------------------------------


async def test_any_tool_can_read_a_segment(tmp_path: Path) -> None:
    log_stories.write(str(tmp_path / "events.db"), log_stories.crowded("sbx_a", 1))
    async with opened(tmp_path) as here:
        (name,) = (await here.compact()).segments
    path = tmp_path / segments.FOLDER / name
    header, content = segments.read(str(path))
    assert content.count(b"\n") == header.events
    assert (os.stat(path).st_mode & 0o777, os.stat(path.parent).st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize("at", [0, 10, 300, -1])
async def test_a_damaged_segment_is_found(tmp_path: Path, at: int) -> None:
    log_stories.write(str(tmp_path / "events.db"), log_stories.crowded("sbx_a", 1))
    async with opened(tmp_path) as here:
        (name,) = (await here.compact()).segments
        path = tmp_path / segments.FOLDER / name
        content = bytearray(path.read_bytes())
        content[at] ^= 1
        path.write_bytes(content)
        (problem,) = segments.verify(str(tmp_path), here.log.log_id)
        assert str(path) in problem


# -- growth -----------------------------------------------------------------------------------------------------------


async def test_ten_thousand_commands_leave_the_log_and_the_state_as_small_as_some(tmp_path: Path) -> None:
    path = str(tmp_path / "events.db")
    sizes = []
    for day in range(5):
        boxes = [f"sbx_{day}_{number}" for number in range(4)]
        story = [[(box, box, event)] for box in boxes for event in (log_stories.requested(), log_stories.created())]
        for number in range(2000):
            story += log_stories.execution(boxes[number % 4], f"prc_{day}_{number}")
        story += [append for box in boxes for append in log_stories.ending(box)]
        log_stories.write(path, story)
        async with opened(tmp_path) as here:
            await here.compact()
            assert (here.state.sandboxes, here.state.processes) == ({}, {})
            assert here.log.reader.count() < 8
        sizes.append(os.stat(path).st_size)
    assert sizes[-1] <= 1.1 * sizes[0]


async def test_appends_go_on_meanwhile(tmp_path: Path) -> None:
    log_stories.write(str(tmp_path / "events.db"), [*log_stories.crowded("sbx_a", 1), *log_stories.ending("sbx_a")])
    async with opened(tmp_path) as here, trio.open_nursery() as nursery:
        appended = []

        async def append() -> None:
            while here.state.sandboxes or here.state.log.compacting or here.state.position < 400:
                new = offline_event()
                appended.extend(await here.log.append([new], NOBODY))

        nursery.start_soon(append)
        await here.compact()
        assert here.log.verify() == []
        assert [event.position for event in appended] == sorted(event.position for event in appended)


def offline_event() -> Any:
    return NewEvent(LOG_STREAM, events.LogCompacted(events=0, segments=[], first_position=1))


@pytest.mark.soak
async def test_a_million_commands_leave_the_log_the_state_and_the_start_as_small_as_some(tmp_path: Path) -> None:
    path = str(tmp_path / "events.db")
    sizes, folds = [], []
    for day in range(20):
        box = f"sbx_{day}"
        story = [[(box, box, log_stories.requested())], [(box, box, log_stories.created())]]
        for number in range(50_000):
            first, second = log_stories.execution(box, f"prc_{day}_{number}")
            story.append([*first, *second])
        log_stories.write(path, [*story, *log_stories.ending(box)])
        async with opened(tmp_path) as here:
            await here.compact()
            assert here.log.verify() == []
            folds.append(len(list(state_cache.records(offline.fold(here.log), here.log))))
        sizes.append(os.stat(path).st_size)
    assert max(sizes) <= 1.2 * sizes[0]
    assert folds == [1] * 20


async def test_the_archive_tells_nothing_of_what_commands_were_given(tmp_path: Path) -> None:
    """Nor is a segment named by what is in it: ``log.compacted`` keeps the name, also once something is redacted."""
    log_stories.write(str(tmp_path / "events.db"), log_stories.tangle(0))
    async with opened(tmp_path) as here:
        told = Meta(command_id="c", command="image.remove digest", owner="uid:0")
        await here.log.append([NewEvent("img_x", events.ImageRemoved())], told)
        (name,) = (await here.compact()).segments
        path = f"{tmp_path}/{segments.FOLDER}/{name}"
        (line,) = [line for line in segments.events(path) if line.stream == "img_x"]
        assert bytes(line.meta) == b'{"command_id":"c","command":"image.remove","owner":"uid:0"}'
        header, content = segments.read(path)
        assert segments.store(str(tmp_path), header.log_id, header.first, header.last, [content]) != name
