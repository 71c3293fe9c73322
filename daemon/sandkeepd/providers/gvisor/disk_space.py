"""Disk space for checkpoints: `runsc` ends a sandbox that it cannot save for want of it.

So the maximum size is reserved before, by a preallocated file, which shrinks as the other one grows: no other writer
can take the room in between.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from sandkeep.errors import DaemonError

AHEAD_BYTES: Final = 64 * 1024 * 1024
"""Bytes kept free beyond those seen to be written, for the data being written meanwhile."""

PLENTY_BYTES: Final = 4 * 1024**3
"""With so many bytes free besides, no room is reserved: a reservation has to be written, and given back."""

_BLANKS: Final = ".room"


class DiskSpace:
    """Space reserved in a directory, and given to the files there as they grow."""

    def __init__(self, directory: str, size: int) -> None:
        self._directory = directory
        self._size = size
        self._left = 0
        self.fd = os.open(f"{directory}/{_BLANKS}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(f"{directory}/{_BLANKS}")  # its blocks are taken as long as it is open

    def reserve(self) -> None:
        """Reserve the space. Raises `storage_unavailable` when there is not so much, and OSError."""
        try:
            os.posix_fallocate(self.fd, 0, self._size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            message = f"a checkpoint may need {self._size >> 20} MiB, and {self._directory} has less room"
            message += ": make room there, or end processes in the sandbox"
            raise DaemonError("storage_unavailable", message) from None
        self._left = self._size
        self.shrink()

    @property
    def is_reserved(self) -> bool:
        """True if room is reserved."""
        return self._left > 0

    def shrink(self) -> None:
        """Leave to the other files their present size, and the bytes that they may grow by until the next call."""
        if not self._left:
            return
        try:
            written = _occupied(self._directory)
        except OSError:
            written = self._size  # rather too little room than none for the saved files
        left = max(0, self._size - written - AHEAD_BYTES)
        if left < self._left:
            self._left = left
            os.ftruncate(self.fd, left)


def _is_plenty(directory: str, size: int) -> bool:
    """Return True if so much more is free that others will not have used it up in that time."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize > 2 * size + PLENTY_BYTES


def _occupied(directory: str) -> int:
    """Return the bytes that the other files there occupy; 0 when the directory was renamed, as all is written then."""
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        return sum(entry.stat().st_blocks * 512 for entry in entries)
    return 0


@contextmanager
def reserved(directory: str, size: int) -> Iterator[DiskSpace]:
    """Reserve `size` bytes in a directory, for the length of a block. Raises `storage_unavailable`."""
    room = DiskSpace(directory, size)
    try:
        if not _is_plenty(directory, size):
            room.reserve()
        yield room
    finally:
        os.close(room.fd)
