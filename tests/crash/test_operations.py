"""The daemon dies at each step of each operation, and the command is given again.

The cases are derived from what is declared: a new operation is here without anybody adding it.
"""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from tests.crash.story import Story, Told, asked_for, check, side_by_side, story_in
from tests.crash.test_keeping import wait_until_gone
from tests.support import toy_operation
from tests.support.operations import DOCKERS, OF_TWO_DAEMONS, UPKEEP_OF_LOG, World, operations

from sandkeep.protocol.methods import METHODS
from sandkeepd.core.operation import STEPS, Operation

GVISOR = "Checkpoint"
"""The prefix of operations that need a kernel which can be saved."""

FINISHED = (
    "ArchiveRemoval", "Committing", "LockReturn", "ProcessLaunching", "Resumption", "SessionStart", "Suspension"
)  # fmt: skip
"""Operations that a start finishes, or finds done, without their later steps."""

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

IN_ORDER = [f"{each.__name__}.{step}" for each in OF_LOCAL if each.__name__ not in FINISHED for step in STEPS]
"""Points at which one daemon after the other dies of the same call."""


def kind_of(operation: type[Operation[Any, Any]]) -> str:
    """Return the prefix by which an operation needs another provider than the local one."""
    return next((prefix for prefix in (GVISOR, DOCKERS) if operation.__name__.startswith(prefix)), "")


def cases(declared: list[type[Operation[Any, Any]]]) -> list[Any]:
    found = []
    for operation in declared:
        needs = {GVISOR: "runsc", DOCKERS: "docker"}.get(kind_of(operation), "bwrap")
        for step in STEPS:
            marks = [pytest.mark.needs(needs), *([pytest.mark.soak] if step == SETTLED else [])]
            point = f"{operation.__name__}.{step}"
            found.append(pytest.param(operation, point, marks=marks, id=point))
    return found


def dies_at(
    points: Sequence[str],
    operation: type[Operation[Any, Any]],
    places: str,
    source: str,
    program: tuple[str, ...] = (),
    host: str = "",
) -> Story:
    """Call the operation of a daemon that dies at these steps, call it again, and remove everything."""
    with story_in(places, points, **({"DOCKER_HOST": host} if host else {})) as story:
        daemon = story.daemon
        if program:
            daemon.program = [daemon.program[0], *program]
        for setting in PLACES:
            daemon.env[setting] = f"{daemon.root}/{setting.lower()}"
            os.mkdir(daemon.env[setting], mode=0o700)
        world = World(story, source, {GVISOR: "gvisor", DOCKERS: "docker"}.get(kind_of(operation), "local"))
        story.start()
        world.prepare(operation)
        if story.died_at:  # it has made what it is about
            story.stop()
            story.expect(points)
            story.start()
        world.call(operation)
        while len(story.died_at) < len(points) and story.lost():  # it may die when it has answered
            story.revive()
        world.check(operation)
        world.clear()
        wait_until_gone(story)
        story.stop()
        check(story)
    return story


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest, places: str, source: str) -> Iterator[Told]:
    tell = partial(dies_at, places=places, source=source)
    with side_by_side(tell, asked_for(request), in_order=IN_ORDER, deaths=len(STEPS)) as told:
        yield told


@pytest.mark.parametrize(("operation", "point"), cases(OF_LOCAL))
def test_a_death_at_every_step(told: Told, operation: type[Operation[Any, Any]], point: str) -> None:
    assert point in told(operation=operation, point=point).died_at


@pytest.mark.parametrize(("operation", "point"), cases(OF_DOCKER))
def test_a_death_at_every_step_of_what_an_engine_does(
    places: str, source: str, dockerd: Any, operation: type[Operation[Any, Any]], point: str
) -> None:
    assert dies_at([point], operation, places, source, host=dockerd.host).died_at == [point]


@pytest.mark.needs("bwrap")
@pytest.mark.parametrize(("operation", "point"), cases(operations(within=toy_operation.__name__)))
def test_an_operation_of_which_nobody_has_heard_is_killed_at_its_steps(
    places: str, source: str, monkeypatch: pytest.MonkeyPatch, operation: type[Operation[Any, Any]], point: str
) -> None:
    """It is declared in a daemon of the test's own, and has no other test."""
    monkeypatch.setitem(METHODS, toy_operation.ROW.name, toy_operation.ROW)
    assert dies_at([point], operation, places, source, TOY).died_at == [point]
