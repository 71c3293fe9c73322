"""The stream server: how fast a log is read, and how soon the first output and an event are where they are awaited.

Floors: a bare trio-websocket server that sends 64 KiB frames of memory, read by the same client; a fixed 5 ms; and how
long the append itself takes, durable, as the caller of the log sees it. Servers and clients are processes of their own,
and figure and floor are measured in turns.
"""

import argparse
import contextlib
import os
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import trio
from benches import fair
from benches.daemon import daemon, tree
from benches.table import Row, show
from trio_websocket import (
    ConnectionClosed,
    WebSocketConnection,
    WebSocketRequest,
    wrap_client_stream,
    wrap_server_stream,
)

from sandkeep.events import ProcessStarted
from sandkeep.protocol import frames
from sandkeep.stream import StreamClient

MEBIBYTES = int(os.environ.get("SANDKEEP_BENCH_MB", "256"))
ROUNDS = 7
FOLLOWERS = 50
OUTPUTS = 40
EVENTS = 300
FRAME = bytes(64 * 1024)
RECEIVE_BYTES = 256 * 1024


# -- reading a log ----------------------------------------------------------------------------------------------------


async def send_memory(path: str) -> None:
    """The floor: frames of memory, as many as the log has bytes, to whoever connects."""
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        await listener.bind(path)
        listener.listen()

        async def serve(sock: Any) -> None:
            async with trio.open_nursery() as nursery:
                request: WebSocketRequest = await wrap_server_stream(nursery, trio.SocketStream(sock))
                connection = await request.accept()
                with contextlib.suppress(ConnectionClosed):
                    for _ in range(MEBIBYTES * 16):
                        await connection.send_message(FRAME)
                    await connection.aclose()

        async with trio.open_nursery() as clients:
            while True:
                clients.start_soon(serve, (await listener.accept())[0])


@contextlib.contextmanager
def memory_server(path: str) -> Iterator[str]:
    process = subprocess.Popen([sys.executable, "-m", "benches.stream", "--serve", path])
    try:
        while not os.path.exists(path):
            time.sleep(0.01)
        yield path
    finally:
        process.kill()
        process.wait()


async def read_all(path: str, target: str) -> float:
    """How many bytes a second one client gets."""
    stream = await trio.open_unix_socket(path)
    size, begun = 0, time.perf_counter()
    async with trio.open_nursery() as nursery:
        connection: WebSocketConnection = await wrap_client_stream(
            nursery, stream, "localhost", target, receive_buffer_size=RECEIVE_BYTES
        )
        with contextlib.suppress(ConnectionClosed):
            while True:
                size += len(await connection.get_message())
        taken = time.perf_counter() - begun
        await connection.aclose()
    assert size >= MEBIBYTES << 20, size
    return size / taken


def reading_row(client: Any, root: str, box: str) -> Row:
    client.process.launch(box, ["head", "-c", f"{MEBIBYTES}M", "/dev/zero"], name="log")
    client.process.wait(box, "log")
    target = frames.target("logs", box, "log")
    pairs = []
    with memory_server(f"{root}/memory.sock") as floor:
        for _ in range(ROUNDS + 1):
            ours = trio.run(read_all, f"{root}/stream.sock", target)
            pairs.append((ours, trio.run(read_all, floor, "/")))
    ratio = statistics.median(a / b for a, b in pairs[1:])
    ours, theirs = (statistics.median(column) / 1e6 for column in zip(*pairs[1:], strict=True))
    case = f"a log of {MEBIBYTES} MiB read by websocket"
    return Row(
        case, f"{ours:,.0f} MB/s", f"trio-websocket, 64 KiB of memory {theirs:,.0f} MB/s", ratio, ">= 0.6", ratio >= 0.6
    )


async def read_log(streams: StreamClient, box: str) -> float:
    """How many bytes a second a client of ours gets of the same log."""
    size, begun = 0, time.perf_counter()
    async with streams.logs(box, "log", follow=False) as log:
        async for piece in log:
            size += len(piece.data)
    assert size == MEBIBYTES << 20, size
    return size / (time.perf_counter() - begun)


def tls_row() -> Row:
    os.environ["SANDKEEP_STREAM_PLAINTEXT"] = "1"  # for the daemon, and for the client here
    with daemon(SANDKEEP_STREAM="tls://127.0.0.1:0,tcp://127.0.0.1:0") as (client, root):
        image = client.image.create(tree(root, "small", 10, 1000))
        box = client.sandbox.create(image.image_id).sandbox_id
        client.process.launch(box, ["head", "-c", f"{MEBIBYTES}M", "/dev/zero"], name="log")
        client.process.wait(box, "log")
        access = client.stream.access()
        ways = [StreamClient(address, access.token, pin=access.pin) for address in access.addresses]
        pairs = [[trio.run(read_log, streams, box) for streams in ways] for _ in range(ROUNDS + 1)]
    ratio = statistics.median(a / b for a, b in pairs[1:])
    ours, theirs = (statistics.median(column) / 1e6 for column in zip(*pairs[1:], strict=True))
    case = f"a log of {MEBIBYTES} MiB read by StreamClient over TLS"
    return Row(case, f"{ours:,.0f} MB/s", f"plain TCP {theirs:,.0f} MB/s", ratio, ">= 0.25", ratio >= 0.25)


# -- first output -----------------------------------------------------------------------------------------------------

_WRITER = """
while read x; do date +%s%N; done
"""


def first_outputs(path: str, target: str, type_line: Any) -> list[float]:
    """How long after it was written each output was with each follower, in milliseconds. The process tells when.

    The followers are as little as can be, so that it is the server that is measured.
    """
    poller = select.epoll()
    followers = {}
    for _ in range(FOLLOWERS):
        sock = _follower(path, target)
        followers[sock.fileno()] = sock
        poller.register(sock, select.EPOLLIN)
    delays: list[float] = []
    for number in range(OUTPUTS):
        type_line()
        while len(delays) < (number + 1) * FOLLOWERS:
            for fileno, _ in poller.poll():
                data = followers[fileno].recv(65536)
                now = time.time_ns()
                if data[0] == 0x82:  # what is not binary says that the follower has caught up
                    delays.append((now - int(data[2 + frames.HEADER_BYTES :])) / 1e6)
        time.sleep(0.02)
    for sock in followers.values():
        sock.close()
    return delays[FOLLOWERS:]


def _follower(path: str, target: str) -> socket.socket:
    """A websocket by hand, which has caught up."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.connect(path)
    key = "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
    sock.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n{key}\r\n\r\n".encode())
    said = b""
    while b"caught_up" not in said:
        said += sock.recv(65536)
    return sock


def first_output_row(client: Any, root: str, box: str) -> Row:
    client.process.launch(box, ["sh", "-c", _WRITER], name="ticker", stdin=True)
    target = frames.target("logs", box, "ticker", follow=True)
    delays = first_outputs(f"{root}/stream.sock", target, lambda: client.process.write_stdin(box, "ticker", b"\n"))
    half, most = statistics.median(delays), sorted(delays)[int(len(delays) * 0.99)]
    return Row(
        f"first output at {FOLLOWERS} followers, after it was written",
        f"p50 {half:.2f}, p99 {most:.1f} ms",
        "5 ms",
        half / 5,
        "p50 <= 1",
        half <= 5,
    )


# -- events -----------------------------------------------------------------------------------------------------------


async def events_at_a_subscriber(directory: str) -> tuple[list[float], list[float]]:
    """How long an append takes, and until a subscriber of a stream server beside it has the event, in milliseconds."""
    from sandkeep.events import Meta
    from sandkeep.protocol.clock import now_us
    from sandkeep_store.eventlog.log import EventLog, NewEvent
    from sandkeep_store.metadata_files import MetadataFiles
    from sandkeep_store.views.state import State
    from sandkeepd.api.listener import listening
    from sandkeepd.core.core import Core
    from sandkeepd.sessions.activity import Activity
    from sandkeepd.stream.events import events
    from sandkeepd.stream.server import StreamServer
    from sandkeepd.stream.tokens import Tokens

    log = EventLog.open(f"{directory}/events.db")
    commits: list[float] = []
    arrivals: list[float] = []
    with listening(f"{directory}/stream.sock") as listener:
        async with trio.open_nursery() as nursery:
            await nursery.start(log.run)
            state = State()
            core = Core(log, state, MetadataFiles(f"{directory}/sandboxes", state, log.log_id), {}, nursery)
            log.on_commit.clear()
            server = StreamServer({"events": partial(events, core, Activity(now_us))}, Tokens(directory))
            await nursery.start(server.serve, listener)
            subscriber = await trio.lowlevel.open_process(
                [sys.executable, "-m", "benches.stream", "--subscribe", f"{directory}/stream.sock"],
                stdout=subprocess.PIPE,
            )
            assert subscriber.stdout is not None
            await subscriber.stdout.receive_some(6)
            for number in range(EVENTS):
                begun = time.perf_counter_ns()
                await log.append([NewEvent(f"prc_{number}", ProcessStarted(pid=number))], Meta())
                commits.append((time.perf_counter_ns() - begun) / 1e6)
                arrived = int(await subscriber.stdout.receive_some(64))
                arrivals.append((arrived - begun) / 1e6)
            subscriber.kill()
            await subscriber.wait()
            nursery.cancel_scope.cancel()
    log.close()
    return commits[20:], arrivals[20:]


async def subscribe(path: str) -> None:
    """Tell when each event was here. The clock is the same in all processes."""
    async with StreamClient(f"unix:{path}").events("now") as events:
        os.write(1, b"begin\n")
        async for _ in events:
            os.write(1, b"%d\n" % time.perf_counter_ns())


def events_row() -> Row:
    with tempfile.TemporaryDirectory(prefix="skb-", dir=os.environ.get("SANDKEEP_BENCH_DIR")) as directory:
        commits, arrivals = trio.run(events_at_a_subscriber, directory)
    ours, floor = statistics.median(arrivals), statistics.median(commits)
    ratio = ours / floor
    return Row(
        "an event at a subscriber, from before its append",
        f"p50 {ours:.2f} ms",
        f"the append alone {floor:.2f} ms",
        ratio,
        "<= 3",
        ratio <= 3,
    )


@fair.conditions()
def run() -> list[Row]:
    with daemon() as (client, root):
        box = client.sandbox.create(client.image.create(tree(root, "small", 10, 1000)).image_id).sandbox_id
        rows = [reading_row(client, root, box), first_output_row(client, root, box)]
    return [*rows, tls_row(), events_row()]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", metavar="PATH", help=argparse.SUPPRESS)
    parser.add_argument("--subscribe", metavar="PATH", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        trio.run(send_memory, given.serve)
    elif given.subscribe:
        trio.run(subscribe, given.subscribe)
    else:
        show(run())


if __name__ == "__main__":
    main()
