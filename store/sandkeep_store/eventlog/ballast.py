"""The ballast: a megabyte reserved beside the event log, released when the disk is full.

A full disk must not prevent ending sandboxes, which is what frees space. So the reserve is released when an essential
append would fail for lack of space.
"""

import contextlib
import os
from typing import Final

RESERVE_BYTES: Final = 1024 * 1024


class Ballast:
    """The file `path`, which takes up `RESERVE_BYTES` of the disk while it is held."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.held = False

    def hold(self) -> None:
        """Take the space. Raises OSError when there is none; repeating it is free."""
        if self.held:
            return
        descriptor = os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
            self.held = True
        finally:
            os.close(descriptor)
            if not self.held:
                # An essential append may need the space of the partial allocation.
                self.release()

    def release(self) -> None:
        """Give the space back."""
        self.held = False
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
