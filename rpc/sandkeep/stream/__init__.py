"""The client of the stream server, on trio: logs, events, terminals, files and trees.

    streams = sandkeep.StreamClient()
    async with streams.logs(sandbox_id, "web") as log:
        async for piece in log:
            print(piece.data)

A client holds no connection; each call opens one of its own, for the length of its block. Logs and events outlive a
connection that is lost, and the daemon's restart: they go on exactly where they were. On a Unix socket the kernel tells
the daemon who you are; on TCP a token does, and a pin tells you who the daemon is: ``client.stream.access()`` on the
daemon's socket answers both.
"""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import BinaryIO, Final, TypeVar

import trio

from sandkeep.protocol import frames
from sandkeep.protocol.frames import Done
from sandkeep.protocol.wire import Connection
from sandkeep.stream import files
from sandkeep.stream.dial import Dialer, close, unwrap_single_exception
from sandkeep.stream.live import Attached, EventStream, LogStream, Stream

__all__ = ["Attached", "EventStream", "LogStream", "StreamClient"]

PATIENCE_S: Final = 60.0
"""Seconds that a log or the events wait for a daemon that has gone."""

Place = str | os.PathLike[str]
S = TypeVar("S", bound=Stream)


class StreamClient:
    """Reaches the stream server at `address`: ``unix:/PATH`` or ``tls://HOST:PORT``, by default the first that
    SANDKEEP_STREAM names. `token` and `pin` are for TLS. Any number of tasks may use it at the same time.

    Everything raises `SandkeepError`: `not_ready` when no server listens there, `permission_denied` without the right
    token, or when the server has another key than the pin says, `not_found` for an object that is missing or another
    owner's. The constructor raises `invalid` when a pin is missing, and `not_configured` for ``tcp://HOST:PORT``, which
    has no TLS, unless SANDKEEP_STREAM_PLAINTEXT allows it.
    """

    def __init__(
        self,
        address: str | None = None,
        token: str | None = None,
        *,
        pin: str | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._dialer = Dialer(address, token, pin, patience_s)

    # -- streams ------------------------------------------------------------------------------------------------------

    def logs(
        self,
        sandbox_id: str,
        name: str,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        *,
        follow: bool = True,
        times: bool = False,
    ) -> AbstractAsyncContextManager[LogStream]:
        """Return a process's output, from byte offsets; with `follow` until it has ended, with `times` each piece with
        the times at which it came.
        """
        where = (sandbox_id, name, (stdout_offset, stderr_offset))
        return self._begun(lambda nursery: LogStream(self._dialer, nursery, *where, follow=follow, times=times))

    def events(
        self, after: str | None = None, *, sandbox_id: str | None = None, type: str | None = None
    ) -> AbstractAsyncContextManager[EventStream]:
        """Events after a token, from the first there is, or with ``after="now"`` from now on; and those to come."""
        return self._begun(lambda nursery: EventStream(self._dialer, nursery, after, sandbox_id, type))

    @asynccontextmanager
    async def attach(
        self,
        sandbox_id: str,
        name: str,
        *,
        rows: int = 24,
        cols: int = 80,
        term: str = "xterm-256color",
        read_only: bool = False,
        stdout_offset: int | None = None,
        stderr_offset: int | None = None,
    ) -> AsyncIterator[Attached]:
        """A process, both ways: its terminal, or for one without its output, from now or from offsets, and its input.

        Leaving the block detaches; the process keeps running. A connection that is lost is not replaced.
        """
        query = {"rows": rows, "cols": cols, "term": term, "read_only": read_only}
        where = {"stdout": stdout_offset, "stderr": stderr_offset}
        async with self._connected(frames.target("attach", sandbox_id, name, **query, **where)) as connection:
            yield Attached(connection)

    # -- files --------------------------------------------------------------------------------------------------------

    async def get_file(self, sandbox_id: str, path: str | bytes, to: Place | BinaryIO) -> int:
        """Copy a file out of a sandbox, to a path of this machine or into an open file; answer its size in bytes.

        A path is replaced atomically. An open file may have been written to when an error is raised.
        """
        async with self._connected(_files(sandbox_id, path, "get", "file")) as connection:
            if not isinstance(to, str | os.PathLike):
                return await files.receive(connection, files.writer(to))
            async with files.replacing(os.fspath(to)) as file:
                return await files.receive(connection, files.writer(file))

    async def put_file(self, sandbox_id: str, source: Place | BinaryIO, path: str | bytes) -> Done:
        """Copy a file, or the rest of an open file, into a sandbox: whole, or nothing is changed."""
        if isinstance(source, str | os.PathLike):
            with await trio.to_thread.run_sync(lambda: open(source, "rb")) as file:
                return await self.put_file(sandbox_id, file, path)
        async with self._connected(_files(sandbox_id, path, "put", "file")) as connection:
            return await files.send(connection, files.reader(source))

    async def get_tree(self, sandbox_id: str, path: str | bytes, target: Place) -> None:
        """Copy a file or directory out of a sandbox to `target` on this machine, or into it if it is a directory. It is
        put in place when all of it has arrived.
        """
        asked = _files(sandbox_id, path, "get", "tree")
        async with self._connected(asked) as connection, files.unpacking(os.fspath(target)) as write:
            await files.receive(connection, write)

    async def put_tree(self, sandbox_id: str, source: Place, path: str | bytes) -> Done:
        """Copy a file or directory of this machine to `path` in a sandbox, or into it if it is a directory. It is put
        in place when all of it has arrived.
        """
        asked = _files(sandbox_id, path, "put", "tree")
        async with self._connected(asked) as connection, files.packing(os.fspath(source)) as (read, check):
            return await files.send(connection, read, check)

    # -- connections --------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _begun(self, make: Callable[[trio.Nursery], S]) -> AsyncIterator[S]:
        with unwrap_single_exception():
            async with trio.open_nursery() as nursery:
                stream = make(nursery)
                try:
                    await stream.begin()
                    yield stream
                finally:
                    await stream.close()

    @asynccontextmanager
    async def _connected(self, target: str) -> AsyncIterator[Connection]:
        with unwrap_single_exception():
            async with trio.open_nursery() as nursery:
                connection = await self._dialer.open(nursery, target)
                try:
                    yield connection
                finally:
                    await close(connection)


def _files(sandbox_id: str, path: str | bytes, op: str, kind: str) -> str:
    return frames.target("files", sandbox_id, path=os.fsencode(path), op=op, kind=kind)
