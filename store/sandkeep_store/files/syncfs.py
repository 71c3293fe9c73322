"""Force a whole filesystem to its disk, for trees of many files: see `sandkeep.system.durable` for one."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from sandkeep.system import libc
from sandkeep.system.descriptors import closing_fd

_EVERY_S: Final = 0.2


def sync_filesystem(path: str | bytes) -> None:
    """Force all that is on the filesystem of a directory to its disk. Blocks. Raises OSError."""
    with closing_fd(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as descriptor:
        libc.sync_filesystem(descriptor)


@contextmanager
def flushing(path: str) -> Iterator[None]:
    """Flush a directory's filesystem in the background during a block, while the disk would be idle; at the end of the
    block all is durable. Raises OSError.
    """
    ended = threading.Event()

    def flush() -> None:
        while not ended.wait(_EVERY_S):
            with suppress(OSError):  # the last one tells
                sync_filesystem(path)

    thread = threading.Thread(target=flush, name="sandkeep-flush")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    sync_filesystem(path)
