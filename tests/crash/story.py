"""What a client asks of a daemon that may die at any moment, what it is told, and what must be true afterwards."""

import contextlib
import math
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from tests.conftest import ENGINES, RunningDaemon, daemon_in
from tests.support.expect import until
from tests.support.patience import patient

from sandkeep import failpoints, transfer
from sandkeep.errors import SandkeepError
from sandkeep.events import EVENTS
from sandkeep.ids import new_id
from sandkeep.protocol.methods import METHODS
from sandkeep.settings.daemon import UID_REGISTRY
from sandkeep_store.eventlog.log import Recorded
from sandkeep_store.upkeep import offline
from sandkeepd.host.uids.registry import Registry

LINES = 300
COUNT = f'i=0; while [ $i -lt {LINES} ]; do echo "line $i"; i=$((i+1)); done; exit 7'
COUNTED = b"".join(b"line %d\n" % number for number in range(LINES))
PATIENCE_S = patient(120.0)
TURN_S = 600.0
"""Seconds that a test waits until its story has had its turn among others and is told."""

Told = Callable[..., "Story"]
"""Waits for the story of a test's parameters."""


class Story:
    """One client's dealings with a daemon, which dies at each of `points` once, in that order.

    `acknowledged` are the command_ids that were answered well, `died_at` the points that the daemon has reached.
    """

    def __init__(self, daemon: RunningDaemon, points: Sequence[str] = ()) -> None:
        self.daemon = daemon
        self.acknowledged: dict[str, str] = {}
        self.sandboxes: list[str] = []
        self.died_at: list[str] = []
        self.expect(points)
        self._deadline = time.monotonic() + PATIENCE_S

    # -- asking -------------------------------------------------------------------------------------------------------

    def expect(self, points: Sequence[str]) -> None:
        """Have the daemon die at these points from its next start on, as if it had not died before."""
        self.died_at.clear()
        self._points = [*points]
        self._arm()

    def _arm(self) -> None:
        self.daemon.env.pop(failpoints.SETTING, None)
        if self._points:
            self.daemon.env[failpoints.SETTING] = self._points.pop(0)

    def revive(self) -> None:
        """Start the daemon again if it is dead, from now on with the next failpoint."""
        assert self.daemon.process is not None
        self.daemon.process.wait(patient(60))
        self.daemon.process = None
        self._has_died()
        self.start()

    def _has_died(self) -> None:
        assert failpoints.SETTING in self.daemon.env, self.daemon.said()
        self.died_at.append(self.daemon.env[failpoints.SETTING])
        self._arm()

    def start(self) -> None:
        """Start the daemon, again if it dies of that."""
        try:
            self.daemon.start()
        except RuntimeError:
            if failpoints.SETTING not in self.daemon.env:
                raise
            self.revive()

    def stop(self) -> None:
        """Stop the daemon in good order, once its trash is empty; it may die meanwhile."""
        process = self.daemon.process
        assert process is not None
        until(lambda: process.poll() is not None or not trash(self.daemon.state_dir), patient(60))
        if self.daemon.stop() == -signal.SIGKILL:
            self._has_died()

    def lost(self) -> bool:
        """Whether the daemon has died, or is about to."""
        assert self.daemon.process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.daemon.process.wait(patient(30))  # a busy machine takes long to clear a killed process away
        return self.daemon.process.poll() is not None

    def ask(self, method: str, *args: Any, **params: Any) -> Any:
        """Call a method until it is answered, always with one command_id."""
        noun, _, verb = method.partition(".")
        command_id = new_id("cmd")
        while self._goes_on():
            try:
                with self.daemon.connect(patience_s=0) as client:  # nobody else starts it again
                    answer = getattr(getattr(client, noun), verb)(*args, command_id=command_id, **params)
            except SandkeepError:
                if not self.lost():
                    raise
                self.revive()
            else:
                self.acknowledged[command_id] = method
                return answer
        return None

    def look(self, work: Callable[[Any], Any]) -> Any:
        """Read something, however often the daemon dies of it."""
        while self._goes_on():
            try:
                with self.daemon.connect(patience_s=0) as client:  # nobody else starts it again
                    return work(client)
            except SandkeepError:
                if not self.lost():
                    raise
                self.revive()
        return None

    def _goes_on(self) -> bool:
        assert time.monotonic() < self._deadline, "the story does not come to its end"
        return True

    # -- the story ----------------------------------------------------------------------------------------------------

    def tell(
        self, source: str, interlude: Callable[[], None] = lambda: None, *, suspends: bool = False,
        updates: bool = True, reference: str | None = None, **image_of: Any,
    ) -> None:  # fmt: skip
        """All that a sandbox can go through. In the `interlude` something runs in it. `image_of` is how its image is
        made, of `source` or of a `reference`; it is suspended in between, and a limit of it is changed, if that can be.
        """
        image = self.ask("image.create", reference or source, **image_of)
        box = self.ask("sandbox.create", image.image_id, secrets={"KEY": "s3cret"}).sandbox_id
        self.sandboxes.append(box)
        self.ask("sandbox.write_file", box, path="note", data=b"noted")
        self.look(lambda client: transfer.copy_in(client, source, box, "copied"))
        self.ask("process.launch", box, name="cat", command=["cat"], stdin=True)
        self.ask("process.write_stdin", box, name="cat", data=b"typed\n")
        # Nothing has ended so far: of what is written just as the daemon dies of an end nobody knows what was taken.
        self.ask("process.launch", box, name="count", command=COUNT)
        ran = self.ask("sandbox.exec", box, ["sh", "-c", "echo out; echo err >&2; echo x >>ran; exit 3"])
        assert (ran.exit_code, ran.stdout, ran.stderr) == (3, b"out\n", b"err\n")
        interlude()
        self.until_output(box, "cat", b"typed\n")
        if updates:
            assert self.ask("sandbox.update", box, pids=400).spec.pids == 400
        if suspends:
            assert self.ask("sandbox.suspend", box).status == "suspended"
            assert self.ask("sandbox.resume", box).status == "running"
        self.ask("process.signal", box, name="cat", signal="TERM")
        assert self.look(lambda client: client.process.wait(box, "cat")).exit_code == 128 + signal.SIGTERM
        assert self.look(lambda client: client.process.wait(box, "count")).exit_code == 7
        assert self.output(box, "count") == COUNTED
        assert self.output(box, "cat") == b"typed\n"
        assert self.look(lambda client: client.sandbox.read_file(box, path="note")).data == b"noted"
        assert self.look(lambda client: client.sandbox.read_file(box, path="ran")).data == b"x\n"
        self.look(lambda client: client.store.rebuild())
        self.ask("sandbox.terminate", box)
        self.ask("image.remove", image.image_id)

    def until_output(self, box: str, name: str, wanted: bytes) -> None:
        """Wait until a process has written that."""
        until(lambda: self.output(box, name) == wanted, seen=lambda: (self.output(box, name), wanted))

    def output(self, box: str, name: str) -> bytes:
        """What a process has written to stdout so far."""

        def read(client: Any) -> bytes:
            return b"".join(piece.stdout for piece in client.read_output(box, name, follow=False))

        return bytes(self.look(read))


@contextlib.contextmanager
def story_in(places: str, points: Sequence[str], **environment: str) -> Iterator[Story]:
    """A story of a daemon that is not started yet. What the story leaves, or leaves out, ends with the block."""
    with daemon_in(places, **environment) as daemon:
        try:
            yield Story(daemon, points)
        finally:
            daemon.env.pop(failpoints.SETTING, None)


@contextlib.contextmanager
def side_by_side(
    tell: Callable[..., Story],
    cases: list[dict[str, Any]],
    most: int = 3,
    *,
    in_order: Sequence[str] = (),
    deaths: int = 5,
) -> Iterator[Told]:
    """Tell the stories of all cases, so many at a time: most of the time each waits for something.

    Points that are `in_order`, which is that of the story, share stories, with up to `deaths` in each. Neighbours do
    not, if they can help it: what a death interrupts is done again before the next. Any other point has its own story.
    """
    shared: dict[frozenset[tuple[str, Any]], list[str]] = {}
    groups: list[tuple[frozenset[tuple[str, Any]], list[str]]] = []
    for case in cases:
        others = frozenset(case.items() - {("point", case["point"])})
        if case["point"] in in_order:
            shared.setdefault(others, []).append(case["point"])
        else:
            groups.append((others, [case["point"]]))
    for others, points in shared.items():
        points.sort(key=in_order.index)
        number = math.ceil(len(points) / deaths)
        groups += [(others, points[first::number]) for first in range(number)]
    with ThreadPoolExecutor(most) as pool:
        stories = {}
        for others, points in groups:
            told = pool.submit(tell, points, **dict(others))
            stories |= {others | {("point", point)}: told for point in points}
        yield lambda **case: stories[frozenset(case.items())].result(TURN_S)
        pool.shutdown(cancel_futures=True)


def asked_for(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    """The parameters of the tests of a file that are to run, have the engines that they need, and use this fixture."""
    return [
        dict(item.callspec.params)  # type: ignore[attr-defined]
        for item in request.session.items
        if item.path == request.path and request.fixturename in item.fixturenames  # type: ignore[attr-defined]
        if all(ENGINES[engine]() is None for mark in item.iter_markers("needs") for engine in mark.args)
    ]


# -- what must be true ------------------------------------------------------------------------------------------------


def events_of(state_dir: str) -> list[Recorded]:
    """Everything in the log of a daemon that does not run."""
    log = offline.open_log(state_dir)
    found: list[Recorded] = []
    try:
        log.scan(found.append)
    finally:
        log.close()
    return found


def check(story: Story) -> None:
    """See that nothing acknowledged is lost, nothing done twice, and nothing left over. The daemon is stopped."""
    state_dir = story.daemon.state_dir
    report = offline.verify(state_dir)  # the log, row by row, and that each metadata.json is what the log tells
    assert report.problems == []
    facts = events_of(state_dir)
    assert [fact.position for fact in facts] == list(range(1, len(facts) + 1))
    check_commands(facts, story.acknowledged)
    check_intents(facts)
    left = leftovers(story)
    assert left == [], left


def check_commands(facts: list[Recorded], acknowledged: dict[str, str]) -> None:
    """Each command that was answered is on record, and none is there twice, but for those that were begun anew."""
    undone = {(fact.stream, fact.revision - 1) for fact in facts if getattr(fact.event, "interrupted", False)}
    undone |= {(fact.stream, fact.revision) for fact in facts if _has_no_fork(fact, undone)}
    # Events of one commit have one time: a name that goes from an image to another is two of them.
    commits = {
        (meta_of(fact).get("command_id"), fact.time_us) for fact in facts if (fact.stream, fact.revision) not in undone
    }
    given = Counter(command_id for command_id, _ in commits)
    del given[None]
    assert [command for command in given if given[command] > 1] == []
    silent = {name for name, row in METHODS.items() if row.intent is None}  # they leave no event with the id
    assert [(c, m) for c, m in acknowledged.items() if m not in silent and c not in given] == []


def _has_no_fork(fact: Recorded, undone: set[tuple[str, int]]) -> bool:
    """Whether none of the sandboxes was made that a fork was to make."""
    forks = getattr(fact.event, "sandbox_ids", None)
    return forks is not None and all((fork, 1) in undone for fork in forks)


def meta_of(fact: Recorded) -> dict[str, Any]:
    """Who caused an event."""
    found: dict[str, Any] = msgspec.json.decode(fact.meta)
    return found


def check_intents(facts: list[Recorded]) -> None:
    """Each intent has one outcome, which comes before the same is intended anew."""
    streams: dict[str, list[Recorded]] = {}
    for fact in facts:
        streams.setdefault(fact.stream, []).append(fact)
    for stream in streams.values():
        waiting: dict[str, tuple[str, ...]] = {}
        for fact in stream:
            outcomes = EVENTS[fact.type].outcomes
            assert fact.type not in waiting, stream
            waiting = {kind: wanted for kind, wanted in waiting.items() if fact.type not in wanted}
            if outcomes:
                waiting[fact.type] = outcomes
        assert waiting == {}, stream


def leftovers(story: Story) -> list[str]:
    """Processes, mounts, control groups and directories of sandboxes that have ended."""
    state_dir = story.daemon.state_dir
    boxes = set(os.listdir(f"{state_dir}/sandboxes")) if os.path.isdir(f"{state_dir}/sandboxes") else set()
    marks = [f"SANDKEEP_SANDBOX={box}".encode() for box in boxes]
    found = [f"process {pid}" for pid, env in environments() if any(mark in env for mark in marks)]
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        found += [line for line in mounts if state_dir in line]
    for directory, names, _ in os.walk("/sys/fs/cgroup"):
        found += [f"{directory}/{name}" for name in names if any(box in name for box in boxes)]
    for box in boxes:
        found += [f"{box}/{name}" for name in os.listdir(f"{state_dir}/sandboxes/{box}") if name not in KEPT]
    if os.geteuid() == 0:
        entries = Registry(UID_REGISTRY()).entries().items()
        found += [f"uid {uid} of {e.sandbox_id}" for uid, e in entries if e.home == state_dir and e.state != "resting"]
    for place in ("trash", "images", "layers", "catalogues"):
        if os.path.isdir(f"{state_dir}/{place}"):
            names = trash(state_dir) if place == "trash" else os.listdir(f"{state_dir}/{place}")
            found += [f"{place}/{name}" for name in names]
    return found


def trash(state_dir: str) -> list[str]:
    """What is to be removed; not what the daemon tries things with."""
    try:
        return [name for name in os.listdir(f"{state_dir}/trash") if not name.startswith("probe-")]
    except FileNotFoundError:
        return []


KEPT = ("out", "metadata.json")
"""What stays of a sandbox that has ended."""


def environments() -> list[tuple[str, bytes]]:
    """The processes of this machine and their environments."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            found.append((pid, file.read()))
    return found
