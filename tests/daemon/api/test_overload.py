"""Five hundred clients at once, two thousand sandboxes on record: nobody is lost, left out or blocked.

Each client sees for itself that each of its calls is answered, with the answer to that call. Nothing is timed: what is
fair is told by shares.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from tests.conftest import RunningDaemon
from tests.support.expect import until
from tests.support.overload import Crowd, seed
from tests.support.patience import patient
from tests.support.soak import times

pytestmark = pytest.mark.needs("bwrap", "root")

CLIENTS, CLIENTS_SOAK = 250, 500
ON_RECORD = 2000
WORKING, WORKING_SOAK = 30, times(200)
MOST_GROWTH = 64 * 1024 * 1024
PATIENCE_S = patient(300)
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


def overload(daemon: RunningDaemon, image: Path, clients: int, working: int, rounds: int) -> None:
    with daemon.connect() as client:
        image_id = client.image.create(str(image)).image_id
        before = client.daemon.status().resident_bytes
    crowd = Crowd(daemon.socket, image_id, working, clients - working, rounds)

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
    overload(daemon, tmp_path, CLIENTS, WORKING, 2)


def test_the_daemon_goes_before_what_it_keeps(shared_daemon: RunningDaemon, tmp_path: Path) -> None:
    """Its threads have precedence; nothing that it starts inherits that."""
    assert shared_daemon.process is not None
    expected = {_precedence()}
    pid = shared_daemon.process.pid
    until(lambda: _priorities(pid) == expected)  # but for the instant in which one of them starts a program
    assert _of_session(shared_daemon.process.pid) in ({"", "-10"} if expected == {-10} else {"", "0", "-10"})
    with shared_daemon.connect() as client:
        box = client.sandbox.create(client.image.create(str(tmp_path)).image_id).sandbox_id
        assert client.sandbox.exec(box, "nice; nice -n 3 nice").stdout == b"0\n3\n"
        started = _children(shared_daemon.process.pid)
        assert _precedences(started) == {0}
        assert {_of_session(pid) for pid in started} <= {"", "0"}
        client.sandbox.terminate(box)
    until(lambda: _priorities(pid) == expected)


def _precedence() -> int:
    """What root may have here: in some containers it may not."""
    words = "import os; os.setpriority(os.PRIO_PROCESS, 0, -10)"
    return (
        0 if subprocess.run([sys.executable, "-c", words], stderr=subprocess.DEVNULL, check=False).returncode else -10
    )


def _priorities(pid: int) -> set[int]:
    return _precedences(map(int, os.listdir(f"/proc/{pid}/task")))


def _precedences(tasks: Iterable[int]) -> set[int]:
    """Those of processes or threads, without those that have ended meanwhile."""
    found = set()
    for task in tasks:
        with suppress(ProcessLookupError):
            found.add(os.getpriority(os.PRIO_PROCESS, task))
    return found


def _of_session(pid: int) -> str:
    """The same of its session; nothing where the kernel knows no such thing."""
    with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/autogroup") as group:
        return group.read().rpartition("nice ")[2].strip()
    return ""


def _children(pid: int) -> list[int]:
    direct: list[int] = []
    with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/task/{pid}/children") as children:
        direct = [int(word) for word in children.read().split()]
    return [one for child in direct for one in (child, *_children(child))]


@pytest.mark.soak
def test_a_crowd_with_two_hundred_sandboxes_is_served(daemon: RunningDaemon, tmp_path: Path) -> None:
    overload(daemon, tmp_path, CLIENTS_SOAK, WORKING_SOAK, 5)
