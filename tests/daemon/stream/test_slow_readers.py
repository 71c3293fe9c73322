"""Slow readers cost the daemon nothing and get every byte; and how many one user may be."""

import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.support.soak import times
from tests.support.streams import WRITER, House, block, house_in, message, websocket
from trio.testing import MockClock, wait_all_tasks_blocked

from sandkeep.protocol import frames
from sandkeep.protocol.frames import CaughtUp
from sandkeepd.api.listener import listening
from sandkeepd.stream.server import Limits, StreamServer
from sandkeepd.stream.session import Client, Handler, Session
from sandkeepd.stream.tokens import Tokens

READERS = 100
MOST_GROWTH_BYTES = 8 * 1024 * 1024


@pytest.fixture(scope="module")
def house(places: str) -> Iterator[House]:
    with house_in(places, SANDKEEP_RETAIN_OUTPUT="unlimited") as house:
        yield house


def resident(house: House) -> int:
    with house.daemon.connect() as client:
        return int(client.daemon.status().resident_bytes)


async def _stall_then_read(house: House, name: str, stalled: trio.Event, go_on: trio.Event) -> bytes:
    """Read a little of a log, then nothing until told, then the rest; answer the digest of it all."""
    target = frames.target("logs", house.sandbox_id, name, follow=True)
    async with websocket(house.plain(), target) as connection:
        digest, size = hashlib.sha256(), 0
        while not isinstance(got := await message(connection), dict) or got["kind"] != "exit":
            if isinstance(got, bytes):
                piece = frames.parse_output(got)
                assert piece.offset == size
                size += len(piece.data)
                digest.update(piece.data)
            stalled.set()
            await go_on.wait()
        return digest.digest()


async def _read_by_many(house: House, name: str, mebibytes: int) -> None:
    expected = hashlib.sha256()
    for number in range(mebibytes):
        expected.update(block(number))
    before = resident(house)
    digests: list[bytes] = []
    go_on = trio.Event()

    async def read(stalled: trio.Event) -> None:
        digests.append(await _stall_then_read(house, name, stalled, go_on))

    async with trio.open_nursery() as nursery:
        for _ in range(READERS):
            stalled = trio.Event()
            nursery.start_soon(read, stalled)
            await stalled.wait()
        await wait_all_tasks_blocked(0.1)
        growth = resident(house) - before
        go_on.set()
    assert growth < MOST_GROWTH_BYTES, f"{READERS} stalled readers cost {growth} bytes"
    assert digests == [expected.digest()] * READERS
    assert resident(house) - before < 6 * MOST_GROWTH_BYTES


@pytest.mark.needs("bwrap", "root")
async def test_a_hundred_stalled_readers_cost_little_and_get_every_byte(house: House) -> None:
    house.run(WRITER % 8, "much")
    await _read_by_many(house, "much", 8)


@pytest.mark.soak
@pytest.mark.needs("bwrap", "root")
async def test_a_hundred_stalled_readers_of_more(house: House) -> None:
    house.run(WRITER % times(64), "more")
    await _read_by_many(house, "more", times(64))


# -- how many there may be --------------------------------------------------------------------------------------------


class Served:
    """A stream server in this process, with one endpoint that says that it is there and then waits."""

    def __init__(self, directory: Path, limits: Limits) -> None:
        self.path = str(directory / "stream.sock")
        self.stop: Callable[[], None] = lambda: None
        self.server = StreamServer({"events": self._endpoint}, Tokens(str(directory)), limits=limits)

    async def _endpoint(self, client: Client) -> Handler:
        async def handler(session: Session) -> None:
            await session.send(CaughtUp())
            await session.run_send_only(trio.sleep_forever)

        return handler

    def plain(self) -> Any:
        import socket

        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self.path)
        return sock


@asynccontextmanager
async def served(directory: Path, **limits: Any) -> AsyncIterator[Served]:
    made = Served(directory, Limits(**limits))
    with listening(made.path) as listener:
        async with trio.open_nursery() as nursery:
            await nursery.start(made.server.serve, listener)
            made.stop = nursery.cancel_scope.cancel
            yield made
            made.stop()


async def test_a_user_has_only_so_many_websockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sandkeepd.core.peer import Peer
    from sandkeepd.stream import server

    monkeypatch.setattr(server, "peer_of", lambda sock: Peer(uid=12345, gid=12345))
    async with served(tmp_path, connections=2) as made:
        async with websocket(made.plain(), "/v1/events") as one, websocket(made.plain(), "/v1/events") as two:
            assert [await message(one), await message(two)] == [{"kind": "caught_up"}] * 2
            async with websocket(made.plain(), "/v1/events") as three:
                assert three.rejection is not None
                assert three.rejection.status_code == 429
            assert made.server.connections == 2
        async with websocket(made.plain(), "/v1/events") as again:
            assert await message(again) == {"kind": "caught_up"}


async def test_for_one_more_in_the_handshake_the_oldest_has_to_go(tmp_path: Path) -> None:
    async with served(tmp_path, handshakes=3) as made:
        held = []
        for _ in range(4):  # of those that come in the same moment any may be the oldest
            held.append(made.plain())
            await wait_all_tasks_blocked()
        held[0].setblocking(False)
        assert held[0].recv(1) == b""
        for sock in held[1:]:
            sock.setblocking(False)
            with pytest.raises(BlockingIOError):
                sock.recv(1)
        async with websocket(made.plain(), "/v1/events") as connection:
            assert await message(connection) == {"kind": "caught_up"}
        for sock in held:
            sock.close()


async def test_a_handshake_has_a_deadline_and_a_websocket_none(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with served(tmp_path, handshake_s=10) as made:
        sock = trio.socket.from_stdlib_socket(made.plain())
        await sock.send(b"GET /v1/events HTTP/1.1\r\n")
        begun = trio.current_time()
        assert await sock.recv(1) == b""
        assert trio.current_time() - begun == 10
        sock.close()
        async with websocket(made.plain(), "/v1/events") as connection:
            assert await message(connection) == {"kind": "caught_up"}
            with trio.move_on_after(10_000):
                await message(connection)
                pytest.fail("nothing was to come")
            await connection.ping()


@pytest.mark.parametrize("between", range(8))
async def test_a_client_may_go_at_the_moment_at_which_the_server_stops(tmp_path: Path, between: int) -> None:
    async with served(tmp_path) as made, websocket(made.plain(), "/v1/events") as connection:
        assert await message(connection) == {"kind": "caught_up"}
        connection.wire.cut()
        for _ in range(between):
            await trio.lowlevel.checkpoint()
        made.stop()


def test_nobody_else_can_read_the_key(tmp_path: Path) -> None:
    Tokens(str(tmp_path))
    assert os.stat(tmp_path / "stream.json").st_mode & 0o777 == 0o600
