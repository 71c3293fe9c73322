"""The daemon dies around each commit and at each point of snapshots, forks and restores; the orders are given again."""

import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.conftest import RunningDaemon
from tests.crash.keeping import KEEPING, tell
from tests.crash.story import Story, check

from sandkeep import failpoints
from sandkeep.events import EVENTS

pytestmark = pytest.mark.needs("bwrap")

SIDE_BY_SIDE = 3

NEVER = ("snapshot.failed", "sandbox.fork_failed", "sandbox.restore_failed")
"""What only comes of a failure; a daemon that starts tells it where an order was not carried out."""

KINDS = sorted(kind for kind in EVENTS if kind.startswith(KEEPING) and kind not in NEVER)
POINTS = [point for point in failpoints.POINTS if point.startswith(KEEPING)]
COMMITS = [f"{kind}:{side}" for kind in KINDS for side in (failpoints.BEFORE, failpoints.AFTER)]
DEEP = [pytest.param(point, marks=pytest.mark.soak) for point in COMMITS]


def dies_at(point: str, root: str, source: str) -> Story:
    """Tell the story to a daemon that dies at that point."""
    daemon = RunningDaemon(root)
    os.chmod(root, 0o711)
    places = [os.path.join(root, name) for name in ("mount", "archives")]
    for place in places:
        os.mkdir(place, 0o700)
    daemon.env |= {"FILESYSTEM_SNAPSHOT_MOUNT_PATH": places[0], "SANDBOX_SNAPSHOT_DIR": places[1]}
    daemon.env[failpoints.SETTING] = point
    story = Story(daemon)
    try:
        story.start()
        tell(story, source)
        wait_until_gone(story)
        story.stop()
        check(story)
        assert [archive for place in places for archive in archives(place)] == []
    finally:
        daemon.env.pop(failpoints.SETTING, None)
        daemon.clear()
    return story


def wait_until_gone(story: Story) -> None:
    """What nobody needs goes when its end is on record already, and was told."""
    deadline = time.monotonic() + 20
    while left := [
        name for place in ("layers", "catalogues") for name in os.listdir(f"{story.daemon.state_dir}/{place}")
    ]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def archives(place: str) -> list[str]:
    """The archives that are left; what was being written elsewhere is swept by its age."""
    return [str(path) for path in Path(place).rglob("snp_*")]


@pytest.fixture(scope="module")
def stories(
    request: pytest.FixtureRequest, places: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, "Future[Story]"]]:
    """Those that are asked for, told side by side."""
    source = tmp_path_factory.mktemp("source")
    Path(source, "file").write_text("content\n")
    source.chmod(0o755)
    wanted = [item.callspec.params["point"] for item in request.session.items if item.fspath == request.fspath]  # type: ignore[attr-defined]
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        yield {point: pool.submit(dies_at, point, tempfile.mkdtemp(dir=places), str(source)) for point in wanted}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("point", [*POINTS, *DEEP])
def test_nothing_acknowledged_is_lost(stories: dict[str, "Future[Story]"], point: str) -> None:
    assert stories[point].result().deaths == 1, "the story does not come by there"
