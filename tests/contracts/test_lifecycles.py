"""The lifecycles: whatever happens to an object, the tables, the rules and the views agree."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.contracts.test_golden_events import newest
from tests.store.views.test_views import Log, running_sandbox
from tests.support import replay

from sandkeep import model
from sandkeep.errors import StateError
from sandkeep.events import EVENTS, CheckpointCreateRequested, Event
from sandkeep.lifecycle import (
    ARTIFACT,
    CHECKPOINT,
    COMMIT,
    FORK,
    IMAGE,
    LIFECYCLES,
    LOCK,
    MERGE,
    PROCESS,
    SANDBOX,
    SESSION,
    SNAPSHOT,
    VOLUME,
    Before,
    Keep,
    Lifecycle,
    Row,
)
from sandkeep.protocol.methods import CheckpointCreate
from sandkeep_store.eventlog.codec import CODEC
from sandkeep_store.eventlog.log import EventLog
from sandkeep_store.views.state import State
from sandkeepd.core import rules

OF_NO_OBJECT = ("archive.", "daemon.", "log.", "output.", "provider.")
FIELDS = {row.field for kind in LIFECYCLES for row in kind.rows if row.field is not None}
PLACE = model.Place(where="state", base="/base", path="x", uri="/base/x")

each_kind = pytest.mark.parametrize("kind", LIFECYCLES, ids=lambda kind: kind.noun)


def objects(state: State, kind: Lifecycle[Any]) -> dict[str, Any]:
    """Return the objects of a kind in the views, by stream."""
    held: dict[Lifecycle[Any], dict[str, Any]] = {
        SANDBOX: state.sandboxes, PROCESS: state.processes, SNAPSHOT: state.snapshots, CHECKPOINT: state.checkpoints,
        FORK: state.forks, IMAGE: state.images, LOCK: state.locks, SESSION: state.sessions,
        ARTIFACT: state.artifacts, VOLUME: state.volumes, MERGE: state.merges, COMMIT: state.commits,
    }  # fmt: skip
    return held[kind]


def example(row: Row[Any]) -> Event:
    """An event of a row."""
    kind = EVENTS[row.event]
    event = CODEC.decode(1, kind.type, kind.version, newest(kind).data)
    given_by = {field: field == row.field for field in FIELDS.intersection(kind.__struct_fields__)}
    made: Event = replace(event, **given_by)
    return made


def is_of(kind: Lifecycle[Any], event: str) -> bool:
    """Return True if an event is in the streams of a kind; others are done with such an object."""
    elsewhere = {row.event for other in LIFECYCLES if other is not kind for row in other.rows}
    return event not in {*elsewhere, "sandbox.file_written"} if kind is SANDBOX else True


class Walk:
    """One object, the events that happen to it, and the state that it is in by the table."""

    def __init__(self, kind: Lifecycle[Any]) -> None:
        self.kind = kind
        self.log = Log()
        running_sandbox(self.log, "sbx_other")
        asked = CODEC.decode(1, "checkpoint.create_requested", 1, newest(CheckpointCreateRequested).data)
        self.log.add("ckp_other", replace(asked, sandbox_id="sbx_a"), "sbx_a")
        self.state = self.log.fold()
        self.stream = "sbx_a" if kind is SANDBOX else "x"
        self.sandbox_id = self.stream if kind is SANDBOX else "sbx_other"
        self.now: Any = None
        self.before: dict[str, Any] = {}

    @property
    def subject(self) -> Any:
        return objects(self.state, self.kind).get(self.stream)

    def step(self, row: Row[Any]) -> None:
        """Apply the event of a row."""
        stream = self.stream if is_of(self.kind, row.event) else f"elsewhere_{len(self.log.facts)}"
        self.log.add(stream, example(row), self.sandbox_id)
        self.log.fold(self.state)
        self.before[row.event] = self.now
        if isinstance(row.target, Before):
            self.now = self.before.get(row.target.intent) or self.now
        elif row.target is not Keep.SAME:
            self.now = row.target


def accepts(decide: Callable[[], object]) -> bool:
    """Return True if a rule allows the command."""
    try:
        return decide() is not False
    except StateError:
        return False


def decisions(walk: Walk) -> dict[str, Callable[[], object]]:
    """The rules that decide whether an intent may follow, besides `rules.may`."""
    subject, state = walk.subject, walk.state
    if walk.kind is IMAGE and subject.published:
        return {}  # it is in use
    if walk.kind is IMAGE:
        return {"image.remove_requested": lambda: rules.remove_image(state, walk.stream, []) is not None}
    if walk.kind is not SANDBOX:
        return {}
    checkpoint = state.checkpoints["ckp_other"]
    decide: dict[str, Callable[[], object]] = {
        "process.launch_requested": lambda: rules.require_running(subject),
        "checkpoint.create_requested": lambda: rules.create_checkpoint(
            subject, CheckpointCreate(sandbox_id="sbx_a"), PLACE, {}
        ),
        "sandbox.restore_requested": lambda: rules.return_to(subject, checkpoint),
    }
    if subject.made:  # one that was never made has no files
        decide["snapshot.create_requested"] = decide["sandbox.fork_requested"] = lambda: rules.require_files(subject)
        decide["sandbox.resume_requested"] = lambda: rules.revive(subject, subject.requested.secrets, can_revive=True)
    return decide


def test_every_event_of_an_object_is_in_a_table() -> None:
    told = {row.event for kind in LIFECYCLES for row in kind.rows}
    assert told == {event for event in EVENTS if not event.startswith(OF_NO_OBJECT)}


@each_kind
def test_every_state_is_reached(kind: Lifecycle[Any]) -> None:
    assert {row.target for row in kind.rows if isinstance(row.target, str)} == {*kind.states}


@each_kind
def test_the_outcomes_of_an_intent_may_follow_it(kind: Lifecycle[Any]) -> None:
    """So nothing that is begun has to stay so."""
    for intent, state in kind.targets.items():
        for outcome in EVENTS[intent].outcomes:
            assert state in kind.sources[outcome], (intent, outcome)


@each_kind
@given(data=st.data())
@settings(deadline=None)
def test_rules_and_views_go_by_the_table(kind: Lifecycle[Any], data: st.DataObject) -> None:
    walk = Walk(kind)
    for _ in range(data.draw(st.integers(1, 25))):
        if walk.now is None:
            assert walk.subject is None
        else:
            assert walk.subject.status == walk.now
            assert {event for event in kind.sources if rules.may(walk.subject, event)} == allowed(walk)
            for event, decide in decisions(walk).items():
                assert accepts(decide) == (event in allowed(walk)), event
        rows = [row for row in kind.rows if row.event in allowed(walk)]
        if not rows:
            assert walk.now in kind.final
            return
        walk.step(data.draw(st.sampled_from(rows)))


def allowed(walk: Walk) -> set[str]:
    """The events that may follow by the table."""
    return {event for event, sources in walk.kind.sources.items() if walk.now in sources}


@each_kind
@given(data=st.data())
@settings(deadline=None)
def test_a_log_of_other_rules_is_folded_all_the_same(kind: Lifecycle[Any], data: st.DataObject) -> None:
    """Once there is an object, whatever is told of it leads where the table says, in whatever state it is."""
    walk = Walk(kind)
    for row in data.draw(st.lists(st.sampled_from(kind.rows), max_size=12)):
        is_there = walk.subject is not None
        walk.step(row)
        if is_there or None in row.sources:
            assert walk.subject is None or isinstance(row.target, Before) or walk.subject.status == walk.now
        walk.now = walk.subject.status if walk.subject is not None else None


@pytest.mark.parametrize("kept", sorted(replay.LOGS.iterdir()), ids=lambda path: path.name)
def test_what_daemons_wrote_follows_the_tables(kept: Path, tmp_path: Path) -> None:
    replay.unpack(kept, tmp_path)
    assert replay.opened(tmp_path, strays) == []


def strays(log: EventLog) -> list[tuple[int, str, str]]:
    """The events of a log that no table has follow in the state that their object was in.

    `keep_log` adds what no daemon told, in streams that it calls ``_x``: there anything follows.
    """
    state = State()
    found: list[tuple[int, str, str]] = []

    def follow(fact: Any) -> None:
        for kind in LIFECYCLES:
            subject = objects(state, kind).get(fact.stream) if is_of(kind, fact.type) else None
            sources = kind.sources.get(fact.type)
            made_up = "_x" in fact.stream
            if subject is not None and sources is not None and subject.status not in sources and not made_up:
                found.append((fact.position, fact.type, subject.status))
        state.apply(fact.event, fact)

    log.scan(follow)
    return found
