"""The same story at Modal: the daemon dies at each step of making and ending a sandbox there."""

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.crash.story import Story, check
from tests.support.kubernetes.images import TOOLS

from sandkeep import failpoints
from sandkeep_store.upkeep import offline

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("modal")]

SIDE_BY_SIDE = 2

POINTS = ["launch.answered", *(point for point in failpoints.POINTS if point.startswith("modal."))]
OUTCOMES = ("image.created", "sandbox.created", "snapshot.stored", "snapshot.deleted", "sandbox.terminated")
COMMITS = [f"{outcome}:{failpoints.BEFORE}" for outcome in OUTCOMES]
"""Modal has done something that is not on record."""


def dies_at(point: str, root: str, source: str, modal: Any) -> Story:
    """Tell the story to a daemon that dies at that point."""
    daemon = RunningDaemon(root)
    os.chmod(root, 0o711)
    story = Story(daemon)
    daemon.env |= {failpoints.SETTING: point, **modal.environment}
    try:
        story.start()
        story.tell(source, lambda: keeps(story), grows=False, base=TOOLS, provider="modal")
        story.stop()
        check(story)
        assert left_at(modal, daemon.state_dir) == []
        assert not os.path.exists(f"{daemon.state_dir}/modal") or os.listdir(f"{daemon.state_dir}/modal") == []
    finally:
        daemon.env.pop(failpoints.SETTING, None)
        daemon.clear()
    return story


def keeps(story: Story) -> None:
    """Make a snapshot of the sandbox, begin another sandbox with it, and delete both."""
    saved = story.ask("snapshot.create", story.sandboxes[-1])
    assert saved.modal_image_id
    box = story.ask("snapshot.restore", saved.snapshot_id, secrets={"KEY": "s3cret"}).sandbox_id
    story.sandboxes.append(box)
    assert story.look(lambda client: client.sandbox.read_file(box, path="note")).data == b"noted"
    story.ask("sandbox.terminate", box)
    story.ask("snapshot.delete", saved.snapshot_id)


def left_at(modal: Any, state_dir: str) -> list[str]:
    """The sandboxes of the daemon's log that still run at Modal."""
    log = offline.open_log(state_dir)
    log_id = log.log_id
    log.close()
    return [
        each["id"] for each in modal.sandboxes() if each["tags"].get("sandkeep-log") == log_id and not each["ended"]
    ]


@pytest.fixture(scope="module")
def stories(modal: Any, places: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, "Future[Story]"]]:
    """All of them, told side by side: most of the time each waits for something."""
    source = tmp_path_factory.mktemp("source")
    Path(source, "file").write_text("content\n")
    source.chmod(0o755)
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        yield {
            point: pool.submit(dies_at, point, tempfile.mkdtemp(dir=places), str(source), modal)
            for point in (*POINTS, *COMMITS)
        }
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("point", [*POINTS, *COMMITS])
def test_a_death_at_every_point(stories: dict[str, "Future[Story]"], point: str) -> None:
    assert stories[point].result(300).deaths == 1
