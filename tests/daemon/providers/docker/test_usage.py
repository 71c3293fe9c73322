"""What Docker sandboxes use, and who in them was OOM-killed: as in any other."""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.boxes import Box, new_box
from tests.support.expect import until

pytestmark = pytest.mark.needs("docker", "root", "busybox")

MIB = 1 << 20
EAT = "x=xxxxxxxxxxxxxxxx; while :; do x=$x$x; done"
"""A shell's own memory, doubled again and again."""


@pytest.fixture(scope="module")
def box(shared_daemon: Any, dockerd: Any) -> Iterator[Box]:
    shared_daemon.stop()
    shared_daemon.start(DOCKER_HOST=dockerd.host, SANDBOX_DOCKER_NETWORK="none")
    with shared_daemon.connect() as client:
        image = client.image.create(dockerd.busybox(), provider="docker").image_id
    with new_box(shared_daemon, image, memory_bytes=64 * MIB, cpus=1.5, pids=64) as made:
        yield made


def stats(box: Box) -> Any:
    [found] = box.client.sandbox.stats(sandbox_id=box.id).sandboxes
    return found


def test_its_limits_and_what_it_uses(box: Box) -> None:
    before = stats(box)
    assert (before.provider, before.memory_limit_bytes, before.cpus_limit, before.pids_limit) == (
        "docker", 64 * MIB, 1.5, 64,
    )  # fmt: skip
    box.client.process.launch(box.id, ["sh", "-c", "while :; do :; done"], name="spin")
    until(lambda: stats(box).cpu_s > before.cpu_s + 0.2)
    until(lambda: stats(box).pids == before.pids + 1)
    assert stats(box).running_processes == 1
    box.client.process.signal(box.id, "spin", signal="KILL")
    assert not box.client.process.wait(box.id, "spin").oom_killed
    box.sh(f"head -c {8 * MIB} /dev/zero >/workspace/file; sync")
    until(lambda: stats(box).io_written_bytes >= (before.io_written_bytes or 0) + 8 * MIB)


def test_who_was_killed_for_want_of_memory(box: Box) -> None:
    done = box.client.sandbox.exec(box.id, ["sh", "-c", EAT])
    assert (done.exit_code, done.oom_killed) == (137, True), done
    assert done.error == "out of memory: the OOM killer ended it; the sandbox's limit is 64 MB"
    assert stats(box).oom_kills >= 1
    done = box.client.sandbox.exec(box.id, ["sh", "-c", "kill -9 $$"])
    assert (done.exit_code, done.oom_killed) == (137, False)


def test_it_is_measured_while_the_engine_stands_still(box: Box, dockerd: Any) -> None:
    dockerd.send(signal.SIGSTOP)
    try:
        assert stats(box).pids > 0
    finally:
        dockerd.send(signal.SIGCONT)


def test_one_that_was_removed_is_left_out(box: Box, dockerd: Any) -> None:
    image = box.client.sandbox.get(box.id).image_id
    made = box.client.sandbox.create(image).sandbox_id
    os.kill(dockerd.container_of(made)["State"]["Pid"], signal.SIGKILL)
    until(lambda: [found.sandbox_id for found in box.client.sandbox.stats().sandboxes] == [box.id])
    box.client.sandbox.terminate(made)


def test_an_image_without_a_shell_is_measured_too(new_daemon: Callable[[], Any], dockerd: Any) -> None:
    daemon = new_daemon()
    daemon.start(DOCKER_HOST=dockerd.host, SANDBOX_DOCKER_NETWORK="none")
    with daemon.connect() as client:
        image = client.image.create(dockerd.bare(), provider="docker").image_id
        client.sandbox.create(image, name="bare", memory_bytes=64 * MIB)
        [found] = client.sandbox.stats().sandboxes
        assert found.memory_limit_bytes == 64 * MIB
        assert found.cpu_s > 0
