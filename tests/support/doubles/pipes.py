"""Our ends of pipes and terminals, in asyncio, without buffers of their own."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator

CHUNK_BYTES = 65536


@contextlib.contextmanager
def closing(fd: int) -> Iterator[int]:
    """Close a descriptor at the end of a block."""
    try:
        yield fd
    finally:
        os.close(fd)


class _End:
    """A descriptor of ours, not blocking."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._waiting: asyncio.Future[None] | None = None

    def close(self) -> None:
        """Close it, and wake whoever waits for it."""
        if self.fd >= 0:
            self._stop()
            os.close(self.fd)
            self.fd = -1
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_result(None)

    def _stop(self) -> None:
        asyncio.get_running_loop().remove_reader(self.fd)
        asyncio.get_running_loop().remove_writer(self.fd)

    async def _ready(self, *, writable: bool = False) -> None:
        loop = asyncio.get_running_loop()
        waiting = self._waiting = loop.create_future()
        add = loop.add_writer if writable else loop.add_reader
        add(self.fd, lambda: None if waiting.done() else waiting.set_result(None))
        try:
            await waiting
        finally:
            if self.fd >= 0:
                self._stop()


class Reader(_End):
    """What a pipe or a terminal says, until its end."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._read()

    async def read_all(self) -> bytes:
        """Return all that comes until the end."""
        return b"".join([data async for data in self])

    async def _read(self) -> AsyncIterator[bytes]:
        try:
            while self.fd >= 0:
                try:
                    data = os.read(self.fd, CHUNK_BYTES)
                except BlockingIOError:
                    await self._ready()
                    continue
                except OSError:  # EIO: nobody has the terminal open
                    return
                if not data:
                    return
                yield data
        finally:
            self.close()


class Writer(_End):
    """The way to a process's stdin."""

    async def write(self, data: bytes) -> None:
        """Write all of it. Raises BrokenPipeError."""
        rest = memoryview(data)
        while rest:
            if self.fd < 0:
                raise BrokenPipeError
            try:
                rest = rest[os.write(self.fd, rest) :]
            except BlockingIOError:
                await self._ready(writable=True)
            except OSError as error:
                raise BrokenPipeError from error
