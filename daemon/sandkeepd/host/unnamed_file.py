"""Temporary files without a name, of which the death of the daemon leaves nothing."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from sandkeep.errors import DaemonError
from sandkeep.system.descriptors import closing_fd


def open_unnamed(directory: str, *, create: bool = False) -> int:
    """Open a nameless file on a directory's disk, for the caller to close. Blocks. Raises `storage_unavailable`."""
    try:
        if create:
            os.makedirs(directory, mode=0o700, exist_ok=True)
        return os.open(directory, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError as error:
        why = "its filesystem cannot hold files without names" if error.errno == errno.EOPNOTSUPP else error.strerror
        raise DaemonError("storage_unavailable", f"{directory} cannot be written: {why}: make room there") from None


@contextmanager
def unnamed_file(directory: str) -> Iterator[int]:
    """Open such a file for the length of a block. Blocks. Raises `storage_unavailable`."""
    with closing_fd(open_unnamed(directory)) as descriptor:
        yield descriptor
