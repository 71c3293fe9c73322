"""TLS on the stream server's port: whoever else takes that port, or stands in between, is sent no token."""

import contextlib
import os
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.conftest import RunningDaemon, daemon_in
from tests.daemon.stream.test_slow_readers import Served
from tests.support.expect import DEADLINE_S, until_async
from tests.support.fuzzing import Complaints, Grammar, Levels, settled, tasks_living
from tests.support.patience import patient
from tests.support.proxy import BreakingLine
from tests.support.soak import times
from tests.support.streams import House, house_in, message, websocket
from tests.support.users import NOBODY, command_as
from trio.testing import MockClock

from sandkeep.errors import CallerError, SandkeepError, SetupError, StateError
from sandkeep.model import StreamAccess
from sandkeep.protocol import frames
from sandkeep.protocol.tls import SecureStream, client_context
from sandkeep.protocol.wire import Wire
from sandkeep.stream import StreamClient
from sandkeepd.app.listeners import opened
from sandkeepd.app.socket_activation import PassedSockets
from sandkeepd.stream import identity
from sandkeepd.stream.identity import Identity
from sandkeepd.stream.server import Limits

on_a_daemon = pytest.mark.needs("bwrap", "root")

EVENTS = frames.target("events", after="now")
PIN = "0" * 64


@pytest.fixture(scope="module")
def house(places: str) -> Iterator[House]:
    with house_in(places) as house:
        yield house


async def first(streams: StreamClient) -> str | None:
    """Get in, and so far that the token was worth something."""
    async with streams.events("now") as events:
        with trio.fail_after(DEADLINE_S):
            while events.token == "now":  # until the server has said where that is
                with trio.move_on_after(0.2):
                    await events.__anext__()
        return events.token


# -- who else takes the port ------------------------------------------------------------------------------------------

THIEF = r"""
import socket, ssl, sys
port, kind, pem = int(sys.argv[1]), sys.argv[2], sys.argv[3]
server = socket.create_server(("127.0.0.1", port))
print("listens", flush=True)
sock = server.accept()[0]
sock.settimeout(60)
if kind == "http":
    sock.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
elif kind == "tls":
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    sock = context.wrap_socket(sock, server_side=True)
    print(sock.version(), flush=True)
heard = b""
try:
    while got := sock.recv(65536):
        heard += got
except OSError:
    pass
print("heard", heard.hex(), flush=True)
"""


@contextlib.contextmanager
def thief(places: str, port: int, kind: str) -> Iterator[Any]:
    """Somebody else's program on the port, for one connection; what it heard is asked of what is yielded."""
    with tempfile.TemporaryDirectory(dir=places) as directory:
        os.chmod(directory, 0o755)
        pem = Path(directory, "own.pem")
        pem.write_bytes(identity._generate())
        pem.chmod(0o644)
        argv = command_as(NOBODY, [sys.executable, "-c", THIEF, str(port), kind, str(pem)])
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "listens\n"
            yield lambda: process.communicate(timeout=patient(60))[0]
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


@on_a_daemon
@pytest.mark.parametrize(
    ("kind", "why"), [("silent", "not_ready"), ("http", "not_ready"), ("tls", "permission_denied")]
)
def test_a_thief_of_the_port_is_sent_no_token(places: str, kind: str, why: str) -> None:
    with house_in(places) as house:
        streams = house.streams("tls", patience_s=0.0)
        assert trio.run(first, streams)
        house.daemon.stop()
        with thief(places, house.port, kind) as heard:
            with trio_patience(5 if kind == "silent" else 60), pytest.raises(SandkeepError) as raised:
                trio.run(first, streams)
            said = heard()
        assert raised.value.code == why
        assert ("TLSv1.3" in said) == (kind == "tls")  # it was spoken to
        got = bytes.fromhex(said.rpartition("heard ")[2].strip())
        assert house.token.encode() not in got
        assert (got == b"") == (kind == "tls")  # nothing inside TLS, and of TLS itself the hello


@contextlib.contextmanager
def trio_patience(seconds: float) -> Iterator[None]:
    """Have one who says nothing be given up sooner than otherwise."""
    from sandkeep.stream import dial

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dial, "CONNECT_S", seconds)
        yield


@on_a_daemon
def test_who_follows_when_the_port_is_taken_sends_no_token(places: str) -> None:
    """What goes on by itself after a restart does so only with the daemon."""
    with house_in(places) as house:

        async def follow() -> tuple[str, str]:
            async with house.streams("tls").events("now") as events:
                await trio.to_thread.run_sync(house.daemon.stop)
                with thief(places, house.port, "tls") as heard:
                    with pytest.raises(CallerError) as raised:
                        await events.__anext__()
                    return raised.value.code, await trio.to_thread.run_sync(heard)

        code, said = trio.run(follow)
        assert code == "permission_denied"
        assert said == "TLSv1.3\nheard \n"


@on_a_daemon
def test_who_only_passes_it_on_learns_nothing(house: House) -> None:
    with BreakingLine(house.port) as line:
        through: list[bytes] = []
        line.lose_answer = Recorder(through)  # type: ignore[assignment]
        streams = StreamClient(f"tls://127.0.0.1:{line.port}", house.token, pin=house.pin)
        assert trio.run(first, streams)
        assert sum(map(len, through)) > 500
        assert house.token.encode() not in b"".join(through)
        assert b"events" not in b"".join(through)


class Recorder:
    """In the place of a pattern: sees all that goes to the service, and finds nothing in it."""

    def __init__(self, seen: list[bytes]) -> None:
        self._seen = seen

    def search(self, data: bytes) -> None:
        self._seen.append(data)


# -- what is spoken ---------------------------------------------------------------------------------------------------


@on_a_daemon
def test_nothing_older_than_tls_1_3(house: House) -> None:
    older = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    older.check_hostname, older.verify_mode = False, ssl.CERT_NONE
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    with house.plain("tcp") as sock, pytest.raises(OSError):
        older.wrap_socket(sock)
    with house.plain("tls") as sock:
        assert sock.version() == "TLSv1.3"  # type: ignore[attr-defined]


@on_a_daemon
def test_plain_http_is_told_that_there_is_tls(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDKEEP_STREAM_PLAINTEXT", "1")
    plain = house.tls.replace("tls:", "tcp:")
    with pytest.raises(CallerError, match=r"speaks TLS 1\.3 only: connect to tls://"):
        trio.run(first, StreamClient(plain, house.token))


@on_a_daemon
def test_where_it_is_allowed_there_is_plain_tcp(places: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with daemon_in(places, SANDKEEP_STREAM="tcp://127.0.0.1:0", SANDKEEP_STREAM_PLAINTEXT="1") as daemon:
        daemon.start()
        with daemon.connect() as client:
            access = client.stream.access()
        assert access.pin is None
        assert not os.path.exists(f"{daemon.state_dir}/stream.pem")
        with pytest.raises(StateError, match="does not speak TLS, and was sent nothing"):
            trio.run(first, StreamClient(access.addresses[0].replace("tcp:", "tls:"), access.token, pin=PIN))
        with pytest.raises(SetupError, match="SANDKEEP_STREAM_PLAINTEXT=1"):
            StreamClient(access.addresses[0], access.token)
        monkeypatch.setenv("SANDKEEP_STREAM_PLAINTEXT", "1")
        assert trio.run(first, StreamClient(access.addresses[0], access.token))


def test_otherwise_no_daemon_listens_without_tls(tmp_path: Path) -> None:
    with (
        pytest.raises(SetupError, match=r"use tls://127\.0\.0\.1:0, or") as raised,
        opened(str(tmp_path / "s"), ["tcp://127.0.0.1:0"], PassedSockets()),
    ):
        pytest.fail("it listens")
    assert (raised.value.code, raised.value.data["setting"]) == ("not_configured", "SANDKEEP_STREAM_PLAINTEXT")


def test_what_was_passed_is_for_tls_unless_it_is_named_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDKEEP_STREAM_PLAINTEXT", "1")
    for scheme in ("tls", "tcp"):
        sock = socket.create_server(("127.0.0.1", 0))
        named = f"{scheme}://127.0.0.1:{sock.getsockname()[1]}"
        for addresses in ([named], []):
            with opened(str(tmp_path / "s"), addresses, PassedSockets(stream=[sock.dup()])) as listeners:
                (listener,) = listeners.stream
                assert listener.address == (named if addresses else named.replace("tcp:", "tls:"))
                assert listener.is_secure == listener.address.startswith("tls:")
        sock.close()


@pytest.mark.parametrize("pin", [None, "", "0" * 63, "g" * 64, "0" * 66])
def test_without_a_pin_nothing_is_begun(pin: str | None) -> None:
    with pytest.raises(CallerError, match=r"stream\.access"):
        StreamClient("tls://127.0.0.1:1", "skt", pin=pin)


@on_a_daemon
def test_a_pin_may_be_written_as_openssl_writes_it(house: House) -> None:
    pairs = [house.pin[at : at + 2].upper() for at in range(0, 64, 2)]
    assert trio.run(first, StreamClient(house.tls, house.token, pin=":".join(pairs)))


# -- the key ----------------------------------------------------------------------------------------------------------


def access(daemon: RunningDaemon) -> StreamAccess:
    with daemon.connect() as client:
        return client.stream.access()  # type: ignore[no-any-return]


@on_a_daemon
def test_the_pin_outlives_the_daemon_and_the_key_is_for_its_eyes(places: str) -> None:
    with house_in(places) as house:
        path = f"{house.daemon.state_dir}/stream.pem"
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        house.daemon.kill()
        house.daemon.start()
        assert access(house.daemon).pin == house.pin
        house.daemon.stop()
        os.unlink(path)
        house.daemon.start()
        renewed = access(house.daemon)
        assert renewed.pin != house.pin
        tls = renewed.addresses[1]
        assert trio.run(first, StreamClient(tls, renewed.token, pin=renewed.pin))
        with pytest.raises(CallerError, match="does not have the pinned key"):
            trio.run(first, StreamClient(tls, renewed.token, pin=house.pin))


@pytest.mark.parametrize("spoil", ["mode", "owner", "cut", "key", "empty"])
def test_a_key_that_is_not_sound_is_made_anew_and_that_is_said(
    tmp_path: Path, spoil: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "stream.pem"
    before = Identity.of(str(tmp_path))
    assert Identity.of(str(tmp_path)).pin == before.pin
    assert caplog.records == []
    content = path.read_bytes()
    if spoil == "mode":
        path.chmod(0o640)
    elif spoil == "owner" and os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    elif spoil == "owner":
        pytest.skip("root only")
    else:
        other = identity._generate()
        end = content.index(b"-----BEGIN CERT")
        path.write_bytes(
            {"cut": content[:-100], "key": other[: other.index(b"-----BEGIN CERT")] + content[end:]}.get(spoil, b"")
        )
    after = Identity.of(str(tmp_path))
    assert after.pin != before.pin
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_uid == os.geteuid()
    assert Identity.of(str(tmp_path)).pin == after.pin


# -- what is no handshake ---------------------------------------------------------------------------------------------


async def test_a_handshake_that_is_slow_has_a_deadline(tmp_path: Path, autojump_clock: MockClock) -> None:
    made = Served(tmp_path, Limits(handshake_s=10))
    context = Identity.of(str(tmp_path)).context
    async with trio.open_nursery() as nursery:
        for begun in (b"", b"\x16\x03\x01", hello()[:-1]):
            ours, theirs = socket.socketpair()
            nursery.start_soon(partial(made.server._serve_client, theirs, tls=context))
            sock = trio.socket.from_stdlib_socket(ours)
            ours.setblocking(False)
            await sock.send(begun)
            started = trio.current_time()
            assert await sock.recv(1) == b""
            assert trio.current_time() - started == 10
            sock.close()


def hello() -> bytes:
    """What a client begins with."""
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        client_context().wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


HANDSHAKES, HANDSHAKES_SOAK = 500, times(40_000)
RECORDS = (20, 21, 22, 23, 24, 0, 255)


class Spoiler(Grammar):
    """Makes beginnings of TLS that are nearly right."""

    def beginning(self) -> bytes:
        chance, said = self.chance.random(), hello()
        if chance < 0.1:
            return said[: self.chance.randrange(len(said))]
        if chance < 0.2:
            return self._noise()
        if chance < 0.3:  # other records, of any length
            kind, size = self.chance.choice(RECORDS), self.chance.choice((0, 1, 2, 300, 16384, 16640))
            return bytes([kind, 3, 3]) + size.to_bytes(2, "big") + self.chance.randbytes(size)
        if chance < 0.4:  # one hello in countless records
            body = said[5:]
            return b"".join(said[:3] + b"\0\1" + body[at : at + 1] for at in range(len(body)))
        if chance < 0.5:  # a handshake message of sixteen megabytes, to come
            return bytes([22, 3, 1, 64, 0, 1, 255, 255, 255]) + bytes(16380)
        if chance < 0.6:
            return said + self.chance.randbytes(self.chance.randrange(1, 3000))
        return self._spoiled(said)


async def shake(directory: Path, count: int, seed: int) -> None:
    """So many that begin wrongly. In between others are served, and nothing is left of all that."""
    print(f"seed {seed}")
    spoiler, served = Spoiler(seed), Served(directory, Limits(close_s=0.05))
    context = Identity.of(str(directory)).context

    def connect(nursery: trio.Nursery) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        nursery.start_soon(partial(served.server._serve_client, theirs, tls=context))
        return ours

    with Complaints() as complaints:
        async with trio.open_nursery() as nursery:
            before, tasks = None, tasks_living()
            for number in range(count):
                async with trio.SocketStream(trio.socket.from_stdlib_socket(connect(nursery))) as stream:
                    with contextlib.suppress(trio.BrokenResourceError), trio.fail_after(patient(60)):
                        await stream.send_all(spoiler.beginning())
                        await stream.send_eof()
                        while await stream.receive_some(65536):
                            pass
                if number % 100 == 99:
                    async with websocket(connect(nursery), "/v1/events", tls=True) as neighbour:
                        assert await message(neighbour) == {"kind": "caught_up"}
                if number == count // 5:
                    await settled(tasks)
                    before = Levels()
            assert before is not None
            await settled(tasks)
            Levels().check(before)
            await until_async(lambda: not served.server.connections)  # the last of them may be going just now
    assert complaints.said == []


async def test_hundreds_of_beginnings(tmp_path: Path) -> None:
    await shake(tmp_path, HANDSHAKES, int.from_bytes(os.urandom(4), "big"))


@pytest.mark.soak
async def test_two_hundred_thousand_beginnings(tmp_path: Path) -> None:
    await shake(tmp_path, HANDSHAKES_SOAK, int.from_bytes(os.urandom(4), "big"))


# -- the stream itself ------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def secured(directory: Path) -> Any:
    """Both ends of a stream, whose handshake is through."""
    context = Identity.of(str(directory)).context
    wires = []
    for end in socket.socketpair():
        end.setblocking(False)
        wires.append(Wire(end))
    server = SecureStream(wires[0], context, server_side=True)
    client = SecureStream(wires[1], client_context(), server_side=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.handshake)
        nursery.start_soon(client.handshake)
    try:
        yield server, client
    finally:
        for wire in wires:
            await wire.aclose()


async def test_senders_come_one_after_another_and_all_arrives(tmp_path: Path) -> None:
    async with secured(tmp_path) as (server, client), trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(server.send_all, bytes([number]) * 300_000)
        got = bytearray()
        while len(got) < 6_000_000:
            got += await client.receive_some()
        pieces = [bytes(got[at : at + 300_000]) for at in range(0, 6_000_000, 300_000)]
        assert sorted(pieces) == [bytes([number]) * 300_000 for number in range(20)]


async def test_what_was_broken_off_is_followed_by_nothing(tmp_path: Path) -> None:
    async with secured(tmp_path) as (server, client):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.send_all, bytes(8_000_000))
            await trio.testing.wait_all_tasks_blocked()  # nobody reads, so the socket is full
            nursery.cancel_scope.cancel()
        with pytest.raises(trio.BrokenResourceError):
            await server.send_all(b"more")
        await server.aclose()
        size = 0
        with contextlib.suppress(trio.BrokenResourceError):
            while got := await client.receive_some():
                assert not got.strip(b"\0")
                size += len(got)
        assert 0 < size < 8_000_000
