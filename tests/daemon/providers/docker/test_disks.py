"""Containers with a disk of their own: the limit is exact, whatever the code inside does, and nothing of it is left."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from docker import APIClient
from tests.daemon.providers.local.test_disks import CLEARING, WAYS, WRITING, freed, image_of, kill_first, loops
from tests.support.boxes import Box, new_box
from tests.support.counting import counting
from tests.support.engine import PrivateEngine
from tests.support.expect import refused, until
from tests.support.patience import patient

from sandkeep import failpoints
from sandkeep.errors import SandkeepError
from sandkeep.model import SandboxSpec
from sandkeepd.providers.docker import plan as docker_plan

pytestmark = pytest.mark.needs("docker", "root", "busybox")

MIB = 1 << 20
SIZE = 64 * MIB

FULL = "cat /dev/zero >big || :"


def start(daemon: Any, dockerd: Any, **environment: str) -> None:
    daemon.start(DOCKER_HOST=dockerd.host, SANDBOX_DOCKER_NETWORK="none", **environment)


def with_files(dockerd: Any) -> str:
    """An image whose workspace has files of its user."""
    steps = "WORKDIR /workspace\nUSER 0\nRUN echo image >file && chown -R 1234:1234 /workspace\nUSER 1234:1234\n"
    return str(dockerd.derived("test/disk-files:1", f"FROM {dockerd.hostile()}\n{steps}"))


@pytest.fixture(scope="module")
def image(shared_daemon: Any, dockerd: Any) -> str:
    shared_daemon.stop()
    start(shared_daemon, dockerd)
    with shared_daemon.connect() as client:
        return str(client.image.create(with_files(dockerd), provider="docker").image_id)


@pytest.fixture(scope="module")
def box(shared_daemon: Any, image: str) -> Iterator[Box]:
    with new_box(shared_daemon, image, disk_bytes=SIZE, memory_bytes=512 * MIB) as made:
        yield made
    freed(image_of(made))


@pytest.fixture
def own(shared_daemon: Any, image: str) -> Iterator[Box]:
    with new_box(shared_daemon, image, disk_bytes=SIZE) as made:
        yield made
    freed(image_of(made))


@pytest.fixture
def engine() -> Iterator[PrivateEngine]:
    """An engine that a test may stop."""
    made = PrivateEngine(tempfile.mkdtemp(prefix="skt-engine-"))
    made.start()
    try:
        yield made
    finally:
        made.clear()


def mounts_of(box: Box) -> list[str]:
    """The lines of the host's table of mounts that are about a sandbox."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if box.id in line]


@pytest.mark.parametrize("way", WAYS)
def test_the_limit_is_exact_and_the_writer_is_told(box: Box, way: str) -> None:
    done = box.client.sandbox.exec(box.id, ["python3", "-c", f"{WRITING}{WAYS[way]}{CLEARING}"])
    assert done.stdout == b"28\n", done.stderr  # ENOSPC
    assert os.stat(image_of(box)).st_blocks >= SIZE // 512  # all of it is reserved, as it was
    box.sh("echo fine >file; cat file; rm file")
    found = box.client.sandbox.get(box.id)
    assert (found.status, found.isolation.limits["disk"]) == ("running", "file system")


@pytest.mark.parametrize("user", ["0", "1500:1500"])
def test_it_is_exact_for_root_and_where_the_engine_copies_the_files(shared_daemon: Any, image: str, user: str) -> None:
    with new_box(shared_daemon, image, disk_bytes=SIZE, user=user) as box:
        done = box.client.sandbox.exec(box.id, ["python3", "-c", f"{WRITING}{WAYS['in flight']}{CLEARING}"])
        assert done.stdout == b"28\n", done.stderr
    freed(image_of(box))


def test_on_a_full_disk_commands_run_and_their_output_is_seen(box: Box) -> None:
    box.sh(FULL)
    for number in range(3):
        done = box.client.sandbox.exec(box.id, ["sh", "-c", f"cat; exit {number}"], stdin=b"fine")
        assert (done.exit_code, done.stdout) == (number, b"fine")
    assert "its disk is full" in box.client.sandbox.get(box.id).note
    [stats] = box.client.sandbox.stats(sandbox_id=box.id).sandboxes
    assert SIZE - MIB < stats.disk_bytes <= stats.disk_limit_bytes == SIZE
    box.sh("rm big")


def test_a_full_disk_is_suspended_saved_forked_and_restored(own: Box) -> None:
    own.sh(f"echo kept >kept; {FULL}")
    client = own.client
    snapshot = client.snapshot.create(own.id).snapshot_id
    [fork] = client.sandbox.fork(own.id).sandboxes
    other = Box(own.daemon, client, fork.sandbox_id)
    assert other.sh("cat kept file; stat -c %s big") == own.sh("cat kept file; stat -c %s big")
    other.sh(f"cat /dev/zero >more || :; [ $(stat -c %s more) -lt {SIZE} ]")
    client.sandbox.suspend(own.id)
    client.sandbox.resume(own.id)
    own.sh("rm kept file")
    client.sandbox.restore(own.id, snapshot_id=snapshot)
    assert own.sh("cat kept file") == b"kept\nimage\n"
    volumes = Path(own.daemon.state_dir, "sandboxes", own.id, "volumes")
    until(lambda: len([name for name in os.listdir(volumes) if name != "trash"]) == 1, seen=lambda: os.listdir(volumes))
    own.sh("cat /dev/zero >again || :; rm again big")
    client.sandbox.terminate(other.id)
    freed(image_of(other))
    assert not mounts_of(other)


def test_its_output_stays_when_its_disk_goes(shared_daemon: Any, image: str) -> None:
    with new_box(shared_daemon, image, disk_bytes=SIZE) as box:
        done = box.client.sandbox.exec(box.id, ["seq", "100000"])
        assert loops(image_of(box))
    freed(image_of(box))
    assert not image_of(box).exists()
    assert not mounts_of(box)
    assert shared_daemon.cli("logs", box.id, done.process_id).stdout == b"".join(b"%d\n" % n for n in range(1, 100001))


def test_what_lies_outside_of_the_disk_is_refused(shared_daemon: Any, dockerd: Any, image: str, tmp_path: Path) -> None:
    disks = os.listdir(f"{shared_daemon.state_dir}/disks")
    with shared_daemon.connect() as client:
        declares = dockerd.derived("test/disk-volume:1", f"FROM {with_files(dockerd)}\nVOLUME /data\n")
        other = client.image.create(declares, provider="docker").image_id
        assert "/data is writable" in refused("not_supported", client.sandbox.create, other, disk_bytes=SIZE).message
        for volume in ({"source": "shared", "target": "/v"}, {"source": str(tmp_path), "target": "/v"}):
            call = (client.sandbox.create, image)
            error = refused("not_supported", *call, disk_bytes=SIZE, volumes=[volume])
            assert "/v lies outside" in error.message
        made = client.sandbox.create(image, disk_bytes=SIZE, volumes=[{**volume, "read_only": True}])
        client.sandbox.terminate(made.sandbox_id)
        plain = client.sandbox.create(image).sandbox_id
        assert client.sandbox.get(plain).isolation.limits["disk"] == "approximate"
        refused("not_supported", client.sandbox.update, plain, disk_bytes=SIZE)
        client.sandbox.terminate(plain)
    assert os.listdir(f"{shared_daemon.state_dir}/disks") == disks


def test_it_outlives_the_daemon_the_engine_and_its_own_end(new_daemon: Callable[[], Any], engine: Any) -> None:
    daemon = new_daemon()
    start(daemon, engine)
    with daemon.connect() as client:
        image = client.image.create(engine.busybox(), provider="docker").image_id
        box = Box(daemon, client, client.sandbox.create(image, disk_bytes=SIZE).sandbox_id)
        process = client.process.launch(box.id, ["sh", "-c", counting("now", pause_s=0.01)]).process_id
        until(lambda: client.process.read(box.id, process).stdout)
    daemon.kill()
    start(daemon, engine)
    with daemon.connect() as client:
        box = Box(daemon, client, box.id)
        engine.stop()
        engine.start()  # which unmounts what is mounted at its volumes
        first = int(box.sh("cat now"))
        until(lambda: int(box.sh("cat now")) > first + 1)
        kill_first(client, box.id)
        until(lambda: client.sandbox.get(box.id).status in ("failed", "lost"))
    daemon.stop()
    for line in reversed(mounts_of(box)):  # as after a reboot: only the image is there
        subprocess.run(["umount", "--lazy", line.split()[4]], stderr=subprocess.DEVNULL)
    freed(image_of(box))
    start(daemon, engine)
    with daemon.connect() as client:
        box = Box(daemon, client, box.id)
        assert daemon.cli("logs", box.id, process).stdout.startswith(b"1\n2\n")
        client.sandbox.resume(box.id)
        assert int(box.sh("cat now")) > first
        box.sh(f"{FULL}; [ $(stat -c %s big) -lt {SIZE} ]")
        client.sandbox.terminate(box.id)
    freed(image_of(box))
    assert not mounts_of(box)


@pytest.mark.parametrize(
    "point",
    ["disk.mounted", "docker.volume", "docker.killed", "disk.emptied"] + [
        pytest.param(point, marks=pytest.mark.soak)
        for point in ("disk.allocated", "docker.created", "docker.started", "docker.removed")
    ],
)  # fmt: skip
def test_a_death_at_every_step(new_daemon: Callable[[], Any], dockerd: Any, point: str) -> None:
    daemon = new_daemon()
    start(daemon, dockerd, **{failpoints.SETTING: point})
    with daemon.connect(patience_s=1) as client:
        image = client.image.create(with_files(dockerd), provider="docker").image_id
        with suppress(SandkeepError):
            made = client.sandbox.create(image, name="it", disk_bytes=SIZE)
            done = client.sandbox.exec(made.sandbox_id, ["echo", "fine"])
            client.sandbox.terminate(made.sandbox_id)
    daemon.process.wait(patient(60))
    start(daemon, dockerd)
    directory = Path(daemon.state_dir, "disks")
    until(lambda: not os.listdir(directory) and not loops(directory), seen=lambda: os.listdir(directory))
    assert daemon.state_dir not in Path("/proc/self/mountinfo").read_text()
    with APIClient(dockerd.host) as api:
        assert not [each for each in api.volumes()["Volumes"] or () if "disk" in each["Name"]]
    if point in ("docker.killed", "docker.removed", "disk.emptied"):
        assert daemon.cli("logs", made.sandbox_id, done.process_id).stdout == b"fine\n"


DETAILS = {"docker_image_id": f"sha256:{'0a' * 32}", "docker_image_tag": "x"}


def test_a_users_daemon_refuses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    plan = ("sbx_1", "uid:1000", SandboxSpec(disk_bytes=SIZE), DETAILS, 1 << 30)
    assert "only root's daemon" in refused("not_supported", docker_plan.decide, *plan).message


@pytest.mark.parametrize("mode", ["user", "static"])
def test_a_workspace_that_outlives_the_sandbox_is_on_no_disk(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    monkeypatch.setenv("SANDBOX_DOCKER_VOLUME_MODE", mode)
    monkeypatch.setenv("SANDBOX_DOCKER_VOLUME_NAME", "shared")
    plan = ("sbx_1", "uid:0", SandboxSpec(disk_bytes=SIZE), DETAILS, 1 << 30)
    assert "/workspace lies outside" in refused("not_supported", docker_plan.decide, *plan).message
