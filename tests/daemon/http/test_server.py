"""The server under clients that break off, hang, flood or lie: each harms at most its own connection."""

import contextlib
import os
import select
import socket
from collections import deque
from pathlib import Path

import pytest
import trio
import trio.testing
from tests.support.expect import until
from tests.support.gateway import SESSIONS, Gateway, gateway_in, plain
from tests.support.patience import patient

from sandkeepd.core.peer import Peer
from sandkeepd.http import exchange
from sandkeepd.http.bodies import SessionBody
from sandkeepd.http.exchange import Asked, Reply, read_body
from sandkeepd.http.gateway import MAX_REQUESTS
from sandkeepd.http.problems import RefusedError
from sandkeepd.http.server import MAX_CONNECTIONS, HttpServer, Limits, Message, Receive, Scope, Send

pytestmark = pytest.mark.needs("bwrap", "root")


def talk(path: str, data: bytes) -> bytes:
    """Send bytes, all of them if that is possible, and read to the end."""
    with plain(path) as sock:
        answer = bytearray()
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        try:
            while got := sock.recv(65536):
                answer += got
        except ConnectionResetError:
            pass
        return bytes(answer)


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [("/nothing/", True, b"404"), (SESSIONS, False, b"401"), (SESSIONS, True, b"413"), (f"{SESSIONS}x/", True, b"405")],
)
@pytest.mark.parametrize("framing", ["length", "chunks"])
def test_an_answer_before_the_end_of_a_long_request_arrives(
    gateway: Gateway, path: str, key: bool, status: bytes, framing: str
) -> None:
    """More than any queue on the way holds: nobody waits for the other."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\n" + (f"X-Api-Key: {gateway.key}\r\n" if key else "")
    body = bytes(2 << 20)
    if framing == "length":
        data = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    else:
        data = f"{head}Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    with plain(gateway.path) as sock:
        with contextlib.suppress(BrokenPipeError):  # it took too long to send it all
            sock.sendall(data)
        assert sock.recv(65536).split()[1] == status
    assert gateway.ask("GET", SESSIONS).status == 200


DOUBTFUL = [
    b"Content-Length: 0, 0", b"Content-Length: 5, 5", b"Content-Length: 5\r\nContent-Length: 5", b"Content-Length: +5",
    b"Content-Length: -0", b"Content-Length: 0x5", b"Content-Length: 5 5", b"Content-Length: 5_0", b"Content-Length:",
    b"Content-Length: \x0b5", b"Content-Length: 5;", b"Content-Length: 99999999999999999999", b"Content-Length\t: 5",
    b"Transfer-Encoding: chunked\r\nContent-Length: 5", b"Content-Length: 5\r\nTransfer-Encoding: chunked",
    b"Content-Length: 5\r\nTransfer-Encoding : chunked", b"Transfer-Encoding : chunked", b" Transfer-Encoding: chunked",
    b"X: a\r\n b", b"X: a\r\n\tb", b"X: a\nY: b", b"X: a\rY: b", b"X: a\x00b", b"X: a\x01b", b"X\x00: a", b"X : a",
    b"X: a\n\r\nGET / HTTP/1.1", b"X", b": a",
]  # fmt: skip
"""Lines of a head that two programs may read in two ways."""

CHUNKS = [
    b"5 \r\nxxxxx\r\n0\r\n\r\n", b"+5\r\nxxxxx\r\n0\r\n\r\n", b"0x5\r\nxxxxx\r\n0\r\n\r\n",
    b"5;a\nb\r\nxxxxx\r\n0\r\n\r\n", b"5;a\rb\r\nxxxxx\r\n0\r\n\r\n", b"5;a\x00\r\nxxxxx\r\n0\r\n\r\n",
    b"5\nxxxxx\n0\n\n\r\n", b"5\r\nxxxxx\n\n0\r\n\r\n", b"fffffffffffffffff\r\nxxxxx", b"\r\n", b";a\r\n",
    b"0\r\nX: a\n\r\n\r\n", b"0\r\nX: a\r\n b\r\n\r\n",
]  # fmt: skip
"""Bodies of chunks that two programs may read in two ways."""


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000, b"431"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: ten\r\n\r\n", b"400"),
        (b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
        (b"GET /%ff%00 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"404"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length : 1\r\n\r\nx", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", b"501"),
        *[(b"POST / HTTP/1.1\r\nHost: x\r\n%b\r\n\r\nxxxxx" % line, b"400") for line in DOUBTFUL],
        (b"GET / HTTP/1.1\nHost: x\n\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\n\r\n", b"400"),
        (b"GET / HTTP/1.1\nHost: x\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n Host: x\r\n\r\n", b"400"),
        (b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), b"404"),
    ],
)
def test_nonsense_is_refused(gateway: Gateway, data: bytes, status: bytes) -> None:
    assert talk(gateway.path, data).split()[1] == status


@pytest.mark.parametrize(("size", "status"), [(16 * 1024, b"200"), (16 * 1024 + 1, b"431"), (60_000, b"431")])
@pytest.mark.parametrize("pieces", [1, 3])
def test_a_head_has_16_kib_at_most(gateway: Gateway, size: int, status: bytes, pieces: int) -> None:
    """Also if it arrives as a whole."""
    head = f"GET {SESSIONS} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {gateway.key}\r\nConnection: close\r\nX: ".encode()
    data = head + b"a" * (size - len(head) - 4) + b"\r\n\r\n"
    with plain(gateway.path) as sock:
        with contextlib.suppress(OSError):
            for piece in range(pieces):
                sock.sendall(data[size * piece // pieces : size * (piece + 1) // pieces])
        assert sock.recv(65536).split()[1] == status


@pytest.mark.parametrize(
    ("head", "body"),
    [
        pytest.param("Content-Length: 4\r\nTransfer-Encoding: chunked", "0\r\n\r\n", id="two lengths"),
        pytest.param("Transfer-Encoding: chunked\r\nContent-Length: 0", "0\r\n\r\n", id="no length"),
        pytest.param("Transfer-Encoding: chunked", "-1\r\nx\r\n0\r\n\r\n", id="less than none"),
        pytest.param("Transfer-Encoding: chunked", "1\r\nxGET0\r\n\r\n", id="longer than it says"),
    ],
)
def test_no_request_is_smuggled_behind_another(gateway: Gateway, head: str, body: str) -> None:
    """A proxy may see one request where we see two: the first is refused, and the second never read."""
    first = f"POST {SESSIONS} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {gateway.key}\r\n{head}\r\n\r\n{body}"
    second = f"GET {SESSIONS} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {gateway.key}\r\n\r\n"
    answer = talk(gateway.path, (first + second).encode())
    assert answer.split()[1] == b"400"
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("body", CHUNKS)
def test_chunks_that_can_be_read_in_two_ways_are_refused(gateway: Gateway, body: bytes) -> None:
    head = f"POST {SESSIONS} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {gateway.key}\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = talk(gateway.path, head.encode() + body)
    assert (answer.split()[1], answer.count(b"HTTP/1.1")) == (b"400", 1)


def test_an_old_request_with_chunks_is_refused(gateway: Gateway) -> None:
    head = f"POST {SESSIONS} HTTP/1.0\r\nX-Api-Key: {gateway.key}\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert talk(gateway.path, f"{head}0\r\n\r\n".encode()).split()[1] == b"400"


def test_there_is_no_way_to_http_2(gateway: Gateway) -> None:
    upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
    head = f"GET {SESSIONS} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {gateway.key}\r\n{upgrade}\r\n"
    with plain(gateway.path) as sock:
        sock.sendall(head.encode())
        assert sock.recv(4096).split()[1] == b"200"


def test_a_websocket_is_refused(gateway: Gateway) -> None:
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    answer = talk(gateway.path, f"GET /api/sandbox/events/ HTTP/1.1\r\nHost: x\r\n{upgrade}{key}\r\n".encode())
    assert answer.split()[1] == b"403"


def test_many_requests_follow_each_other_on_one_connection(gateway: Gateway) -> None:
    """More than hypercorn answers by itself."""
    connection = gateway.connection()
    for _ in range(1100):
        connection.request("GET", SESSIONS, headers={"X-Api-Key": gateway.key})
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, b"[]")
    connection.close()


def test_one_connection_too_many_takes_the_place_of_an_idle_one(gateway: Gateway) -> None:
    idle = [plain(gateway.path) for _ in range(MAX_CONNECTIONS)]
    assert gateway.ask("GET", SESSIONS).status == 200
    ended = select.poll()
    for sock in idle:
        ended.register(sock, select.POLLIN)
    assert len(ended.poll(30_000)) == 1, "after 60 s all of them are dropped"
    for sock in idle:
        sock.close()


def test_ten_thousand_connections_leave_room(gateway: Gateway) -> None:
    kept: deque[socket.socket] = deque(maxlen=2 * MAX_CONNECTIONS)
    with gateway.daemon.connect() as client:
        pid = client.daemon.status().pid
    for number in range(10_000):
        if len(kept) == kept.maxlen:
            kept.popleft().close()
        kept.append(sock := socket.socket(socket.AF_UNIX))
        sock.connect(gateway.path)  # it waits for its turn
        if number % 1000 == 999:
            assert gateway.ask("GET", SESSIONS, tcp=True).status == 200
            assert len(os.listdir(f"/proc/{pid}/fd")) < 2 * MAX_CONNECTIONS
    for sock in kept:
        sock.close()


def test_one_key_does_not_take_all_connections(gateway: Gateway) -> None:
    with gateway.daemon.connect() as client:
        greedy = client.key.create("greedy").key
    head = f"GET /api/sandbox/events/?after=now HTTP/1.1\r\nHost: x\r\nX-Api-Key: {greedy}\r\n\r\n".encode()
    streams = [plain(gateway.path) for _ in range(MAX_REQUESTS)]
    for sock in streams:
        sock.sendall(head)
        assert sock.recv(100).split()[1] == b"200"
    assert gateway.ask("GET", SESSIONS, key=greedy).problem == (429, "quota_exceeded")
    assert gateway.ask("GET", SESSIONS).status == 200
    for sock in streams:
        sock.close()
    until(lambda: gateway.ask("GET", SESSIONS, key=greedy).status == 200)


def test_who_does_not_read_does_not_keep_the_daemon_from_stopping(places: str) -> None:
    with gateway_in(places) as gateway:
        gateway.make("box")
        done = gateway.ask("POST", f"{SESSIONS}box/exec/", {"command": "head -c 50M /dev/zero >big"})
        assert done.value["exit_code"] == 0
        with plain(gateway.path) as sock:
            path = f"{SESSIONS}box/files/content/?path=big"
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {gateway.key}\r\n\r\n".encode())
            assert sock.recv(4) == b"HTTP"
            assert gateway.daemon.stop() == 0
        gateway.daemon.start()


# -- in this process --------------------------------------------------------------------------------------------------


async def test_a_call_that_changes_something_may_end_when_the_server_stops(tmp_path: Path) -> None:
    began, go_on = trio.Event(), trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        connection = scope["sandkeep.connection"]
        connection.lasting += 1
        began.set()
        await go_on.wait()
        connection.lasting -= 1
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    listener = _listener(f"{tmp_path}/sock")
    async with trio.open_nursery() as nursery:
        stop = trio.CancelScope()
        nursery.start_soon(_serve, stop, HttpServer(app), listener)
        async with await trio.open_unix_socket(f"{tmp_path}/sock") as stream:
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await began.wait()
            stop.cancel()
            await trio.testing.wait_all_tasks_blocked()
            go_on.set()
            assert (await stream.receive_some(4096)).split()[1] == b"204"
            assert await stream.receive_some(4096) == b""


@pytest.mark.parametrize("data", [b"", b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: "])
async def test_a_slow_head_is_not_waited_for(tmp_path: Path, data: bytes) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError

    listener = _listener(f"{tmp_path}/sock")
    async with trio.open_nursery() as nursery:
        stop = trio.CancelScope()
        nursery.start_soon(_serve, stop, HttpServer(app, Limits(idle_s=0.05)), listener)
        async with await trio.open_unix_socket(f"{tmp_path}/sock") as stream:
            await stream.send_all(data)
            with trio.fail_after(patient(30)):
                assert await stream.receive_some(100) == b""
        stop.cancel()


async def test_a_slow_body_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "STALLED_S", 0.05)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked = Asked(scope=scope, receive=receive, send=send, peer=Peer(uid=0, gid=0))
        with pytest.raises(RefusedError) as late:
            await read_body(asked, SessionBody)
        await asked.reply(Reply(late.value.status))

    listener = _listener(f"{tmp_path}/sock")
    async with trio.open_nursery() as nursery:
        stop = trio.CancelScope()
        nursery.start_soon(_serve, stop, HttpServer(app), listener)
        async with await trio.open_unix_socket(f"{tmp_path}/sock") as stream:
            await stream.send_all(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
            with trio.fail_after(patient(30)):
                assert (await stream.receive_some(100)).split()[1] == b"408"
        stop.cancel()


async def test_a_client_that_does_not_read_is_dropped(tmp_path: Path) -> None:
    ended = trio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        piece: Message = {"type": "http.response.body", "body": bytes(1 << 20), "more_body": True}
        try:
            while True:
                await send(piece)
        finally:
            ended.set()

    listener = _listener(f"{tmp_path}/sock")
    async with trio.open_nursery() as nursery:
        stop = trio.CancelScope()
        nursery.start_soon(_serve, stop, HttpServer(app, Limits(stalled_s=0.05)), listener)
        async with await trio.open_unix_socket(f"{tmp_path}/sock") as stream:
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            with trio.fail_after(patient(30)):
                await ended.wait()
        stop.cancel()


def _listener(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen()
    listener.setblocking(False)
    return listener


async def _serve(scope: trio.CancelScope, server: HttpServer, listener: socket.socket) -> None:
    with scope:
        await server.serve(listener)
