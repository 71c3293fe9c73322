"""The daemon dies around each commit and at each point of branches; the orders are given again."""

import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from tests.conftest import ENGINES
from tests.crash.branching import BRANCHING, tell
from tests.crash.story import Story, asked_for
from tests.crash.test_keeping import dies_at

from sandkeep import failpoints
from sandkeep.events import EVENTS

pytestmark = pytest.mark.needs("bwrap")

SIDE_BY_SIDE = 3

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
def stories(
    request: pytest.FixtureRequest, places: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, str], "Future[Story]"]]:
    """Those that are asked for, told side by side: most of the time each waits for something."""
    source = tmp_path_factory.mktemp("source")
    Path(source, "file").write_text("content\n")
    source.chmod(0o755)
    asked = [(params["point"], params["provider"]) for params in asked_for(request)]
    needs_docker = any(provider == "docker" for _, provider in asked) and ENGINES["docker"]() is None
    engine = request.getfixturevalue("dockerd") if needs_docker else None
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        yield {
            (point, provider): pool.submit(
                partial(dies_at, telling=tell), point, tempfile.mkdtemp(dir=places), str(source),
                engine if provider == "docker" else None,
            )
            for point, provider in asked
        }  # fmt: skip
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(("point", "provider"), [*LOCAL, *DEEP])
def test_a_death_at_every_point(stories: dict[tuple[str, str], "Future[Story]"], point: str, provider: str) -> None:
    assert stories[point, provider].result(180).deaths == 1
