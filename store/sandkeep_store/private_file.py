"""Small files for the eyes of one user alone, such as keys: written whole and durably or not at all, and believed only
while nobody else could have read or written them.
"""

import os
import stat

from sandkeep_store.durable import sync_directory


def read(path: str, most: int) -> bytes:
    """The first `most` bytes of a file. Raises OSError, and PermissionError for one that is not this user's alone."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise PermissionError(0, "others could read or write it", path)
        return file.read(most)


def write(path: str, content: bytes) -> None:
    """Put a file in place; it is on the disk when this returns. Raises OSError."""
    descriptor = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o600)  # it may be what somebody who died has left
        file.write(content)
        file.flush()
        os.fsync(descriptor)
    os.rename(f"{path}.new", path)
    sync_directory(os.path.dirname(path))
