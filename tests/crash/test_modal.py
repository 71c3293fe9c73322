"""The same story at Modal: the daemon dies at each step of making and ending a sandbox there."""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from tests.crash.story import Story, Told, asked_for, check, side_by_side, story_in
from tests.support.kubernetes.images import TOOLS

from sandkeep import failpoints
from sandkeep_store.upkeep import offline

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("modal")]

POINTS = ["launch.answered", *(point for point in failpoints.POINTS if point.startswith("modal."))]
OUTCOMES = ("image.created", "sandbox.created", "snapshot.stored", "snapshot.deleted", "sandbox.terminated")
COMMITS = [f"{outcome}:{failpoints.BEFORE}" for outcome in OUTCOMES]
"""Modal has done something that is not on record."""


IN_ORDER = [
    "modal.staged", "image.created:before", "modal.made", "modal.secrets", "sandbox.created:before", "launch.answered",
    "modal.saved", "snapshot.stored:before", "snapshot.deleted:before", "modal.ended", "sandbox.terminated:before",
]  # fmt: skip
"""The points of stories in which the daemon dies more than once."""


def dies_at(points: Sequence[str], places: str, source: str, modal: Any) -> Story:
    """Tell the story to a daemon that dies at these points."""
    with story_in(places, points, **modal.environment) as story:
        state_dir = story.daemon.state_dir
        story.start()
        story.tell(source, lambda: keeps(story), updates=False, base=TOOLS, provider="modal")
        story.stop()
        check(story)
        assert left_at(modal, state_dir) == []
        assert not os.path.exists(f"{state_dir}/modal") or os.listdir(f"{state_dir}/modal") == []
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
def told(request: pytest.FixtureRequest, modal: Any, places: str, source: str) -> Iterator[Told]:
    tell = partial(dies_at, places=places, source=source, modal=modal)
    with side_by_side(tell, asked_for(request), 2, in_order=IN_ORDER) as told:
        yield told


@pytest.mark.parametrize("point", [*POINTS, *COMMITS])
def test_a_death_at_every_point(told: Told, point: str) -> None:
    assert point in told(point=point).died_at
