"""System calls that Python does not have: renameat2(2) and syncfs(2). Blocks, and raises OSError."""

import ctypes
import os
from typing import Final

HERE: Final = -100
"""The working directory, which absolute paths do not use."""

_SYS_RENAMEAT2: Final = {"x86_64": 316, "i686": 353, "armv7l": 382, "ppc64le": 357, "s390x": 347}
_SYS_RENAMEAT2_ELSEWHERE: Final = 276
_NUMBER: Final = _SYS_RENAMEAT2.get(os.uname().machine, _SYS_RENAMEAT2_ELSEWHERE)
_NOREPLACE: Final = 1
_EXCHANGE: Final = 2

_libc: Final = ctypes.CDLL(None, use_errno=True)


def move(source: int, old: bytes, target: int, new: bytes) -> None:
    """Rename an entry of an open directory into another, where nothing may have the name."""
    _rename(source, old, target, new, _NOREPLACE)


def exchange(source: int, old: bytes, target: int, new: bytes) -> None:
    """Exchange two entries of open directories atomically."""
    _rename(source, old, target, new, _EXCHANGE)


def sync_filesystem(descriptor: int) -> None:
    """Make everything on the filesystem of an open file durable."""
    _check(_libc.syncfs(descriptor))


def _rename(source: int, old: bytes, target: int, new: bytes, flags: int) -> None:
    _check(_libc.syscall(ctypes.c_long(_NUMBER), source, old, target, new, ctypes.c_uint(flags)), os.fsdecode(new))


def _check(result: int, path: str | None = None) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
