"""The target directory, and system calls relative to open directories of it."""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from sandkeep.system.libc import sync_filesystem
from sandkeep.system.openat2 import open_beneath
from sandkeepd.host.host_commit.changes import PERMISSIONS
from sandkeepd.host.host_commit.target import open_target

_KINDS: Final = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Without blocking: a FIFO may have taken the place of a file, or its owner may have a lease on it."""

PIECE_BYTES: Final = 1024 * 1024
FSYNCS: Final = 64
"""Number of files or directories from which on one syncfs is cheaper than an fsync of each."""


@dataclass(frozen=True, slots=True)
class Seen:
    """An entry as lstat(2) found it; `kind` is "other" for FIFOs, sockets and devices."""

    kind: str
    device: int
    inode: int
    size: int
    mode: int
    mtime_ns: int
    ctime_ns: int
    uid: int
    gid: int
    links: int

    @property
    def is_plain(self) -> bool:
        """True if a mode can be set where it is: no file with a set-uid, set-gid or sticky bit, or with other names,
        which may be outside of the target.
        """
        return self.kind == "directory" or (self.links == 1 and not self.mode & ~PERMISSIONS)

    def is_same(self, other: "Seen | None") -> bool:
        """Return True if `other` is this entry, unchanged and not moved."""
        return self.is_moved(other) and (self.kind == "directory" or (other or self).ctime_ns == self.ctime_ns)

    def is_moved(self, other: "Seen | None") -> bool:
        """Return True if `other` is this entry, with this content. A rename changes the ctime."""
        if other is None or (other.device, other.inode, other.kind) != (self.device, self.inode, self.kind):
            return False
        if self.kind == "directory":  # its size and times change with what is deleted in it
            return True
        return (other.size, other.mtime_ns, other.mode) == (self.size, self.mtime_ns, self.mode)


class Tree:
    """The target, opened once by its path, with this process's rights. Closed by the end of the process.

    Everything below it is opened by openat2, which refuses symbolic links in every component.
    """

    def __init__(self, target: bytes) -> None:
        self.fd = open_target(target)
        info = os.fstat(self.fd)
        self.device, self.inode = info.st_dev, info.st_ino

    @property
    def path(self) -> bytes:
        """The real path of the target now."""
        return os.readlink(b"/proc/self/fd/%d" % self.fd)

    @contextmanager
    def parent(self, path: bytes) -> Iterator[tuple[int, bytes]]:
        """Lend the open directory that holds `path`, and the name in it. Raises OSError."""
        directory, _, name = path.rpartition(b"/")
        fd = open_beneath(self.fd, directory or b".", os.O_PATH | os.O_DIRECTORY)
        try:
            yield fd, name
        finally:
            os.close(fd)

    def look(self, path: bytes) -> Seen | None:
        """Return the entry at `path`; None if it or a directory above it is missing. Raises OSError."""
        try:
            with self.parent(path) as (parent, name):
                return look(parent, name)
        except FileNotFoundError:
            return None

    def flush(self, paths: set[bytes]) -> None:
        """Make the entries of these directories durable, and the modes of these files. Raises OSError."""
        if len(paths) > FSYNCS or not all(self._fsync(path) for path in paths):
            sync_filesystem(self.fd)

    def _fsync(self, path: bytes) -> bool:
        """Fsync a file or directory, or return False if only its file system can be flushed."""
        try:
            fd = open_beneath(self.fd, path or b".", os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        return True


def look(parent: int, name: bytes) -> Seen | None:
    """Return the entry of an open directory, or None. Raises OSError."""
    try:
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return seen_from(info)


def seen_from(info: os.stat_result) -> Seen:
    """Return the result of a stat call."""
    return Seen(
        _KINDS.get(stat.S_IFMT(info.st_mode), "other"), info.st_dev, info.st_ino, info.st_size,
        stat.S_IMODE(info.st_mode), info.st_mtime_ns, info.st_ctime_ns, info.st_uid, info.st_gid,
        info.st_nlink,
    )  # fmt: skip


def digest(parent: int, name: bytes, seen: Seen) -> str | None:
    """Return the SHA-256 of the file that was seen there, or None if it was changed meanwhile. Raises OSError."""
    fd = os.open(name, _READ, dir_fd=parent)
    try:
        if not seen.is_same(seen_from(os.fstat(fd))):
            return None
        sha256 = hashlib.sha256()
        while piece := os.read(fd, PIECE_BYTES):
            sha256.update(piece)
        return sha256.hexdigest() if seen.is_same(seen_from(os.fstat(fd))) else None
    finally:
        os.close(fd)


def entries(parent: int, name: bytes) -> list[bytes]:
    """Return the names in the directory `name` of an open one. Raises OSError."""
    fd = os.open(name, _READ | os.O_DIRECTORY, dir_fd=parent)
    try:
        return [os.fsencode(entry) for entry in os.listdir(fd)]
    finally:
        os.close(fd)


def set_permissions(parent: int, name: bytes, seen: Seen, mode: int) -> bool:
    """Set the permissions of the entry that was seen there; False if it is another one now. Raises OSError.

    A directory keeps the set-gid and sticky bits that it has. No file has any of these bits afterwards.
    """
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        now = seen_from(os.fstat(fd))
        if (now.device, now.inode, now.kind, now.mode) != (seen.device, seen.inode, seen.kind, seen.mode):
            return False
        if not now.is_plain:
            return False
        # By descriptor, also where the mode allows no opening.
        os.chmod(b"/proc/self/fd/%d" % fd, now.mode & ~PERMISSIONS | mode & PERMISSIONS)
        return True
    finally:
        os.close(fd)


def copy_attributes(parent: int, name: bytes, seen: Seen, fd: int) -> None:
    """Give a new file the owner, ACL and user attributes of the one that it replaces. Raises OSError."""
    info = os.fstat(fd)
    if (info.st_uid, info.st_gid) != (seen.uid, seen.gid):
        # Root gives the file back to its owner; a user can at most keep a group of his.
        with suppress(PermissionError):
            os.chown(fd, seen.uid if os.geteuid() == 0 else -1, seen.gid)
    source = os.open(name, _READ, dir_fd=parent)
    try:
        for attribute in os.listxattr(source):
            if attribute.startswith("user.") or attribute == "system.posix_acl_access":
                os.setxattr(fd, attribute, os.getxattr(source, attribute))
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENODATA):
            raise
    finally:
        os.close(source)
