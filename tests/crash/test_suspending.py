"""The daemon dies around each commit of a suspension, a resumption, and a start anew; the orders are given again."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from tests.crash.story import (
    Story,
    Told,
    asked_for,
    check_commands,
    check_intents,
    events_of,
    side_by_side,
    story_in,
)
from tests.support import fake_provider as fake
from tests.support.expect import until

from sandkeep import failpoints
from sandkeep.events import EVENTS
from sandkeep_store.upkeep import offline
from sandkeepd.host.cgroups import freezer

NEVER = ("sandbox.suspend_failed", "sandbox.resume_failed")
"""Events of failures only; a daemon that starts records them where an order was not carried out."""

SIDES = (failpoints.BEFORE, failpoints.AFTER)
KINDS = sorted(kind for kind in EVENTS if kind.startswith(("sandbox.suspend", "sandbox.resume")) and kind not in NEVER)
POINTS = [f"{kind}:{side}" for kind in KINDS for side in SIDES]
POINTS += [f"{kind}:{side}@2" for kind in KINDS if "resume" in kind for side in SIDES]
"""The second time a sandbox is resumed it is started anew."""


PROVIDERS = ("fake", pytest.param("local", marks=[pytest.mark.needs("bwrap"), pytest.mark.needs("freezer")]))


class Box:
    """A sandbox as somebody sees it who is not its daemon."""

    def __init__(self, name: str, provider: str, state_dir: str) -> None:
        self.name, self.provider = name, provider
        self._state_dir = state_dir
        self._directory = ""
        self.created: tuple[Any, Any] | None = None

    def look(self, story: Story) -> None:
        """Take note of what is on record of it."""
        events = story.look(lambda client: client.sandbox.history(self.name).events)
        self.created = events[0].data["plan"], events[1].data["handle"]
        self._directory = f"{self._state_dir}/fake/sandboxes/{events[0].stream}"

    def stands_still(self) -> bool:
        if self.provider == "fake":
            return fake.stands_still(self._directory)
        assert self.created is not None
        return freezer.are_frozen(self.created[0]["cgroups"])

    def kill(self) -> None:
        """End it as if it had ended by itself."""
        if self.provider == "fake":
            fake.kill(self._directory, {})
        elif self.created is not None:
            os.kill(self.created[1]["first"]["pid"], signal.SIGKILL)

    def is_gone(self) -> bool:
        if self.provider == "fake":
            return fake.pids(self._directory) == []
        assert self.created is not None
        return not any(os.path.exists(place) for place in self.created[0]["cgroups"].values())


def dies_at(points: Sequence[str], places: str, source: str, provider: str) -> Story:
    """Tell the story to a daemon that dies at these points."""
    with ExitStack() as afterwards, story_in(places, points) as story:
        story.daemon.program = [sys.executable, "-m", "tests.support.two_providers"]
        state_dir = story.daemon.state_dir
        box = Box(f"box-{os.path.basename(story.daemon.root)}", provider, state_dir)
        if provider == "fake":
            afterwards.callback(box.kill)
        story.start()
        tell(story, box, source)
        story.stop()
        facts = events_of(state_dir)
        assert offline.verify(state_dir).problems == []
        check_commands(facts, story.acknowledged)
        check_intents(facts)
        assert box.is_gone()
    return story


def tell(story: Story, made: Box, source: str) -> None:
    """A sandbox is suspended and resumed, ends by itself, and is started anew."""
    box = made.name
    image = story.ask("image.create", source, provider=made.provider).image_id
    story.ask("sandbox.create", image, name=box, secrets={"KEY": "s3cret"})
    made.look(story)
    story.ask("process.launch", box, name="cat", command=["cat"], stdin=True)
    story.ask("sandbox.exec", box, "echo kept >file")
    assert story.ask("sandbox.suspend", box).status == "suspended"
    assert made.stands_still()
    assert story.ask("sandbox.resume", box).status == "running"
    assert not made.stands_still()
    story.ask("process.write_stdin", box, name="cat", data=b"typed\n", eof=True)
    assert story.look(lambda client: client.process.wait(box, "cat")).exit_code == 0
    made.kill()
    until(lambda: story.look(lambda client: client.sandbox.get(box)).status != "running")
    assert story.ask("sandbox.resume", box, secrets={"KEY": "s3cret"}).status == "running"
    assert story.ask("sandbox.exec", box, "cat file; echo $KEY").stdout == b"kept\ns3cret\n"
    assert story.output(box, "cat") == b"typed\n"
    story.ask("sandbox.terminate", box)
    story.ask("image.remove", image)


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest, places: str, source: str) -> Iterator[Told]:
    with side_by_side(partial(dies_at, places=places, source=source), asked_for(request)) as told:
        yield told


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_death_at_every_point(told: Told, point: str, provider: str) -> None:
    assert point in told(point=point, provider=provider).died_at
