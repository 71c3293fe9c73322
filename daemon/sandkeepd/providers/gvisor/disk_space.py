"""Disk space for checkpoints: `runsc` ends a sandbox that it cannot save for want of it.

So as much as it can come to is taken before, by a file of blanks, which becomes smaller as the other one grows: nobody
else can have the room in between.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from sandkeep.errors import DaemonError

AHEAD_BYTES: Final = 64 * 1024 * 1024
"""How much more than was seen to be written is free for what is being written meanwhile."""

PLENTY_BYTES: Final = 4 * 1024**3
"""With so much free besides, no room is taken: it has to be written down, and given back."""

_BLANKS: Final = ".room"


class DiskSpace:
    """Space reserved in a directory, and given to the files there as they grow."""

    def __init__(self, directory: str, size: int) -> None:
        self._directory = directory
        self._size = size
        self._left = 0
        self._fd = os.open(f"{directory}/{_BLANKS}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(f"{directory}/{_BLANKS}")  # what it has is taken as long as it is open

    def take(self) -> None:
        """Take it. Raises OSError when there is not so much."""
        os.posix_fallocate(self._fd, 0, self._size)
        self._left = self._size

    @property
    def is_taken(self) -> bool:
        """Whether any is."""
        return self._left > 0

    def give_way(self) -> None:
        """Leave to the other files what they have by now, and what they may write before the next time."""
        if not self._left:
            return
        try:
            written = _occupied(self._directory)
        except OSError:
            written = self._size  # rather too little room than none for what has to be written
        left = max(0, self._size - written - AHEAD_BYTES)
        if left < self._left:
            self._left = left
            os.ftruncate(self._fd, left)

    def release(self) -> None:
        """Need it no more."""
        os.close(self._fd)


def _is_plenty(directory: str, size: int) -> bool:
    """Whether so much more is free that nobody will have taken it in that time."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize > 2 * size + PLENTY_BYTES


def _occupied(directory: str) -> int:
    """What the other files there have; nothing, when the directory has another name by now, as all is written."""
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        return sum(entry.stat().st_blocks * 512 for entry in entries)
    return 0


@contextmanager
def reserved(directory: str, size: int) -> Iterator[DiskSpace]:
    """Reserve `size` bytes in a directory, for the length of a block. Raises `storage_unavailable`."""
    room = DiskSpace(directory, size)
    try:
        if _is_plenty(directory, size):
            yield room
            return
        try:
            room.take()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            words = f"what is saved of the sandbox may come to {size // 2**20} MiB, and {directory} has not so much"
            raise DaemonError("storage_unavailable", f"{words} room: make some, or end processes in it") from None
        room.give_way()
        yield room
    finally:
        room.release()
