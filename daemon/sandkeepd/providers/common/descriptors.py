"""File descriptors that are open for the length of a block."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def descriptor(fd: int) -> Iterator[int]:
    """Close a descriptor at the end of a block, as `contextlib.closing` does with objects."""
    try:
        yield fd
    finally:
        os.close(fd)
