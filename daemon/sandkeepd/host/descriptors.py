"""File descriptors that are closed at the end of a block."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def closing_fd(fd: int) -> Iterator[int]:
    """Close an open descriptor at the end of a block."""
    try:
        yield fd
    finally:
        os.close(fd)
