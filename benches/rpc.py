"""The API's server beside a bare trio echo: calls a second over 64 connections, and how long one call takes on one.

Floor: a trio server on raw sockets which decodes each line as JSON, encodes it again and sends it back. Figure: the
real daemon with a sandbox, started for it, or one that runs already:

    python -m benches.rpc --socket /run/sandkeep/sandkeep.sock --sandbox sbx_...

Server and load are processes of their own. Figure and floor are measured in turns; the median of the rounds counts.

For the rows of one connection client and servers are kept on processors of their own, and every processor is given
something to do that yields to everything else. Otherwise two things are left to chance that each cost as much as the
call: whether the server happens to be on the client's processor, and whether its processor had gone to sleep.
"""

import argparse
import contextlib
import os
import select
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import trio
from benches import fair
from benches.daemon import daemon, tree
from benches.table import Row, show

CONNECTIONS = 64
ROUNDS = 7
SECONDS = 0.6
TURNS = 400
CALLS_A_TURN = 50


# -- servers ----------------------------------------------------------------------------------------------------------


async def echo(path: str) -> None:
    """The floor."""
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        await listener.bind(path)
        listener.listen(512)
        async with trio.open_nursery() as nursery:
            while True:
                connection, _ = await listener.accept()
                nursery.start_soon(_echo_one, connection)


async def _echo_one(connection: trio.socket.SocketType) -> None:
    decode, encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode
    with contextlib.suppress(OSError), connection:
        while data := await connection.recv(65536):
            answer = encode(decode(data)) + b"\n"
            while answer:
                answer = answer[await connection.send(answer) :]


SERVERS: dict[str, Callable[[str], Any]] = {"echo": echo}


@contextlib.contextmanager
def serving(name: str, path: str) -> Iterator[str]:
    """A server in a process of its own."""
    process = subprocess.Popen([sys.executable, "-m", "benches.rpc", "--serve", name, path])
    try:
        while not _answers(path):
            if process.poll() is not None:
                raise RuntimeError(f"the server {name} ended with {process.returncode}")
            time.sleep(0.01)
        yield path
    finally:
        process.kill()
        process.wait()


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == 0


# -- load -------------------------------------------------------------------------------------------------------------


def line_of(method: str, sandbox_id: str) -> bytes:
    params = {"sandbox_id": sandbox_id} if method == "sandbox.get" else {}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": 17, "method": method, "params": params}) + b"\n"


def calls_a_second(path: str, line: bytes, connections: int = CONNECTIONS, seconds: float = SECONDS) -> float:
    """One call in flight on each connection, for a while."""
    poller = select.epoll()
    sockets: dict[int, socket.socket] = {}
    for _ in range(connections):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(path)
        sockets[sock.fileno()] = sock
        poller.register(sock, select.EPOLLIN)
        sock.send(line)
    answered, start = 0, time.perf_counter()
    while (now := time.perf_counter()) - start < seconds:
        for number, _ in poller.poll():
            sock = sockets[number]
            if sock.recv(65536).endswith(b"\n"):
                answered += 1
                sock.send(line)
    for sock in sockets.values():
        sock.close()
    return answered / (now - start)


def latencies(paths: tuple[str, str], line: bytes) -> list[list[float]]:
    """How long single calls take on one connection to each of two servers, in microseconds, measured in short turns."""
    with contextlib.ExitStack() as held:
        held.enter_context(awake())
        processors = sorted(os.sched_getaffinity(0))
        held.enter_context(kept_on(os.getpid(), processors[0]))
        sockets = [held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) for _ in paths]
        for sock, path in zip(sockets, paths, strict=True):
            sock.connect(path)
            held.enter_context(kept_on(_server_of(sock), processors[-1]))
        took: list[list[float]] = [[], []]
        for _ in range(TURNS):
            for sock, times in zip(sockets, took, strict=True):
                times += [_one_call(sock, line) for _ in range(CALLS_A_TURN)]
    return took


@contextlib.contextmanager
def awake() -> Iterator[None]:
    """Keep every processor from idling, by loops that anything else interrupts at once."""
    loops = [subprocess.Popen([sys.executable, "-c", _LOOP, str(cpu)]) for cpu in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextlib.contextmanager
def kept_on(pid: int, processor: int) -> Iterator[None]:
    """Keep a process, with all its threads, on one processor."""
    before = {int(thread): os.sched_getaffinity(int(thread)) for thread in os.listdir(f"/proc/{pid}/task")}
    for thread in before:
        os.sched_setaffinity(thread, {processor})
    try:
        yield
    finally:
        for thread, processors in before.items():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(thread, processors)


def _server_of(sock: socket.socket) -> int:
    return struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


_LOOP = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while True:
    pass
"""


def _one_call(sock: socket.socket, line: bytes) -> float:
    start = time.perf_counter()
    sock.send(line)
    while not sock.recv(65536).endswith(b"\n"):
        pass
    return (time.perf_counter() - start) * 1e6


# -- the table --------------------------------------------------------------------------------------------------------


def rows(figure: str, floor: str, sandbox_id: str) -> list[Row]:
    """Measure a server on the socket `figure` beside the echo on `floor`."""
    found = []
    for method in ("daemon.ping", "sandbox.get"):
        line = line_of(method, sandbox_id)
        _check(figure, line)
        fast = [(calls_a_second(figure, line), calls_a_second(floor, line)) for _ in range(ROUNDS)]
        found += [_throughput(method, fast), _latency(method, latencies((figure, floor), line))]
    return found


def _check(path: str, line: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(path)
        sock.sendall(line)
        answer = sock.recv(65536)
    if b'"result"' not in answer:
        raise RuntimeError(f"cannot measure: {answer.decode()}")


def _throughput(method: str, pairs: list[tuple[float, float]]) -> Row:
    ratio = statistics.median(a / b for a, b in pairs)
    ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    case = f"{method}, {CONNECTIONS} connections"
    return Row(case, f"{ours:,.0f}/s", f"{theirs:,.0f}/s trio echo", ratio, "at least 0.7", ratio >= 0.7)


def _latency(method: str, took: list[list[float]]) -> Row:
    ours, theirs = (statistics.median(times) for times in took)
    ratio = ours / theirs
    case = f"{method}, one connection, p50"
    return Row(case, f"{ours:.0f} µs", f"{theirs:.0f} µs trio echo", ratio, "at most 1.5", ratio <= 1.5)


@fair.conditions()
def run(path: str | None = None, sandbox_id: str = "") -> list[Row]:
    """Measure a daemon with a sandbox, or one that runs already on `path`."""
    with tempfile.TemporaryDirectory() as directory, serving("echo", f"{directory}/echo") as floor:
        if path is not None:
            return rows(path, floor, sandbox_id)
        with daemon() as (client, root):
            image_id = client.image.create(tree(root, "image", 10, 1000)).image_id
            return rows(f"{root}/sock", floor, client.sandbox.create(image_id).sandbox_id)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", help="measure the daemon that listens there")
    parser.add_argument("--sandbox", default="", help="a sandbox of that daemon")
    parser.add_argument("--serve", nargs=2, metavar=("NAME", "PATH"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        trio.run(SERVERS[given.serve[0]], given.serve[1])
    else:
        show(run(given.socket, given.sandbox))


if __name__ == "__main__":
    main()
