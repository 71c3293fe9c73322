"""Limits of containers are changed while they run, by the engine."""

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from docker import APIClient
from tests.support.boxes import Box, new_box
from tests.support.expect import refused, until
from tests.support.patience import patient

from sandkeep import failpoints
from sandkeep.errors import SandkeepError

pytestmark = pytest.mark.needs("docker", "root", "busybox")

MIB = 1 << 20


@pytest.fixture(scope="module")
def image(shared_daemon: Any, dockerd: Any) -> str:
    shared_daemon.stop()
    shared_daemon.start(DOCKER_HOST=dockerd.host, SANDBOX_DOCKER_NETWORK="none")
    with shared_daemon.connect() as client:
        return str(client.image.create(dockerd.busybox(), provider="docker").image_id)


@pytest.fixture
def box(shared_daemon: Any, image: str) -> Iterator[Box]:
    with new_box(shared_daemon, image, memory_bytes=64 * MIB, pids=64) as made:
        yield made


def limits_of(client: Any, box: str) -> tuple[Any, Any, Any]:
    found = client.sandbox.stats(sandbox_id=box).sandboxes[0]
    return found.memory_limit_bytes, found.cpus_limit, found.pids_limit


def test_limits_are_changed_while_it_runs(box: Box) -> None:
    box.client.process.launch(box.id, ["sleep", "1000"], name="runs")
    done = box.daemon.cli("update", box.id, "--memory", "96M", "--cpus", "0.5", "--pids", "40")
    assert done.returncode == 0, done.stderr
    assert limits_of(box.client, box.id) == (96 * MIB, 0.5, 40)
    assert box.daemon.cli("update", box.id, "--memory", "48M").returncode == 0
    assert limits_of(box.client, box.id) == (48 * MIB, 0.5, 40)
    assert box.client.process.get(box.id, "runs").status == "running"
    box.client.sandbox.suspend(box.id)
    assert box.daemon.cli("update", box.id, "--pids", "50").returncode == 0
    box.client.sandbox.resume(box.id)
    assert limits_of(box.client, box.id) == (48 * MIB, 0.5, 50)
    refused("invalid", box.client.sandbox.update, box.id, memory_bytes=4 * MIB)


def test_one_that_is_restarted_has_them(box: Box, dockerd: Any) -> None:
    box.client.sandbox.update(box.id, memory_bytes=96 * MIB, cpus=0.5)
    with APIClient(dockerd.host) as engine:
        engine.kill(f"sandbox-{box.id}", signal.SIGKILL)
    until(lambda: box.client.sandbox.get(box.id).status in ("failed", "lost"), patient(60))
    box.client.sandbox.update(box.id, pids=33)  # while it does not run
    box.client.sandbox.resume(box.id)
    assert limits_of(box.client, box.id) == (96 * MIB, 0.5, 33)


@pytest.mark.parametrize("point", ["update.recorded", "update.applied"])
def test_the_next_daemon_applies_what_is_on_record(new_daemon: Callable[[], Any], dockerd: Any, point: str) -> None:
    daemon = new_daemon()
    daemon.start(DOCKER_HOST=dockerd.host, SANDBOX_DOCKER_NETWORK="none", **{failpoints.SETTING: point})
    with daemon.connect(patience_s=1) as client:
        image = client.image.create(dockerd.busybox(), provider="docker").image_id
        box = client.sandbox.create(image, memory_bytes=64 * MIB).sandbox_id
        with pytest.raises(SandkeepError):
            client.sandbox.update(box, memory_bytes=96 * MIB, pids=40)
    daemon.process.wait(patient(60))
    daemon.start(DOCKER_HOST=dockerd.host, SANDBOX_DOCKER_NETWORK="none")
    with daemon.connect() as client:
        client.sandbox.exec(box, ["true"])
        until(lambda: limits_of(client, box) == (96 * MIB, None, 40), patient(60))
        client.sandbox.terminate(box)
