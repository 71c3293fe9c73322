"""What makes a change of a file or a directory survive a power cut."""

import ctypes
import os
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)


def sync(path: str, flags: int = 0) -> None:
    """Force a file, or the names in a directory, to the disk. Blocks. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: str) -> None:
    """The same of what has to be a directory."""
    sync(path, os.O_DIRECTORY)


def sync_filesystem(path: str | bytes) -> None:
    """Force all that is on the filesystem of a directory to its disk. Blocks. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(descriptor):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), path)
    finally:
        os.close(descriptor)
