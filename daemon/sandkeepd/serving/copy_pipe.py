"""The daemon's own end of the pipe of a copy, for the servers that carry its bytes themselves."""

import fcntl
import os
from collections.abc import Sequence
from typing import Self

import trio


class CopyPipe:
    """The end that a handler gives, by `give` of its `Call`. Closed at the end of a block."""

    def __init__(self) -> None:
        self._given = trio.Event()
        self._stream: trio.lowlevel.FdStream | None = None

    async def give(self, descriptors: Sequence[int]) -> None:
        """Take a copy of the descriptor; the handler closes its own."""
        fd = fcntl.fcntl(descriptors[0], fcntl.F_DUPFD_CLOEXEC, 0)
        os.set_blocking(fd, False)
        self._stream = trio.lowlevel.FdStream(fd)
        self._given.set()
        await trio.lowlevel.checkpoint()

    async def stream(self) -> trio.lowlevel.FdStream:
        """Return the stream once it is given."""
        await self._given.wait()
        assert self._stream is not None
        return self._stream

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close it. This is shielded, as the other end waits for it."""
        if self._stream is not None:
            with trio.CancelScope(shield=True):
                await self._stream.aclose()
