"""File descriptors, closed at the end of a block and written to; and what tells files apart."""

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


def identity_of(path: str, *, follow_symlinks: bool = True) -> tuple[int, int] | None:
    """Return device and inode of a file; None if there is none, or it cannot be reached."""
    try:
        found = os.stat(path, follow_symlinks=follow_symlinks)
    except OSError:
        return None
    return found.st_dev, found.st_ino
