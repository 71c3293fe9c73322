"""The staging directory of a commit, in the target: its slots, with new or old entries.

It is in the target, as only a rename within a file system is atomic. Whoever may write in the target can rename it, or
give its name to another directory; so it is opened by its name and the inode in the journal, which nobody else can have
as long as it is not empty. What is in it is the caller's own: nobody else may write there.
"""

import errno
import fcntl
import os
from contextlib import suppress
from typing import Final

from sandkeep.system.descriptors import closing_fd
from sandkeep.system.libc import sync_filesystem
from sandkeep.system.openat2 import open_beneath
from sandkeepd.host.host_commit.journal import Journal
from sandkeepd.host.host_commit.names import STAGING_PREFIX
from sandkeepd.host.host_commit.tree import Tree

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ForeignError(Exception):
    """The directory with the name of the staging directory is another one."""


class BusyError(Exception):
    """Another commit changes the target."""


class Staging:
    """An open staging directory; `slots` is the open directory of its numbered entries."""

    def __init__(self, tree: Tree, commit: str, inode: int | None = None) -> None:
        """Open it: the one with that inode, or an empty one. Raises OSError, ForeignError."""
        self._tree = tree
        self._name = _name(commit)
        self.fd = open_beneath(tree.fd, self._name, _DIRECTORY)
        info = os.fstat(self.fd)
        if info.st_uid != os.geteuid() or info.st_mode & 0o022 or info.st_dev != tree.device:
            raise ForeignError
        if info.st_ino != inode if inode is not None else os.listdir(self.fd):
            raise ForeignError
        self._inode = info.st_ino
        self.slots = self._open_slots() if inode is not None else -1

    @classmethod
    def create(cls, tree: Tree, commit: str, journal: Journal) -> "Staging":
        """Create it, and begin the journal. Raises OSError, ForeignError, BusyError, ValueError for a used journal.

        Of two commits that create theirs at once each sees the other's, and at most one goes on.
        """
        if journal.state is not None:
            raise ValueError("the journal was used before")
        os.mkdir(_name(commit), 0o700, dir_fd=tree.fd)
        try:
            if len([name for name in os.listdir(tree.fd) if os.fsencode(name).startswith(STAGING_PREFIX)]) > 1:
                cls.remove_empty(tree, commit)
                raise BusyError
            staging = cls(tree, commit)
            with suppress(OSError):
                fcntl.flock(staging.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends: see `is_under_way`
            journal.begin(tree.inode, staging._inode)  # before anything is in it, which would be found with it
            staging.slots = staging._open_slots()
        except OSError:
            journal.clear()  # somebody may have removed it, and so its inode may be another directory's soon
            cls.remove_empty(tree, commit)
            raise
        return staging

    @staticmethod
    def is_under_way(tree: Tree, commit: str) -> bool:
        """Return True if the commit with that staging directory is still running, as far as its owner's rights tell.
        Not the target is locked, as anybody can lock that who can open it.
        """
        try:
            with closing_fd(open_beneath(tree.fd, _name(commit), _DIRECTORY)) as opened:
                fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno == errno.EWOULDBLOCK
        return False

    @staticmethod
    def remove_empty(tree: Tree, commit: str) -> None:
        """Remove the directory of a commit whose journal was not begun; one that is not empty is not that."""
        with suppress(OSError):
            os.rmdir(_name(commit), dir_fd=tree.fd)
            os.fsync(tree.fd)

    def _open_slots(self) -> int:
        with suppress(FileExistsError):
            os.mkdir(b"slots", 0o700, dir_fd=self.fd)
        return open_beneath(self.fd, b"slots", _DIRECTORY)

    def create_file(self, slot: bytes) -> int:
        """Create a file for a new entry, for the caller to close."""
        return os.open(slot, _NEW, 0o600, dir_fd=self.slots)

    def sync(self) -> None:
        """Make the names of the entries durable, and this directory in the target."""
        for directory in (self.slots, self.fd, self._tree.fd):
            os.fsync(directory)

    def flush(self) -> None:
        """Make all new entries durable at once."""
        sync_filesystem(self.fd)

    def remove_slot(self, slot: bytes) -> bool:
        """Remove what is in a slot; False for a directory that is not empty."""
        try:
            os.unlink(slot, dir_fd=self.slots)
        except IsADirectoryError:
            try:
                os.rmdir(slot, dir_fd=self.slots)
            except OSError as error:
                if error.errno == errno.ENOTEMPTY:
                    return False
                raise
        return True

    def remove(self) -> bool:
        """Remove the directory, the slots being empty. Returns False if something else is in it."""
        try:
            os.rmdir(b"slots", dir_fd=self.fd)
            os.rmdir(self._name, dir_fd=self._tree.fd)
            os.fsync(self._tree.fd)
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                return False
            raise
        return True


def _name(commit: str) -> bytes:
    return STAGING_PREFIX + commit.encode("latin-1")
