"""How long a ping takes while the daemon is overloaded: 500 clients, 2,000 sandboxes on record, 200 of them running,
which are made, used and ended at once.

Floor: a bare echo beside as many forks, as fast one after another, of bare bubblewraps. Echo and daemon are processes of
their own, and so are the forks' and the clients'; one and the same connection's pings are measured, one every few
milliseconds.

    python -m benches.overload --crowd SOCKET IMAGE WORKERS     the clients alone
"""

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import trio
from benches.daemon import BARE_BWRAP, per_cent
from benches.rpc import line_of, serving
from benches.table import Row, show
from tests.overload import Crowd, seed

from sandkeep.blocking import connect
from sandkeep.errors import SandkeepError

CLIENTS = 500
WORKERS = 200
ON_RECORD = 2000
ROUNDS = 2
PAUSE_S = 1.0
EVERY_S = 0.002


class Measured(NamedTuple):
    """Pings in seconds, how long it all took, and how many processes and threads were started meanwhile."""

    pings: list[float]
    seconds: float
    forks: int

    @property
    def p99_ms(self) -> float:
        return per_cent(self.pings, 0.99) * 1e3


def pinged(path: str, goes_on: Callable[[], bool]) -> Measured:
    """Ping a server for as long as something goes on."""
    line, pings = line_of("daemon.ping", ""), []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(path)
        begun, forks = time.perf_counter(), _forks()
        while goes_on():
            start = time.perf_counter()
            sock.send(line)
            while not sock.recv(65536).endswith(b"\n"):
                pass
            pings.append(time.perf_counter() - start)
            time.sleep(EVERY_S)
    return Measured(pings, time.perf_counter() - begun, _forks() - forks)


def _forks() -> int:
    with open("/proc/stat") as stat:
        return next(int(line.split()[1]) for line in stat if line.startswith("processes"))


@contextmanager
def _ours(*words: object) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-m", "benches.overload", *map(str, words)])
    try:
        yield process
        if process.wait():
            raise RuntimeError(f"{words[0]} failed")
    finally:
        process.kill()
        process.wait()


def overloaded(path: str, image_id: str, workers: int) -> Measured:
    """The daemon's pings, while it is kept busy."""
    with _ours("--crowd", path, image_id, workers) as crowd:
        return pinged(path, lambda: crowd.poll() is None)


def echoed(directory: str, forks: int, seconds: float) -> Measured:
    """The echo's pings, beside as many forks in the same time."""
    with serving("echo", f"{directory}/echo") as path, _ours("--forks", forks, seconds) as load:
        return pinged(path, lambda: load.poll() is None)


def keep_forking(forks: int, seconds: float) -> None:
    """Start bare bubblewraps, several at once, at such a pace that there are so many forks in that time."""
    begun, first, running = time.monotonic(), _forks(), list[subprocess.Popen[bytes]]()
    while (passed := time.monotonic() - begun) < seconds:
        running = [process for process in running if process.poll() is None]
        if _forks() - first < forks * passed / seconds and len(running) < 8:
            running.append(subprocess.Popen(BARE_BWRAP))
        else:
            time.sleep(0.001)
    for process in running:
        process.wait()


@contextmanager
def _daemon() -> Iterator[tuple[str, str, str]]:
    """A daemon with all that on record: its directory, its socket and an image."""
    root = tempfile.mkdtemp(prefix="skb-", dir=os.environ.get("SANDKEEP_BENCH_DIR"))
    env = {
        **os.environ, "SANDKEEP_STATE_DIR": f"{root}/state", "SANDKEEP_SOCKET": f"{root}/sock",
        "SANDKEEP_RETAIN": "forever", "SANDKEEP_LOG_LEVEL": "warning",
    }  # fmt: skip
    os.makedirs(f"{root}/state", mode=0o700)
    os.mkdir(f"{root}/image")
    seed(f"{root}/state", ON_RECORD)
    _stopped(_started(env))  # it writes what can be read from outside of all that is on record
    process = _started(env)
    try:
        with connect(f"{root}/sock") as client:
            image_id = client.image.create(f"{root}/image").image_id
        yield root, f"{root}/sock", image_id
        with connect(f"{root}/sock") as client:
            for sandbox in client.sandbox.list().sandboxes:
                client.sandbox.terminate(sandbox.sandbox_id)
    finally:
        _stopped(process)
        subprocess.run(["rm", "-rf", root], check=True)


def _started(env: dict[str, str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-m", "sandkeepd.main"], env=env)
    while True:
        with suppress(SandkeepError), connect(env["SANDKEEP_SOCKET"]) as client:
            client.daemon.ping()
            return process
        time.sleep(0.01)


def _stopped(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(60)


def run(workers: int = WORKERS) -> list[Row]:
    with _daemon() as (root, path, image_id):
        ours = overloaded(path, image_id, workers)
        floor = echoed(root, ours.forks, ours.seconds)
    ratio = ours.p99_ms / floor.p99_ms
    a_second = ours.forks / ours.seconds
    return [
        Row(
            f"daemon.ping, p99, {CLIENTS} clients, {workers} sandboxes at once, {a_second:.0f} forks/s",
            f"{ours.p99_ms:.1f} ms",
            f"bare echo, {floor.forks / floor.seconds:.0f} forks/s {floor.p99_ms:.1f} ms",
            ratio,
            "<= 5",
            ratio <= 5,
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--crowd", nargs=3, metavar=("SOCKET", "IMAGE", "WORKERS"), help=argparse.SUPPRESS)
    parser.add_argument("--forks", nargs=2, metavar=("COUNT", "SECONDS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.crowd:
        path, image_id, workers = given.crowd
        trio.run(Crowd(path, image_id, int(workers), CLIENTS - int(workers), ROUNDS, PAUSE_S).run)
    elif given.forks:
        keep_forking(int(given.forks[0]), float(given.forks[1]))
    else:
        show(run(given.workers))


if __name__ == "__main__":
    main()
