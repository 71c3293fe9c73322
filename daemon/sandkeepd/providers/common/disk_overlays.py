"""Overlays whose upper directory lies on the disk of a sandbox.

An overlay writes with the rights of who has mounted it, and ext4 has blocks reserved for root: the overlay of a sandbox
is mounted with another uid, so that these blocks stay the daemon's. (The capability that gives them, too, an overlay
gives up by itself: `ovl_fill_super` in the kernel's fs/overlayfs.)

On a full disk the kernel cannot make the work directory of such an overlay, and mounts it read-only, without an error.
So the uid has the reserved blocks for that moment.
"""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sandkeepd.host import mounts, privileges

NOBODY: Final = 65534
"""The uid that writes for root inside, which is root on the host."""

_ROOT: Final = 0


def mount_writable(overlay: Callable[[], None], target: str, disk: int, writer: int) -> None:
    """Mount an overlay at `target` by `overlay`, which writes with the rights of a uid to the file system whose root is
    open as `disk`. Raises OSError, also where the overlay could only be read.
    """
    with privileges.file_user(writer or NOBODY):
        overlay()
        if not _is_read_only(target):
            return
        mounts.unmount(target)
        with _reserved_blocks_for(disk, writer or NOBODY):
            overlay()
    if _is_read_only(target):
        mounts.unmount(target)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _is_read_only(place: str) -> bool:
    return bool(os.statvfs(place).f_flag & os.ST_RDONLY)


@contextmanager
def _reserved_blocks_for(disk: int, uid: int) -> Iterator[None]:
    """Give a uid the reserved blocks of an ext4 for the length of a block. No code of the sandbox runs meanwhile."""
    mounts.reconfigure(disk, {"resuid": str(uid)})
    try:
        yield
    finally:
        mounts.reconfigure(disk, {"resuid": str(_ROOT)})
