"""The same story over Docker: the daemon dies at each step of making and ending a container, and of each order."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from tests.crash.story import Story, Told, asked_for, check, events_of, side_by_side, story_in

from sandkeep import failpoints
from sandkeep_store.upkeep import offline

pytestmark = pytest.mark.needs("docker")

POINTS = [
    "image.copied", "image.discarded", "launch.answered", "end.stopped", "end.discarded",
    *(point for point in failpoints.POINTS if point.startswith("docker.")),
]  # fmt: skip

IN_ORDER = [
    "docker.staged", "docker.tagged", "image.copied", "image.created:before",
    "docker.directories", "docker.volume", "docker.created", "docker.started", "docker.secrets",
    "sandbox.created:before", "launch.answered", "sandbox.suspended:before", "sandbox.resumed:before",
    "end.stopped", "docker.killed", "docker.removed", "end.discarded", "sandbox.terminated:before", "image.discarded",
]  # fmt: skip
"""The points of stories in which the daemon dies more than once."""

ALIKE = [
    "launch.written", "launch.sent", "signal.sent", "stdin.written", "file.written", "copy.staged", "copy.committed",
]  # fmt: skip
"""The points in what is the keeper's, and so as in local sandboxes."""

STEPS = ("image.create", "sandbox.create", "sandbox.suspend", "sandbox.resume", "sandbox.terminate")
OUTCOMES = ("image.created", "sandbox.created", "sandbox.suspended", "sandbox.resumed", "sandbox.terminated")
COMMITS = [f"{outcome}:{failpoints.BEFORE}" for outcome in OUTCOMES]
"""The engine has done something that is not on record."""

SETTLED = [
    *(f"{step}_requested:{side}" for step in STEPS for side in (failpoints.BEFORE, failpoints.AFTER)),
    *(f"{outcome}:{failpoints.AFTER}" for outcome in OUTCOMES),
]
"""Points at which the engine has not been asked yet, or agrees with the record, as with local sandboxes."""


def dies_at(points: Sequence[str], places: str, source: str, engine: Any) -> Story:
    """Tell the story to a daemon that dies at these points."""
    with story_in(places, points, DOCKER_HOST=engine.host) as story:
        story.start()
        story.tell(source, suspends=True, provider="docker", base=engine.guest())
        story.stop()
        check(story)
        assert left_in(engine, story.daemon.state_dir) == []
    return story


def left_in(engine: Any, state_dir: str) -> list[str]:
    """What the engine still has that is of the daemon's log."""
    log = offline.open_log(state_dir)
    log_id = log.log_id
    log.close()
    images = {
        fact.stream for fact in events_of(state_dir) if fact.type.startswith(("image.", "snapshot.", "sandbox.fork"))
    }
    tags = [tag for image in engine.get("/images/json") for tag in image["RepoTags"] or ()]
    found = [container["Names"][0] for container in engine.containers(f"sandkeep.log={log_id}")]
    found += [v["Name"] for v in engine.get("/volumes")["Volumes"] or () if log_id in (v["Labels"] or {}).values()]
    return found + [tag for tag in tags if any(image_id in tag for image_id in images)]


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest, dockerd: Any, places: str, source: str) -> Iterator[Told]:
    dockerd.guest()
    tell = partial(dies_at, places=places, source=source, engine=dockerd)
    with side_by_side(tell, asked_for(request), in_order=IN_ORDER) as told:
        yield told


DEEP = [pytest.param(point, marks=pytest.mark.soak) for point in (*ALIKE, *SETTLED)]


@pytest.mark.parametrize("point", [*POINTS, *COMMITS, *DEEP])
def test_a_death_at_every_point(told: Told, point: str) -> None:
    assert point in told(point=point).died_at
