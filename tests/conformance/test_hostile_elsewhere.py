"""Enemies in sandboxes of Docker, gVisor and a cluster, and enemies who are root inside: they hurt their own only.

One daemon for each provider and user. Of each class of enemies a few are tried; `make soak` tries all.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.conftest import daemon_in
from tests.support.boxes import at_most
from tests.support.hostile import ENEMIES, QUICK, SMALL_SCRATCH, Enemy
from tests.support.siege import House, attack

pytestmark = pytest.mark.needs("root")

LOCAL = pytest.param(("local", "0"), marks=pytest.mark.needs("bwrap"), id="local-root")
DOCKER = [pytest.param(("docker", user), marks=pytest.mark.needs("docker"), id=f"docker{name}")
          for user, name in ((None, ""), ("0", "-root"))]  # fmt: skip
GVISOR = [pytest.param(("gvisor", user), marks=pytest.mark.needs("runsc"), id=f"gvisor{name}")
          for user, name in ((None, ""), ("0", "-root"))]  # fmt: skip

KUBERNETES = pytest.param(("kubernetes", None), id="kubernetes")


@pytest.fixture(scope="module")
def house(request: pytest.FixtureRequest, places: str) -> Iterator[House]:
    """One for each provider and user, since tests of one come after each other."""
    kind, user = request.param
    engine = request.getfixturevalue("dockerd") if kind == "docker" else None
    with daemon_in(places, **SMALL_SCRATCH) as daemon:
        if engine is not None:
            daemon.env["DOCKER_HOST"] = engine.host
        if kind == "kubernetes":
            daemon.env["KUBECONFIG"] = request.getfixturevalue("namespace")
        daemon.start()
        with daemon.connect() as client:
            made = House(daemon, client, kind, engine, user)
            yield made
            if kind == "kubernetes":  # the cluster outlives the module
                client.sandbox.terminate(made.neighbour)


def named(*names: str) -> list[Enemy]:
    found = [enemy for enemy in ENEMIES if enemy.name in names]
    assert len(found) == len(names)
    return found


def by_name(enemy: Enemy) -> str:
    return enemy.name.replace(" ", "-")


@pytest.mark.parametrize("house", [DOCKER[0], GVISOR[0]], indirect=True)
@pytest.mark.parametrize("enemy", named(*QUICK), ids=by_name)
def test_an_enemy_hurts_itself_only(house: House, enemy: Enemy) -> None:
    attack(house, enemy)


IN_PODS = ("links", "one long answer", "locked answers", "kills", "locked doors", "other keepers")
"""Those who need no limits, which our double of a cluster does not enforce, and no Python."""


@pytest.mark.parametrize("house", [KUBERNETES], indirect=True)
@pytest.mark.parametrize("enemy", named(*IN_PODS), ids=by_name)
def test_an_enemy_in_a_pod_hurts_itself_only(house: House, enemy: Enemy) -> None:
    attack(house, enemy)


QUIET = ("links", "kills", "locked doors", "other keepers")
LOUD = (*QUIET, "one long answer", "terminal of another kind")
"""With two more, who keep a processor each busy for as long as all are there, which in gVisor is long."""


def together(house: Any, names: tuple[str, ...], *marks: Any) -> Any:
    return pytest.param(*house.values, names, marks=[*house.marks, *marks], id=f"{house.id}-{len(names)}")


AT_ONCE = [together(LOCAL, LOUD), together(DOCKER[1], LOUD), together(GVISOR[1], QUIET)]


@pytest.mark.parametrize(
    ("house", "names"), [*AT_ONCE, together(GVISOR[1], LOUD, pytest.mark.soak)], indirect=["house"]
)
def test_enemies_who_are_root_inside_hurt_themselves_only(house: House, names: tuple[str, ...]) -> None:
    """A few at once."""
    boxes = [house.let_loose(enemy) for enemy in named(*names)]
    for box in boxes:
        house.go(box.id)
    with at_most(60):
        house.check_neighbour()
        house.end_all(boxes)
        house.check_neighbour()


@pytest.mark.soak
@pytest.mark.parametrize("house", [LOCAL, *DOCKER, *GVISOR], indirect=True)
@pytest.mark.parametrize("enemy", ENEMIES, ids=by_name)
def test_every_enemy_hurts_itself_only(house: House, enemy: Enemy) -> None:
    attack(house, enemy)
