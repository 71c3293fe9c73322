"""Copies of a tree that are made in passes while the tree changes, so that the last pass has little to do.

A pass copies what a catalogue lists, each file only if it is the one in the catalogue: its inode number and ctime are
compared after it was opened. So the next catalogue tells whether the copy of a file is up to date. The catalogues have
to be taken while nothing is being written: a write that has begun before sets no new ctime at its end.

The tree's mount follows no link, and nobody else changes the copy. Everything here blocks.
"""

import errno
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from sandkeep.system.descriptors import closing_fd
from sandkeep.system.openat2 import open_beneath
from sandkeep_store.archives.tar.members import TOP
from sandkeep_store.archives.trees.changes import (
    DIRECTORIES,
    WHITEOUT,
    Catalogue,
    Seen,
    is_changed,
    is_that,
    parent_of,
    tree_order,
)  # fmt: skip
from sandkeep_store.files.holes import data_of
from sandkeep_store.threads import check_cancelled

_SOURCE, _TARGET = 0, 1
_PARENT: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMED: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE: Final = 8 << 20
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_SPARE_BYTES: Final = 1 << 30
"""Free space that a copy leaves on the disk, for others."""


class _Attributes(NamedTuple):
    status: os.stat_result
    extended: Sequence[tuple[str, bytes]]


class Passes(ABC):
    """A copy of the open directory `top`, which the caller closes. `proceed` is called before each step, and ends a
    pass by raising: as soon as the call is cancelled for which this thread works.
    """

    def __init__(self, top: int, proceed: Callable[[], None] = check_cancelled) -> None:
        self._tops = [top]
        self._proceed = proceed
        self._copied: dict[bytes, Seen] = {}
        self._names: dict[bytes, bytes] = {}  # of copied files, by inode number
        self._parents: dict[int, tuple[bytes, int]] = {}

    def outdated(self, now: Catalogue, names: Iterable[bytes]) -> list[bytes]:
        """Return those of `names` whose copies are missing or not up to date."""
        return [name for name in names if name not in self._copied or is_changed(now[name], self._copied[name])]

    def update(self, now: Catalogue, names: Collection[bytes], todo: Sequence[bytes]) -> bool:
        """Remove all that is not among `names`, which include their directories. Copy those of `todo`, in the order of
        the tree, that are still as in `now`; return True if all are. Raises OSError, also when the disk is full.
        """
        try:
            self._remove(now, set(names), todo)
            kept = self._copied.items()
            self._names = {seen.inode: name for name, seen in kept if seen.kind not in (*DIRECTORIES, WHITEOUT)}
            copied = [self._is_copied(name, now[name]) for name in todo]
            return all(copied)
        finally:
            self._close()

    def finish(self) -> None:  # noqa: B027  # most need nothing
        """Complete the copy after the last pass. Raises OSError."""

    def _stale(self, names: Collection[bytes], todo: Sequence[bytes]) -> list[bytes]:
        return [name for name in self._copied if name not in names] + [name for name in todo if name in self._copied]

    def _is_copied(self, name: bytes, seen: Seen) -> bool:
        self._proceed()
        try:
            if seen.kind in DIRECTORIES:
                self._copy_directory(name, seen)
            elif seen.kind != WHITEOUT and (same := self._names.get(seen.inode)) is not None:
                self._link(same, name)
            else:
                self._copy_file(name, seen)
                self._names[seen.inode] = name
        except OSError as error:
            if error.errno in _FULL:
                raise
            return False
        self._copied[name] = seen
        return True

    @abstractmethod
    def _remove(self, now: Catalogue, names: Collection[bytes], todo: Sequence[bytes]) -> None:
        """Remove the copies of all but `names`, and those of `todo`."""

    @abstractmethod
    def _copy_directory(self, name: bytes, seen: Seen) -> None: ...

    @abstractmethod
    def _copy_file(self, name: bytes, seen: Seen) -> None: ...

    @abstractmethod
    def _link(self, same: bytes, name: bytes) -> None: ...

    @contextmanager
    def _opened(self, name: bytes, seen: Seen) -> Iterator[tuple[int, os.stat_result]]:
        """Open the file or directory that was seen, for reading if that means anything. Raises OSError if it is not
        there any more.
        """
        if seen.kind in DIRECTORIES:
            opened = open_beneath(self._tops[_SOURCE], name, _FOLDER)
        else:
            opened = os.open(last(name), _READ if seen.kind == b"f" else _NAMED, dir_fd=self._parent(_SOURCE, name))
        try:
            status = os.fstat(opened)
            if not is_that(status, seen):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            yield opened, status
        finally:
            os.close(opened)

    def _parent(self, side: int, name: bytes) -> int:
        """Open the directory of `name` in the tree or the copy; a name often has the same one as the name before."""
        parent = parent_of(name)
        if side not in self._parents or self._parents[side][0] != parent:
            self._close(side)
            self._parents[side] = parent, open_beneath(self._tops[side], parent, _PARENT)
        return self._parents[side][1]

    def _close(self, *sides: int) -> None:
        for side in sides or tuple(self._parents):
            if side in self._parents:
                os.close(self._parents.pop(side)[1])


class PassCopy(Passes):
    """A copy in the open, empty directory `target`, which the caller closes, too."""

    def __init__(self, source: int, target: int, proceed: Callable[[], None] = check_cancelled) -> None:
        super().__init__(source, proceed)
        self._tops.append(target)
        self._directories: dict[bytes, _Attributes] = {}
        self._bytes = 0

    def finish(self) -> None:
        """Give the directories their attributes; until then only their owner can enter them. Raises OSError."""
        for name in sorted(self._directories, key=tree_order, reverse=True):
            with closing_fd(open_beneath(self._tops[_TARGET], name, _FOLDER)) as opened:
                _set_attributes(opened, self._directories[name])

    def _remove(self, now: Catalogue, names: Collection[bytes], todo: Sequence[bytes]) -> None:
        for name in sorted(self._stale(names, todo), key=tree_order, reverse=True):
            if self._copied[name].kind not in DIRECTORIES:
                os.unlink(last(name), dir_fd=self._parent(_TARGET, name))
            elif name not in names or now[name].kind not in DIRECTORIES:
                os.rmdir(last(name), dir_fd=self._parent(_TARGET, name))
                del self._directories[name]
            else:
                continue
            del self._copied[name]

    def _copy_directory(self, name: bytes, seen: Seen) -> None:
        with self._opened(name, seen) as (opened, status):
            attributes = _Attributes(status, extended(opened))
        if name != TOP and name not in self._directories:
            os.mkdir(last(name), 0o700, dir_fd=self._parent(_TARGET, name))
        self._directories[name] = attributes

    def _link(self, same: bytes, name: bytes) -> None:
        target = self._parent(_TARGET, name)
        os.link(same, last(name), src_dir_fd=self._tops[_TARGET], dst_dir_fd=target, follow_symlinks=False)

    def _copy_file(self, name: bytes, seen: Seen) -> None:
        target = self._parent(_TARGET, name)
        if seen.kind == WHITEOUT:
            os.mknod(last(name), stat.S_IFCHR, os.makedev(0, 0), dir_fd=target)
            return
        with self._opened(name, seen) as (opened, status):
            if seen.kind == b"f":
                self._copy_regular(opened, status, last(name), target)
            else:
                _copy_special(opened, status, last(name), target)

    def _copy_regular(self, opened: int, status: os.stat_result, name: bytes, target: int) -> None:
        attributes = _Attributes(status, extended(opened))
        with closing_fd(os.open(name, _NEW, 0o600, dir_fd=target)) as made:
            self._copy_content(opened, made, status.st_size)
            _set_attributes(made, attributes)

    def _copy_content(self, source: int, target: int, size: int) -> None:
        os.ftruncate(target, size)
        for begin, end in data_of(source, size):
            offset = os.lseek(target, begin, os.SEEK_SET)
            while offset < end:
                require_space(target, self._bytes)
                count = os.sendfile(target, source, offset, min(_PIECE, end - offset))
                if not count:
                    return  # it was truncated, and has another ctime now
                offset += count
                self._bytes += count
                self._proceed()


def _copy_special(opened: int, status: os.stat_result, name: bytes, target: int) -> None:
    """Copy a symbolic link, FIFO or socket."""
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(b"", dir_fd=opened), name, dir_fd=target)
        os.chown(name, status.st_uid, status.st_gid, dir_fd=target, follow_symlinks=False)
    elif stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode):
        os.mknod(name, stat.S_IFMT(status.st_mode) | 0o600, dir_fd=target)
        os.chown(name, status.st_uid, status.st_gid, dir_fd=target, follow_symlinks=False)
        os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=target)
    else:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), name)
    os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=target, follow_symlinks=False)


def require_space(target: int, size: int) -> None:
    """Raise OSError where a disk lacks space for an archive of `size` bytes, those of the copy, and for others."""
    disk = os.fstatvfs(target)
    if disk.f_bavail * disk.f_frsize < size + _SPARE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def extended(opened: int) -> list[tuple[str, bytes]]:
    """Read the extended attributes of an open file."""
    try:
        return [(name, os.getxattr(opened, name)) for name in os.listxattr(opened)]
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return []
        raise


def _set_attributes(made: int, attributes: _Attributes) -> None:
    status, found = attributes
    os.fchown(made, status.st_uid, status.st_gid)
    for name, value in found:
        os.setxattr(made, name, value)
    os.fchmod(made, stat.S_IMODE(status.st_mode))  # the change of owner has cleared set-uid bits
    os.utime(made, ns=(status.st_atime_ns, status.st_mtime_ns))


def last(name: bytes) -> bytes:
    """Return the last part of a path."""
    return name.rpartition(b"/")[2]
