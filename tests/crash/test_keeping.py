"""The daemon dies around each commit and at each point of snapshots, forks and restores; the orders are given again."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import ENGINES
from tests.crash.deaths import Stories, dying, side_by_side
from tests.crash.keeping import KEEPING, tell
from tests.crash.story import Story, asked_for, check
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

LOCAL = [(point, "local") for point in POINTS]
DOCKER = [pytest.param(point, "docker", marks=pytest.mark.needs("docker")) for point in OTHERWISE]
DEEP = [pytest.param(point, "local", marks=pytest.mark.soak) for point in COMMITS]
DEEP += [
    pytest.param(point, "docker", marks=[pytest.mark.soak, pytest.mark.needs("docker")])
    for point in (*POINTS, *COMMITS)
    if point not in OTHERWISE
]


def dies_at(point: str, root: str, source: str, engine: Any = None, telling: Callable[..., None] = tell) -> Story:
    """Tell the story, or another, to a daemon that dies at that point."""
    places = [os.path.join(root, name) for name in ("mount", "archives")]
    for place in places:
        os.mkdir(place, 0o700)
    env = {"FILESYSTEM_SNAPSHOT_MOUNT_PATH": places[0], "SANDBOX_SNAPSHOT_DIR": places[1]}
    image_of = {}
    if engine is not None:
        env["DOCKER_HOST"] = engine.host
        image_of = {"provider": "docker", "base": engine.guest()}
    with dying(point, root, **env) as story:
        story.start()
        telling(story, source, **image_of)
        wait_until_gone(story)
        story.stop()
        check(story)
        assert [archive for place in places for archive in archives(place)] == []
        assert engine is None or left_in(engine, story.daemon.state_dir) == []
    return story


def wait_until_gone(story: Story) -> None:
    """What nobody needs goes when its end is on record already, and was told."""
    places = (f"{story.daemon.state_dir}/{place}" for place in ("layers", "catalogues", "trash"))
    there = [place for place in places if os.path.isdir(place)]
    until(lambda: not any(map(os.listdir, there)), seen=lambda: list(map(os.listdir, there)))


def archives(place: str) -> list[str]:
    """The archives that are left; what was being written elsewhere is swept by its age."""
    return [str(path) for path in Path(place).rglob("snp_*")]


@contextmanager
def stories_of(
    telling: Callable[..., None], request: pytest.FixtureRequest, places: str, source: str
) -> Iterator[Stories]:
    """Have the stories told that are asked for; those over Docker only where that is."""
    asked = [(params["point"], params["provider"]) for params in asked_for(request)]
    engine = None
    if any(provider == "docker" for _, provider in asked) and ENGINES["docker"]() is None:
        engine = request.getfixturevalue("dockerd")
        engine.guest()

    def dies(case: tuple[str, str], root: str) -> Story:
        return dies_at(case[0], root, source, engine if case[1] == "docker" else None, telling)

    cases = [case for case in asked if case[1] == "local" or engine is not None]
    with side_by_side(places, cases, dies) as told:
        yield told


@pytest.fixture(scope="module")
def stories(request: pytest.FixtureRequest, places: str, source: str) -> Iterator[Stories]:
    with stories_of(tell, request, places, source) as told:
        yield told


@pytest.mark.parametrize(("point", "provider"), [*LOCAL, *DOCKER, *DEEP])
def test_nothing_acknowledged_is_lost(stories: Stories, point: str, provider: str) -> None:
    assert stories[point, provider].result().deaths == 1, "the story does not come by there"
