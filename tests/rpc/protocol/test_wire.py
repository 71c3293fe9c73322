"""A websocket over a socket: what trio-websocket leaves to chance, and we do not."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio
from trio.testing import wait_all_tasks_blocked
from trio_websocket import ConnectionClosed
from wsproto import ConnectionType

from sandkeep.protocol.wire import MAX_PIECES, Connection, Wire
from sandkeep.stream.dial import close

PIECE_BYTES = 128 * 1024


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Connection, Connection]]:
    """A server and a client that are through with the handshake."""
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
    server = Connection(Wire(ends[0]), ConnectionType.SERVER, 1 << 20)
    client = Connection(Wire(ends[1]), ConnectionType.CLIENT, 1 << 20, host="localhost", path="/")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.read)
        nursery.start_soon(client.read)
        request = await server.proposed()
        await request.accept()
        assert await client.opened()
        try:
            yield server, client
        finally:
            await close(client)
            await close(server)


@pytest.mark.parametrize("piece", [b"", b"x"])
async def test_pieces_of_a_message_are_put_together_early(piece: bytes) -> None:
    async with connected() as (server, client):
        data = bytes([2, 129]) + bytes(4) + b"y"
        data += (bytes([0, 128 | len(piece)]) + bytes(4) + piece) * (3 * MAX_PIECES)
        await client.wire.send_all(data)
        await wait_all_tasks_blocked()
        assert len(server._message_parts) <= MAX_PIECES + 1
        await client.wire.send_all(bytes([128, 129]) + bytes(4) + b"z")
        assert await server.get_message() == b"y" + piece * (3 * MAX_PIECES) + b"z"


async def test_what_was_broken_off_is_followed_by_nothing() -> None:
    async with connected() as (server, client):

        async def send() -> None:
            for _ in range(9):
                await server.send_message(bytes(1_000_000))

        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                await wait_all_tasks_blocked()
                scope.cancel()
        with pytest.raises(ConnectionClosed):
            await server.send_message(b"more")
        await close(server)
        got = []
        with suppress(ConnectionClosed):
            while True:
                got.append(await client.get_message())
        assert 0 < len(got) < 9
        assert set(got) == {bytes(1_000_000)}


async def test_what_was_not_begun_is_followed_by_others() -> None:
    async with connected() as (server, client):
        with trio.CancelScope() as scope:
            scope.cancel()
            await server.send_message(b"never")
        await server.send_message(b"this")
        assert await client.get_message() == b"this"


async def test_what_there_is_room_for_is_sent_at_once_and_nothing_else_is() -> None:
    async with connected() as (server, client):
        sent = 0
        while server.wire.has_room:
            await server.send_message(bytes(PIECE_BYTES))
            sent += 1
            await wait_all_tasks_blocked()  # the client reads ahead, but only so far
        roomy = trio.Event()

        async def wait() -> None:
            await server.room()
            roomy.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            assert not roomy.is_set()
            for _ in range(sent):
                assert len(await client.get_message()) == PIECE_BYTES
            await roomy.wait()


async def test_one_knows_when_the_other_end_is_gone() -> None:
    ends = socket.socketpair()
    ends[0].setblocking(False)
    server = Connection(Wire(ends[0]), ConnectionType.SERVER, 1 << 20)
    ends[1].sendall(b"GET / HT")
    ends[1].close()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.read)
        assert await server.proposed() is None
    await server.wire.aclose()


async def test_strangers_may_say_only_so_much() -> None:
    ends = socket.socketpair()
    ends[0].setblocking(False)
    server = Connection(Wire(ends[0], patience_bytes=1000), ConnectionType.SERVER, 1 << 20)
    ends[1].sendall(b"GET / HTTP/1.1\r\nX: " + bytes(1000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.read)
        assert await server.proposed() is None
    await server.wire.aclose()
    ends[1].close()
