"""Room for the first output of processes that start on a full disk: who removes files has to see which there are.

The blocks are of those that only root can use. They are allocated in the journals of one process, so no other takes
them, and what it has not used is given back when it has ended. Once all are lent, output is lost as without them.
"""

import errno
import fcntl
import os
from contextlib import suppress
from signal import Signals
from typing import Final

from sandkeep.system.descriptors import closing_fd
from sandkeepd.host import blocks
from sandkeepd.host.hostile_files import HostileTree, NotAFileError
from sandkeepd.keeper.journal_trimming import STREAMS

_BLOCK: Final = 4096
_STDOUT_BYTES: Final = 64 * 1024
_SHARE: Final = 512
"""The part of a disk that is lent for one ``stdout`` at most: root has a twentieth, or 2 MiB."""


class OutputReserve:
    """The reserve in the journals of one sandbox, in the tree `out`, which belong to `owner` (uid, gid)."""

    def __init__(self, out: HostileTree, owner: tuple[int, int] | None) -> None:
        self._out = out
        self._owner = owner
        self._lent: set[str] | None = None
        self._ended: set[str] = set()
        """Journals of ended processes to which something that these started may still write."""

    def lend(self, process_id: str) -> None:
        """Make the journals of a process that is about to start, with as many blocks as there are. Blocks."""
        if self._lent is None:
            self._lent = set()
            with suppress(OSError):
                self._ended.update(self._out.names("p"))  # an earlier daemon can have lent them something
        self._give_back()
        self._lent.add(process_id)
        with suppress(OSError):
            stdout_bytes = min(_STDOUT_BYTES, self._disk_bytes() // _SHARE)
            self._make(f"p/{process_id}.stderr", max(_BLOCK, stdout_bytes // 4))
            self._make(f"p/{process_id}.stdout", max(_BLOCK, stdout_bytes))

    def end(self, process_id: str) -> None:
        """Give back what an ended process has not used, and what could not be given back before."""
        if self._lent and process_id in self._lent:
            self._lent.remove(process_id)
            self._ended.update(f"{process_id}.{stream}" for stream in STREAMS)
            self._give_back()

    def _disk_bytes(self) -> int:
        with self._out.directory() as place:
            found = os.fstatvfs(place)
        return found.f_blocks * found.f_frsize

    def _make(self, path: str, length: int) -> None:
        descriptor = self._out.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with closing_fd(descriptor):
            if self._owner:
                os.fchown(descriptor, *self._owner)
            blocks.reserve(descriptor, length)

    def _give_back(self) -> None:
        for name in list(self._ended):
            if _shrink(self._out, f"p/{name}"):
                self._ended.discard(name)


def _shrink(out: HostileTree, path: str) -> bool:
    """Free the blocks beyond the end of a journal; return False if it may grow yet."""
    try:
        with closing_fd(out.open_regular(path)) as descriptor:
            found = os.fstat(descriptor)
            if found.st_blocks * 512 < found.st_size + _BLOCK:
                return True
            if _has_writer(descriptor):
                return False
        with closing_fd(out.open_regular(path, os.O_WRONLY)) as descriptor:
            if os.path.samestat(found, os.fstat(descriptor)):
                os.ftruncate(descriptor, found.st_size)  # a size that it has: only what is beyond goes
                os.utime(descriptor, ns=(found.st_atime_ns, found.st_mtime_ns))
    except (OSError, NotAFileError):  # it is removed, or the code inside put something else there
        pass
    return True


def _has_writer(descriptor: int) -> bool:
    """Return True if a file that is open for reading may be open for writing, too.

    The kernel grants a lease only if it is not. Who would break it in this moment waits until it is returned, and the
    signal that tells of him is one that is ignored.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, Signals.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EINVAL):
            raise
        return True
    return False
