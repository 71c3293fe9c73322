"""Who is let in by the stream server, and what enemies may send it: the daemon stays well, and others are served."""

import base64
import contextlib
import json
import os
import socket
import ssl
import stat
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio
from tests.support.expect import until
from tests.support.patience import patient
from tests.support.streams import House, everything, house_in, message, refusal, websocket
from tests.support.users import NOBODY, as_user

from sandkeep.blocking import connect
from sandkeep.errors import SandkeepError
from sandkeep.protocol import frames
from sandkeep.stream import StreamClient

pytestmark = pytest.mark.needs("bwrap", "root")

EVENTS = frames.target("events")
Headers = list[tuple[bytes, bytes]]


@pytest.fixture(scope="module")
def house(places: str) -> Iterator[House]:
    advertised = "tls://Boxes.example:4000, tls://[2001:db8::1]:4000#" + "0" * 64
    settings = {"SANDKEEP_STREAM_ORIGINS": "https://panel.example", "SANDKEEP_STREAM_ADVERTISED": advertised}
    with house_in(places, **settings) as house:
        yield house


def bearer(token: str) -> Headers:
    return [(b"Authorization", b"Bearer " + token.encode())]


async def knock(house: House, way: str = "tls", target: str = EVENTS, **request: Any) -> tuple[int, str] | None:
    """Ask to be let in; None when one is."""
    bare = house.plain("unix" if way == "unix" else "tcp")
    async with websocket(bare, target, tls=way == "tls", **request) as connection:
        if connection.rejection is None:
            assert (await message(connection))["kind"] in ("events", "caught_up")
            return None
        return refusal(connection)


def talk(sock: socket.socket, data: bytes) -> bytes:
    """Send bytes and read to the end."""
    with sock:
        answer = bytearray()
        try:
            sock.sendall(data)
            while got := sock.recv(65536):
                answer += got
        except (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError):
            pass
        return bytes(answer)


def opening(target: str = EVENTS, more: str = "", line: str = "GET {} HTTP/1.1") -> bytes:
    lines = [line.format(target), "Host: localhost", "Upgrade: websocket", "Connection: Upgrade"]
    lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="]
    return ("\r\n".join(lines) + "\r\n" + more + "\r\n").encode("latin-1")


def opened(house: House, target: str = EVENTS) -> socket.socket:
    """A websocket on a plain socket."""
    sock = house.plain()
    sock.sendall(opening(target))
    assert sock.recv(12) == b"HTTP/1.1 101"
    return sock


def frame(opcode: int, payload: bytes, *, final: bool = True) -> bytes:
    """A frame as clients send them, with a mask of zeros."""
    size = len(payload)
    if size < 126:
        length = bytes([128 | size])
    else:
        length = bytes([254]) + size.to_bytes(2, "big") if size < 65536 else bytes([255]) + size.to_bytes(8, "big")
    return bytes([final << 7 | opcode]) + length + bytes(4) + payload


def is_well(house: House) -> None:
    with house.daemon.connect() as client:
        assert client.daemon.ping().pid
        assert client.daemon.status().healthy
    assert "defect" not in house.daemon.said()


# -- who is let in ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        lambda token: bearer(token),
        lambda token: [(b"authorization", b"bearer   " + token.encode())],
        lambda token: [(b"authorization", b"Basic " + base64.b64encode(b"any:" + token.encode()))],
    ],
)
async def test_a_token_lets_in(house: House, headers: Callable[[str], Headers]) -> None:
    assert await knock(house, headers=headers(house.token)) is None


@pytest.mark.parametrize(
    "headers",
    [
        lambda token: [],
        lambda token: [(b"Authorization", b"Bearer")],
        lambda token: bearer(token[:-1]),
        lambda token: bearer(token + "A"),
        lambda token: bearer(token.replace("skt_0_", "skt_1_")),
        lambda token: bearer("skt_99999999999_" + token[-43:]),
        lambda token: bearer("\xb2" + token),
        lambda token: [(b"Authorization", b"Basic " + token.encode())],
        lambda token: [(b"Authorization", b"Basic " + base64.b64encode(token.encode()))],
        lambda token: [(b"Authorization", b"Basic " + base64.b64encode(b"any:\xff" + token.encode()))],
        lambda token: [*bearer(token), *bearer(token)],
        lambda token: [(b"Cookie", b"token=" + token.encode())],
    ],
)
async def test_nothing_else_lets_in(house: House, headers: Callable[[str], Headers]) -> None:
    assert await knock(house, headers=headers(house.token)) == (401, "permission_denied")


async def test_a_browser_brings_its_token_as_a_subprotocol(house: House) -> None:
    proposed = ("sandkeep.v1", f"sandkeep.token.{house.token}")
    async with websocket(house.plain("tcp"), EVENTS, tls=True, subprotocols=proposed) as connection:
        assert connection.subprotocol == "sandkeep.v1"
    assert await knock(house, subprotocols=("sandkeep.v1", "sandkeep.token.x")) == (401, "permission_denied")
    assert await knock(house, "unix", subprotocols=("sandkeep.v2",)) == (400, "invalid")


@pytest.mark.parametrize("way", ["unix", "tls"])
async def test_a_token_in_a_url_is_refused_and_nowhere_repeated(house: House, way: str) -> None:
    target = frames.target("events", token=house.token)
    assert await knock(house, way, target, headers=bearer(house.token)) == (400, "invalid")
    assert house.token not in house.daemon.said()


async def test_a_renewed_token_ends_the_earlier_one_alone(house: House) -> None:
    def renew() -> tuple[str, str]:
        with connect(house.daemon.socket) as client:
            first = client.stream.access().token
            assert client.stream.access().token == first
            return first, client.stream.access(renew=True).token

    before, after = as_user(NOBODY, renew)
    assert await knock(house, headers=bearer(before)) == (401, "permission_denied")
    assert await knock(house, headers=bearer(after)) is None
    assert await knock(house, headers=bearer(house.token)) is None


async def test_tokens_outlive_the_daemon_and_are_kept_for_its_eyes(places: str) -> None:
    with house_in(places) as house:
        path = f"{house.daemon.state_dir}/stream.json"
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        with open(path) as file:
            assert house.token not in file.read()
        house.daemon.stop()
        house.daemon.start()
        with house.daemon.connect() as client:
            assert client.stream.access().token == house.token
        house.daemon.stop()
        with open(path, "w") as file:
            file.write("{")
        house.daemon.start()
        with house.daemon.connect() as client:
            assert client.stream.access().token != house.token


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:80",
        "127.0.0.1",
        "127.0.0.1:1234",
        "[::1]",
        "[::1]:1",
        "boxes.example:9",
        "[2001:db8::1]",
    ],
)
async def test_the_host_is_this_machine(house: House, host: str) -> None:
    assert await knock(house, host=host, headers=bearer(house.token)) is None


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.nip.io", "x"])
async def test_any_other_host_is_somebody_s_trick(house: House, host: str) -> None:
    assert await knock(house, host=host, headers=bearer(house.token)) == (403, "permission_denied")


@pytest.mark.parametrize("way", ["unix", "tls"])
async def test_pages_may_connect_from_origins_that_are_allowed(house: House, way: str) -> None:
    for origin in (b"https://evil.example", b"null", b"https://panel.example.evil.example", b""):
        headers = [*bearer(house.token), (b"Origin", origin)]
        assert await knock(house, way, headers=headers) == (403, "permission_denied")
    assert await knock(house, way, headers=[*bearer(house.token), (b"Origin", b"https://panel.example")]) is None


@pytest.mark.parametrize("way", ["unix", "tls"])
def test_what_is_another_user_s_is_not_found(house: House, way: str) -> None:
    def ask() -> tuple[list[str], str | None, list[str]]:
        with connect(house.daemon.socket) as client:
            access = client.stream.access()
        streams = StreamClient(house.unix) if way == "unix" else StreamClient(house.tls, access.token, pin=access.pin)
        return trio.run(_ask_for_what_is_not_theirs, streams, house.sandbox_id)

    codes, seen, others = as_user(NOBODY, ask)
    assert codes == ["not_found"] * 5
    assert seen is not None
    assert others == []


async def _ask_for_what_is_not_theirs(
    streams: StreamClient, sandbox_id: str
) -> tuple[list[str], str | None, list[str]]:
    codes = []
    for block in (
        streams.logs(sandbox_id, "any"),
        streams.attach(sandbox_id, "any"),
        streams.events(sandbox_id=sandbox_id),
    ):
        try:
            async with block:
                codes.append("let in")
        except SandkeepError as error:
            codes.append(error.code)
    for work in (streams.get_file(sandbox_id, "a", "/dev/null/a"), streams.put_tree(sandbox_id, "/usr/bin/env", "a")):
        try:
            await work
        except SandkeepError as error:
            codes.append(error.code)
    async with streams.events() as events:
        with trio.fail_after(patient(60)):
            while events.token is None:
                with trio.move_on_after(0.2):
                    return codes, "", [(await events.__anext__()).type]
        return codes, events.token, []


# -- what is asked for ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/", (404, "not_found")),
        ("/v1", (404, "not_found")),
        ("/v1/", (404, "not_found")),
        ("/v2/events", (404, "not_found")),
        ("/v1/events/more", (404, "not_found")),
        ("/v1/logs/sbx_1", (404, "not_found")),
        ("/v1/logs/sbx_1/p", (404, "not_found")),
        ("/v1/logs/%ff/p", (400, "invalid")),
        ("/v1/logs/a%2Fb/p", (400, "invalid")),
        ("/v1/logs//", (400, "invalid")),
        ("/v1/events?after=%00", (400, "invalid")),
        ("/v1/events?what=1", (400, "invalid")),
        ("/v1/events?sandbox=sbx_1", (404, "not_found")),
        ("/v1/files/sbx_1?path=a", (404, "not_found")),
        ("/v1/files/sbx_1", (400, "invalid")),
        ("/v1/files/sbx_1?path=%00", (404, "not_found")),
    ],
)
async def test_what_is_not_there_or_makes_no_sense(house: House, target: str, expected: tuple[int, str]) -> None:
    assert await knock(house, "unix", target) == expected


async def test_a_reader_only_reads(house: House) -> None:
    for sent in (b"bytes", '{"kind":"eof"}', "{", '{"kind":"events"}', "[" * 100_000):
        async with websocket(house.plain(), frames.target("events", after="now")) as connection:
            await connection.send_message(sent)
            got, code = await everything(connection)
        assert ([one["error"]["code"] for one in got if one["kind"] == "error"], code) == (["invalid"], 1008)


# -- what is no request -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["unix", "tls", "tcp"])
@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 1000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500) + b"\r\n\r\n",
        b'{"jsonrpc":"2.0","id":1,"method":"daemon.ping"}\r\n\r\n',
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        opening("/", line="POST {} HTTP/1.1"),
        opening("/", line="GET {} HTTP/1.0"),
        opening("/\xe4"),
        opening(more="Host: other\r\n"),
        opening("/", more="Content-Length: 5\r\n") + b"hello",
        opening().replace(b"13", b"12"),
        opening().replace(b"Host: localhost", b"Host: xn--\xff\xfe"),
        opening().replace(b"Host: localhost", b"Host: " + b"a." * 2000).replace(b"/v1/events", b"/"),
        opening(more="X: " + "y" * 100_000 + "\r\n"),
        opening(more="X: y\r\n" * 20_000),
    ],
)
def test_garbage_is_answered_by_an_end(house: House, way: str, data: bytes) -> None:
    answer = talk(house.plain(way), data)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    is_well(house)


@pytest.mark.parametrize(
    ("way", "begun"), [("tcp", b""), ("tcp", b"\x16\x03\x01\x02\x00\x01"), ("tls", b"GET / HTTP/1.1")]
)
def test_half_requests_keep_nobody_out(house: House, way: str, begun: bytes) -> None:
    held = [house.plain(way) for _ in range(150)]
    for sock in held:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, ssl.SSLError):
            sock.sendall(begun)
    assert trio.run(lambda: knock(house, headers=bearer(house.token))) is None
    for sock in held[:20]:
        with contextlib.suppress(ConnectionResetError):
            assert sock.recv(10) == b""  # those that came first had to go
    for sock in held:
        sock.close()


def test_three_hundred_come_and_go(house: House) -> None:
    assert house.daemon.process is not None
    descriptors = f"/proc/{house.daemon.process.pid}/fd"
    opened(house).close()
    is_well(house)
    before = len(os.listdir(descriptors))
    for number in range(300):
        sock = house.plain(("unix", "tcp", "tls")[number % 3])
        if number % 2:
            sock.sendall(opening()[: number % 200])
        sock.close()
    for _ in range(20):
        opened(house).close()
    until(lambda: len(os.listdir(descriptors)) <= before)
    is_well(house)


# -- what is no message -----------------------------------------------------------------------------------------------


def closing(sock: socket.socket) -> int:
    """With which code the server closes, or 0 when it only lets go."""
    data = talk(sock, b"")
    at = data.rfind(b"\x88")
    return int.from_bytes(data[at + 2 : at + 4], "big") if at >= 0 else 0


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(1, b"\xff\xfe"), 1007),
        (frame(3, b"x"), 1002),
        (frame(0, b"x"), 1002),
        (frame(1, b"a", final=False) + frame(1, b"b"), 1002),
        (b"\x82\x01x", 1002),  # without a mask
        (frame(9, b"p" * 126), 1002),
        (b"\xf2\x80" + bytes(4), 1002),
        (frame(2, bytes(1_200_000)), 1009),
        (b"\x82\xff" + b"\x7f" + b"\xff" * 7 + bytes(4) + bytes(2_000_000), 1009),
        (frame(2, bytes(600_000), final=False) + frame(0, bytes(600_000)), 1009),
        (frame(8, b"x"), 1002),
    ],
)
def test_what_breaks_the_protocol_ends_the_connection(house: House, data: bytes, code: int) -> None:
    sock = opened(house, frames.target("events", after="now"))
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        sock.sendall(data)
    assert closing(sock) in (code, 0)
    is_well(house)


def resident(house: House) -> int:
    with house.daemon.connect() as client:
        return int(client.daemon.status().resident_bytes)


def test_a_message_in_countless_pieces_costs_little(house: House) -> None:
    sock = opened(house, frames.target("events", after="now"))
    before = resident(house)
    with sock:
        sock.sendall(frame(2, b"x", final=False))
        for _ in range(15):
            sock.sendall(frame(0, b"x", final=False) * 10_000)
        assert resident(house) - before < 4_000_000
    is_well(house)


def test_pings_that_nobody_reads_the_answers_of_stall_only_themselves(house: House) -> None:
    sock = opened(house, frames.target("events", after="now"))
    before = resident(house)
    sock.setblocking(False)
    pings = frame(9, b"p" * 125) * 1000
    with sock:
        for _ in range(200):
            try:
                sock.send(pings)
            except BlockingIOError:
                break
        else:
            pytest.fail("nothing held them back")
        is_well(house)
        assert resident(house) - before < 10_000_000


def test_pings_are_answered(house: House) -> None:
    with opened(house, frames.target("events", after="now")) as sock:
        sock.sendall(frame(9, b"are you there"))
        data = b""
        while b"are you there" not in data:
            got = sock.recv(65536)
            assert got
            data += got


def test_a_message_that_was_refused_is_not_in_the_log(house: House) -> None:
    with opened(house) as sock:
        sock.sendall(frame(1, json.dumps({"kind": "secret-word"}).encode()))
        data = b""
        while b'"error"' not in data:
            data += sock.recv(65536)
    assert "secret-word" not in house.daemon.said()
