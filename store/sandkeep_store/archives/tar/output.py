"""The file that an archive is written to: counted, digested, and past the kernel's cache once there is much of it.

An archive has to be on the disk before it counts, and is seldom read soon after. To copy it into memory first costs as
much time as to compress it, where memory has to be asked for: in a virtual machine, or in a group with a limit.
"""

import errno
import fcntl
import hashlib
import mmap
import os
from typing import Final

CHUNK: Final = 1 << 20
"""Bytes written per call: whole blocks of any disk, from page-aligned memory."""


class OutputError(OSError):
    """Compressed data could not be written."""


class Output:
    """An empty file, written from where its descriptor stands; it holds all that was written when `finish` is through.

    Raises OutputError.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._digest = hashlib.sha256()
        self._waiting = mmap.mmap(-1, CHUNK)
        self._filled = 0
        self._past_cache: bool | None = None
        self.size_bytes = 0

    def write(self, data: bytes | memoryview) -> int:
        """Take all of it, which the caller may change afterwards."""
        self._digest.update(data)
        left = memoryview(data)
        while left:
            piece = left[: CHUNK - self._filled]
            end = self._filled + len(piece)
            self._waiting[self._filled : end] = piece
            self._filled, left = end, left[len(piece) :]
            if self._filled == CHUNK:
                self._put()
        self.size_bytes += len(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: `finish` writes all that is left."""

    def finish(self) -> None:
        """Write the remaining bytes."""
        self._use_cache()
        self._put()

    @property
    def sha256(self) -> str:
        """The digest of the bytes written so far, in hexadecimal."""
        return self._digest.hexdigest()

    def _put(self) -> None:
        if self._past_cache is None and self._filled == CHUNK:
            self._past_cache = self._can_bypass()
        with memoryview(self._waiting) as whole:
            left = whole[: self._filled]
            try:
                while left:
                    left = left[self._written(left) :]
            except OSError as error:
                raise OutputError(error.errno, error.strerror) from None
            finally:
                left.release()
        self._filled = 0

    def _written(self, data: memoryview) -> int:
        try:
            written = os.write(self._descriptor, data)
        except OSError as error:
            if not self._past_cache or error.errno != errno.EINVAL:
                raise
            written = 0  # the filesystem takes it, but not like this
        if written < len(data):
            self._use_cache()  # the rest may begin in the middle of a block
        return written

    def _can_bypass(self) -> bool:
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, self._flags() | os.O_DIRECT)
        except OSError:
            return False
        return True

    def _use_cache(self) -> None:
        if self._past_cache:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, self._flags() & ~os.O_DIRECT)
        self._past_cache = False

    def _flags(self) -> int:
        return fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
