"""The daemon dies at each step of each operation, and the command is given again.

The cases are derived from what is declared: a new operation is here without anybody adding it.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.crash.deaths import Stories, dying, side_by_side
from tests.crash.story import Story, asked_for, check
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


def kind_of(operation: type[Operation[Any]]) -> str:
    """Return the prefix by which an operation needs another provider than the local one."""
    return next((prefix for prefix in (GVISOR, DOCKERS) if operation.__name__.startswith(prefix)), "")


def cases(declared: list[type[Operation[Any]]]) -> list[Any]:
    found = []
    for operation in declared:
        needs = {GVISOR: "runsc", DOCKERS: "docker"}.get(kind_of(operation), "bwrap")
        for step in STEPS:
            marks = [pytest.mark.needs(needs), *([pytest.mark.soak] if step == SETTLED else [])]
            found.append(pytest.param(operation, step, marks=marks, id=f"{operation.__name__}.{step}"))
    return found


def dies_at(
    operation: type[Operation[Any]], step: str, root: str, source: str, program: tuple[str, ...] = (), **env: str
) -> Story:
    """Call the operation of a daemon that dies at that step, call it again, and remove everything."""
    with dying("", root, **env) as story:
        daemon = story.daemon
        if program:
            daemon.program = [daemon.program[0], *program]
        for setting in PLACES:
            daemon.env[setting] = f"{root}/{setting.lower()}"
            Path(daemon.env[setting]).mkdir(mode=0o700)
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
def stories(request: pytest.FixtureRequest, places: str, source: str) -> Iterator[Stories]:
    asked = [(params["operation"], params["step"]) for params in asked_for(request)]
    points = [point for point in asked if point[0] in OF_LOCAL]
    with side_by_side(places, points, lambda point, root: dies_at(*point, root, source)) as told:
        yield told


@pytest.mark.parametrize(("operation", "step"), cases(OF_LOCAL))
def test_a_death_at_every_step(stories: Stories, operation: type[Operation[Any]], step: str) -> None:
    assert stories[operation, step].result().deaths == 1


@pytest.mark.parametrize(("operation", "step"), cases(OF_DOCKER))
def test_a_death_at_every_step_of_what_an_engine_does(
    places: str, source: str, dockerd: Any, operation: type[Operation[Any]], step: str
) -> None:
    assert dies_at(operation, step, tempfile.mkdtemp(dir=places), source, DOCKER_HOST=dockerd.host).deaths == 1


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize(("operation", "step"), cases(operations(within=toy_operation.__name__)))
def test_an_operation_of_which_nobody_has_heard_is_killed_at_its_steps(
    places: str, source: str, monkeypatch: pytest.MonkeyPatch, operation: type[Operation[Any]], step: str
) -> None:
    """It is declared in a daemon of the test's own, and has no other test."""
    monkeypatch.setitem(METHODS, toy_operation.ROW.name, toy_operation.ROW)
    assert dies_at(operation, step, tempfile.mkdtemp(dir=places), source, TOY).deaths == 1
