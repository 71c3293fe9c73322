"""The staging directory of a commit, in the target: slots with new or old entries, and the journal.

Its state is the name of the journal. None: nothing in the target was changed. ``journal``: some of it may be.
``complete``: all is as the commit wants it. ``undone``: all is as it was. Each is reached by one rename, after an fsync
of everything before it.
"""

import errno
import json
import os
from contextlib import suppress
from typing import Any, Final

from sandkeep.system.descriptors import write_all
from sandkeep.system.libc import sync_filesystem
from sandkeep.system.openat2 import open_beneath
from sandkeepd.host.host_commit.names import STAGING_PREFIX
from sandkeepd.host.host_commit.tree import Tree, look

STATES: Final = ("complete", "undone", "journal")
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ForeignError(Exception):
    """The staging directory belongs to somebody else."""


class Staging:
    """An open staging directory; `slots` is the open directory of its numbered entries."""

    def __init__(self, tree: Tree, commit: str) -> None:
        """Open it. Raises OSError, ForeignError."""
        self._tree = tree
        self._name = STAGING_PREFIX + commit.encode("ascii")
        self.fd = open_beneath(tree.fd, self._name, _DIRECTORY)
        info = os.fstat(self.fd)
        if info.st_uid != os.geteuid() or info.st_mode & 0o022:  # a journal of somebody else's could direct us
            raise ForeignError
        self.slots = self._open_slots()

    @classmethod
    def create(cls, tree: Tree, commit: str) -> "Staging":
        """Create it, empty. Raises OSError."""
        os.mkdir(STAGING_PREFIX + commit.encode("ascii"), 0o700, dir_fd=tree.fd)
        return cls(tree, commit)

    def _open_slots(self) -> int:
        with suppress(FileExistsError):
            os.mkdir(b"slots", 0o700, dir_fd=self.fd)
        return open_beneath(self.fd, b"slots", _DIRECTORY)

    @property
    def state(self) -> str | None:
        """The name of the journal; None before it is written."""
        return next((state for state in STATES if look(self.fd, state.encode()) is not None), None)

    def create_file(self, slot: bytes) -> int:
        """Create a file for a new entry, for the caller to close."""
        return os.open(slot, _NEW, 0o600, dir_fd=self.slots)

    def write_journal(self, journal: dict[str, Any]) -> None:
        """Write the journal and make it, and this directory in the target, durable."""
        fd = os.open(b"new", _NEW, 0o600, dir_fd=self.fd)
        try:
            write_all(fd, json.dumps(journal).encode("ascii"))
            os.fsync(fd)
        finally:
            os.close(fd)
        os.fsync(self.slots)
        os.rename(b"new", b"journal", src_dir_fd=self.fd, dst_dir_fd=self.fd)
        os.fsync(self.fd)
        os.fsync(self._tree.fd)

    def read_journal(self, state: str) -> dict[str, Any]:
        """Return the journal. Raises OSError, ValueError."""
        with open(open_beneath(self.fd, state.encode(), os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            return dict(json.loads(file.read()))

    def mark(self, state: str) -> None:
        """Rename the journal to `complete` or `undone`, durably: the decision."""
        os.fsync(self.slots)
        os.rename(b"journal", state.encode(), src_dir_fd=self.fd, dst_dir_fd=self.fd)
        os.fsync(self.fd)

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
        """Remove the directory with its journal, the slots being empty. Returns False if something else is in it."""
        try:
            os.rmdir(b"slots", dir_fd=self.fd)
            # The journal goes last: without it, a directory with slots would be one that changed nothing.
            for name in (b"new", *(state.encode() for state in STATES)):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=self.fd)
            os.rmdir(self._name, dir_fd=self._tree.fd)
            os.fsync(self._tree.fd)
        except OSError as error:
            if error.errno == errno.ENOTEMPTY:
                return False
            raise
        return True
