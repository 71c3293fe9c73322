"""The path of a target, which nobody but the caller and root may have made to lead elsewhere.

The owner of a directory above can put a link in the place of the target, to where only the caller may write. Whose a
link is proves nothing there: a branch brings links, too, which are the caller's once they are committed, and the owner
of the directory can rename them. So links are followed, and ``..``, only as long as nobody else could have replaced any
component of the path up to there.
"""

import errno
import os
import stat
from typing import Final

_MOST_LINKS: Final = 40
_WALK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class LedError(OSError):
    """Another user may have chosen where a link, or ``..``, in the path leads."""


class _Walk:
    """A walk along a path. `fd` is the open entry so far."""

    def __init__(self) -> None:
        self.fd = os.open(b"/", _WALK)
        self._is_ours = True
        self._links = 0

    def enter(self, part: bytes) -> bytes:
        """Go on to an entry of the open directory; return the path that follows if that is a link. Raises OSError."""
        if part == b"..":
            self._require_ours()
        above = os.fstat(self.fd)
        entry = os.open(part, _WALK, dir_fd=self.fd)
        info = os.fstat(entry)
        self._is_ours = self._is_ours and _stays(above, info)
        if not stat.S_ISLNK(info.st_mode):
            os.close(self.fd)
            self.fd = entry
            return b""
        try:
            self._require_ours()
            path = os.readlink(b"", dir_fd=entry)
        finally:
            os.close(entry)
        self._links += 1
        if self._links > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if path.startswith(b"/"):
            os.close(self.fd)
            self.fd = os.open(b"/", _WALK)
        return path

    def _require_ours(self) -> None:
        if not self._is_ours:
            raise LedError(errno.ELOOP, os.strerror(errno.ELOOP))


def open_target(path: bytes) -> int:
    """Open the directory with that absolute path. Raises OSError, LedError."""
    walk = _Walk()
    try:
        rest = path.split(b"/")[::-1]
        while rest:
            part = rest.pop()
            if part not in (b"", b"."):
                rest += walk.enter(part).split(b"/")[::-1]
        return os.open(b"/proc/self/fd/%d" % walk.fd, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(walk.fd)


def _stays(directory: os.stat_result, entry: os.stat_result) -> bool:
    """Return True if only the caller and root can replace the entry of a directory."""
    ours = (0, os.geteuid())
    if directory.st_uid not in ours:
        return False
    return not directory.st_mode & _OTHERS or bool(directory.st_mode & stat.S_ISVTX and entry.st_uid in ours)
