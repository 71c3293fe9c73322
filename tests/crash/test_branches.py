"""The daemon dies around each commit and at each point of branches; the orders are given again."""

from collections.abc import Iterator

import pytest
from tests.crash.branching import BRANCHING, tell
from tests.crash.story import Told
from tests.crash.test_keeping import told_of_both

from sandkeep import failpoints
from sandkeep.events import EVENTS

pytestmark = pytest.mark.needs("bwrap")

NEVER = tuple(f"branch.{what}_failed" for what in ("create", "merge", "resolve", "commit"))
"""Events of failures only; a daemon that starts records them where an order was not carried out."""

POINTS = [point for point in failpoints.POINTS if point.startswith(BRANCHING)]
COMMITS = [
    f"{kind}:{side}"
    for kind in sorted(EVENTS)
    if kind.startswith(BRANCHING) and kind not in NEVER
    for side in (failpoints.BEFORE, failpoints.AFTER)
]
LOCAL = [(point, "local") for point in POINTS]
DEEP = [pytest.param(point, "local", marks=pytest.mark.soak) for point in COMMITS]
DEEP += [
    pytest.param(point, "docker", marks=[pytest.mark.soak, pytest.mark.needs("docker")])
    for point in (*POINTS, *COMMITS)
]


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest, places: str, source: str) -> Iterator[Told]:
    with told_of_both(request, places, source, tell) as told:
        yield told


@pytest.mark.parametrize(("point", "provider"), [*LOCAL, *DEEP])
def test_a_death_at_every_point(told: Told, point: str, provider: str) -> None:
    assert point in told(point=point, provider=provider).died_at
