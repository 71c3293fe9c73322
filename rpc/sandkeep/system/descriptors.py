"""File descriptors that are closed at the end of a block, as `contextlib.closing` closes objects."""

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
