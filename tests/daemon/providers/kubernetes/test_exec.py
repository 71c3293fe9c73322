"""Execs over a real websocket, with commands that really run: bytes, ends, and servers that misbehave."""

import base64
import functools
import hashlib
import json
import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from kubernetes.client import Configuration
from tests.support.exec_server import V4, V5, ExecServer, status
from tests.support.expect import DEADLINE_S, until_async
from trio_websocket import WebSocketConnection
from wsproto.events import Event

from sandkeep.errors import ProviderError, SandkeepError, SetupError
from sandkeepd.providers.common.remote import STDERR_BYTES, BrokenExecError
from sandkeepd.providers.kubernetes import exec as exec_module
from sandkeepd.providers.kubernetes import websocket
from sandkeepd.providers.kubernetes.exec import ExecStream, open_exec


@functools.cache
def much() -> bytes:
    """Return the same each time. It is made by the process that needs it, and not by all that collect tests."""
    return random.Random(22).randbytes(50_000_000)


Script = Callable[[trio.SocketStream], Awaitable[None]]


def at(port: int) -> Configuration:
    return Configuration(host=f"http://127.0.0.1:{port}")


def running(server: ExecServer, *command: str, **options: Any) -> Any:
    return open_exec(at(server.port), "ns", "pod", command, **options)


def shell(server: ExecServer, script: str, **options: Any) -> Any:
    return running(server, "sh", "-c", script, **options)


async def all_of(stream: ExecStream) -> bytes:
    data = bytearray()
    with trio.fail_after(DEADLINE_S):
        while received := await stream.receive_some():
            data += received
    return bytes(data)


async def test_output_and_exit_code(server: ExecServer) -> None:
    async with shell(server, "echo out; echo err >&2; exit 3", stdin=False) as stream:
        assert await all_of(stream) == b"out\n"
        assert stream.stderr == b"err\n"
        assert await stream.wait() == 3
        assert await stream.receive_some() == b""
    assert server.requests[0].path == (
        "/api/v1/namespaces/ns/pods/pod/exec?command=sh&command=-c&command=echo+out%3B+echo+err+%3E%262%3B+exit+3"
        "&stdin=false&stdout=true&stderr=true&tty=false"
    )


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 255", 255), ("kill -9 $$", 137)])
@pytest.mark.parametrize("speaks", [[V5, V4], [V4]])
async def test_exit_codes(server: ExecServer, speaks: list[str], script: str, code: int) -> None:
    server.speaks = speaks
    async with shell(server, f"seq 10000; {script}") as stream:
        assert await stream.wait() == code


async def test_a_container(server: ExecServer) -> None:
    async with running(server, "true", container="c d") as stream:
        assert await stream.wait() == 0
    assert server.requests[0].path.endswith("&container=c+d")


async def test_fifty_megabytes_each_way(server: ExecServer) -> None:
    async with running(server, "cat") as stream, trio.open_nursery() as nursery:

        async def feed() -> None:
            await stream.send_all(much())
            await stream.close_stdin()

        nursery.start_soon(feed)
        received = await all_of(stream)
        assert hashlib.sha256(received).digest() == hashlib.sha256(much()).digest()
        assert await stream.wait() == 0


async def test_pieces_of_any_size(server: ExecServer) -> None:
    async with shell(server, "seq 3000; echo end") as stream:
        assert await stream.receive_some(1) == b"1"
        assert await stream.receive_some(5) == b"\n2\n3\n"
        rest = [await stream.receive_some(size) for size in (0, 1, 7, 300)]
        assert [len(piece) for piece in rest[:3]] == [0, 1, 7]
        assert (b"1\n2\n3\n" + b"".join(rest) + await all_of(stream)).endswith(b"\n2999\n3000\nend\n")


async def test_where_stdin_cannot_be_closed(server: ExecServer) -> None:
    server.speaks = [V4]
    async with running(server, "cat") as stream:
        with pytest.raises(SetupError, match=r"1\.30"):
            await stream.close_stdin()
        await stream.send_all(b"on")
        assert await stream.receive_some() == b"on"
    await server.no_processes()  # the end of the connection is the end of stdin


async def test_what_was_sent_before_the_end_arrives(server: ExecServer, tmp_path: Path) -> None:
    async with shell(server, f"cat >{tmp_path}/copy; echo done >{tmp_path}/done") as stream:
        await stream.send_all(much()[:1_000_000])
    await server.no_processes()
    assert (tmp_path / "copy").read_bytes() == much()[:1_000_000]


async def test_a_terminal(server: ExecServer) -> None:
    async with shell(server, "stty -echo; echo ready; read line; stty size; echo $line", tty=True) as stream:
        assert await stream.receive_some() == b"ready\r\n"
        await stream.resize(33, 77)
        await until_async(lambda: server.sizes)
        await stream.send_all(b"typed\n")
        assert await all_of(stream) == b"33 77\r\ntyped\r\n"
    assert "stderr=false&tty=true" in server.requests[0].path


async def test_the_end_of_stderr_is_kept(server: ExecServer) -> None:
    async with shell(server, "seq 100000 >&2") as stream:
        assert await stream.wait() == 0
        assert len(stream.stderr) == STDERR_BYTES
        assert stream.stderr.endswith(b"\n99999\n100000\n")


async def test_many_at_once(server: ExecServer) -> None:
    async def one(number: int) -> None:
        async with shell(server, f"read x; echo $x {number}; exit {number}") as stream:
            await stream.send_all(b"%d\n" % number)
            assert await all_of(stream) == b"%d %d\n" % (number, number)
            assert await stream.wait() == number

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(one, number)


# -- back pressure ----------------------------------------------------------------------------------------------------


async def test_a_slow_receiver_holds_the_command_up(server: ExecServer) -> None:
    sent = 0

    async def flood(connection: WebSocketConnection) -> None:
        nonlocal sent
        for start in range(0, len(much()), 100_000):
            await connection.send_message(b"\x01" + much()[start : start + 100_000])
            sent += 100_000
        await connection.send_message(b"\x03" + status(0))

    server.script = flood
    async with running(server, "x") as stream:
        assert await stream.receive_some(1) == much()[:1]
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert sent < len(much()) / 2
        assert much()[:1] + await all_of(stream) == much()


async def test_a_command_that_does_not_read_holds_the_sender_up(server: ExecServer) -> None:
    sent = 0
    async with running(server, "wc", "-c") as stream, trio.open_nursery() as nursery:

        async def feed() -> None:
            nonlocal sent
            for start in range(0, len(much()), 100_000):
                await stream.send_all(much()[start : start + 100_000])
                sent += 100_000
            await stream.close_stdin()

        await until_async(lambda: server.processes)
        server.processes[0].send_signal(signal.SIGSTOP)
        nursery.start_soon(feed)
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert sent < len(much()) / 2
        server.processes[0].send_signal(signal.SIGCONT)
        assert await all_of(stream) == b"50000000\n"


async def test_one_task_receives(server: ExecServer) -> None:
    async with running(server, "cat") as stream, trio.open_nursery() as nursery:
        nursery.start_soon(stream.receive_some)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await stream.receive_some()
        await stream.send_all(b"x")


async def test_a_cancelled_receiver_loses_nothing(server: ExecServer) -> None:
    data = b""
    async with shell(server, "for i in $(seq 300); do echo $i; sleep 0.001; done") as stream:
        over = False
        while not over:
            with trio.move_on_after(0.0015):
                received = await stream.receive_some()
                data, over = data + received, not received
    assert data.split() == [b"%d" % number for number in range(1, 301)]


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("http", "code"),
    [(400, "not_ready"), (401, "not_configured"), (403, "not_configured"), (404, "not_found"), (409, "not_ready"),
     (429, "provider_unavailable"), (500, "provider_unavailable"), (302, "provider_unavailable")],
)  # fmt: skip
async def test_refusals(server: ExecServer, http: int, code: str) -> None:
    server.rejection = (
        http,
        json.dumps({"kind": "Status", "message": "since \x1b[2J it\nis so" + "!" * 9999}).encode(),
    )
    with pytest.raises(SandkeepError) as caught:
        await running(server, "true").__aenter__()
    assert caught.value.code == code
    assert "since  [2J it is so!!".replace("  ", " ") in caught.value.message
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 800


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"[]", b"x" * 60_000, b"x" * 5_000_000], ids=range(5))
async def test_refusals_without_a_status(server: ExecServer, body: bytes) -> None:
    server.rejection = (404, body)
    with pytest.raises(SandkeepError) as caught:
        await running(server, "true").__aenter__()
    assert caught.value.code == "not_found"
    assert len(caught.value.message) < 800


async def test_a_server_that_speaks_none_of_the_protocols(server: ExecServer) -> None:
    server.speaks = []
    assert "no protocol" in await unavailable(server.port)


async def unavailable(port: int, **options: Any) -> str:
    """Expect that an exec fails for the server's sake; return the message."""

    async def receive_all() -> None:
        async with open_exec(at(port), "ns", "pod", ["true"], **options) as stream:
            await all_of(stream)

    with trio.fail_after(DEADLINE_S), pytest.raises(ProviderError) as caught:
        await receive_all()
    assert caught.value.code == "provider_unavailable"
    assert caught.value.data == {"engine": "kubernetes"}
    assert caught.value.message.isprintable()
    return caught.value.message


async def test_nobody_listens() -> None:
    assert "refused" in await unavailable(1)


# -- a server by hand -------------------------------------------------------------------------------------------------


async def by_hand(nursery: trio.Nursery, script: Script) -> int:
    """Serve TCP with a script on a new port."""
    (listener,) = await nursery.start(partial(trio.serve_tcp, script, 0, host="127.0.0.1"))
    port: int = listener.socket.getsockname()[1]
    return port


def upgraded(then: Script) -> Script:
    """Return a script that answers the handshake of a websocket."""

    async def script(stream: trio.SocketStream) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            request += await stream.receive_some()
        key = request.partition(b"Sec-WebSocket-Key: ")[2].partition(b"\r\n")[0]
        accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        await stream.send_all(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Protocol: v5.channel.k8s.io\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )
        with suppress(trio.BrokenResourceError):
            await then(stream)

    return script


def saying(data: bytes, *, stays: bool = False) -> Script:
    async def script(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.send_all(data)
            if stays:
                await trio.sleep_forever()

    return script


NO_ANSWERS = [
    b"", b"\0" * 100, b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: no\r\n\r\n",
    b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Protocol: \xff\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 500 x\r\nContent-Length: 10\r\n\r\nhal", b"x" * 1_000_000,
]  # fmt: skip


@pytest.mark.parametrize("answer", NO_ANSWERS, ids=range(len(NO_ANSWERS)))
async def test_answers_that_are_none(nursery: trio.Nursery, answer: bytes) -> None:
    await unavailable(await by_hand(nursery, saying(answer)))


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 101 Swi"])
async def test_a_server_that_does_not_answer(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    monkeypatch.setattr(exec_module, "CONNECT_S", 0.1)
    assert "longer than" in await unavailable(await by_hand(nursery, saying(answer, stays=True)))


async def test_an_error_page_without_end(nursery: trio.Nursery) -> None:
    async def script(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.send_all(b"HTTP/1.1 503 x\r\n\r\n")
            while True:
                await stream.send_all(b"busy " * 1000)

    assert "busy busy" in await unavailable(await by_hand(nursery, script))


FRAMES = {
    "reserved opcode": b"\x83\x00",
    "masked": b"\x82\x81\0\0\0\0x",
    "continuation of nothing": b"\x80\x01x",
    "not utf-8": b"\x81\x02\x01\xff",
    "long ping": b"\x89\x7e\x00\xff" + b"x" * 255,
    "bad close": b"\x88\x02\x00\x01",
    "a length beyond all bounds": b"\x82\x7f\xff" + b"\xff" * 7,
    "cut": b"\x82\x7f\0\0\0\0\x7f\xff\xff\xff\x01half",
    "closed without a status": b"\x88\x00",
    "an endless status": b"\x82\x7f\0\0\0\0\x7f\xff\xff\xff\x03" + b"{" * 1_000_000,
    "eof": b"",
    "noise": random.Random(1).randbytes(1000),
}


@pytest.mark.parametrize("frames", FRAMES.values(), ids=FRAMES)
async def test_frames_that_are_none(nursery: trio.Nursery, frames: bytes) -> None:
    await unavailable(await by_hand(nursery, upgraded(saying(frames))))


async def test_a_huge_frame_is_passed_on_as_it_comes(nursery: trio.Nursery) -> None:
    """Its length is nobody's promise: what has come is received before the rest is."""
    script = upgraded(saying(b"\x82\x7f\0\0\0\xff\xff\xff\xff\xff\x01begin", stays=True))
    async with open_exec(at(await by_hand(nursery, script)), "ns", "pod", ["x"]) as stream:
        assert await stream.receive_some() == b"begin"
        await stream._socket.abort()


async def test_a_peer_that_answers_no_ping_is_gone(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "PING_S", 0.02)
    monkeypatch.setattr(websocket, "CLOSE_S", 0.02)
    message = await unavailable(await by_hand(nursery, upgraded(saying(b"", stays=True))))
    assert "does not answer" in message


async def test_a_silent_command_is_not(server: ExecServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of so many pings, if they were not answered, it would be gone."""
    monkeypatch.setattr(websocket, "PING_S", 0.02)
    pings, received = list[Event](), list[bytes]()
    async with running(server, "cat") as stream, trio.open_nursery() as nursery:
        send_soon = stream._socket._send_soon
        monkeypatch.setattr(stream._socket, "_send_soon", lambda event: (pings.append(event), send_soon(event)))

        @nursery.start_soon
        async def receive() -> None:
            received.append(await stream.receive_some())

        await until_async(lambda: len(pings) > 3 * websocket.SILENCE_PINGS)
        await stream.send_all(b"still here")
    assert received == [b"still here"]


class WatchedLock:
    """A lock, and how often somebody looked whether it is taken."""

    def __init__(self, lock: trio.Lock) -> None:
        self._lock = lock
        self.looks = 0

    def locked(self) -> bool:
        self.looks += 1
        return self._lock.locked()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


async def test_a_peer_that_reads_slowly_is_not(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot have seen a ping behind all the data that it has not read."""
    monkeypatch.setattr(websocket, "PING_S", 0.01)
    stalled = trio.Event()

    async def script(stream: trio.SocketStream) -> None:
        await stalled.wait()
        await stream.send_all(b"\x82\x02\x01x")
        while await stream.receive_some():
            pass

    port = await by_hand(nursery, upgraded(script))
    async with open_exec(at(port), "ns", "pod", ["x"]) as stream, trio.open_nursery() as inner:
        inner.start_soon(stream.send_all, much())
        await trio.testing.wait_all_tasks_blocked(0.02)
        lock, received = WatchedLock(stream._socket._sending), list[bytes]()
        monkeypatch.setattr(stream._socket, "_sending", lock)

        @inner.start_soon
        async def receive() -> None:
            received.append(await stream.receive_some())

        await until_async(lambda: lock.looks > 3 * websocket.SILENCE_PINGS)  # so many pings it would have been sent
        stalled.set()
    assert received == [b"x"]


async def test_pings_are_answered(server: ExecServer) -> None:
    answered = trio.Event()

    async def script(connection: WebSocketConnection) -> None:
        await connection.ping(b"one")
        await connection.ping(b"two")
        answered.set()
        await connection.send_message(b"\x03" + status(4))

    server.script = script
    async with running(server, "x") as stream:
        assert await stream.wait() == 4
        assert answered.is_set()


# -- ends -------------------------------------------------------------------------------------------------------------


async def test_a_connection_that_is_cut(server: ExecServer) -> None:
    async def use() -> None:
        async with running(server, "cat") as stream:
            await stream.send_all(b"x")
            assert await stream.receive_some() == b"x"
            await server.cut()
            assert await stream.wait() is None
            assert stream.outcome is None
            with pytest.raises(BrokenExecError):
                await stream.receive_some()
            while True:
                await stream.send_all(much()[:1_000_000])

    with pytest.raises(ProviderError) as caught:
        await use()
    assert caught.value.data == {"engine": "kubernetes"}


async def test_the_errors_of_the_block_are_its_own(server: ExecServer) -> None:
    with pytest.raises(KeyError):
        async with running(server, "cat"):
            raise KeyError
    await server.no_processes()


async def test_a_server_that_does_not_close(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "CLOSE_S", 0.05)
    gone = trio.Event()

    async def script(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            while True:
                await stream.send_all(b"\x82\x7e\x03\xe9\x01" + b"x" * 1000)
        gone.set()

    with trio.fail_after(DEADLINE_S):
        async with open_exec(at(await by_hand(nursery, upgraded(script))), "ns", "pod", ["x"]) as stream:
            assert await stream.receive_some()
        await gone.wait()


@pytest.mark.parametrize(
    ("messages", "output", "code"),
    [
        ([b"\x01a", b"\x09?", b"", b"\xff\x01", b"\xff", b"\x00in", b"\x01", b"\x01b", b"\x03" + status(2)], b"ab", 2),
        ([b"\x03" + status(2), b"\x01late"], b"late", 2),
        (["\x01text é", b"\x03" + status(0)], "text é".encode(), 0),
        ([b"\x03no json"], b"", None),
        ([b"\x03" + status(2)[:20], b"\x03" + status(2)[20:]], b"", 2),
        ([b"\x03" + status(2), b"\x03" + status(2)], b"", None),
    ],
)
async def test_messages(server: ExecServer, messages: list[str | bytes], output: bytes, code: int | None) -> None:
    async def script(connection: WebSocketConnection) -> None:
        for message in messages:
            await connection.send_message(message)

    server.script = script
    async with running(server, "x") as stream:
        assert await all_of(stream) == output
        assert await stream.wait() == code
        assert stream.outcome is not None


async def test_a_server_that_stays_after_the_status(server: ExecServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_module, "CLOSE_S", 0.05)

    async def script(connection: WebSocketConnection) -> None:
        await connection.send_message(b"\x03" + status(6))
        await connection.get_message()

    server.script = script
    with trio.fail_after(DEADLINE_S):
        async with running(server, "x") as stream:
            assert await stream.wait() == 6


async def test_a_server_that_is_not_there_is_told_in_the_systems_words() -> None:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    assert "does not answer: Connection refused: see" in await unavailable(port)
