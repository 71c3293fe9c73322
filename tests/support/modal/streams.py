"""Output that is kept and read from any offset, and input that is written at offsets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from grpclib import GRPCError, Status

MESSAGE_BYTES: Final = 256 << 10


class Output:
    """All that a process wrote to one of its descriptors."""

    def __init__(self, *, discarded: bool = False) -> None:
        self._data = bytearray()
        self._ended = False
        self._discarded = discarded
        self._changed = asyncio.Event()

    def append(self, data: bytes) -> None:
        """Add data, and wake readers."""
        if not self._discarded:
            self._data += data
            self._wake()

    def end(self) -> None:
        """Note that nothing more comes."""
        self._ended = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def fill(self, source: AsyncIterator[bytes]) -> None:
        """Take everything of a source until its end."""
        try:
            async for data in source:
                self.append(data)
        finally:
            self.end()

    async def read(self, offset: int) -> AsyncIterator[bytes]:
        """Yield what is there from an offset on, and what follows until the end."""
        while True:
            changed = self._changed
            while data := bytes(self._data[offset : offset + MESSAGE_BYTES]):
                offset += len(data)
                yield data
            if self._ended:
                return
            if changed is self._changed:
                await changed.wait()


class Input:
    """The stdin of a process: each byte of it arrives once, also if a request for it is repeated."""

    def __init__(self, write: Callable[[bytes], Awaitable[None]], close: Callable[[], Awaitable[None]]) -> None:
        self._write = write
        self._close = close
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.written = 0
        self.closed = False

    async def put(self, offset: int, data: bytes, *, eof: bool) -> None:
        """Write data that belongs at an offset. Raises GRPCError if some before it is missing, or stdin is closed."""
        task = asyncio.create_task(self._put(offset, data, eof=eof))  # goes on if its request is given up
        self._tasks.add(task)
        task.add_done_callback(self._done)
        await asyncio.shield(task)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # its request reports it, if there still is one

    async def _put(self, offset: int, data: bytes, *, eof: bool) -> None:
        async with self._lock:
            if offset > self.written:
                raise GRPCError(Status.OUT_OF_RANGE, f"stdin is at {self.written}, not at {offset}")
            data = data[self.written - offset :]
            if data:
                if self.closed:
                    raise GRPCError(Status.FAILED_PRECONDITION, "stdin is closed")
                self.written += len(data)
                try:
                    await self._write(data)
                except BrokenPipeError:
                    raise GRPCError(Status.FAILED_PRECONDITION, "the process has closed its stdin") from None
            if eof and not self.closed:
                self.closed = True
                await self._close()
