"""The daemon dies around each commit and at each point of snapshots, forks and restores; the orders are given again."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.crash.keeping import KEEPING, tell
from tests.crash.story import Story, Told, asked_for, check, side_by_side, story_in
from tests.crash.test_docker import left_in
from tests.support.expect import until

from sandkeep import failpoints
from sandkeep.events import EVENTS

pytestmark = pytest.mark.needs("bwrap")

NEVER = ("snapshot.failed", "sandbox.fork_failed", "sandbox.restore_failed")
"""Events of failures only; a daemon that starts records them where an order was not carried out."""

KINDS = sorted(kind for kind in EVENTS if kind.startswith(KEEPING) and kind not in NEVER)
POINTS = [point for point in failpoints.POINTS if point.startswith(KEEPING)]
COMMITS = [f"{kind}:{side}" for kind in KINDS for side in (failpoints.BEFORE, failpoints.AFTER)]
OTHERWISE = ["layer.made", "replace.aside", "replace.recorded"]
"""Where what is to be undone is Docker's own; elsewhere it is as with local sandboxes."""

IN_ORDER = [
    "snapshot.frozen", "snapshot.copied", "snapshot.packed", "snapshot.sent", "snapshot.kept",
    "restore.opened", "layer.made", "restore.unpacked", "layer.frozen", "layer.copied", "fork.frozen",
    "replace.aside", "replace.recorded", "snapshot.resent", "snapshot.received", "snapshot.removed",
]  # fmt: skip
"""The points of stories in which the daemon dies more than once."""

LOCAL = [(point, "local") for point in POINTS]
DOCKER = [pytest.param(point, "docker", marks=pytest.mark.needs("docker")) for point in OTHERWISE]
DEEP = [pytest.param(point, "local", marks=pytest.mark.soak) for point in COMMITS]
DEEP += [
    pytest.param(point, "docker", marks=[pytest.mark.soak, pytest.mark.needs("docker")])
    for point in (*POINTS, *COMMITS)
    if point not in OTHERWISE
]


def dies_at(
    points: Sequence[str], provider: str, *, places: str, source: str, engine: Any, telling: Callable[..., None]
) -> Story:
    """Tell a story to a daemon that dies at these points."""
    with story_in(places, points) as story:
        env, stored = story.daemon.env, [os.path.join(story.daemon.root, name) for name in ("mount", "archives")]
        for place in stored:
            os.mkdir(place, 0o700)
        env["FILESYSTEM_SNAPSHOT_MOUNT_PATH"], env["SANDBOX_SNAPSHOT_DIR"] = stored
        image_of = {}
        if provider == "docker":
            env["DOCKER_HOST"] = engine.host
            image_of = {"provider": "docker", "base": engine.guest()}
        story.start()
        telling(story, source, **image_of)
        wait_until_gone(story)
        story.stop()
        check(story)
        assert [archive for place in stored for archive in archives(place)] == []
        assert provider != "docker" or left_in(engine, story.daemon.state_dir) == []
    return story


def wait_until_gone(story: Story) -> None:
    """What nobody needs goes when its end is on record already, and was told."""
    places = (f"{story.daemon.state_dir}/{place}" for place in ("layers", "catalogues", "trash"))
    there = [place for place in places if os.path.isdir(place)]
    until(lambda: not any(map(os.listdir, there)), seen=lambda: list(map(os.listdir, there)))


def archives(place: str) -> list[str]:
    """The archives that are left; what was being written elsewhere is swept by its age."""
    return [str(path) for path in Path(place).rglob("snp_*")]


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest, places: str, source: str) -> Iterator[Told]:
    with told_of_both(request, places, source, tell) as told:
        yield told


@contextmanager
def told_of_both(
    request: pytest.FixtureRequest, places: str, source: str, telling: Callable[..., None]
) -> Iterator[Told]:
    """A story of local sandboxes and of containers."""
    cases, engine = asked_for(request), None
    if any(case["provider"] == "docker" for case in cases):
        engine = request.getfixturevalue("dockerd")
        engine.guest()
    tell = partial(dies_at, places=places, source=source, engine=engine, telling=telling)
    with side_by_side(tell, cases, in_order=IN_ORDER, deaths=4) as told:
        yield told


@pytest.mark.parametrize(("point", "provider"), [*LOCAL, *DOCKER, *DEEP])
def test_nothing_acknowledged_is_lost(told: Told, point: str, provider: str) -> None:
    assert point in told(point=point, provider=provider).died_at, "the story does not come by there"
