"""Going back: what was the case of a sandbox after any event, and which of its moments are kept."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.store.upkeep.test_compaction import opened
from tests.store.views.test_snapshots import DELETED, ISOLATION, PLACE, Told
from tests.store.views.test_views import Log, requested_sandbox, running_sandbox
from tests.support import log_stories

from sandkeep import events
from sandkeep.errors import DataError, SandkeepError
from sandkeep.events import Event
from sandkeep_store.eventlog.log import EventLog
from sandkeep_store.views.metadata import document
from sandkeep_store.views.moments import moments, newest
from sandkeep_store.views.processes import RECENT_UNNAMED
from sandkeep_store.views.state import State


def shown(state: State, box: str) -> list[Any]:
    """All that can be asked of a sandbox, as it is answered."""
    sandbox = state.sandboxes[box]
    processes = [process.view() for process in state.processes.values() if process.sandbox_id == box]
    snapshots = [snapshot.view() for snapshot in state.snapshots.values() if snapshot.sandbox_id == box]
    return [sandbox.view(), processes, snapshots, document(sandbox, "log")]


# -- the state after any event ----------------------------------------------------------------------------------------


def snapshots_of(box: str, name: str) -> Iterator[log_stories.Append]:
    """A sandbox whose files are kept, deleted, put back and forked while commands run in it."""
    asked, stored = snapshot(box)
    restore = events.SandboxRestoreRequested(snapshot_id=f"{name}_1", plan={"a": 1})
    restored = events.SandboxRestored(snapshot_id=f"{name}_1", isolation=ISOLATION)
    yield [(box, box, log_stories.requested())]
    yield [(box, box, log_stories.created())]
    yield [(f"{name}_1", box, asked)]
    yield from log_stories.execution(box, f"prc_{name}_1")
    yield [(f"{name}_1", box, stored)]
    yield [(f"{name}_2", box, asked)]
    yield [(f"{name}_2", box, events.SnapshotFailed(code="internal", message="no"))]
    yield [(box, box, restore)]
    yield [(box, box, restored)]
    yield [(f"{name}_3", box, asked)]
    yield [(f"{name}_3", box, stored)]
    yield from [[(f"{name}_1", box, event)] for event in DELETED]
    fork = events.SandboxForkRequested(sandbox_ids=["sbx_f"])
    yield from [[("frk_1", box, event)] for event in (fork, events.SandboxForked(pause_ms=1.5))]
    yield from log_stories.ending(box)


@pytest.mark.parametrize("seed", range(3))
def test_the_state_after_any_event_is_what_it_was_then(tmp_path: Path, seed: int) -> None:
    """Of every sandbox, in a log of many at once, in one of which more ended than its view shows."""
    told = [
        *log_stories.tangle(seed, steps=150),
        *log_stories.crowded("sbx_big", seed),
        *snapshots_of("sbx_kept", "snp"),
    ]
    log_stories.write(str(tmp_path / "events.db"), told)
    log = EventLog.open(str(tmp_path / "events.db"))
    live, compared = State(), 0

    def visit(fact: Any) -> None:
        nonlocal compared
        live.apply(fact.event, fact)
        if fact.sandbox_id is not None and (fact.position % 5 == 0 or fact.sandbox_id == "sbx_kept"):
            then = log.reader.state_at(fact.sandbox_id, fact.position)
            assert shown(then, fact.sandbox_id) == shown(live, fact.sandbox_id), fact.position
            compared += 1

    log.scan(visit)
    log.close()
    assert compared > 50


async def test_between_two_of_its_events_it_is_what_it_was_after_the_first(tmp_path: Path) -> None:
    async with opened(tmp_path, Told) as told:
        await told.box("box")
        before = shown(told.state, "box")
        await told.box("other")
        assert shown(await told.log.state_at("box", told.log.head), "box") == before
        assert await told.log.count_between("box", 0, told.log.head) == 2
        assert await told.log.count_between("box", 1, told.log.head) == 1
        assert await told.log.count_between("box", 0, told.log.head, await told.log.time_of(1) - 1) == 0
        assert (await told.log.state_at("nobody", told.log.head)).sandboxes == {}


async def test_in_what_was_archived_nothing_is_guessed(tmp_path: Path) -> None:
    """Where events may be gone it is refused; later, only processes that ended long before are missing."""
    ended = RECENT_UNNAMED + 5
    lives = [log_stories.execution("box", f"prc_{n}") for n in range(ended)]
    begin: list[log_stories.Append] = [
        [("box", "box", log_stories.requested())],
        [("box", "box", log_stories.created())],
    ]
    log_stories.write(str(tmp_path / "events.db"), [*begin, *(append for life in lives for append in life)])
    async with opened(tmp_path, Told) as told:
        before, head = shown(told.state, "box"), told.log.head
        await told.compact()
        first = told.log.first_position
        assert first > 3
        with pytest.raises(DataError) as gone:
            await told.log.state_at("box", first - 1)
        assert (gone.value.code, gone.value.data["first"]) == ("compacted", first)
        assert shown(await told.log.state_at("box", head), "box") == before
        at_first = (await told.log.state_at("box", first)).sandboxes["box"]
        assert at_first.view().exec_count == live_count(first)


def live_count(position: int) -> int:
    """How many of the commands, three events each after the sandbox's two, had been launched."""
    return (position - 2 + 2) // 3


@pytest.mark.parametrize(
    ("where", "code"),
    [(0, "invalid"), (4, "invalid"), ("nonsense", "invalid"), ("log_other:1", "wrong_log"), ("{log}:0", "invalid"),
     ("{log}:9", "wrong_log")],
)  # fmt: skip
async def test_a_position_that_there_is_not_is_refused(tmp_path: Path, where: Any, code: str) -> None:
    async with opened(tmp_path, Told) as told:
        await told.box("box")
        assert (told.log.position_of(2, "at"), told.log.position_of(told.log.token(2), "at")) == (2, 2)
        if isinstance(where, str):
            where = where.replace("{log}", told.log.log_id)
        with pytest.raises(SandkeepError) as refused:
            told.log.position_of(where, "at")
        assert refused.value.code == code


# -- moments ----------------------------------------------------------------------------------------------------------


def snapshot(box: str | None, **more: Any) -> tuple[Event, Event]:
    asked = events.SnapshotCreateRequested(
        owner="uid:7", kind="full", format="tar.gz", places=[PLACE], sandbox_id=box, name="mine", **more
    )
    stored = events.SnapshotStored(digest="sha256:0", size_bytes=1, member_count=1, content_bytes=1, format="tar.gz")
    return asked, stored


def found(log: Log, box: str = "sbx_a") -> list[tuple[str, int, str]]:
    state = log.fold()
    return [(m.source_id, m.position, m.status) for m in moments(state, state.sandboxes[box])]


def used(log: Log, upto: int, box: str = "sbx_a") -> str | None:
    state = log.fold()
    moment = newest(moments(state, state.sandboxes[box]), upto)
    return moment.source_id if moment is not None else None


def keep(log: Log, name: str, box: str | None = "sbx_a", **more: Any) -> int:
    """A snapshot; the position at which it was stored."""
    asked, stored = snapshot(box, **more)
    log.add(name, asked, box)
    return log.add(name, stored, box)[1].position


def test_the_newest_at_or_before_is_used() -> None:
    """It counts from when it was stored, as of what happened until then any part may be in it."""
    log = Log()
    running_sandbox(log)
    first, second = keep(log, "snp_1"), keep(log, "snp_2")
    assert found(log) == [("snp_1", first, "ready"), ("snp_2", second, "ready")]
    assert [used(log, at) for at in (first - 1, first, second - 1, second, second + 99)] == [
        None, "snp_1", "snp_1", "snp_2", "snp_2",
    ]  # fmt: skip


def test_only_what_is_ready_is_used() -> None:
    log = Log()
    running_sandbox(log)
    first, deleted = keep(log, "snp_1"), keep(log, "snp_2")
    log.add("snp_2", DELETED[0], "sbx_a")
    assert used(log, 99) == "snp_1"
    log.add("snp_2", DELETED[1], "sbx_a")
    log.add("snp_3", snapshot("sbx_a")[0], "sbx_a")
    assert used(log, 99) == "snp_1"
    log.add("snp_3", events.SnapshotFailed(code="internal", message="no"), "sbx_a")
    assert found(log) == [("snp_1", first, "ready"), ("snp_2", deleted, "deleted")]


def test_snapshots_of_others_do_not_count() -> None:
    log = Log()
    for box in ("sbx_a", "sbx_b"):
        running_sandbox(log, box)
    keep(log, "snp_b", "sbx_b")
    keep(log, "snp_import", None)
    assert found(log) == []


def test_what_a_sandbox_began_with_or_was_given_is_a_moment_of_it() -> None:
    """Whosever snapshot it was, and however old: from then on it is nearer than one that was made between."""
    log = Log()
    running_sandbox(log, "sbx_b")
    of_b = keep(log, "snp_b", "sbx_b")
    log.add("sbx_a", requested_sandbox(restored_from="snp_b"), "sbx_a")
    began = log.add("sbx_a", events.SandboxCreated(isolation=ISOLATION), "sbx_a")[1].position
    kept = keep(log, "snp_a")
    log.add("sbx_a", events.SandboxRestoreRequested(snapshot_id="snp_b", plan={}), "sbx_a")
    restored = log.add("sbx_a", events.SandboxRestored(snapshot_id="snp_b", isolation=ISOLATION), "sbx_a")[1].position
    assert found(log) == [("snp_b", began, "ready"), ("snp_a", kept, "ready"), ("snp_b", restored, "ready")]
    assert [used(log, at) for at in (of_b, began, kept, restored - 1, restored)] == [
        None, "snp_b", "snp_a", "snp_a", "snp_b",
    ]  # fmt: skip


def test_a_restore_that_failed_is_no_moment() -> None:
    log = Log()
    running_sandbox(log)
    kept = keep(log, "snp_a")
    log.add("sbx_a", events.SandboxRestoreRequested(snapshot_id="snp_a", plan={}), "sbx_a")
    log.add("sbx_a", events.SandboxRestoreFailed(code="internal", message="no"), "sbx_a")
    assert found(log) == [("snp_a", kept, "ready")]


def test_a_fork_begins_without_moments() -> None:
    log = Log()
    running_sandbox(log)
    keep(log, "snp_a")
    log.add("sbx_f", requested_sandbox(forked_from="sbx_a"), "sbx_f")
    log.add("sbx_f", events.SandboxCreated(isolation=ISOLATION), "sbx_f")
    assert found(log, "sbx_f") == []


def test_snapshots_count_when_the_sandbox_has_ended() -> None:
    log = Log()
    running_sandbox(log)
    keep(log, "snp_a")
    log.add("sbx_a", events.SandboxTerminateRequested(reason="requested"), "sbx_a")
    log.add("sbx_a", events.SandboxTerminated(reason="requested"), "sbx_a")
    assert used(log, 99) == "snp_a"


def test_by_time_the_last_in_the_log_of_those_at_or_before_is_used() -> None:
    """Also where a clock was set back."""
    log = Log()
    running_sandbox(log)
    first, second = keep(log, "snp_1"), keep(log, "snp_2")
    state = log.fold()
    found = moments(state, state.sandboxes["sbx_a"])
    times = {at: log.facts[at - 1][1].time_us for at in (first, second)}
    assert [m.source_id for m in (newest(found, 99, times[first]), newest(found, 99, times[second])) if m] == [
        "snp_1", "snp_2",
    ]  # fmt: skip
    assert newest(found, 99, times[first] - 1) is None


def test_one_that_leaves_out_files_says_so() -> None:
    log = Log()
    running_sandbox(log)
    keep(log, "snp_1", include=["src"])
    state = log.fold()
    assert [m.view().partial for m in moments(state, state.sandboxes["sbx_a"])] == [True]
