"""How long a ping takes while the daemon is overloaded: 500 clients, 2,000 sandboxes on record, 200 of them running,
which are made, used and ended at once.

Floor: a bare echo beside it, and so beside the very same forks. Echo, daemon, clients and the connections that are
measured are in processes of their own; both are pinged in turns, every few milliseconds. The clients are
ordinary programs, the others have the daemon's precedence.
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
from benches import fair
from benches.daemon import per_cent
from benches.rpc import line_of, serving
from benches.table import Row, show
from tests.support.overload import Crowd, seed

from sandkeep.blocking import connect
from sandkeep.errors import SandkeepError

CLIENTS = 500
WORKERS = 200
ON_RECORD = 2000
ROUNDS = 2
PAUSE_S = 1.0
EVERY_S = 0.001
PING = line_of("daemon.ping", "")


class Measured(NamedTuple):
    """Pings of both in seconds, how long it all took, and how many processes and threads were started meanwhile."""

    ours: list[float]
    floor: list[float]
    seconds: float
    forks: int


def pinged(path: str, echo: str, goes_on: Callable[[], bool]) -> Measured:
    """Ping both in turns for as long as something goes on."""
    ours, floor = list[float](), list[float]()
    with _dialled(path) as sock, _dialled(echo) as bare:
        begun, forks = time.perf_counter(), _forks()
        while goes_on():
            for one, times in ((sock, ours), (bare, floor)):
                times.append(_ping(one))
                time.sleep(EVERY_S)
    return Measured(ours, floor, time.perf_counter() - begun, _forks() - forks)


def _dialled(path: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(path)
    return sock


def _ping(sock: socket.socket) -> float:
    start = time.perf_counter()
    sock.send(PING)
    while not sock.recv(65536).endswith(b"\n"):
        pass
    return time.perf_counter() - start


def _forks() -> int:
    with open("/proc/stat") as stat:
        return next(int(line.split()[1]) for line in stat if line.startswith("processes"))


def overloaded(path: str, echo: str, image_id: str, workers: int) -> Measured:
    """Pings of both, while the daemon is kept busy."""
    words = [sys.executable, "-m", "benches.overload", "--crowd", path, image_id, str(workers)]
    with fair.ordinary():
        crowd = subprocess.Popen(words, start_new_session=True)
    try:
        measured = pinged(path, echo, lambda: crowd.poll() is None)
        if crowd.returncode:
            raise RuntimeError("a client was not served")
    finally:
        crowd.kill()
        crowd.wait()
    return measured


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
            fair.check(process.pid)
            return process
        time.sleep(0.01)


def _stopped(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(60)


@fair.conditions()
def run(workers: int = WORKERS) -> list[Row]:
    with _daemon() as (root, path, image_id), serving("echo", f"{root}/echo") as echo:
        measured = overloaded(path, echo, image_id, workers)
    ours, floor = (per_cent(times, 0.99) * 1e3 for times in (measured.ours, measured.floor))
    a_second = measured.forks / measured.seconds
    case = f"daemon.ping, p99, {CLIENTS} clients, {workers} sandboxes at once, {a_second:.0f} forks/s"
    return [Row(case, f"{ours:.1f} ms", f"bare echo beside it {floor:.1f} ms", ours / floor, "<= 5", ours <= 5 * floor)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--crowd", nargs=3, metavar=("SOCKET", "IMAGE", "WORKERS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.crowd:
        path, image_id, workers = given.crowd
        trio.run(Crowd(path, image_id, int(workers), CLIENTS - int(workers), ROUNDS, PAUSE_S).run)
    else:
        show(run(given.workers))


if __name__ == "__main__":
    main()
