"""What broke the stream server and its client when they were attacked."""

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.daemon.stream.test_door import bearer, frame, is_well, opened, opening, resident
from tests.daemon.stream.test_slow_readers import served
from tests.support.expect import until_async
from tests.support.patience import patient
from tests.support.streams import House, house_in, message, refusal, websocket
from trio_websocket import ConnectionClosed

from sandkeep.errors import SandkeepError
from sandkeep.protocol import frames
from sandkeep.protocol.frames import CaughtUp
from sandkeep.stream import StreamClient
from sandkeepd.contract.processes import Chunk
from sandkeepd.stream.logs import JournalReader
from sandkeepd.stream.tokens import FILE_NAME, Tokens

needs_house = pytest.mark.needs("bwrap", "root")


@pytest.fixture(scope="module")
def house(places: str) -> Iterator[House]:
    with house_in(places) as house:
        yield house


# -- the server: nobody is kept waiting -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flood",
    [
        frame(2, b"x", final=False) + frame(0, b"x", final=False) * 20_000,
        frame(2, b"x", final=False) + frame(0, b"", final=False) * 20_000,
        frame(10, b"") * 20_000,
    ],
)
async def test_a_flood_of_empty_frames_leaves_turns_to_others(tmp_path: Path, flood: bytes) -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with served(tmp_path) as made, trio.open_nursery() as nursery:
        flooder = trio.SocketStream(trio.socket.from_stdlib_socket(made.plain()))
        await flooder.send_all(opening("/v1/events"))
        await flooder.receive_some(65536)
        nursery.start_soon(count_turns)
        with trio.fail_after(patient(30)):
            await flooder.send_all(flood)
            await flooder.send_eof()
            while await flooder.receive_some(65536):
                pass
        nursery.cancel_scope.cancel()
        await flooder.aclose()
    assert turns > 500  # one for every few frames, and not one for every read


@needs_house
def test_text_weighs_what_it_takes_in_memory(house: House) -> None:
    """One character beyond the first thousands makes every other one take four bytes."""
    sock = opened(house, frames.target("events", after="now"))
    before = resident(house)
    with sock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        sock.sendall(frame(1, ("\N{GRINNING FACE}" + "x" * 800_000).encode(), final=False))
        data = b""
        while got := sock.recv(65536):
            data += got
        assert b"\x03\xf1" in data  # 1009, too big
        assert resident(house) - before < 4_000_000
    is_well(house)


@needs_house
async def test_a_client_that_goes_while_nobody_reads_what_it_typed_is_let_go(house: House) -> None:
    house.launch(["sleep", "1000"], "deaf", stdin=True)
    target = frames.target("attach", house.sandbox_id, "deaf")
    for typed in (frame(2, bytes(200_000)), frame(2, bytes(200_000)) * 20):
        sock = opened(house, target)
        sock.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            sock.sendall(typed)
        await until_async(lambda: held_websockets(house) == 1)  # those of other tests may be going just now
        sock.close()
        await until_async(lambda: not held_websockets(house))
    is_well(house)


def held_websockets(house: House) -> int:
    """How many sockets the daemon has that clients of the stream server connected to."""
    with open("/proc/net/unix") as sockets:
        lines = [line.split() for line in sockets if line.endswith(f" {house.unix.removeprefix('unix:')}\n")]
    return sum(state == "03" for _, _, _, _, _, state, *_ in lines)


async def test_what_comes_and_goes_in_a_journal_is_told_once() -> None:
    class Flapping:
        """A journal that the code inside takes away and brings back."""

        def __init__(self) -> None:
            self.reads = 0
            self.outputs = self

        def read_journal(self, *_: Any) -> Chunk:
            self.reads += 1
            return Chunk(offset=0, data=b"", size=0, note="it was replaced" if self.reads % 3 else None)

        async def wait_for_more(self, *_: Any) -> None:
            await trio.lowlevel.checkpoint()
            self.ended = self.reads > 100

    class Listener:
        said: list[Any]

        async def room(self) -> None:
            pass

        async def send(self, said: Any) -> None:
            self.said.append(said)

    class Process:
        ended = False

    journal, listener, process = Flapping(), Listener(), Process()
    listener.said = []
    reader = JournalReader(journal, process, 0, 0)  # type: ignore[arg-type]
    for _ in range(100):
        await reader.send(listener, follow=False)  # type: ignore[arg-type]
    assert len([said for said in listener.said if not isinstance(said, CaughtUp)]) == 1


# -- tokens -----------------------------------------------------------------------------------------------------------


@needs_house
async def test_who_is_in_by_a_token_that_is_renewed_has_to_go(house: House) -> None:
    headers = bearer(house.token)
    target = frames.target("events", after="now")
    async with (
        websocket(house.plain("tcp"), target, tls=True, headers=headers) as thief,
        websocket(house.plain("unix"), target) as other,
    ):
        assert (await message(thief))["kind"] == (await message(other))["kind"] == "caught_up"
        with house.daemon.connect() as client:
            house.token = client.stream.access(renew=True).token
        with trio.fail_after(patient(60)), pytest.raises(ConnectionClosed):
            await message(thief)
        await other.send_message("{}")
        assert (await message(other))["kind"] == "error"  # the kernel vouches for this one: it was still there
    async with websocket(house.plain("tcp"), target, tls=True, headers=headers) as again:
        assert refusal(again) == (401, "permission_denied")


async def test_a_token_may_be_renewed_while_somebody_comes_in(tmp_path: Path) -> None:
    tokens = Tokens(str(tmp_path))
    with trio.fail_after(patient(60)), tokens.while_valid(7), tokens.while_valid(7):
        await tokens.renew(7)
        await trio.sleep_forever()
    with tokens.while_valid(7):
        await tokens.renew(8)
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("spoil", [lambda path: os.chmod(path, 0o644), lambda path: os.chown(path, 65534, 65534)])
@pytest.mark.needs("root")
async def test_tokens_that_others_could_read_are_worthless(tmp_path: Path, spoil: Callable[[str], None]) -> None:
    path = tmp_path / FILE_NAME
    token = Tokens(str(tmp_path)).token(0)
    assert Tokens(str(tmp_path)).uid_of(token) == 0
    spoil(str(path))
    (tmp_path / f"{FILE_NAME}.new").touch(0o666)
    assert Tokens(str(tmp_path)).uid_of(token) is None
    assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (os.geteuid(), 0o600)


async def test_without_room_for_the_key_tokens_hold_until_the_end(tmp_path: Path) -> None:
    (tmp_path / f"{FILE_NAME}.new").mkdir()
    tokens = Tokens(str(tmp_path))
    assert tokens.uid_of(tokens.token(5)) == 5
    with pytest.raises(SandkeepError, match="free space"):
        await tokens.renew(5)
    assert tokens.uid_of(tokens.token(5)) == 5


# -- the client, whose server is somebody else's ----------------------------------------------------------------------

Serve = Callable[[trio.SocketStream], Any]


class Impostor:
    """Answers each connection as it is told, and keeps what it was asked."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.asked: list[bytes] = []

    def client(self, **options: Any) -> StreamClient:
        return StreamClient(f"unix:{self.path}", "skt_0_secret", **options)


@asynccontextmanager
async def impostor(serve: Serve) -> AsyncIterator[Impostor]:
    directory = tempfile.mkdtemp(prefix="skt-")
    made = Impostor(f"{directory}/sock")
    listener = trio.socket.socket(socket.AF_UNIX)
    await listener.bind(made.path)
    listener.listen(5)

    async def answer(stream: trio.SocketStream) -> None:
        made.asked.append(bytes(await stream.receive_some(65536)))
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await serve(stream)
        await stream.aclose()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, answer, [trio.SocketListener(listener)])
            yield made
            nursery.cancel_scope.cancel()
    finally:
        shutil.rmtree(directory)


ACCEPTED = (
    b"HTTP/1.1 101 \r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Protocol: sandkeep.v1\r\n"
    b"Sec-WebSocket-Accept: %s\r\n\r\n"
)


def spoken(opcode: int, payload: bytes) -> bytes:
    """A frame as servers send them."""
    assert len(payload) < 126
    return bytes([0x80 | opcode, len(payload)]) + payload


async def test_a_refusal_without_an_end_is_cut_off() -> None:
    sent = 0

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal sent
        await stream.send_all(b"HTTP/1.1 403 no\r\nContent-Length: 99999999999\r\n\r\n")
        while True:
            await stream.send_all(bytes(100_000))
            sent += 100_000

    async with impostor(serve) as made:
        with trio.fail_after(patient(60)), pytest.raises(SandkeepError, match="does not answer as"):
            async with made.client().events():
                pytest.fail("it was let in")
    assert sent < 5_000_000


async def test_nobody_is_sent_elsewhere() -> None:
    async def elsewhere(stream: trio.SocketStream) -> None:
        pytest.fail("the client followed")

    async with impostor(elsewhere) as other:

        async def serve(stream: trio.SocketStream) -> None:
            await stream.send_all(
                f"HTTP/1.1 307 there\r\nLocation: ws+unix:{other.path}\r\nContent-Length: 0\r\n\r\n".encode()
            )

        async with impostor(serve) as made:
            with pytest.raises(SandkeepError, match="does not answer as"):
                async with made.client().events():
                    pytest.fail("it was let in")
        assert other.asked == []


@asynccontextmanager
async def accepting(*said: bytes) -> AsyncIterator[Impostor]:
    """Lets everybody in, says the same to all, and lets go of them."""
    from wsproto.utilities import generate_accept_token

    made: Impostor

    async def serve(stream: trio.SocketStream) -> None:
        key = next(line for line in made.asked[-1].split(b"\r\n") if line.lower().startswith(b"sec-websocket-key"))
        accepted = ACCEPTED % generate_accept_token(key.partition(b":")[2].strip())
        await stream.send_all(accepted + b"".join(said))

    async with impostor(serve) as made:
        yield made


@pytest.mark.parametrize(
    "piece",
    [
        frames.pack_output(frames.STDOUT, 5, b"again"),
        frames.pack_output(frames.STDOUT, 11, b"later"),
        frames.pack_output(frames.STDOUT, 2**64 - 1, b"x"),
        frames.pack_output(frames.TERMINAL, 10, b"x"),
    ],
)
async def test_a_log_is_answered_without_gap_or_repetition_or_not_at_all(piece: bytes) -> None:
    first = frames.pack_output(frames.STDOUT, 0, b"0123456789")
    async with accepting(spoken(2, first), spoken(2, piece)) as made, made.client().logs("box", "web") as log:
        assert (await log.__anext__()).data == b"0123456789"
        with trio.fail_after(patient(60)), pytest.raises(SandkeepError, match="skipped or repeated"):
            await log.__anext__()
        assert log.stdout_offset == 10


async def test_a_server_that_lets_in_and_lets_go_is_asked_ever_less_often() -> None:
    async with accepting() as made:
        with trio.fail_after(patient(60)), pytest.raises(SandkeepError, match="closed the connection"):
            async with made.client(patience_s=1.4).events() as events:
                await events.__anext__()
        assert 2 < len(made.asked) < 10
