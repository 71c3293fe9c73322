"""Files below one directory. Each path component is opened with O_NOFOLLOW, so no symbolic link is followed.

A directory of our own belongs to the daemon's user, and no other user may write to it. A mount is not checked: its
owners and modes are invented by the mount.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from sandkeep.errors import SetupError
from sandkeep.system.descriptors import closing_fd
from sandkeep.system.durable import make_directory, sync_directory
from sandkeep_store.buckets.config import is_path

_BASE: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_DIRECTORY: Final = _BASE | os.O_NOFOLLOW
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NotRegularFileError(Exception):
    """The path names a device, FIFO, socket or directory instead of a regular file."""


class ConfinedDirectory:
    """The files below `base`. Paths are relative and checked. `is_private` says that it is no mount.

    Raises OSError as the system does, and `NotRegularFileError`.
    """

    def __init__(self, base: str, *, is_private: bool) -> None:
        self.base = base
        self.is_private = is_private

    def open(self, path: str) -> int:
        """A descriptor of a plain file, for reading."""
        parent, name = os.path.split(path)
        with self.directory(parent) as directory:
            descriptor = os.open(name, _FILE, dir_fd=directory)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise NotRegularFileError
        return descriptor

    @contextmanager
    def directory(self, path: str = "", *, create: bool = False) -> Iterator[int]:
        """A descriptor of a directory. With `create` it is made if need be, and so is `base`, if it is ours."""
        opened = self._base(create=create)
        try:
            for name in path.split("/") if path else ():
                below = _made(name, opened) if create else os.open(name, _DIRECTORY, dir_fd=opened)
                os.close(opened)
                opened = below
            yield opened
        finally:
            os.close(opened)

    def walk(self, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
        """The plain files whose path begins so. Names that are no paths of ours are left out."""
        with suppress(FileNotFoundError), self.directory() as base:
            yield from _walk(base, "", prefix)

    def prune(self, path: str) -> None:
        """Remove a directory that has nothing in it any more, and those above it that have nothing else."""
        while path:
            path, name = os.path.split(path)
            with self.directory(path) as directory:
                try:
                    os.rmdir(name, dir_fd=directory)
                except OSError:
                    return

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold an exclusive flock on the base directory. On a mount it excludes only writers on this machine."""
        with self.directory(create=True) as base:
            fcntl.flock(base, fcntl.LOCK_EX)
            yield

    def _base(self, *, create: bool) -> int:
        if create and self.is_private and not os.path.isdir(self.base):
            os.makedirs(self.base, 0o700, exist_ok=True)
            sync_directory(os.path.dirname(self.base))
        base = os.open(self.base, _BASE)
        try:
            self._check(os.fstat(base))
        except BaseException:
            os.close(base)
            raise
        return base

    def require_private(self) -> None:
        """Raise `not_configured` for a directory that is not safe, if there is one."""
        with suppress(OSError):  # the next write reports it
            self._check(os.stat(self.base))

    def _check(self, found: os.stat_result) -> None:
        if not self.is_private:
            return
        if not stat.S_ISDIR(found.st_mode):
            why = "is no directory"
        elif found.st_uid not in (0, os.geteuid()) or found.st_mode & 0o022:
            why = "can be written by others than the daemon's user, so archives are not safe there"
        else:
            return
        message = f"{self.base} {why}: give it to that user with mode 0700, or set another SANDBOX_SNAPSHOT_DIR"
        raise SetupError("not_configured", message, setting="SANDBOX_SNAPSHOT_DIR")


def _made(name: str, parent: int) -> int:
    """A descriptor of a directory, which is made if there is none. FileExistsError is for something else there."""
    make_directory(name, parent)
    try:
        return os.open(name, _DIRECTORY, dir_fd=parent)
    except NotADirectoryError as error:
        raise FileExistsError(*error.args) from None


def _walk(directory: int, path: str, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
    for name in sorted(os.listdir(directory)):
        inner = f"{path}{name}"
        if not is_path(inner) or not (inner.startswith(prefix) or prefix.startswith(f"{inner}/")):
            continue
        with suppress(FileNotFoundError, NotADirectoryError):  # it was removed meanwhile
            found = os.lstat(name, dir_fd=directory)
            if stat.S_ISREG(found.st_mode) and inner.startswith(prefix):
                yield inner, found
            elif stat.S_ISDIR(found.st_mode):
                yield from _walk_into(name, directory, f"{inner}/", prefix)


def _walk_into(name: str, parent: int, path: str, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
    try:
        directory = os.open(name, _DIRECTORY, dir_fd=parent)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return
        raise
    with closing_fd(directory):
        yield from _walk(directory, path, prefix)
