"""Five hundred clients at once, two thousand sandboxes on record: nobody is lost, left out or blocked.

Each client sees for itself that each of its calls is answered, with the answer to that call. Nothing is timed: what is
fair is told by shares.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from tests.conftest import RunningDaemon
from tests.overload import Crowd, seed

pytestmark = pytest.mark.needs("bwrap", "root")

CLIENTS = 500
ON_RECORD = 2000
WORKING, WORKING_SOAK = 40, 200
MOST_GROWTH = 64 * 1024 * 1024
PATIENCE_S = 300
"""What is locked is given up after that long."""


@pytest.fixture
def daemon(places: str) -> Iterator[RunningDaemon]:
    root = tempfile.mkdtemp(dir=places)
    os.chmod(root, 0o711)
    made = RunningDaemon(root)
    os.mkdir(made.state_dir, 0o700)
    seed(made.state_dir, ON_RECORD)
    made.start(SANDKEEP_RETAIN="forever")
    yield made
    with made.connect() as client:
        for sandbox in client.sandbox.list().sandboxes:
            client.sandbox.terminate(sandbox.sandbox_id)
    made.kill()


def overload(daemon: RunningDaemon, image: Path, working: int, rounds: int) -> None:
    with daemon.connect() as client:
        image_id = client.image.create(str(image)).image_id
        before = client.daemon.status().resident_bytes
    crowd = Crowd(daemon.socket, image_id, working, CLIENTS - working, rounds)

    async def run() -> None:
        with trio.fail_after(PATIENCE_S):
            await crowd.run()

    trio.run(run)
    assert crowd.most_running >= working - 1
    assert crowd.most_resident - before < MOST_GROWTH
    assert min(crowd.asked) * 2 >= max(crowd.asked), "of two who ask alike, one was served twice as often"
    with daemon.connect() as client:
        assert client.sandbox.list().sandboxes == []
        assert len(client.sandbox.list(all=True, limit=1000).sandboxes) == 1000
        assert client.daemon.status().healthy
    assert " error " not in daemon.said()


def test_a_crowd_is_served(daemon: RunningDaemon, tmp_path: Path) -> None:
    overload(daemon, tmp_path, WORKING, 2)


@pytest.mark.soak
def test_a_crowd_with_two_hundred_sandboxes_is_served(daemon: RunningDaemon, tmp_path: Path) -> None:
    overload(daemon, tmp_path, WORKING_SOAK, 5)
