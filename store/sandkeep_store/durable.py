"""What makes a change of a file or a directory survive a power cut."""

import os


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
