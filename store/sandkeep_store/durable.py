"""What makes a change of a directory survive a power cut."""

import os


def sync_directory(path: str) -> None:
    """Force the names in a directory to the disk. Blocks. Raises OSError."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
