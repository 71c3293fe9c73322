"""File descriptors: closed at the end of a block, as `contextlib.closing` closes objects, and written to."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def closing_fd(fd: int) -> Iterator[int]:
    """Lend an open descriptor for a block, and close it then."""
    try:
        yield fd
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of it to a file or a blocking pipe. Blocks. Raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
