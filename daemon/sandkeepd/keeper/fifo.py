"""FIFOs between the daemon and a sandbox: opened so that nobody's death is an end of file, written without blocking."""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import trio

from sandkeepd.contract.processes import InputNote, unnoted

_PIECE_BYTES: Final = 65536


async def write_line(fd: int, line: bytes) -> None:
    """Write a line of up to PIPE_BUF bytes: whole, or after waiting."""
    while True:
        try:
            os.write(fd, line)
            return
        except BlockingIOError:
            await trio.lowlevel.wait_writable(fd)


async def write_all(current: Callable[[], int | None], data: bytes, taken: int = 0, note: InputNote = unnoted) -> int:
    """Write as the reader makes room. Returns the number of bytes taken: less than all when the FIFO was closed
    meanwhile.

    `current` returns the descriptor, None once it is closed. It is called each time, as the number may be another
    file's by then. The first `taken` bytes were written before; `note` is called before each write with the bytes taken
    and those tried next.
    """
    view = memoryview(data)
    while taken < len(data) and (fd := current()) is not None:
        piece = view[taken : taken + _PIECE_BYTES]
        note(taken, len(piece))
        try:
            taken += os.write(fd, piece)
        except BlockingIOError:
            note(taken, 0)
            with suppress(trio.ClosedResourceError):
                await trio.lowlevel.wait_writable(fd)
        else:
            note(taken, 0)
            await trio.lowlevel.checkpoint()
    return taken
