"""The daemon dies around each commit and at each point of snapshots, forks and restores; the orders are given again."""

import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import ENGINES, RunningDaemon
from tests.crash.keeping import KEEPING, tell
from tests.crash.story import Story, asked_for, check
from tests.crash.test_docker import left_in
from tests.support.expect import until

from sandkeep import failpoints
from sandkeep.events import EVENTS

pytestmark = pytest.mark.needs("bwrap")

SIDE_BY_SIDE = 3

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
    daemon = RunningDaemon(root)
    os.chmod(root, 0o711)
    places = [os.path.join(root, name) for name in ("mount", "archives")]
    for place in places:
        os.mkdir(place, 0o700)
    daemon.env |= {"FILESYSTEM_SNAPSHOT_MOUNT_PATH": places[0], "SANDBOX_SNAPSHOT_DIR": places[1]}
    daemon.env[failpoints.SETTING] = point
    image_of = {}
    if engine is not None:
        daemon.env["DOCKER_HOST"] = engine.host
        image_of = {"provider": "docker", "base": engine.guest()}
    story = Story(daemon)
    try:
        story.start()
        telling(story, source, **image_of)
        wait_until_gone(story)
        story.stop()
        check(story)
        assert [archive for place in places for archive in archives(place)] == []
        assert engine is None or left_in(engine, daemon.state_dir) == []
    finally:
        daemon.env.pop(failpoints.SETTING, None)
        daemon.clear()
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
def stories(
    request: pytest.FixtureRequest, places: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, str], "Future[Story]"]]:
    """Those that are asked for, told side by side."""
    source = tmp_path_factory.mktemp("source")
    Path(source, "file").write_text("content\n")
    source.chmod(0o755)
    told = [(params["point"], params["provider"]) for params in asked_for(request)]
    engine = None
    if any(provider == "docker" for _, provider in told) and ENGINES["docker"]() is None:
        engine = request.getfixturevalue("dockerd")
        engine.guest()
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        yield {
            (point, provider): pool.submit(
                dies_at, point, tempfile.mkdtemp(dir=places), str(source), engine if provider == "docker" else None
            )
            for point, provider in told
            if provider == "local" or engine is not None
        }
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("point", "provider"), [*LOCAL, *DOCKER, *DEEP])
def test_nothing_acknowledged_is_lost(
    stories: dict[tuple[str, str], "Future[Story]"], point: str, provider: str
) -> None:
    assert stories[point, provider].result().deaths == 1, "the story does not come by there"
