"""The same as `test_hostile_walks` of containers, in which hostile code is root, as the host sees it, too."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon, daemon_in
from tests.daemon.snapshots.test_hostile_walks import attempt, closed, found_in, require_nothing_kept
from tests.support.engine import PrivateEngine
from tests.support.exchanges import Closed, exchanged, plant
from tests.support.snapshots import sh

pytestmark = pytest.mark.needs("docker")

__all__ = ["closed"]

DOCKERFILE = "FROM {}\nWORKDIR /workspace\nRUN mkdir -p /opt/tool && echo 1 >/opt/tool/file"


class Box:
    """A container whose user is root, and the places where its engine keeps what it writes."""

    def __init__(self, client: Any, engine: PrivateEngine, image: str) -> None:
        self.id = client.sandbox.create(image, user="0").sandbox_id
        assert sh(client, self.id, "id -u; mkdir /opt/place place; touch place/in /opt/place/in") == "0\n"
        [container] = engine.containers(f"sandkeep.sandbox={self.id}")
        found = engine.get(f"/containers/{container['Id']}/json")
        [volume] = [mount for mount in found["Mounts"] if mount["Destination"] == "/workspace"]
        self.places = [Path(found["GraphDriver"]["Data"]["UpperDir"], "opt/place"), Path(volume["Source"], "place")]


@pytest.fixture(scope="module")
def daemon(dockerd: PrivateEngine, places: str) -> Iterator[RunningDaemon]:
    with daemon_in(places, DOCKER_HOST=dockerd.host, SANDBOX_DOCKER_READ_ONLY="false") as made:
        made.start()
        yield made


@pytest.fixture(scope="module")
def client(daemon: RunningDaemon) -> Any:
    with daemon.connect() as client:
        yield client


@pytest.fixture
def box(client: Any, dockerd: PrivateEngine) -> Iterator[Box]:
    reference = dockerd.derived("test/walks:1", DOCKERFILE.format(dockerd.busybox()))
    made = Box(client, dockerd, client.image.create(reference, provider="docker").image_id)
    yield made
    client.sandbox.terminate(made.id)


@pytest.mark.parametrize("where", [0, 1], ids=["upper", "volume"])
def test_nothing_is_kept_that_links_lead_to(client: Any, box: Box, where: int, closed: Closed) -> None:
    place = box.places[where]
    plant(place, closed, 0)
    name = "workspace/place" if where else "opt/place"
    for _ in range(2):
        with exchanged(place, 0):
            require_nothing_kept(client, box.id)
            require_nothing_kept(client, box.id, include=[f"{name}/d0", f"{name}/l0/f1"])
            made = attempt(client.sandbox.fork, box.id)
        for fork in made.sandboxes if made else ():
            found = found_in(client, fork.sandbox_id, "/opt /workspace")
            client.sandbox.terminate(fork.sandbox_id)
            assert found == ""
