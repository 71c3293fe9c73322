"""Folding quickly, from the start or from a cached fold: the state is always that of every event, one by one."""

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support import log_stories

from sandkeep import events
from sandkeep_store.eventlog.log import EventLog
from sandkeep_store.upkeep import offline, state_cache
from sandkeep_store.views.metadata import document
from sandkeep_store.views.processes import RECENT_NAMED, RECENT_UNNAMED
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.state import State


@pytest.fixture
def tangled(tmp_path: Path) -> Iterator[EventLog]:
    log_stories.write(str(tmp_path / "events.db"), log_stories.tangle(1))
    log = EventLog.open(str(tmp_path / "events.db"))
    yield log
    log.close()


def same(one: State, other: State, log: EventLog) -> bool:
    """Whether two states are equal to the last bit, their order and documents included."""
    assert list(one.processes) == list(other.processes)
    documents = [[document(s, log.log_id) for s in state.sandboxes.values()] for state in (one, other)]
    assert documents[0] == documents[1]
    return list(state_cache.records(one, log)) == list(state_cache.records(other, log))


@pytest.mark.parametrize("seed", range(6))
def test_folding_quickly_equals_applying_every_event(tmp_path: Path, seed: int) -> None:
    log_stories.write(str(tmp_path / "events.db"), [*log_stories.tangle(seed), *log_stories.crowded("sbx_big", seed)])
    log = EventLog.open(str(tmp_path / "events.db"))
    quick = offline.fold(log)
    assert same(quick, log_stories.applied(log), log)
    assert max(len(s.recent_unnamed) for s in quick.sandboxes.values()) == RECENT_UNNAMED
    assert max(len(s.recent_named) for s in quick.sandboxes.values()) == RECENT_NAMED
    log.close()


def test_from_a_cached_fold_at_any_position_the_state_is_the_same(tangled: EventLog, tmp_path: Path) -> None:
    truth = log_stories.applied(tangled)
    for position in range(1, tangled.head, tangled.head // 20):
        state_cache.save(str(tmp_path), log_stories.applied(tangled, position), tangled)
        cached = state_cache.load(str(tmp_path), tangled)
        assert cached is not None
        assert cached.position == cached.cached_upto == position
        assert same(cached, log_stories.applied(tangled, position), tangled)
        state_cache.catch_up(cached, tangled)
        assert same(cached, truth, tangled)


def test_everything_of_a_sandbox_is_kept() -> None:
    kept = {*state_cache._OWN_NAMES, *state_cache._REFERENCES, *state_cache._NOT_KEPT}
    assert kept == {field.name for field in msgspec.structs.fields(SandboxState)}


def _flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def _flipped(at: int) -> Callable[[Path], None]:
    return lambda path: _flip(path, at)


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _cut_within_the_first_line(path: Path) -> None:
    os.truncate(path, 10)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (_flipped(0), "no such file"),
        (_flipped(len(state_cache._MAGIC)), "damaged"),
        (_flipped(len(state_cache._MAGIC) + 40), "damaged"),
        (_flipped(-1), "damaged"),
        (_cut, "damaged"),
        (_cut_within_the_first_line, "no such file"),
        (_directory, "Is a directory"),
    ],
)
def test_what_is_damaged_is_passed_over_with_one_line(
    tangled: EventLog, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], None], why: str
) -> None:
    state_cache.save(str(tmp_path), offline.fold(tangled), tangled)
    damage(tmp_path / state_cache.FILE_NAME)
    with caplog.at_level(logging.INFO):
        assert state_cache.load(str(tmp_path), tangled) is None
    (line,) = caplog.records
    assert why in line.why  # type: ignore[attr-defined]


def test_of_another_version_of_the_code_it_is_passed_over(
    tangled: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_cache.save(str(tmp_path), offline.fold(tangled), tangled)
    monkeypatch.setattr(state_cache, "fingerprint", lambda: "other")
    assert state_cache.load(str(tmp_path), tangled) is None


def test_of_another_log_it_is_passed_over(tangled: EventLog, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    log_stories.write(str(tmp_path / "other" / "events.db"), log_stories.tangle(1))
    other = EventLog.open(str(tmp_path / "other" / "events.db"))
    state_cache.save(str(tmp_path), offline.fold(other), other)
    assert state_cache.load(str(tmp_path), tangled) is None
    other.close()


def test_of_a_future_that_the_log_lost_it_is_passed_over(tmp_path: Path) -> None:
    """Also when the log has reached that position again meanwhile, with other events."""
    path = str(tmp_path / "events.db")
    appends = list(log_stories.tangle(1))
    log_stories.write(path, appends[:100])
    log = EventLog.open(path)
    lost = log.head
    state_cache.save(str(tmp_path), offline.fold(log), log)
    log._database.reopen(50)
    log.close()
    log = EventLog.open(path)
    assert state_cache.load(str(tmp_path), log) is None
    log.close()
    log_stories.write(path, [[("img_2", None, events.ImageRemoved())]] * (lost - 50), every_us=7)
    log = EventLog.open(path)
    assert log.head == lost
    assert state_cache.load(str(tmp_path), log) is None
    log.close()


def test_verify_compares_it_with_the_log(tangled: EventLog, tmp_path: Path) -> None:
    truth = offline.fold(tangled)
    state_cache.save(str(tmp_path), truth, tangled)
    assert state_cache.difference(str(tmp_path), tangled, truth) == []
    forged = log_stories.applied(tangled)
    next(iter(forged.sandboxes.values())).exec_count += 1
    state_cache.save(str(tmp_path), forged, tangled)
    (problem,) = state_cache.difference(str(tmp_path), tangled, truth)
    assert "differs from the log" in problem
    tangled.close()
    assert problem in offline.verify(str(tmp_path)).problems


def test_a_disk_without_room_leaves_the_older_one(
    tangled: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = offline.fold(tangled)
    state_cache.save(str(tmp_path), state, tangled)
    before = (tmp_path / state_cache.FILE_NAME).read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        state_cache.save(str(tmp_path), state, tangled)
    assert (tmp_path / state_cache.FILE_NAME).read_bytes() == before
    assert not (tmp_path / f"{state_cache.FILE_NAME}.new").exists()
