"""Instance lock: one daemon at a place, held by a kernel file lock that ends with the process."""

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Iterator
from typing import Final

from sandkeep.errors import SandkeepError

_held: Final = set[tuple[int, int]]()
"""Files that this process has locked, by device and inode."""
_mutex: Final = threading.Lock()
"""Held by the thread that takes a lock or lets go of one: to the kernel all threads are one owner."""


@contextlib.contextmanager
def lock_file(path: str, conflict: SandkeepError) -> Iterator[None]:
    """Hold the lock of the file `path` for the length of a block; the file is made, and removed afterwards.

    Of any number that begin at the same instant exactly one gets it. The others raise `conflict`, and have changed
    nothing. Raises OSError where no file can be made.
    """
    with _mutex:
        fd = _locked(path, conflict)
        identity = _identity(os.fstat(fd))
        _held.add(identity)
    try:
        yield
    finally:
        with _mutex:
            with contextlib.suppress(OSError):
                if _is_at(fd, path):  # and no other directory was put in the place of this one
                    os.unlink(path)  # before the lock goes: who waits for it sees that it is not there any more
            _held.remove(identity)
            os.close(fd)


def _locked(path: str, conflict: SandkeepError) -> int:
    while True:
        # A record lock ends when its process closes any descriptor of the file, so none may be opened here again.
        with contextlib.suppress(FileNotFoundError):
            if _identity(os.lstat(path)) in _held:
                raise conflict
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            # A record lock and no flock(2): that one is shared with a child until it executes its program, and a child
            # that a killed daemon had just begun to spawn would keep the next daemon from starting.
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(fd, path):
                return fd
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise conflict from None
            raise
        os.close(fd)  # another daemon stopped in between, and removed the file: the locked one has no name


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False
