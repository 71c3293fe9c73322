"""Files that hostile code may own, reached by descriptors alone.

A file that code in a sandbox owns can get any mode at any moment: with the set-user-ID bit, whoever has a descriptor of
it runs it as its owner, who may be root. So nothing below a directory that such code can write to is ever opened by a
path string. `HostileRoot` is the last directory that is the daemon's alone; below it a `HostileTree` opens by openat2,
which follows no link and never leads out, on detached mounts: one is read-only, one writable, and on neither of them
anything can be executed, has set-user-ID bits or is a device. A descriptor remembers its mount, in whose hands ever it
is: what was opened for reading can be opened anew through ``/proc/self/fd``, and still neither be written to nor
executed nor given another mode.

A daemon that is not root can make no such mounts, nor can one on a kernel before 5.12. There `is_confined` is false,
and what is opened here is not to be handed to anybody who could not have opened it himself.
"""

import errno
import os
import stat
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from sandkeep.system.descriptors import closing_fd
from sandkeep.system.openat2 import open_beneath
from sandkeepd.host import mounts

_WRITABLE: Final = mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOEXEC
_READ_ONLY: Final = _WRITABLE | mounts.MS_RDONLY
_CHANGES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_QUIETLY: Final = os.O_NONBLOCK | os.O_NOCTTY
"""A FIFO, or a file with a lease of another process, must not block the open."""

_CANNOT: Final = (errno.EPERM, errno.ENOSYS, errno.EINVAL)
"""Errors of the kernel if detached mounts are not permitted, or not supported."""


class NotAFileError(Exception):
    """Something else than a regular file lies where a file was expected."""


class _Mounts:
    """A directory on two detached mounts, a read-only and a writable one, or twice as it is where there can be none.

    They go with this object, which whoever opens files by its descriptors keeps meanwhile.
    """

    def __init__(self, place: int) -> None:
        taken = _on_mounts(place)
        self.is_confined = bool(taken)
        self.descriptors = taken or [os.dup(place), os.dup(place)]
        found = os.fstat(place)
        self.identity = found.st_dev, found.st_ino
        weakref.finalize(self, _close_all, self.descriptors).atexit = False


class _Anchor:
    """A directory on its mounts, as soon as it is there; they go with the last tree that has them, or are released."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._taken: _Mounts | None = None
        self._moved: tuple[_Anchor, str] | None = None
        self._taking = threading.Lock()

    @property
    def taken(self) -> _Mounts | None:
        return self._taken if self._moved is None else self._moved[0].taken

    def mounts(self) -> _Mounts:
        if (taken := self._taken) is not None:
            return taken
        with self._taking:
            if self._taken is None:
                place = os.open(self._path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    self._taken = _Mounts(place)
                finally:
                    os.close(place)
            return self._taken

    def at(self, path: str) -> tuple[_Mounts, str]:
        """Return the mounts on which a path below the directory is found, and the path there."""
        if self._moved is not None:
            anchor, name = self._moved
            return anchor.mounts(), f"{name}/{path}"
        return self.mounts(), path

    def move(self, anchor: "_Anchor", name: str) -> None:
        self._moved, self._taken = (anchor, name), None


def read_only(descriptor: int) -> int:
    """The same file, opened for reading alone; on a read-only mount, where there can be one. Raises OSError."""
    try:
        place = mounts.detached(descriptor, _READ_ONLY)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
    with closing_fd(place):
        return os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC)


def _on_mounts(place: int) -> list[int]:
    """A directory on a read-only mount and on a writable one; nothing where such mounts cannot be made."""
    mounted: list[int] = []
    try:
        mounted.append(mounts.detached(place, _READ_ONLY))
        mounted.append(mounts.detached(place, _WRITABLE))
    except OSError as error:
        _close_all(mounted)
        if error.errno in _CANNOT:
            return []
        raise
    return mounted


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


class HostileRoot:
    """The directory `path`, which is the daemon's, as is all above it; anything below may belong to hostile code.

    A tree stays with the directory that had this path when it was opened, even if another is mounted there later.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._anchor = _Anchor(path)

    def tree(self, name: str = ".") -> "HostileTree":
        """Return the tree below `name`, if only later. Call in the daemon's mount namespace. Raises OSError."""
        with suppress(FileNotFoundError):
            found = os.stat(self._path)
            taken = self._anchor.taken
            if taken is not None and taken.identity != (found.st_dev, found.st_ino):
                self._anchor = _Anchor(self._path)
            self._anchor.mounts()
        return HostileTree(self._anchor, name)

    def release(self, root: "HostileRoot", name: str) -> None:
        """Release the mounts of a directory that is no mount point any more: its trees open what is below `name` in
        `root` from now on.
        """
        self._anchor.move(root._anchor, name)  # noqa: SLF001  # of this class


class HostileTree:
    """A directory in which hostile code may own anything, itself included. Paths are relative to it.

    Every method raises OSError: ELOOP for a link in any component, EXDEV for a path that leads out.
    """

    def __init__(self, anchor: _Anchor, path: str) -> None:
        self._anchor = anchor
        self._path = path

    def __repr__(self) -> str:
        return f"<files of {self._path}>"

    @property
    def is_confined(self) -> bool:
        """True if a file opened for reading can be handed to any user who may read it. False before it exists."""
        taken = self._anchor.taken
        return taken is not None and taken.is_confined

    def below(self, path: str) -> "HostileTree":
        """The tree of one of its directories, which need not be there yet."""
        return HostileTree(self._anchor, f"{self._path}/{path}")

    def open(self, path: str, flags: int, mode: int = 0, *, writable: bool = False) -> int:
        """Open a file, close-on-exec: on the read-only mount, unless `flags` say that it is to be changed, or it is a
        directory that is to be `writable`.
        """
        taken, found = self._anchor.at(f"{self._path}/{path}")
        return open_beneath(taken.descriptors[writable or bool(flags & _CHANGES)], found, flags, mode)

    def open_regular(self, path: str, flags: int = os.O_RDONLY) -> int:
        """Open a regular file, waiting for nobody. Raises also `NotAFileError`."""
        return self._checked(path, self.open(path, flags | _QUIETLY, 0o600), stat.S_IFREG)

    def open_fifo(self, path: str, flags: int = os.O_RDWR | os.O_NONBLOCK) -> int:
        """Open a FIFO. Raises also `NotAFileError`. A read-only mount does not prevent writes to FIFOs, but prevents
        receivers of the descriptor from changing their modes.
        """
        taken, found = self._anchor.at(f"{self._path}/{path}")
        return self._checked(path, open_beneath(taken.descriptors[0], found, flags), stat.S_IFIFO)

    @staticmethod
    def _checked(path: str, descriptor: int, kind: int) -> int:
        if stat.S_IFMT(os.fstat(descriptor).st_mode) == kind:
            return descriptor
        os.close(descriptor)
        raise NotAFileError(path)

    @contextmanager
    def directory(self, path: str = ".", *, flags: int = os.O_PATH, writable: bool = False) -> Iterator[int]:
        """A descriptor of a directory, for the length of a block: for system calls on plain names in it."""
        with closing_fd(self.open(path, flags | os.O_DIRECTORY, writable=writable)) as descriptor:
            yield descriptor

    @contextmanager
    def _around(self, path: str) -> Iterator[tuple[int, str]]:
        """The directory that a file is to be changed in, and its name there."""
        head, _, name = path.rpartition("/")
        with self.directory(head or ".", writable=True) as directory:
            yield directory, name

    def stat(self, path: str) -> os.stat_result:
        """Status of a file; of a link, its own."""
        with closing_fd(self.open(path, os.O_PATH | os.O_NOFOLLOW)) as descriptor:
            return os.fstat(descriptor)

    def exists(self, path: str) -> bool:
        """Tell if there is anything of that name."""
        try:
            os.close(self.open(path, os.O_PATH | os.O_NOFOLLOW))
        except OSError:
            return False
        return True

    def names(self, path: str = ".") -> list[str]:
        """The names in a directory."""
        with self.directory(path, flags=os.O_RDONLY) as directory:
            return os.listdir(directory)

    def unlink(self, path: str) -> None:
        """Remove a file of any type but a directory."""
        with self._around(path) as (directory, name):
            os.unlink(name, dir_fd=directory)

    def chmod(self, path: str, mode: int) -> None:
        """Give a regular file of the daemon's own another mode. Raises also `NotAFileError`."""
        with closing_fd(self.open_regular(path, os.O_WRONLY)) as descriptor:
            os.fchmod(descriptor, mode)

    def make_fifo(self, path: str, owner: tuple[int, int] | None) -> None:
        """Make a FIFO that only `owner` can open, or only the daemon's user."""
        with self._around(path) as (directory, name):
            os.mkfifo(name, 0o600, dir_fd=directory)
            if owner:
                os.chown(name, *owner, dir_fd=directory, follow_symlinks=False)
