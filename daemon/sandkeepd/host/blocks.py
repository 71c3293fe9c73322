"""Blocks of a file, allocated before they are written, and given back: fallocate(2). Everything here blocks."""

import ctypes
import os
from typing import Final

_KEEP_SIZE: Final = 1
_PUNCH_HOLE: Final = 2

_libc: Final = ctypes.CDLL(None, use_errno=True)


def punch(descriptor: int, length: int) -> None:
    """Make a hole of the first `length` bytes of a file, which stays as long as it is. Raises OSError."""
    _fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, length)


def reserve(descriptor: int, length: int) -> None:
    """Allocate the blocks of the first `length` bytes of a file, which stays as long as it is: writes there need no
    room. Raises OSError.
    """
    _fallocate(descriptor, _KEEP_SIZE, length)


def _fallocate(descriptor: int, mode: int, length: int) -> None:
    if _libc.fallocate64(descriptor, mode, ctypes.c_int64(0), ctypes.c_int64(length)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
