"""The digest of what `runsc` saves, computed as it is written: to read it once more would take long.

Everything here blocks for a moment only.
"""

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sandkeepd.host.digests import BLAKE3, Digest

_PIECE_BYTES: Final = 1 << 20
_BEGIN_BYTES: Final = 8 << 20
"""Of so much at a time the disk is told to begin writing, while more comes: it is not waited for."""

_SYNC_FILE_RANGE_WRITE: Final = 2

_CHECKED_BYTES: Final = 1 << 16
"""So much of the beginning is looked at once more at the end: whoever writes a head last has changed it."""

_AT_ONCE_BYTES: Final = 4 * 1024 * 1024
"""So much is read before others have their turn, who make room for what is written meanwhile."""

_libc: Final = ctypes.CDLL(None)


class Follower:
    """Reads a file that grows. With `syncs` it has it written to the disk on the way. When the file cannot be read
    there is no digest, and nothing else comes of that.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.syncs = False
        self._failed = False
        self._fd = -1
        self._digest: Digest | None = None
        self._head = b""
        self._size = 0
        self._begun = 0
        self._writing: ThreadPoolExecutor | None = None

    def take(self) -> bool:
        """Read some of what there is by now, if there is anything yet; answer whether there is more."""
        try:
            return not self._failed and self._take(_AT_ONCE_BYTES)
        except OSError:
            self._failed = True
            return False

    def _take(self, most: int | None) -> bool:
        if self._fd < 0:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
        self._digest = self._digest or Digest(BLAKE3)
        end = None if most is None else self._size + most
        while piece := os.pread(self._fd, _PIECE_BYTES, self._size):
            if self._size < _CHECKED_BYTES:
                self._head = (self._head + piece)[:_CHECKED_BYTES]
            self._digest.update(piece)
            self._size += len(piece)
            if self.syncs and self._size - self._begun >= _BEGIN_BYTES:
                self._begin_writing()
            if end is not None and self._size >= end:
                break
        return bool(piece)

    def _begin_writing(self) -> None:
        """In a thread of its own, since the disk takes only so much at a time. Nothing relies on it: whoever needs it
        there waits for all of it at the end.
        """
        self._writing = self._writing or ThreadPoolExecutor(max_workers=1)
        self._writing.submit(_begin, os.dup(self._fd), self._begun, self._size - self._begun)
        self._begun = self._size

    def found(self) -> tuple[str, int] | None:
        """The digest and the size of the whole file, when it is complete; None: it was not only added to."""
        if self._digest is None or self._failed:
            return None
        try:
            return self._whole(self._digest)
        except OSError:
            return None

    def _whole(self, digest: Digest) -> tuple[str, int] | None:
        self._take(None)
        if self.syncs:
            self._begin_writing()
        if os.pread(self._fd, len(self._head), 0) != self._head or os.fstat(self._fd).st_size != self._size:
            return None
        return digest.text(), self._size

    def close(self) -> None:
        """Let go of the file."""
        if self._writing is not None:
            self._writing.shutdown(wait=False)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _begin(fd: int, offset: int, count: int) -> None:
    try:
        _libc.sync_file_range(fd, ctypes.c_int64(offset), ctypes.c_int64(count), _SYNC_FILE_RANGE_WRITE)
    finally:
        os.close(fd)
