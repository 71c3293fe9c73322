"""The event log as the daemon uses it: append, read, follow, all on a real file."""

import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.support.expect import refused_async
from trio.testing import wait_all_tasks_blocked

from sandkeep.errors import SandkeepError
from sandkeep.events import MAX_EVENT_BYTES, Meta, ProcessExited, ProcessStarted, SandboxAdopted, SandboxFailed
from sandkeep_store.eventlog import ring
from sandkeep_store.eventlog.log import EventLog, NewEvent, Recorded
from sandkeep_store.eventlog.ring import Ring

META = Meta(command_id="cmd_1", owner="uid:0", pid=42, client="test")
NOBODY = Meta()


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[EventLog]:
    log = EventLog.open(str(directory / "events.db"))
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(log.run)
            yield log
            nursery.cancel_scope.cancel()
    finally:
        log.close()


def started(stream: str, pid: int = 1, sandbox_id: str | None = None, expected: int | None = None) -> NewEvent:
    return NewEvent(stream, ProcessStarted(pid=pid), sandbox_id, expected)


def positions(events: Sequence[Recorded]) -> list[int]:
    return [event.position for event in events]


async def append_many(log: EventLog, count: int, *, each: int = 1, sandbox_id: str | None = None) -> None:
    for first in range(0, count, each):
        await log.append([started(f"prc_{first + i}", sandbox_id=sandbox_id) for i in range(each)], NOBODY)


# -- appending --------------------------------------------------------------------------------------------------------


async def test_an_append_answers_what_was_recorded(tmp_path: Path) -> None:
    async with running(tmp_path) as log:
        first, second = await log.append([started("prc_1", 7, "sbx_1", 0), NewEvent("sbx_1", SandboxAdopted())], META)
        assert (first.position, first.stream, first.revision, first.sandbox_id) == (1, "prc_1", 1, "sbx_1")
        assert (first.type, first.version, first.event, first.data) == (
            "process.started",
            1,
            ProcessStarted(pid=7),
            b'{"pid":7}',
        )
        assert first.meta == b'{"command_id":"cmd_1","owner":"uid:0","pid":42,"client":"test"}' == second.meta
        assert (second.position, second.stream, second.revision, second.sandbox_id) == (2, "sbx_1", 1, None)
        assert (first.more, second.more) == (1, 0)
        assert first.time_us == second.time_us > 1_700_000_000_000_000
        assert log.head == 2


async def test_appending_nothing_does_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as log:
        assert await log.append([], META) == []
        assert log.head == 0


async def test_it_is_all_there_after_reopening(tmp_path: Path) -> None:
    async with running(tmp_path) as log:
        recorded = await log.append([started("prc_1", 7, "sbx_1"), started("prc_1", 8, "sbx_1")], META)
        recorded += await log.append([started("prc_2", 9)], NOBODY)
        log_id = log.log_id
    log = EventLog.open(str(tmp_path / "events.db"))
    seen: list[Recorded] = []
    assert log.scan(seen.append) == 3
    assert seen == recorded
    assert (log.log_id, log.head, log.first_position, log.failure) == (log_id, 3, 1, None)
    assert log.verify() == []
    later: list[Recorded] = []
    assert log.scan(later.append, after=2) == 3
    assert later == recorded[2:]
    log.close()


async def test_a_revision_that_was_not_expected_is_a_conflict_and_leaves_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as log:
        await log.append([started("prc_1", expected=0)], NOBODY)
        both = [started("prc_2", expected=0), started("prc_1", expected=0)]
        again = await refused_async("conflict", log.append(both, NOBODY))
        assert (again.data["stream"], again.data["revision"]) == ("prc_1", 1)
        behind = await refused_async("conflict", log.append([started("prc_1", expected=5)], NOBODY))
        assert "changed meanwhile" in behind.message
        (recorded,) = await log.append([started("prc_2", expected=0)], NOBODY)
        assert (recorded.position, recorded.revision) == (2, 1)


async def test_an_expected_revision_counts_the_events_before_it_in_the_same_append(tmp_path: Path) -> None:
    async with running(tmp_path) as log:
        both = await log.append([started("prc_1", expected=0), started("prc_1", expected=1)], NOBODY)
        assert [event.revision for event in both] == [1, 2]
        twice = [started("prc_1", expected=2), started("prc_1", expected=2)]
        await refused_async("conflict", log.append(twice, NOBODY))
        assert log.head == 2


async def test_a_stream_said_to_be_new_is_found_although_it_was_forgotten(tmp_path: Path) -> None:
    async with running(tmp_path) as log:
        await log.append([started("prc_1", expected=0)], NOBODY)
    async with running(tmp_path) as log, trio.open_nursery() as nursery:
        # All in one batch: only the append that is wrong is refused.
        nursery.start_soon(log.append, [started("prc_2", expected=0)], NOBODY)
        nursery.start_soon(refused_async, "conflict", log.append([started("prc_1", expected=0)], NOBODY))
        nursery.start_soon(log.append, [started("prc_3", expected=0)], NOBODY)
    assert sorted(event.stream for event in _all(tmp_path)) == ["prc_1", "prc_2", "prc_3"]


def _all(directory: Path) -> list[Recorded]:
    log = EventLog.open(str(directory / "events.db"))
    seen: list[Recorded] = []
    log.scan(seen.append)
    assert log.verify() == []
    log.close()
    return seen


async def test_of_many_who_append_to_one_revision_one_wins_and_their_neighbours_are_not_hurt(tmp_path: Path) -> None:
    outcomes: list[str] = []

    async def try_once(log: EventLog, number: int) -> None:
        try:
            await log.append([started(f"prc_{number}"), started("prc_shared", expected=0)], NOBODY)
            outcomes.append("won")
        except SandkeepError as error:
            outcomes.append(error.code)

    async with running(tmp_path) as log:
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(try_once, log, number)
                nursery.start_soon(log.append, [started(f"prc_other_{number}")], NOBODY)
        assert sorted(outcomes) == ["conflict"] * 49 + ["won"]
        assert log.head == 52
    assert positions(_all(tmp_path)) == list(range(1, 53))


async def test_an_event_that_is_too_large_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    async with running(tmp_path) as log:
        long = NewEvent("sbx_1", SandboxFailed(message="x" * MAX_EVENT_BYTES))
        await refused_async("invalid", log.append([started("prc_1"), long], NOBODY))
        assert log.head == 0


async def test_views_know_before_the_caller_and_callers_before_followers(tmp_path: Path) -> None:
    order: list[str] = []
    async with running(tmp_path) as log:
        log.on_commit.append(lambda events: order.append(f"view {positions(events)} at {log.head}"))

        async def caller() -> None:
            await log.append([started("prc_1"), started("prc_2")], NOBODY)
            order.append("caller")

        async def follower() -> None:
            await log.wait(0)
            order.append("follower")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(follower)
            await wait_all_tasks_blocked()
            nursery.start_soon(caller)
    assert order[0] == "view [1, 2] at 2"
    assert sorted(order[1:]) == ["caller", "follower"]


async def test_a_view_that_fails_ends_the_log_after_everyone_was_answered(tmp_path: Path) -> None:
    log = EventLog.open(str(tmp_path / "events.db"))

    def broken(events: Sequence[Recorded]) -> None:
        raise RuntimeError("a defect of a view")

    log.on_commit.append(broken)
    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="a defect of a view")):
        async with trio.open_nursery() as nursery:
            await nursery.start(log.run)
            with trio.CancelScope(shield=True):
                assert positions(await log.append([started("prc_1")], NOBODY)) == [1]
            await trio.sleep_forever()
    log.close()


async def test_after_the_end_of_run_an_append_is_refused(tmp_path: Path) -> None:
    log = EventLog.open(str(tmp_path / "events.db"))
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        nursery.cancel_scope.cancel()
    await refused_async("storage_unavailable", log.append([started("prc_1")], NOBODY))
    log.close()


async def test_what_waits_is_written_in_one_commit_also_when_run_is_cancelled(tmp_path: Path) -> None:
    log = EventLog.open(str(tmp_path / "events.db"))
    results: list[int] = []

    async def caller(number: int) -> None:
        results.extend(positions(await log.append([started(f"prc_{number % 10}")], NOBODY)))

    commits: list[int] = []
    log.on_commit.append(lambda events: commits.append(len(events)))
    async with trio.open_nursery() as callers, trio.open_nursery() as nursery:
        for number in range(100):
            callers.start_soon(caller, number)
        await wait_all_tasks_blocked()  # nobody writes yet: all of them wait
        await nursery.start(log.run)
        nursery.cancel_scope.cancel()
    assert sorted(results) == list(range(1, 101))
    assert commits == [100], "what waits is committed at once"
    log.close()


# -- cancelling -------------------------------------------------------------------------------------------------------


async def test_cancelled_before_it_is_taken_nothing_is_written(tmp_path: Path) -> None:
    log = EventLog.open(str(tmp_path / "events.db"))
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(_cancel_when_blocked, scope)
            await log.append([started("prc_1")], NOBODY)  # nobody writes: it waits
        assert scope.cancelled_caught
        await nursery.start(log.run)
        assert positions(await log.append([started("prc_2")], NOBODY)) == [1]
        nursery.cancel_scope.cancel()
    log.close()
    assert [event.stream for event in _all(tmp_path)] == ["prc_2"]


async def _cancel_when_blocked(scope: trio.CancelScope) -> None:
    await wait_all_tasks_blocked()
    scope.cancel()


async def test_cancelled_after_it_was_taken_it_waits_for_the_truth(tmp_path: Path) -> None:
    async with running(tmp_path) as log:
        recorder = log._writer._recorder
        with trio.CancelScope() as scope, recorder._lock:  # the writer stops at the commit, with the append taken
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_release_after_cancel, log, scope, recorder._lock)
                recorded = await log.append([started("prc_1")], NOBODY)
            recorder._lock.acquire()
        assert positions(recorded) == [1]
        assert log.head == 1


async def _release_after_cancel(log: EventLog, scope: trio.CancelScope, lock: object) -> None:
    with trio.CancelScope(shield=True):
        await wait_all_tasks_blocked()
        while log._writer._waiting:
            await trio.lowlevel.checkpoint()
        scope.cancel()
        await wait_all_tasks_blocked()
        lock.release()  # type: ignore[attr-defined]


# -- reading ----------------------------------------------------------------------------------------------------------


async def _mixed(log: EventLog) -> None:
    await log.append([NewEvent("sbx_1", SandboxAdopted(), "sbx_1"), started("prc_1", 1, "sbx_1")], META)
    await log.append([started("prc_2", 2, "sbx_2"), NewEvent("sbx_2", SandboxAdopted(), "sbx_2")], NOBODY)
    exited = ProcessExited(exit_code=0, stdout_bytes=0, stderr_bytes=0)
    await log.append([NewEvent("prc_1", exited, "sbx_1"), NewEvent("prc_2", exited, "sbx_2")], NOBODY)


FILTERS = [
    ({}, [1, 2, 3, 4, 5, 6]),
    ({"stream": "prc_1"}, [2, 5]),
    ({"sandbox_id": "sbx_1"}, [1, 2, 5]),
    ({"sandbox_id": "sbx_9"}, []),
    ({"type": "process"}, [2, 3, 5, 6]),
    ({"type": "process.exited"}, [5, 6]),
    ({"type": "proc"}, []),
    ({"type": "process.exit"}, []),
    ({"sandbox_id": "sbx_2", "type": "process"}, [3, 6]),
    ({"upto": 4}, [1, 2, 3, 4]),
    ({"upto": 4, "type": "process"}, [2, 3]),
]


@pytest.mark.parametrize(("wanted", "expected"), FILTERS)
async def test_filters_mean_the_same_in_memory_and_in_the_file(
    tmp_path: Path, wanted: dict[str, Any], expected: list[int]
) -> None:
    async with running(tmp_path) as log:
        await _mixed(log)
        from_memory = await log.page(0, 100, **wanted)
    async with running(tmp_path) as log:
        from_file = await log.page(0, 100, **wanted)
        assert await log.read(0, 100, **wanted) == from_file.events
    assert positions(from_memory.events) == positions(from_file.events) == expected
    assert (from_memory.position, from_memory.caught_up) == (from_file.position, from_file.caught_up)
    assert [event.data for event in from_memory.events] == [event.data for event in from_file.events]


@pytest.mark.parametrize("wanted", [{}, {"type": "process"}, {"sandbox_id": "sbx_1"}])
@pytest.mark.parametrize("reopen", [False, True])
async def test_no_page_splits_an_append(tmp_path: Path, reopen: bool, wanted: dict[str, Any]) -> None:
    async with running(tmp_path) as log:
        await append_many(log, 30, each=3, sandbox_id="sbx_1")
        pages = await _pages(log, 4, wanted)
    if reopen:  # from the file, then, and not from memory
        async with running(tmp_path) as log:
            pages = await _pages(log, 4, wanted)
    assert [len(page) for page in pages] == [6, 6, 6, 6, 6]
    assert [position for page in pages for position in page] == list(range(1, 31))


async def _pages(log: EventLog, limit: int, wanted: dict[str, Any]) -> list[list[int]]:
    pages, position, caught_up = [], 0, False
    while not caught_up:
        page = await log.page(position, limit, **wanted)
        pages.append(positions(page.events))
        position, caught_up = page.position, page.caught_up
    return pages


async def test_a_filtered_page_tells_how_far_it_looked(tmp_path: Path) -> None:
    async with running(tmp_path) as log:
        await append_many(log, 10)
        page = await log.page(0, 5, type="sandbox")
        assert (page.events, page.position, page.caught_up) == ([], 10, True)


async def test_a_command_is_found_by_its_first_event(tmp_path: Path) -> None:
    async with running(tmp_path) as log:
        await append_many(log, 3)
        await log.append([started("prc_a"), started("prc_b")], Meta(command_id="cmd_x", owner="uid:1"))
        found = await log.find_command("cmd_x", "uid:1")
        assert found is not None
        assert (found.position, found.stream, found.event) == (4, "prc_a", None)
        await log.append([started("prc_c")], Meta(command_id="cmd_x", owner="uid:2"))
        await log.append([started("prc_d")], Meta(command_id="cmd_x", owner="uid:1"))
        for owner, stream in (("uid:1", "prc_d"), ("uid:2", "prc_c")):
            found = await log.find_command("cmd_x", owner)
            assert found is not None
            assert found.stream == stream
        assert await log.find_command("cmd_y", "uid:1") is None


async def test_the_event_loop_waits_for_nobody_when_a_command_is_looked_up(tmp_path: Path) -> None:
    """While another thread has the database to itself, as when its file is replaced, others go on."""
    async with running(tmp_path) as log:
        await log.append([started("prc_a")], Meta(command_id="cmd_x", owner="uid:1"))
        assert await log.find_command("cmd_x", "uid:1") is not None  # by now there is a connection that is idle
        found: list[Any] = []
        held, done = threading.Event(), threading.Event()

        def hold() -> None:
            with log._database._changed:
                held.set()
                done.wait()

        async def look() -> None:
            found.append(await log.find_command("cmd_x", "uid:1"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, hold)
            await trio.to_thread.run_sync(held.wait)
            nursery.start_soon(look)
            await wait_all_tasks_blocked()
            assert found == []
            done.set()
        assert found[0].stream == "prc_a"


# -- following --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("events", [3, 100])
async def test_followers_fast_and_slow_see_everything_once_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: int
) -> None:
    monkeypatch.setattr(
        ring.Ring.__init__, "__defaults__", (16, 1024 * 1024)
    )  # so that whoever is slow must go to the file
    count = events * 2
    seen: list[list[int]] = [[] for _ in range(6)]

    async def follow(log: EventLog, number: int) -> None:
        position = 0
        while position < count:
            await log.wait(position)
            page = await log.page(position, limit=1 + number * 3)
            assert len(page.events) % 2 == 0, "an append was split"
            seen[number] += positions(page.events)
            position = page.position
            for _ in range(number * 10):
                await trio.lowlevel.checkpoint()

    async with running(tmp_path) as log, trio.open_nursery() as nursery:
        for number in range(6):
            nursery.start_soon(follow, log, number)
        await append_many(log, count, each=2)
    assert seen == [list(range(1, count + 1))] * 6


def _event(position: int, size: int = 0, more: int = 0) -> Recorded:
    return Recorded(position, 0, "s", 1, None, None, "t", 1, b"x" * size, b"", more)


def test_the_ring_keeps_the_last_and_knows_which_are_gone() -> None:
    kept = Ring(head=100, size=4)
    kept.extend([_event(position) for position in range(101, 108)])
    assert (kept.first, kept.head) == (104, 107)
    assert positions(kept.between(103, 107)) == [104, 105, 106, 107]
    assert positions(kept.between(105, 106)) == [106]
    assert kept.between(107, 107) == []


def test_the_ring_is_bounded_in_bytes_too() -> None:
    kept = Ring(head=0, size=1000, max_bytes=10_000)
    kept.extend([_event(position, size=2_000) for position in range(1, 101)])
    assert kept.head - kept.first + 1 <= 10_000 // 2_000
    assert positions(kept.between(kept.first - 1, 100))[-1] == 100


# -- tokens -----------------------------------------------------------------------------------------------------------


async def test_a_token_comes_back_as_its_position(tmp_path: Path) -> None:
    async with running(tmp_path) as log:
        await append_many(log, 3)
        assert log.parse_token(log.token(2)) == 2
        assert log.parse_token(log.token(0)) == 0


@pytest.mark.parametrize(
    ("token", "code"),
    [
        ("", "invalid"),
        ("17", "invalid"),
        ("{log}:", "invalid"),
        ("{log}:-1", "invalid"),
        ("{log}:1x", "invalid"),
        ("{log}:\N{SUPERSCRIPT TWO}", "invalid"),
        ("{log}:" + "9" * 30, "invalid"),
        ("log_other:1", "wrong_log"),
        ("{log}:4", "wrong_log"),
        ("{log}:1", "compacted"),
    ],
)
async def test_a_token_that_cannot_be_followed_is_refused(tmp_path: Path, token: str, code: str) -> None:
    async with running(tmp_path) as log:
        await append_many(log, 3)
        await log.raise_first(3)
        with pytest.raises(SandkeepError) as caught:
            log.parse_token(token.replace("{log}", log.log_id))
        assert caught.value.code == code
        assert code != "compacted" or caught.value.data == {"first": 3}


async def test_more_appends_than_may_wait_are_let_in_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandkeep_store.eventlog.writer.MAX_WAITING", 3)
    async with running(tmp_path) as log:
        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(log.append, [started(f"prc_{number}")], NOBODY)
        assert log.head == 50


async def test_a_check_leaves_alone_what_is_committed_while_it_runs(tmp_path: Path) -> None:
    async with running(tmp_path) as log:
        await append_many(log, 10)
        assert log.reader.verify(7) == []
        assert log.reader.verify(11) != []
