"""What tests of the stream server share: a daemon that listens on a Unix socket and on TCP, and bare websockets."""

import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
import trio
from tests.conftest import RunningDaemon, daemon_in
from tests.support.patience import patient
from trio_websocket import ConnectionClosed
from wsproto import ConnectionType

from sandkeep.protocol import frames
from sandkeep.protocol.tls import SecureStream, client_context
from sandkeep.protocol.wire import Connection, Wire
from sandkeep.stream import StreamClient
from sandkeep.stream.dial import close


class House:
    """A daemon with a sandbox, and the ways to its stream server."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self.daemon = daemon
        with daemon.connect() as client:
            os.makedirs(f"{daemon.root}/image", exist_ok=True)
            image_id = client.image.create(f"{daemon.root}/image").image_id
            self.sandbox_id = client.sandbox.create(image_id).sandbox_id
            access = client.stream.access()
        self.unix, self.tls = access.addresses
        self.token, self.pin = access.token, access.pin

    @property
    def port(self) -> int:
        return int(self.tls.rpartition(":")[2])

    def streams(self, way: str = "unix", **options: Any) -> StreamClient:
        if way == "unix":
            return StreamClient(self.unix, **options)
        return StreamClient(self.tls, self.token, pin=self.pin, **options)

    def launch(self, command: Any, name: str, **options: Any) -> None:
        with self.daemon.connect() as client:
            client.process.launch(self.sandbox_id, command, name=name, **options)

    def wait(self, name: str) -> Any:
        with self.daemon.connect() as client:
            return client.process.wait(self.sandbox_id, name)

    def run(self, command: Any, name: str) -> Any:
        self.launch(command, name)
        return self.wait(name)

    def plain(self, way: str = "unix") -> socket.socket:
        """A socket, for what no client of ours would send: to the Unix socket, to the port bare, or in TLS with it."""
        if way == "unix":
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.connect(self.unix.removeprefix("unix:"))
        else:
            sock = socket.create_connection(("127.0.0.1", self.port))
        sock.settimeout(patient(60))
        return client_context().wrap_socket(sock) if way == "tls" else sock


@contextmanager
def house_in(places: str, **environment: str) -> Iterator[House]:
    with daemon_in(places) as daemon:
        daemon.env |= {"SANDKEEP_STREAM": f"unix:{daemon.root}/stream.sock,tls://127.0.0.1:0", **environment}
        daemon.start()
        yield House(daemon)


@asynccontextmanager
async def websocket(
    sock: socket.socket,
    target: str,
    *,
    tls: bool = False,
    host: str = "localhost",
    headers: list[tuple[bytes, bytes]] | None = None,
    subprotocols: tuple[str, ...] = (),
) -> AsyncIterator[Connection]:
    """A websocket as it is; `rejection` is set when there is none."""
    sock.setblocking(False)
    wire = Wire(sock)
    secure = SecureStream(wire, client_context(), server_side=False) if tls else None
    connection = Connection(
        wire, ConnectionType.CLIENT, 1 << 26, secure,
        host=host, path=target, client_extra_headers=headers or [], client_subprotocols=subprotocols,
    )  # fmt: skip
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.read)
        try:
            await connection.opened()
            yield connection
        finally:
            await close(connection)


async def message(connection: Connection) -> Any:
    """The next text message, as plain objects."""
    got = await connection.get_message()
    return got if isinstance(got, bytes) else msgspec.json.decode(got)


async def everything(connection: Connection) -> tuple[list[Any], int]:
    """All messages up to the end, and the code of the closing."""
    got: list[Any] = []
    while True:
        try:
            got.append(await message(connection))
        except ConnectionClosed as closed:
            return got, closed.reason.code if closed.reason else 0


def refusal(connection: Connection) -> tuple[int, str]:
    """With which status and code a request was refused."""
    assert connection.rejection is not None
    error = frames.refusal_of(connection.rejection.body or b"")
    assert error is not None
    return connection.rejection.status_code, error.code


def block(number: int, size: int = 1 << 20) -> bytes:
    """What `WRITER` writes as its block of that number."""
    return (b"%015d\n" % number) * (size // 16)


WRITER = "i=0; while [ $i -lt %d ]; do yes \"$(printf '%%015d' $i)\" | head -c 1048576; i=$((i+1)); done"
"""Writes so many blocks of a mebibyte, each of which tells its number."""
