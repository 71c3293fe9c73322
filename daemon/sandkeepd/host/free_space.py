"""Free space of the host's disks, of which code in sandboxes must not take the rest."""

import os
from typing import Final

_KEPT_BYTES: Final = 1 << 30
_KEPT_PART: Final = 20


def room(descriptor: int) -> int:
    """Return the bytes that may still be written to the disk of an open file or directory; negative if that is full.

    Not counted is a gibibyte, of a small disk a twentieth, which is left for the event log and for others. Raises
    OSError.
    """
    disk = os.fstatvfs(descriptor)
    return disk.f_bavail * disk.f_frsize - min(_KEPT_BYTES, disk.f_blocks * disk.f_frsize // _KEPT_PART)
