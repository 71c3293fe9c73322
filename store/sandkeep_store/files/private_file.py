"""Files of secrets in the state directory, such as keys: for the daemon's eyes only, replaced whole or not at all, and
believed only while nobody else could have read or written them.
"""

import logging
import os
import stat
from typing import Final

from sandkeep.errors import DaemonError
from sandkeep.system import durable
from sandkeep.system.descriptors import closing_fd

logger: Final = logging.getLogger("sandkeepd")


def read(path: str, content: str) -> bytes | None:
    """Read the file; None, with a warning that calls it `content`, if it is missing or not trustworthy."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("%s cannot be read: made anew", content, extra={"path": path, "why": error.strerror})
        return None
    with closing_fd(descriptor):
        if _is_ours_alone(os.fstat(descriptor)):
            with open(descriptor, "rb", closefd=False) as file:  # open() refuses directories
                return file.read()
    logger.warning("others could read or write %s: made anew", content, extra={"path": path})
    return None


def _is_ours_alone(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o077


def write(path: str, data: bytes) -> None:
    """Put the file in place, durably. Raises `storage_unavailable`."""
    try:
        durable.replace(path, data)
    except OSError as error:
        message = f"{path} cannot be written ({error.strerror}): free space or repair the disk"
        raise DaemonError("storage_unavailable", message) from None
