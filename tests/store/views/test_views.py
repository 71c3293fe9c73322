"""The views: what each event does to them, that they are bounded, and that folding anew gives the same bytes."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.golden import EXAMPLES

from sandkeep import events, model
from sandkeep_store.eventlog.codec import CODEC
from sandkeep_store.views.metadata import document
from sandkeep_store.views.processes import RECENT_NAMED, RECENT_UNNAMED
from sandkeep_store.views.state import State
from sandkeep_store.views.view import HANDLERS

SPEC = model.SandboxSpec()
ISOLATION = model.Isolation(mechanism="fake", files="copy")


@dataclass
class Fact:
    position: int
    time_us: int
    stream: str
    revision: int
    sandbox_id: str | None


class Log:
    """Events in order, as a log would hand them out."""

    def __init__(self) -> None:
        self.facts: list[tuple[events.Event, Fact]] = []
        self.revisions: dict[str, int] = {}

    def add(self, stream: str, event: events.Event, sandbox_id: str | None = None) -> tuple[events.Event, Fact]:
        revision = self.revisions[stream] = self.revisions.get(stream, 0) + 1
        position = len(self.facts) + 1
        fact = Fact(position, 1_700_000_000_000_000 + position * 1000, stream, revision, sandbox_id)
        self.facts.append((event, fact))
        return event, fact

    def fold(self, state: State | None = None) -> State:
        state = state or State()
        for event, fact in self.facts[state.position :]:
            state.apply(event, fact)
        return state


def requested_sandbox(**more: Any) -> events.SandboxCreateRequested:
    return events.SandboxCreateRequested(owner="uid:7", image_id="img_1", provider="fake", spec=SPEC, **more)


def launch(sandbox_id: str, name: str | None) -> events.ProcessLaunchRequested:
    return events.ProcessLaunchRequested(sandbox_id=sandbox_id, name=name, command=["true"])


def running_sandbox(log: Log, sandbox_id: str = "sbx_a") -> None:
    log.add(sandbox_id, requested_sandbox(), sandbox_id)
    log.add(sandbox_id, events.SandboxCreated(isolation=ISOLATION, handle={"pid": 3}), sandbox_id)


def ended(log: Log, process_id: str, name: str | None, code: int = 0) -> None:
    log.add(process_id, launch("sbx_a", name), "sbx_a")
    log.add(process_id, events.ProcessStarted(pid=5), "sbx_a")
    log.add(process_id, events.ProcessExited(exit_code=code, stdout_bytes=1, stderr_bytes=2), "sbx_a")


def test_every_event_has_a_handler() -> None:
    assert {kind.type for kind in HANDLERS} == set(events.EVENTS)


def test_the_life_of_an_image() -> None:
    log = Log()
    log.add("img_1", events.ImageCreateRequested(owner="uid:7", provider="fake", kind="directory", source="/src"))
    state = log.fold()
    assert state.images["img_1"].view().status == "creating"
    log.add("img_1", events.ImageCreated(digest="sha256:0", size_bytes=10, file_count=2))
    assert log.fold(state).images["img_1"].view().size_bytes == 10
    assert state.owner_of("img_1", None) == "uid:7"
    log.add("img_1", events.ImageRemoveRequested())
    log.add("img_1", events.ImageRemoved())
    assert log.fold(state).images["img_1"].view().status == "removed"


def test_a_snapshot_of_the_oldest_daemons_is_where_they_said_in_the_end() -> None:
    asked, stored = (
        next(e for e in EXAMPLES if (e.type, e.number) == (type, 1))
        for type in ("snapshot.create_requested", "snapshot.stored")
    )
    log = Log()
    log.add("snp_1", CODEC.decode(1, asked.type, asked.version, asked.data))
    assert [place.where for place in log.fold().snapshots["snp_1"].traces] == ["gcs"]
    at_last = CODEC.decode(2, stored.type, stored.version, stored.data)
    assert isinstance(at_last, events.SnapshotStored)
    here = model.Place(where="state", base="/base", path="a.tar.gz", uri="/base/a.tar.gz")
    log.add("snp_1", replace(at_last, places=[*(at_last.places or ()), here]))
    view = log.fold().snapshots["snp_1"].view()
    assert [place.where for place in view.places] == ["gcs", "state"]


def test_the_life_of_a_sandbox() -> None:
    log = Log()
    running_sandbox(log)
    state = log.fold()
    sandbox = state.sandboxes["sbx_a"]
    assert (sandbox.view().status, sandbox.handle) == ("running", {"pid": 3})
    assert [user.sandbox_id for user in state.image_users("img_1")] == ["sbx_a"]
    log.add("sbx_a", events.SandboxTerminateRequested(reason="requested"), "sbx_a")
    assert log.fold(state).sandboxes["sbx_a"].view().status == "stopping"
    log.add("sbx_a", events.SandboxTerminated(reason="requested"), "sbx_a")
    view = log.fold(state).sandboxes["sbx_a"].view()
    assert (view.status, view.terminated_reason, view.position) == ("stopped", "requested", 4)
    assert view.ended_at is not None
    assert not list(state.image_users("img_1"))


def test_a_sandbox_is_suspended_and_resumed() -> None:
    log = Log()
    running_sandbox(log)
    steps = (
        (events.SandboxSuspendRequested(), "suspending"),
        (events.SandboxSuspendFailed(code="internal", message="no"), "running"),
        (events.SandboxSuspendRequested(), "suspending"),
        (events.SandboxSuspended(), "suspended"),
        (events.SandboxResumeRequested(), "resuming"),
        (events.SandboxResumeFailed(code="internal", message="no"), "suspended"),
        (events.SandboxResumed(outside=True), "running"),
        (events.SandboxSuspended(outside=True), "suspended"),
    )
    state = log.fold()
    for event, status in steps:
        log.add("sbx_a", event, "sbx_a")
        assert log.fold(state).sandboxes["sbx_a"].view().status == status
    assert state.sandboxes["sbx_a"].handle == {"pid": 3}


def test_a_sandbox_that_was_lost_is_started_anew() -> None:
    log = Log()
    running_sandbox(log)
    log.add("sbx_a", events.SandboxLost(last_status="running", message="gone"), "sbx_a")
    log.add("sbx_a", events.SandboxResumeRequested(anew=True), "sbx_a")
    log.add("sbx_a", events.SandboxResumeFailed(code="internal", message="no"), "sbx_a")
    state = log.fold()
    sandbox = state.sandboxes["sbx_a"]
    assert (sandbox.view().status, sandbox.view().error, sandbox.ended_us is None) == ("lost", "gone", False)
    log.add("sbx_a", events.SandboxResumeRequested(anew=True), "sbx_a")
    other = model.Isolation(mechanism="fake", files="overlay")
    log.add("sbx_a", events.SandboxResumed(isolation=other, handle={"pid": 4}), "sbx_a")
    log.fold(state)
    assert (sandbox.view().status, sandbox.view().error, sandbox.ended_us) == ("running", None, None)
    assert (sandbox.handle, sandbox.view().isolation) == ({"pid": 4}, other)


def test_a_sandbox_that_was_never_made_has_no_document_and_needs_no_image() -> None:
    log = Log()
    log.add("sbx_a", requested_sandbox(), "sbx_a")
    state = log.fold()
    assert document(state.sandboxes["sbx_a"], "log") is None
    assert list(state.image_users("img_1"))  # it is about to need it
    log.add("sbx_a", events.SandboxCreateFailed(code="internal", message="no"), "sbx_a")
    sandbox = log.fold(state).sandboxes["sbx_a"]
    assert sandbox.hidden
    assert document(sandbox, "log") is None
    assert not list(state.image_users("img_1"))


def test_the_life_of_a_process() -> None:
    log = Log()
    running_sandbox(log)
    log.add("prc_1", launch("sbx_a", "web"), "sbx_a")
    state = log.fold()
    process = state.processes["prc_1"]
    assert process.view().status == "starting"
    assert state.sandboxes["sbx_a"].named["web"] is process
    log.add("prc_1", events.ProcessStarted(pid=12), "sbx_a")
    log.add("prc_1", events.ProcessSignalled(signal="TERM"), "sbx_a")
    log.add("prc_1", events.ProcessTimedOut(timeout_s=1.0), "sbx_a")
    log.add("prc_1", events.ProcessExited(exit_code=137, stdout_bytes=4, stderr_bytes=0), "sbx_a")
    view = log.fold(state).processes["prc_1"].view()
    assert (view.status, view.pid, view.exit_code, view.timed_out, view.last_signal) == (
        "exited",
        12,
        137,
        True,
        "TERM",
    )
    assert state.sandboxes["sbx_a"].view().running_processes == 0


@pytest.mark.parametrize(("named", "limit"), [(True, RECENT_NAMED), (False, RECENT_UNNAMED)])
def test_ended_processes_leave_the_view(named: bool, limit: int) -> None:
    log = Log()
    running_sandbox(log)
    for number in range(limit + 10):
        ended(log, f"prc_{number}", f"name-{number}" if named else None)
    state = log.fold()
    assert len(state.processes) == limit
    assert "prc_9" not in state.processes
    assert "prc_10" in state.processes
    sandbox = state.sandboxes["sbx_a"]
    assert len(sandbox.named) == (limit if named else 0)
    assert sandbox.exec_count == (0 if named else limit + 10)
    assert not sandbox.active


def test_late_facts_of_a_process_that_left_the_view_are_passed_over() -> None:
    log = Log()
    running_sandbox(log)
    for number in range(RECENT_UNNAMED + 1):
        ended(log, f"prc_{number}", None)
    log.add("prc_0", events.ProcessSignalled(signal="KILL"), "sbx_a")
    log.add("prc_0", events.ProcessLost(message="?"), "sbx_a")
    assert log.fold().position == len(log.facts)


NAMES = st.sampled_from(["web", "db", None])


class Story:
    """Draws a random but possible log."""

    def __init__(self, draw: Any) -> None:
        self.draw = draw
        self.log = Log()
        self.running: list[tuple[str, str]] = []
        self.count = 0

    def step(self) -> None:
        sandbox_id = self.draw(st.sampled_from(["sbx_a", "sbx_b"]))
        if sandbox_id not in self.log.revisions:
            running_sandbox(self.log, sandbox_id)
        action = self.draw(
            st.sampled_from(["launch", "exit", "signal", "lost", "adopt", "fail", "end", "pause", "revive"])
        )
        getattr(self, action)(sandbox_id)

    def launch(self, sandbox_id: str) -> None:
        self.count += 1
        process_id = f"prc_{self.count}"
        self.log.add(process_id, launch(sandbox_id, self.draw(NAMES)), sandbox_id)
        self.log.add(process_id, events.ProcessStarted(pid=self.count), sandbox_id)
        self.running.append((process_id, sandbox_id))

    def _finish(self, event: events.Event) -> None:
        if self.running:
            process_id, sandbox_id = self.running.pop(self.draw(st.integers(0, len(self.running) - 1)))
            self.log.add(process_id, event, sandbox_id)

    def exit(self, _: str) -> None:
        self._finish(events.ProcessExited(exit_code=self.draw(st.integers(0, 255)), stdout_bytes=3, stderr_bytes=0))

    def lost(self, _: str) -> None:
        self._finish(events.ProcessLost(message="gone"))

    def signal(self, _: str) -> None:
        if self.running:
            self.log.add(self.running[0][0], events.ProcessSignalled(signal="HUP"), self.running[0][1])

    def adopt(self, sandbox_id: str) -> None:
        self.log.add(sandbox_id, events.SandboxAdopted(), sandbox_id)

    def fail(self, sandbox_id: str) -> None:
        self.log.add(sandbox_id, events.SandboxFailed(message="it died"), sandbox_id)

    def pause(self, sandbox_id: str) -> None:
        """Orders that are carried out or fail, or are only begun, and what others do."""
        some = st.sampled_from((
            events.SandboxSuspendRequested(), events.SandboxSuspended(), events.SandboxResumeRequested(),
            events.SandboxSuspendFailed(code="internal", message="no"), events.SandboxSuspended(outside=True),
            events.SandboxResumed(), events.SandboxResumeFailed(code="internal", message="no", interrupted=True),
        ))  # fmt: skip
        for _ in range(self.draw(st.integers(1, 4))):
            self.log.add(sandbox_id, self.draw(some), sandbox_id)

    def revive(self, sandbox_id: str) -> None:
        self.log.add(sandbox_id, events.SandboxResumeRequested(anew=True), sandbox_id)
        self.log.add(sandbox_id, events.SandboxResumed(isolation=ISOLATION, handle={"pid": 4}), sandbox_id)

    def end(self, sandbox_id: str) -> None:
        self.log.add(sandbox_id, events.SandboxTerminateRequested(reason="requested"), sandbox_id)
        self.log.add(sandbox_id, events.SandboxTerminated(reason="requested"), sandbox_id)


@st.composite
def stories(draw: Any) -> tuple[Log, list[int]]:
    story = Story(draw)
    for _ in range(draw(st.integers(1, 60))):
        story.step()
    looks = draw(st.lists(st.integers(0, len(story.log.facts)), max_size=6))
    return story.log, sorted(looks)


def documents(state: State) -> dict[str, bytes | None]:
    return {sandbox_id: document(sandbox, "log") for sandbox_id, sandbox in state.sandboxes.items()}


@given(stories())
@settings(max_examples=150, deadline=None)
def test_incremental_equals_rebuilt(story: tuple[Log, list[int]]) -> None:
    """Looking at the documents on the way, in whatever steps, changes nothing about what they are at the end."""
    log, looks = story
    state = State()
    for look in looks:
        for event, fact in log.facts[state.position : look]:
            state.apply(event, fact)
            for sandbox in state.sandboxes.values():
                assert sandbox.view() == sandbox._look()
        documents(state)
    assert documents(log.fold(state)) == documents(log.fold())


@given(stories())
@settings(max_examples=50, deadline=None)
def test_the_document_names_the_last_event_of_its_sandbox(story: tuple[Log, list[int]]) -> None:
    log, _ = story
    for sandbox_id, sandbox in log.fold().sandboxes.items():
        assert sandbox.position == max(fact.position for _, fact in log.facts if fact.sandbox_id == sandbox_id)
