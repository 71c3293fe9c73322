"""The HTTP gateway beside a bare echo: requests a second for `ensure` of a session that is ready.

Floor: a Starlette application on hypercorn's own trio worker, which decodes the body as JSON, encodes it again and
sends it back. Servers and load are processes of their own; figure and floor are measured in turns, and the median of
the rounds counts.
"""

import argparse
import contextlib
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import msgspec
import trio
from benches import fair
from benches.daemon import daemon, tree
from benches.table import Row, show

ROUNDS = 7
SECONDS = 0.8
CONNECTIONS = (1, 16)
LEAST = 0.7
_ENDINGS = (b"\r\n\r\n", b"content-length: ")


async def echo(path: str) -> None:
    """The floor."""
    from hypercorn.config import Config
    from hypercorn.trio import serve
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    async def answer(request: Request) -> Response:
        body = msgspec.json.encode(msgspec.json.decode(await request.body()))
        return Response(body, media_type="application/json")

    config = Config()
    config.bind = [f"unix:{path}"]
    config.keep_alive_max_requests = 2**62
    await serve(Starlette(routes=[Route("/", answer, methods=["POST"])]), config)  # type: ignore[arg-type]


@contextlib.contextmanager
def serving(path: str) -> Iterator[str]:
    """The floor in a process of its own."""
    process = subprocess.Popen([sys.executable, "-m", "benches.http", "--serve", path], stderr=subprocess.DEVNULL)
    try:
        while not _answers(path):
            if process.poll() is not None:
                raise RuntimeError(f"the echo ended with {process.returncode}")
            time.sleep(0.01)
        yield path
    finally:
        process.kill()
        process.wait()


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == 0


def request(path: str, body: bytes, key: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {key}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def requests_a_second(path: str, data: bytes, connections: int) -> float:
    """One request in flight on each connection, for a while."""
    poller = select.epoll()
    sockets: dict[int, socket.socket] = {}
    for _ in range(connections):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.connect(path)
        sockets[sock.fileno()] = sock
        poller.register(sock, select.EPOLLIN)
        sock.send(data)
    received = dict.fromkeys(sockets, b"")
    answered, start = 0, time.perf_counter()
    while (now := time.perf_counter()) - start < SECONDS:
        for number, _ in poller.poll():
            received[number] += sockets[number].recv(65536)
            if _is_whole(received[number]):
                answered, received[number] = answered + 1, b""
                sockets[number].send(data)
    for sock in sockets.values():
        sock.close()
    return answered / (now - start)


def _is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(_ENDINGS[0])
    if not end:
        return False
    if b" 200 " not in head:
        raise RuntimeError(f"cannot measure: {answer.decode()}")
    return len(body) == int(head.lower().partition(_ENDINGS[1])[2].partition(b"\r\n")[0])


def rows(figure: tuple[str, bytes], floor: tuple[str, bytes]) -> list[Row]:
    found = []
    for connections in CONNECTIONS:
        pairs = [
            (requests_a_second(*figure, connections), requests_a_second(*floor, connections)) for _ in range(ROUNDS)
        ]
        ratio = statistics.median(a / b for a, b in pairs)
        ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
        case = f"HTTP: ensure of a ready session, {connections} connection{'s'[: connections - 1]}"
        what = f"{theirs:,.0f}/s echo, same server and framework"
        found.append(Row(case, f"{ours:,.0f}/s", what, ratio, f">= {LEAST}", ratio >= LEAST))
    return found


@fair.conditions()
def run() -> list[Row]:
    """Measure a daemon with a session."""
    with (
        tempfile.TemporaryDirectory() as directory,
        serving(f"{directory}/echo") as floor,
        daemon(SANDKEEP_HTTP=f"unix:{directory}/http") as (client, root),
    ):
        key = client.key.create("bench").key
        image = client.image.create(tree(root, "image", 10, 1000), owner="key:bench").image_id
        body = msgspec.json.encode({"id": "bench", "image": image, "idle_timeout_sec": 0, "max_lifetime_sec": 0})
        figure = f"{directory}/http", request("/api/sandbox/sessions/", body, key)
        _make(*figure)
        return rows(figure, (floor, request("/", body, key)))


def _make(path: str, data: bytes) -> None:
    """Send the first request, which makes the session."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.connect(path)
        sock.sendall(data)
        answer = sock.recv(65536)
    if b" 201 " not in answer:
        raise RuntimeError(f"cannot measure: {answer.decode()}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", metavar="PATH", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        trio.run(echo, given.serve)
    else:
        show(run())


if __name__ == "__main__":
    main()
