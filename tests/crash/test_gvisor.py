"""The daemon dies at each step of making, saving and bringing back gVisor sandboxes; the orders are given again."""

import subprocess
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from tests.conftest import RunningDaemon
from tests.crash.story import Story, Told, asked_for, check, side_by_side, story_in
from tests.support.expect import until

from sandkeep import failpoints

pytestmark = pytest.mark.needs("runsc")

COUNT = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done"

POINTS = [point for point in failpoints.POINTS if point.startswith(("gvisor.", "checkpoint."))]
STEPS = ("checkpoint.create", "checkpoint.restore", "checkpoint.delete", "sandbox.restore")
OUTCOMES = (
    "checkpoint.stored", "checkpoint.restored", "checkpoint.deleted", "sandbox.suspended", "sandbox.resumed",
    "sandbox.restored", "process.restored",
)  # fmt: skip
BETWEEN = [
    *(f"{step}_requested:{failpoints.AFTER}" for step in STEPS),
    *(f"{outcome}:{failpoints.BEFORE}" for outcome in OUTCOMES),
]
"""Between an order and its outcome: something may have been done that is not on record."""

FIRST = ("gvisor.saved", "gvisor.renamed", "gvisor.restored", "checkpoint.saved")
"""The points at which the record tells least. `test_operations` is killed before and after each outcome; the
others take as long, and are for soaking.
"""

IN_ORDER = ["gvisor.saved", "gvisor.renamed", "checkpoint.saved", "gvisor.restored"]
"""The same, as the story comes by them: the daemon dies at two of them."""

DEEP = [
    *(point for point in (*POINTS, *BETWEEN) if point not in FIRST),
    *(f"{step}_requested:{failpoints.BEFORE}" for step in STEPS),
    *(f"{outcome}:{failpoints.AFTER}" for outcome in OUTCOMES),
    *(f"gvisor.{point}@{n}" for point in ("prepared", "saved", "renamed", "restored", "laid_out") for n in (2, 3)),
    "launch.sent", "launch.answered", "stdin.written", "end.stopped", "end.discarded",
]  # fmt: skip


def tell(story: Story, source: str) -> None:
    """A counter that is saved and brought back in every way there is; then all of it goes."""
    image = story.ask("image.create", source, provider="gvisor").image_id
    box = story.ask("sandbox.create", image, secrets={"KEY": "s3cret"}).sandbox_id
    story.sandboxes.append(box)
    story.ask("process.launch", box, name="count", command=COUNT)
    story.ask("process.launch", box, name="cat", command=["cat"], stdin=True)
    story.ask("process.write_stdin", box, name="cat", data=b"typed\n")
    goes_on(story, box)
    first = story.ask("checkpoint.create", box, leave_running=True)
    goes_on(story, box)
    assert story.ask("sandbox.suspend", box).status == "suspended"
    assert story.ask("sandbox.resume", box).status == "running"
    goes_on(story, box)
    second = story.ask("checkpoint.create", box)
    story.ask("sandbox.resume", box)
    values = goes_on(story, box)
    assert values == list(range(1, len(values) + 1)), "there is a gap, or something twice"
    assert story.ask("sandbox.exec", box, "echo $KEY").stdout == b"s3cret\n"
    for checkpoint, count in ((second, 1), (first, 2)):
        for made in story.ask("checkpoint.restore", checkpoint.checkpoint_id, count=count).sandboxes:
            story.sandboxes.append(made.sandbox_id)
            values = goes_on(story, made.sandbox_id)
            assert values == list(range(1, len(values) + 1))
    assert story.ask("sandbox.restore", box, checkpoint_id=first.checkpoint_id).status == "running"
    goes_on(story, box)
    assert story.ask("sandbox.exec", box, "echo $KEY").stdout == b"s3cret\n"
    for checkpoint in (first, second):
        story.ask("checkpoint.delete", checkpoint.checkpoint_id)
    for sandbox_id in story.sandboxes:
        story.ask("sandbox.terminate", sandbox_id)
    story.ask("image.remove", image)


def goes_on(story: Story, box: str) -> list[int]:
    """Wait until the counter has printed some more; all that it has printed."""
    before = len(values_of(story, box))
    return until(lambda: (v := values_of(story, box)) and len(v) > before + 1 and v)  # type: ignore[no-any-return]


def values_of(story: Story, box: str) -> list[int]:
    return [int(line) for line in story.output(box, "count").splitlines()]


def dies_at(points: Sequence[str], places: str, source: str) -> Story:
    """Tell the story to a daemon that dies at these points."""
    with story_in(places, points) as story:
        story.start()
        tell(story, source)
        story.stop()
        check(story)
        assert left_of(story.daemon) == []
    return story


def left_of(daemon: RunningDaemon) -> list[str]:
    """What is left of sandboxes and checkpoints when all have ended: processes, and files."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    found = [line for line in listed.splitlines() if line.startswith("runsc") and daemon.state_dir in line]
    found += [str(path) for path in Path(daemon.state_dir, "gvisor").iterdir()]
    return found + [str(path) for path in Path(daemon.state_dir, "archives").rglob("*") if path.is_file()]


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest, places: str, source: str) -> Iterator[Told]:
    with side_by_side(
        partial(dies_at, places=places, source=source), asked_for(request), 2, in_order=IN_ORDER, deaths=2
    ) as told:
        yield told


@pytest.mark.parametrize("point", [*FIRST, *(pytest.param(point, marks=pytest.mark.soak) for point in DEEP)])
def test_a_death_at_every_point(told: Told, point: str) -> None:
    assert point in told(point=point).died_at
