"""Hostile owners: what the others wait for, against the same machine with as many bare busy programs."""

import ctypes
import os
import pickle
import select
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import pytest
from tests.conftest import RunningDaemon, daemon_in
from tests.daemon.app.test_shares import DEEP, box_of
from tests.support.patience import patient
from tests.support.users import as_client

from sandkeep.blocking import connect
from sandkeep.errors import SandkeepError

pytestmark = [pytest.mark.soak, pytest.mark.needs("root", "bwrap")]

OTHERS = (40_021, 40_022, 40_023)
ENEMY = 40_024
ROUNDS = 3
SECONDS = 15.0
BOXES = 4
"""Sandboxes of the enemy, in each of which a program is busy."""

CALLERS = 40
"""Threads that compare them."""

PROGRAMS = BOXES + 2 + 3
"""Busy programs at once that the enemy has: in sandboxes, two clients, and what the daemon runs for the comparisons."""

CROWD = range(40_100, 40_160)
"""Users of whom each compares a sandbox of his own in `AT_ONCE` threads, three of which the daemon serves at once."""

AT_ONCE = 10

MOST_TIMES = 3.0

PR_SET_PDEATHSIG = 1

Times = dict[str, list[float]]
Load = Callable[[], AbstractContextManager[None]]


def lives(daemon: RunningDaemon, image: dict[str, Any]) -> Times:
    """Make calls one after the other for a while; return the seconds that each took."""
    times: Times = defaultdict(list)
    with connect(daemon.socket) as client:
        image_id = client.image.create(**image).image_id

        def timed(name: str, call: Callable[..., Any], *words: Any) -> Any:
            began = time.monotonic()
            answer = call(*words)
            times[name].append(time.monotonic() - began)
            return answer

        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            box = timed("create", client.sandbox.create, image_id).sandbox_id
            for _ in range(5):
                timed("exec", client.sandbox.exec, box, "true")
            for _ in range(20):
                timed("get", client.sandbox.get, box)
            [fork] = timed("fork", client.sandbox.fork, box).sandboxes
            for one in (fork.sandbox_id, box):
                timed("terminate", client.sandbox.terminate, one)
    return dict(times)


def all_lives(daemon: RunningDaemon, image: dict[str, Any]) -> Times:
    """Let the others live at once; return all their times."""
    times: Times = defaultdict(list)
    deadline = time.monotonic() + SECONDS + patient(60)
    children = [child(uid, lambda: lives(daemon, image)) for uid in OTHERS]
    try:
        for _, reading in children:
            answer = b""
            while piece := _read_until(deadline, reading):
                answer += piece
            for name, each in pickle.loads(answer).items():
                times[name] += each
    finally:
        end(children)
    return times


def _read_until(deadline: float, reading: int) -> bytes:
    assert select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0], "the others do not get on"
    return os.read(reading, 65536)


def end(children: Sequence[tuple[int, int]]) -> None:
    """End what `child` has begun."""
    for pid, reading in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)


def child(uid: int, work: Callable[[], Any]) -> tuple[int, int]:
    """Begin some work as another user; return the process, and the pipe for what it answers. It does not outlive this
    process, however that ends.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()  # as users have it: the kernel shares the processors out by session first
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of the user, which clears it
        with open(writing, "wb") as pipe:
            pickle.dump(work(), pipe)
        os._exit(0)
    os.close(writing)
    return pid, reading


@contextmanager
def busy_programs(count: int) -> Iterator[None]:
    programs = [subprocess.Popen(["sh", "-c", "while :; do :; done"], start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def prepare(image: dict[str, Any], client: Any) -> list[str]:
    """Make the enemy's sandboxes: with many files, and one besides with a tree that is too deep."""
    boxes = [box_of(image, client, "seq 1500 | xargs touch") for _ in range(BOXES)]
    for box in boxes:
        client.process.launch(box, "while :; do :; done")
    return [*boxes, box_of(image, client, DEEP)]


def for_ever(daemon: RunningDaemon, calls: list[Callable[[Any], object]]) -> None:
    """Make each call again and again, in a thread and with a client of its own."""

    def repeat(call: Callable[[Any], object]) -> None:
        with connect(daemon.socket) as client:
            while True:
                with suppress(SandkeepError):
                    call(client)

    threads = [threading.Thread(target=repeat, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def calling(daemon: RunningDaemon, users: Sequence[tuple[int, list[Callable[[Any], object]]]]) -> Iterator[None]:
    """Have users make calls again and again for the length of a block, each entry in a process of its own."""
    children = [child(uid, lambda calls=calls: for_ever(daemon, calls)) for uid, calls in users]
    try:
        yield
    finally:
        end(children)


@contextmanager
def hostile_load(daemon: RunningDaemon, image: dict[str, Any]) -> Iterator[None]:
    boxes = as_client(daemon, ENEMY, lambda client: prepare(image, client))
    compare = [lambda client, box=box: client.sandbox.diff(box) for box in boxes]
    flood = [lambda client: client.sandbox.get(boxes[0])] * CALLERS
    reads = [compare[number % len(compare)] for number in range(CALLERS)]
    try:
        with calling(daemon, [(ENEMY, reads), (ENEMY, flood)]):
            yield
    finally:
        as_client(daemon, ENEMY, lambda client: [client.sandbox.terminate(box) for box in boxes])


@contextmanager
def enemy(daemon: RunningDaemon, image: dict[str, Any]) -> Iterator[Load]:
    """One hostile owner, whose sandboxes are made for each load, as programs are busy in them."""
    yield lambda: hostile_load(daemon, image)


@contextmanager
def crowd(daemon: RunningDaemon, image: dict[str, Any]) -> Iterator[Load]:
    """Many owners, whose sandboxes are idle without a load, and are made once."""
    boxes = {
        uid: as_client(daemon, uid, lambda client: box_of(image, client, "seq 1500 | xargs touch")) for uid in CROWD
    }
    calls = [(uid, [lambda client, box=box: client.sandbox.diff(box)] * AT_ONCE) for uid, box in boxes.items()]
    try:
        yield lambda: calling(daemon, calls)
    finally:
        for uid, box in boxes.items():
            as_client(daemon, uid, lambda client, box=box: client.sandbox.terminate(box))


def p99(times: list[float]) -> float:
    return sorted(times)[int(0.99 * len(times))]


@pytest.mark.parametrize(("hostile", "programs"), [(enemy, PROGRAMS), (crowd, 3 * len(CROWD))], ids=["one", "crowd"])
def test_others_wait_hardly_longer_than_for_bare_programs(
    places: str, capsys: pytest.CaptureFixture[str], hostile: Callable[..., Any], programs: int
) -> None:
    with daemon_in(places) as daemon:
        os.mkdir(f"{daemon.root}/source", 0o755)
        image = {"source": f"{daemon.root}/source"}
        daemon.start()
        bare, beside = defaultdict[str, list[float]](list), defaultdict[str, list[float]](list)
        with hostile(daemon, image) as load:
            for _ in range(ROUNDS):  # in turns, as the machine may have other work
                for times, burden in ((bare, busy_programs(programs)), (beside, load())):
                    with burden:
                        for name, seconds in all_lives(daemon, image).items():
                            times[name] += seconds
    ratios = {name: p99(beside[name]) / p99(bare[name]) for name in bare}
    with capsys.disabled():
        for name, ratio in ratios.items():
            figures = f"{p99(bare[name]) * 1e3:.0f} ms of {len(bare[name])}, {p99(beside[name]) * 1e3:.0f} ms of "
            print(f"\n{name}: p99 {figures}{len(beside[name])}: {ratio:.2f}", end="")
    assert max(ratios.values()) <= MOST_TIMES, ratios
