"""The connection to one exec of the engine's: what it reads goes in, what it writes comes out, in frames.

The SDK's own way to that connection loses the first bytes when they come with the head of the answer; so the request is
written here.
"""

import errno
import os
import socket
import struct
from collections.abc import AsyncGenerator
from typing import Final

import msgspec
import trio

from sandkeepd.providers.base import InputNote
from sandkeepd.providers.docker_engine import RefusedError

MAX_HEAD_BYTES: Final = 16 * 1024
READ_BYTES: Final = 256 * 1024
_PIECE_BYTES: Final = 64 * 1024
_FRAME: Final = struct.Struct(">BxxxL")
"""What stands before each piece of output: its stream, and its length."""

_STREAMS: Final = {1: "stdout"}
"""Everything else, such as what the engine has to say itself, is for stderr."""

Piece = tuple[str, memoryview]
"""``stdout`` or ``stderr``, and bytes of it."""

_GONE: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


class ExecStream:
    """An exec that was started. Closing it lets go of the connection: the process goes on, its input has ended, and
    what it writes is lost.
    """

    def __init__(self, connection: trio.SocketStream, first: bytes) -> None:
        self._connection = connection
        self._rest = first
        self._stream = "stderr"
        self._left = 0
        self._input_open = True

    async def wait_readable(self) -> None:
        """Wait until there is output, or the connection has ended."""
        if not self._rest:
            await trio.lowlevel.wait_readable(self._connection.socket)

    async def output(self) -> AsyncGenerator[list[Piece], None]:
        """What is written, some pieces at a time. Ends with the connection."""
        while True:
            if pieces := self._split():
                yield pieces
            try:
                more = await self._connection.receive_some(READ_BYTES)
            except _GONE:
                return
            if not more:
                return
            self._rest = self._rest + more if self._rest else bytes(more)

    def _split(self) -> list[Piece]:
        """The pieces of what has arrived. Of a frame whose head is not complete yet, the rest is kept."""
        data, at, pieces = memoryview(self._rest), 0, list[Piece]()
        while at < len(data):
            if self._left == 0:
                if len(data) - at < _FRAME.size:
                    break
                number, self._left = _FRAME.unpack_from(data, at)
                self._stream = _STREAMS.get(number, "stderr")
                at += _FRAME.size
            piece = data[at : at + self._left]
            at += len(piece)
            self._left -= len(piece)
            if piece:
                pieces.append((self._stream, piece))
        self._rest = bytes(data[at:])
        return pieces

    @property
    def takes_input(self) -> bool:
        """Whether more input can follow."""
        return self._input_open

    async def send(self, data: bytes, taken: int, note: InputNote) -> int:
        """Send input, as there is room for it; answer how many bytes were taken. See `Instance.write_stdin`."""
        view = memoryview(data)
        while taken < len(data) and self._input_open:
            piece = view[taken : taken + _PIECE_BYTES]
            note(taken, len(piece))
            try:
                taken += await self._connection.socket.send(piece)
            except (OSError, *_GONE):  # it has ended, or the engine has
                self._input_open = False
            note(taken, 0)
        return taken

    async def end_input(self) -> None:
        """There is no more input."""
        self._input_open = False
        try:
            self._connection.socket.shutdown(socket.SHUT_WR)
        except OSError:
            await trio.lowlevel.checkpoint()  # it has ended already

    async def aclose(self) -> None:
        """Let go of the connection."""
        self._input_open = False
        await trio.aclose_forcefully(self._connection)


async def start_exec(path: str, api_version: str, exec_id: str) -> ExecStream:
    """Start an exec of the engine at `path`, and connect to it.

    Raises OSError when the engine is not there, and `RefusedError` when it will not.
    """
    body = msgspec.json.encode({"Detach": False, "Tty": False})
    head = (
        f"POST /v{api_version}/exec/{exec_id}/start HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection: trio.SocketStream | None = await trio.open_unix_socket(path)
    try:
        assert connection is not None
        await connection.send_all(head.encode() + body)
        status, rest = await _answer(connection)
        if status not in (101, 200):
            raise RefusedError(status, _words(rest))
        stream, connection = ExecStream(connection, rest), None
        return stream
    except trio.BrokenResourceError:
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)) from None
    finally:
        if connection is not None:
            await trio.aclose_forcefully(connection)


def _words(body: bytes) -> str:
    """What the engine says in the body of an answer."""
    try:
        return str(msgspec.json.decode(body)["message"])[:500]
    except (msgspec.DecodeError, KeyError, TypeError):
        return body.decode(errors="replace")[:500]


async def _answer(connection: trio.SocketStream) -> tuple[int, bytes]:
    """The status of the engine's answer, and what came behind its head already."""
    said = b""
    while b"\r\n\r\n" not in said and len(said) < MAX_HEAD_BYTES:
        more = await connection.receive_some(READ_BYTES)
        if not more:
            raise trio.BrokenResourceError
        said += more
    head, _, rest = said.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    if len(words) < 2 or not words[1].isdigit():
        raise trio.BrokenResourceError
    return int(words[1]), rest
