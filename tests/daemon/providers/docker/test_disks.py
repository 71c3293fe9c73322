"""Containers with a disk of their own: the limit is exact, whatever the code inside does, and nothing of it is left."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.providers.local.test_disks import CLEARING, WAYS, WRITING, freed, image_of, loops
from tests.support.boxes import Box, new_box
from tests.support.expect import refused, until

from sandkeep import failpoints
from sandkeep.errors import SandkeepError

pytestmark = pytest.mark.needs("docker", "root", "busybox")

MIB = 1 << 20
SIZE = 64 * MIB


def start(daemon: Any, dockerd: Any, **environment: str) -> None:
    daemon.start(DOCKER_HOST=dockerd.host, SANDBOX_DOCKER_NETWORK="none", **environment)


@pytest.fixture(scope="module")
def image(shared_daemon: Any, dockerd: Any) -> str:
    shared_daemon.stop()
    start(shared_daemon, dockerd)
    with shared_daemon.connect() as client:
        return str(client.image.create(dockerd.hostile(), provider="docker").image_id)


@pytest.fixture(scope="module")
def box(shared_daemon: Any, image: str) -> Iterator[Box]:
    with new_box(shared_daemon, image, disk_bytes=SIZE, memory_bytes=512 * MIB) as made:
        yield made
    freed(image_of(made))


@pytest.mark.parametrize("way", WAYS)
def test_the_limit_is_exact_and_the_writer_is_told(box: Box, way: str) -> None:
    blocks = os.stat(image_of(box)).st_blocks
    done = box.client.sandbox.exec(box.id, ["python3", "-c", WRITING + WAYS[way] + CLEARING])
    assert done.stdout == b"28\n", done.stderr  # ENOSPC
    assert os.stat(image_of(box)).st_blocks == blocks >= SIZE // 512
    box.sh("echo fine >file; cat file; rm file")
    found = box.client.sandbox.get(box.id)
    assert (found.status, found.isolation.limits["disk"]) == ("running", "file system")
