"""Threads of the daemon are shared out by owner: what one user does to his own sandbox delays nobody else."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon, daemon_in
from tests.support.boxes import Box
from tests.support.documents import directory
from tests.support.expect import refused, until
from tests.support.patience import patient
from tests.support.users import as_client

from sandkeep.blocking import connect
from sandkeep.errors import SandkeepError
from sandkeep.ids import new_id
from sandkeep_store.archives.tar.depth import MOST_LEVELS

pytestmark = pytest.mark.needs("root", "bwrap")

VICTIM, ENEMY, ROOT = 40_011, 40_012, 0
CALLS = 40

DEEP = "d=$(printf 'd/%.0s' $(seq 500)); for n in 1 2 3 4 5 6; do mkdir -p $d && cd -P $d || exit 1; done; echo >end"
"""Makes a chain of 3,000 directories."""

CHAIN = """
import os, sys
for _ in range(int(sys.argv[1])):
    os.mkdir("d")
    os.chdir("d")
open("end", "w").close()
"""

KINDS = [
    pytest.param(("local", "cp"), id="local"),
    pytest.param(("docker", "tar"), id="docker", marks=pytest.mark.needs("docker")),
]
"""Providers, and the program that reads the files of their sandboxes for a comparison."""

DOCKER_BY_THE_SOAK = [
    KINDS[0],
    pytest.param(("docker", "tar"), id="docker", marks=[pytest.mark.needs("docker"), pytest.mark.soak]),
]


FILES = {"cp": 1500, "tar": 6000}
"""Number of files with which the program lives long enough to be caught."""


@pytest.fixture(params=KINDS)
def scene(request: pytest.FixtureRequest, places: str) -> Iterator[tuple[RunningDaemon, dict[str, Any], str]]:
    provider, program = request.param
    engine = request.getfixturevalue("dockerd") if provider == "docker" else None
    with daemon_in(places) as daemon:
        os.mkdir(f"{daemon.root}/source", 0o755)
        image = {"source": f"{daemon.root}/source", "provider": provider}
        if engine is not None:
            daemon.env["DOCKER_HOST"] = engine.host
            image["base"] = engine.guest()
        daemon.start()
        if engine is not None:
            with daemon.connect() as client:
                client.image.publish(image["base"])
        yield daemon, image, program


def box_of(image: dict[str, Any], client: Any, script: str = "true") -> str:
    box = str(client.sandbox.create(client.image.create(**image).image_id).sandbox_id)
    assert client.sandbox.exec(box, script).exit_code == 0
    return box


@contextmanager
def in_flight(daemon: RunningDaemon, uid: int, call: Callable[[Any], object]) -> Iterator[Callable[[], int]]:
    """Let a user make the call many times at once; yield the number of those that are not answered yet."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)

        def make_one() -> None:
            try:
                with connect(daemon.socket) as client:
                    call(client)
            except SandkeepError:
                pass
            finally:
                os.write(writing, b".")

        callers = [threading.Thread(target=make_one, daemon=True) for _ in range(CALLS)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        os._exit(0)
    os.close(writing)
    os.set_blocking(reading, False)
    answered = 0

    def left() -> int:
        nonlocal answered
        with suppress(BlockingIOError):
            answered += len(os.read(reading, CALLS))
        return CALLS - answered

    try:
        yield left
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)


def stopped_program(daemon: RunningDaemon, name: str) -> int:
    """Stop the first program of that name that the daemon starts; return its pid."""
    assert daemon.process is not None

    def find() -> int | None:
        for task in os.listdir(f"/proc/{daemon.process.pid}/task"):
            try:
                for pid in Path(f"/proc/{daemon.process.pid}/task/{task}/children").read_text().split():
                    if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                        os.kill(int(pid), signal.SIGSTOP)
                        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
                        if state in ("T", "t", "R", "D", "S"):
                            return int(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
        return None

    deadline = time.monotonic() + patient(60)
    while time.monotonic() < deadline:  # without a pause: it lives for a tenth of a second
        if (pid := find()) is not None:
            return pid
    raise AssertionError(f"no {name} was started")


def lead_a_life(image: dict[str, Any], client: Any) -> None:
    """Do what must always go on."""
    box = box_of(image, client)
    assert client.sandbox.get(box).status == "running"
    [fork] = client.sandbox.fork(box).sandboxes
    client.snapshot.create(box)
    for one in (fork.sandbox_id, box):
        client.sandbox.terminate(one)


@pytest.mark.parametrize("scene", DOCKER_BY_THE_SOAK, indirect=True)
def test_reads_of_one_sandbox_delay_neither_others_nor_a_stop(
    scene: tuple[RunningDaemon, dict[str, Any], str],
) -> None:
    """One comparison hangs, and all further ones of that sandbox wait for it: the others' work is done meanwhile."""
    daemon, image, program = scene
    box = as_client(daemon, ENEMY, lambda client: box_of(image, client, f"seq {FILES[program]} | xargs touch"))
    with in_flight(daemon, ENEMY, lambda client: client.sandbox.diff(box)) as left:
        pid = stopped_program(daemon, program)
        try:
            waiting = left()
            assert waiting > CALLS // 2
            for uid in (VICTIM, ROOT):
                as_client(daemon, uid, lambda client: lead_a_life(image, client))
            assert left() == waiting
            as_client(daemon, ENEMY, lambda client: client.sandbox.exec(box_of(image, client), "true"))
            assert daemon.stop() == 0  # in good order: after `STOP_S` it would be 1
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    daemon.start()
    as_client(daemon, ENEMY, lambda client: client.sandbox.exec(box, "true"))  # it is not left frozen


def test_a_removal_delays_no_stop_and_the_next_daemon_goes_on_with_it(places: str) -> None:
    with daemon_in(places) as daemon:
        os.mkdir(f"{daemon.root}/source", 0o755)
        image = {"source": f"{daemon.root}/source"}
        daemon.start()
        box = as_client(daemon, ENEMY, lambda client: box_of(image, client, DEEP))
        with in_flight(daemon, ENEMY, lambda client: client.sandbox.terminate(box)) as left:
            stopped_program(daemon, "rm")
            as_client(daemon, VICTIM, lambda client: lead_a_life(image, client))
            assert left() == CALLS
            assert daemon.stop() == 0
        stray = f"{daemon.state_dir}/sandboxes/{new_id('sbx')}"
        os.makedirs(f"{stray}/upper")
        daemon.start()
        pid = stopped_program(daemon, "rm")
        try:
            as_client(daemon, VICTIM, lambda client: lead_a_life(image, client))
            until(lambda: as_client(daemon, ENEMY, lambda client: client.sandbox.get(box).status) == "stopped")
            until(lambda: not os.path.exists(stray))
            assert os.listdir(f"{daemon.state_dir}/trash")
            assert Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] == "T"  # it is the same that hangs
        finally:
            os.kill(pid, signal.SIGCONT)
        until(lambda: not os.listdir(f"{daemon.state_dir}/trash"))


def test_a_fork_delays_no_stop(places: str) -> None:
    with daemon_in(places) as daemon:
        os.mkdir(f"{daemon.root}/source", 0o755)
        image = {"source": f"{daemon.root}/source"}
        daemon.start()
        box = as_client(daemon, ENEMY, lambda client: box_of(image, client, f"seq {FILES['cp']} | xargs touch"))
        with in_flight(daemon, ENEMY, lambda client: client.sandbox.fork(box)):
            stopped_program(daemon, "cp")
            assert daemon.stop() == 0
        daemon.start()
        until(lambda: as_client(daemon, ENEMY, lambda client: client.sandbox.get(box).status) == "running")
        as_client(daemon, ENEMY, lambda client: client.sandbox.exec(box, "true"))
        with daemon.connect() as client:
            standing = {each.sandbox_id for each in client.sandbox.list().sandboxes if each.status == "running"}
        assert standing == {box}


def test_trees_beyond_the_limit_are_refused_and_ended(scene: tuple[RunningDaemon, dict[str, Any], str]) -> None:
    daemon, image, _ = scene

    def misuse(client: Any) -> None:
        box = box_of(image, client, DEEP)
        calls = [client.sandbox.diff, client.sandbox.fork, client.snapshot.create]
        for call in calls:
            assert f"more than {MOST_LEVELS} levels" in refused("tree_too_deep", call, box).message
        refused("tree_too_deep", Box(daemon, client, box).copy_out, ".")
        assert client.sandbox.terminate(box).status == "stopped"

    as_client(daemon, ENEMY, misuse)


def test_trees_at_the_limit_are_copied(client: Any, box: str) -> None:
    assert client.sandbox.exec(box, ["python3", "-c", CHAIN, str(MOST_LEVELS - 1)]).exit_code == 0
    end = "d/" * (MOST_LEVELS - 1) + "end"
    assert client.sandbox.diff(box).added == MOST_LEVELS
    snapshot = client.snapshot.create(box).snapshot_id
    [fork] = client.sandbox.fork(box).sandboxes
    restored = client.snapshot.restore(snapshot)
    for one in (fork.sandbox_id, restored.sandbox_id):
        assert client.sandbox.exec(one, ["test", "-f", end]).exit_code == 0
        client.sandbox.terminate(one)


def test_directories_of_the_host_beyond_the_limit_are_refused(client: Any, places: str) -> None:
    with directory(places) as top:  # not below `tmp_path`: what pytest removes it with is not made for such depths
        subprocess.run([sys.executable, "-c", CHAIN, "3000"], cwd=top, check=True)
        refused("tree_too_deep", client.image.create, str(top))


@pytest.mark.soak  # removing a directory takes milliseconds of the disk
def test_a_hundred_thousand_levels_are_ended(client: Any, image: str) -> None:
    box = client.sandbox.create(image).sandbox_id
    assert client.sandbox.exec(box, ["python3", "-c", CHAIN, "100000"]).exit_code == 0
    refused("tree_too_deep", client.sandbox.fork, box)

    def is_ended() -> bool:
        try:
            return bool(client.sandbox.terminate(box).status == "stopped")
        except SandkeepError as error:
            if error.code != "timeout":  # this call has waited for long enough, and the removal goes on
                raise
            return False

    until(is_ended, patient(1800))


def test_a_stop_that_hangs_ends_the_process() -> None:
    code = "import sandkeepd.main as m, time; m.STOP_S = 0.1; m._limit_stop(); time.sleep(3600)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=patient(60))
    assert done.returncode == 1
    assert b"the next daemon goes on with it" in done.stderr


def test_threads_are_given_out_in_one_place() -> None:
    """A thread of any other limit, trio's default included, is one that owners wait for behind each other."""
    root = Path(__file__).parents[3]
    sources = [*root.glob("daemon/**/*.py"), *root.glob("store/**/*.py")]
    users = {
        str(path.relative_to(root))
        for path in sources
        if re.search(r"to_thread\.run_sync|CapacityLimiter\(", path.read_text(encoding="utf-8"))
    }
    assert len(sources) > 400
    assert users == {
        "store/sandkeep_store/threads.py",
        "store/sandkeep_store/eventlog/log.py",  # the log's one writer
        "daemon/sandkeepd/host/cgroups/freezer.py",  # a turn, without a thread
        "daemon/sandkeepd/providers/docker/engine.py",  # streams, each in a thread of its own
        "daemon/sandkeepd/providers/kubernetes/cluster.py",
        "daemon/sandkeepd/providers/modal/service.py",
    }
