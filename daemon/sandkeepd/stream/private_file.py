"""Files of secrets in the state directory: for the daemon's eyes only, and replaced whole or not at all."""

import logging
import os
import stat
from typing import Final

from sandkeep.errors import DaemonError
from sandkeep_store.durable import sync_directory

logger: Final = logging.getLogger("sandkeepd")


def read(path: str, content: str) -> bytes | None:
    """Read the file; None if there is none that can be trusted, which is logged. `content` says what it holds."""
    try:
        with open(path, "rb") as file:
            known = os.fstat(file.fileno())
            data = file.read()
    except FileNotFoundError:
        return None
    except OSError:
        logger.warning("%s cannot be read: made anew", content, extra={"path": path})
        return None
    if known.st_uid != os.geteuid() or stat.S_IMODE(known.st_mode) & 0o077:
        logger.warning("others could read %s: made anew", content, extra={"path": path})
        return None
    return data


def write(path: str, data: bytes) -> None:
    """Put the file in place, durably. Raises `storage_unavailable`."""
    try:
        fd = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            os.fchmod(fd, 0o600)  # it may be what an earlier daemon left
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.rename(f"{path}.new", path)
        sync_directory(os.path.dirname(path))
    except OSError as error:
        raise DaemonError(
            "storage_unavailable", f"{path} cannot be written ({error.strerror}): free space or mend the disk"
        ) from None
