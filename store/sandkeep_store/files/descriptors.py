"""File descriptors that are closed at the end of a block, as `contextlib.closing` closes objects."""

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def closing(descriptor: int) -> Iterator[int]:
    """Lend a descriptor for a block, and close it then."""
    try:
        yield descriptor
    finally:
        os.close(descriptor)
