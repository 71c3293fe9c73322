"""The digest of the files that `runsc` saves, computed as they are written: to read them once more would take long.

Everything here blocks for a moment only.
"""

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sandkeepd.host.digests import BLAKE3, Digest

_PIECE_BYTES: Final = 1 << 20
_BEGIN_BYTES: Final = 8 << 20
"""Bytes after which writeback to the disk is started, without waiting, while more data comes."""

_SYNC_FILE_RANGE_WRITE: Final = 2

_CHECKED_BYTES: Final = 1 << 16
"""Bytes of the beginning that are compared again at the end: a writer that writes a header last has changed it."""

_AT_ONCE_BYTES: Final = 4 * 1024 * 1024
"""Bytes to read before others have their turn, which make room for the data being written meanwhile."""

_libc: Final = ctypes.CDLL(None)


class Follower:
    """Reads a growing file. With `syncs` it starts writeback on the way. When the file cannot be read there is no
    digest, and no other effect.
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

    def advance(self) -> bool:
        """Read some of the available data, if any; return True if there is more."""
        try:
            return not self._failed and self._advance(_AT_ONCE_BYTES)
        except OSError:
            self._failed = True
            return False

    def _advance(self, most: int | None) -> bool:
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
        """Start writeback in a thread of its own, since the disk takes only so much at a time. Nothing relies on it:
        callers that need the file on the disk sync all of it at the end.
        """
        self._writing = self._writing or ThreadPoolExecutor(max_workers=1)
        self._writing.submit(_begin, os.dup(self._fd), self._begun, self._size - self._begun)
        self._begun = self._size

    def result(self) -> tuple[str, int] | None:
        """Return the digest and the size of the whole file, when it is complete; None when it was changed other than by
        appending.
        """
        if self._digest is None or self._failed:
            return None
        try:
            return self._result_of(self._digest)
        except OSError:
            return None

    def _result_of(self, digest: Digest) -> tuple[str, int] | None:
        self._advance(None)
        if self.syncs:
            self._begin_writing()
        if os.pread(self._fd, len(self._head), 0) != self._head or os.fstat(self._fd).st_size != self._size:
            return None
        return digest.text(), self._size

    def close(self) -> None:
        """Close the file."""
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
