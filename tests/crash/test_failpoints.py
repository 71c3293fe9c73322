"""The daemon dies once at every point that has a name; then it is started again, and the story goes on."""

from collections.abc import Iterator, Sequence
from functools import partial

import pytest
from tests.crash.branching import BRANCHING
from tests.crash.growing import GROWTH
from tests.crash.keeping import KEEPING
from tests.crash.story import Story, Told, asked_for, check, side_by_side, story_in
from tests.support.operations import operations

from sandkeep import failpoints
from sandkeep.events import EVENTS
from sandkeep.protocol.methods import METHODS

pytestmark = pytest.mark.needs("bwrap")

NOT_IN_THE_STORY = {
    "provider.fell_back",
    "image.create_failed",
    "image.reused",
    "sandbox.create_failed",
    "sandbox.failed",
    "sandbox.lost",
    "process.launch_failed",
    "process.timed_out",
    "process.lost",
}
"""What only comes of a failure."""

SUSPENSIONS = ("sandbox.suspend", "sandbox.resume")
GVISOR = ("gvisor.", "checkpoint.", "process.restored")
PUBLISHING = ("image.published", "image.unpublished")
APART = (
    *GROWTH, *KEEPING, *SUSPENSIONS, *GVISOR, *BRANCHING, *PUBLISHING, "lock.", "archive.", "volume.", "sandbox.moved",
    "artifact.", "session.",
)  # fmt: skip
"""What another test tells of: for suspensions `test_suspending`, for checkpoints `test_gvisor`, for locks `test_locks`,
for archives `test_snapshot_gc`, for volumes, artifacts and sessions `test_operations`, for sandboxes that move
`tests/integration`, for branches `test_branches`, for published images
`tests/daemon/providers/docker/test_foreign_images.py`.
"""

TOLD = sorted(kind for kind in EVENTS if kind not in NOT_IN_THE_STORY and not kind.startswith(APART))
INTENTS = [intent for operation in operations() if (intent := METHODS[operation.method].intent) is not None]
OF_OPERATIONS = {kind for intent in INTENTS for kind in (intent, *EVENTS[intent].outcomes)}
"""Events around which `test_operations` has the daemon die."""

COMMITS = [
    pytest.param(f"{kind}:{side}", marks=[pytest.mark.soak] if kind in OF_OPERATIONS else [])
    for kind in TOLD
    for side in (failpoints.BEFORE, failpoints.AFTER)
]
OF_PROVIDERS = ("docker.", "kubernetes.", "modal.")
POINTS = [
    point
    for point in failpoints.POINTS
    if not point.startswith((*GROWTH, *KEEPING, *GVISOR, *BRANCHING, *OF_PROVIDERS, "disk.", "lock."))
]
NAMES = ("image.tagged", "image.untagged")
IN_ORDER = [
    "image.copied", "uid.claimed", "create.directories", "create.spawned", "create.answered", "create.secrets",
    "file.written", "sandbox.file_written:before", "sandbox.file_written:after", "copy.staged", "copy.committed",
    "launch.written", "launch.sent", "launch.answered", "stdin.written", "update.reserved", "sandbox.updated:before",
    "sandbox.updated:after", "update.recorded", "update.applied", "signal.sent", "process.signalled:before",
    "process.signalled:after", "rebuild.begun", "end.stopped", "end.killed", "end.discarded", "uid.emptied",
    "uid.released", "image.discarded",
]  # fmt: skip
"""The points of stories in which the daemon dies more than once."""

AT_A_RESTART = ("start.", "stop.", "adopt.", "sweep.", "daemon.", "sandbox.adopted")


def dies_at(points: Sequence[str], places: str, source: str) -> Story:
    """Tell the story to a daemon that dies at these points."""
    with story_in(places, points) as story:
        story.start()
        story.tell(source, lambda: interlude(story, source, points))
        story.stop()
        check(story)
    return story


def interlude(story: Story, source: str, points: Sequence[str]) -> None:
    if any(point.startswith(AT_A_RESTART) for point in points):
        restart(story)
    if any(point.startswith(NAMES) for point in points):
        give_names(story, source)


def give_names(story: Story, source: str) -> None:
    """A name that goes from an image to another."""
    image_ids = [story.ask("image.create", source, clean=True).image_id for _ in range(2)]
    for image_id in image_ids:
        story.ask("image.tag", image_id, "web:2")
    assert story.look(lambda client: client.image.get("web:2")).image_id == image_ids[1]
    for image_id in image_ids:
        story.ask("image.remove", image_id)


def restart(story: Story) -> None:
    """A stop and a start in good order, unless the daemon dies of one of them."""
    story.stop()
    story.start()


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest, places: str, source: str) -> Iterator[Told]:
    with side_by_side(
        partial(dies_at, places=places, source=source), asked_for(request), in_order=IN_ORDER, deaths=4
    ) as told:
        yield told


@pytest.mark.parametrize("point", [*POINTS, *COMMITS])
def test_a_death_at_every_point(told: Told, point: str) -> None:
    assert point in told(point=point).died_at
