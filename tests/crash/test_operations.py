"""The daemon dies at each step of each operation, and the command is given again.

The cases are derived from what is declared: a new operation is here without anybody adding it.
"""

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from tests.crash.story import Story, Told, asked_for, check, side_by_side, story_in
from tests.crash.test_keeping import wait_until_gone
from tests.support import toy_operation
from tests.support.operations import DOCKERS, OF_TWO_DAEMONS, UPKEEP_OF_LOG, World, operations

from sandkeep import failpoints
from sandkeep.protocol.methods import METHODS
from sandkeepd.core.operation import STEPS, Operation

GVISOR = "Checkpoint"
"""The prefix of operations that need a kernel which can be saved."""

SETTLED = "done"
"""The step at which nothing is under way any more, which is for soaking."""

PLACES = (
    "FILESYSTEM_SNAPSHOT_MOUNT_PATH", "SANDBOX_SNAPSHOT_DIR", "SANDBOX_LOCK_MOUNT_PATH", "SANDBOX_METADATA_MOUNT_PATH"
)  # fmt: skip

TOY = "-m", "tests.support.toy_operation"

DECLARED = [
    each for each in operations()
    if not each.__module__.startswith(UPKEEP_OF_LOG) and each.__name__ not in OF_TWO_DAEMONS
]  # fmt: skip
OF_DOCKER = [each for each in DECLARED if each.__name__.startswith(DOCKERS)]
OF_LOCAL = [each for each in DECLARED if each not in OF_DOCKER]
"""All but those on the log, around which `test_growth` has the daemon die, and those that take two daemons."""


def kind_of(operation: type[Operation[Any, Any]]) -> str:
    """Return the prefix by which an operation needs another provider than the local one."""
    return next((prefix for prefix in (GVISOR, DOCKERS) if operation.__name__.startswith(prefix)), "")


def cases(declared: list[type[Operation[Any, Any]]]) -> list[Any]:
    found = []
    for operation in declared:
        needs = {GVISOR: "runsc", DOCKERS: "docker"}.get(kind_of(operation), "bwrap")
        for step in STEPS:
            marks = [pytest.mark.needs(needs), *([pytest.mark.soak] if step == SETTLED else [])]
            found.append(pytest.param(operation, step, marks=marks, id=f"{operation.__name__}.{step}"))
    return found


def dies_at(
    operation: type[Operation[Any, Any]],
    step: str,
    places: str,
    source: str,
    program: tuple[str, ...] = (),
    host: str = "",
) -> Story:
    """Call the operation of a daemon that dies at that step, call it again, and remove everything."""
    with story_in(places, **({"DOCKER_HOST": host} if host else {})) as story:
        daemon = story.daemon
        if program:
            daemon.program = [daemon.program[0], *program]
        for setting in PLACES:
            daemon.env[setting] = f"{daemon.root}/{setting.lower()}"
            os.mkdir(daemon.env[setting], mode=0o700)
        world = World(story, source, {GVISOR: "gvisor", DOCKERS: "docker"}.get(kind_of(operation), "local"))
        story.start()
        world.prepare(operation)
        story.stop()
        daemon.env[failpoints.SETTING] = f"{operation.__name__}.{step}"
        story.start()
        world.call(operation)
        if story.deaths == 0 and story.lost():  # it may die when it has answered
            story.revive()
        deaths = story.deaths
        world.check(operation)
        world.clear()
        wait_until_gone(story)
        story.stop()
        check(story)
        story.deaths = deaths
    return story


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest, places: str, source: str) -> Iterator[Told]:
    with side_by_side(partial(dies_at, places=places, source=source), asked_for(request)) as told:
        yield told


@pytest.mark.parametrize(("operation", "step"), cases(OF_LOCAL))
def test_a_death_at_every_step(told: Told, operation: type[Operation[Any, Any]], step: str) -> None:
    assert told(operation=operation, step=step).deaths == 1


@pytest.mark.parametrize(("operation", "step"), cases(OF_DOCKER))
def test_a_death_at_every_step_of_what_an_engine_does(
    places: str, source: str, dockerd: Any, operation: type[Operation[Any, Any]], step: str
) -> None:
    assert dies_at(operation, step, places, source, host=dockerd.host).deaths == 1


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize(("operation", "step"), cases(operations(within=toy_operation.__name__)))
def test_an_operation_of_which_nobody_has_heard_is_killed_at_its_steps(
    places: str, source: str, monkeypatch: pytest.MonkeyPatch, operation: type[Operation[Any, Any]], step: str
) -> None:
    """It is declared in a daemon of the test's own, and has no other test."""
    monkeypatch.setitem(METHODS, toy_operation.ROW.name, toy_operation.ROW)
    assert dies_at(operation, step, places, source, TOY).deaths == 1
