"""Files and names that survive a power cut, and atomic replacement of files.

The fsync of a file makes its content durable, that of a directory the names in it: creations, renames and removals.
Everything here blocks, and raises OSError.
"""

import os
from contextlib import suppress
from typing import BinaryIO, Final, Self

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def sync(path: str, flags: int = 0) -> None:
    """Fsync a file or a directory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: str) -> None:
    """Fsync a directory. Raises OSError if it is none."""
    sync(path, os.O_DIRECTORY)


def make_directory(name: str, parent: int) -> None:
    """Make a directory with mode 0700 in an open one, which is fsynced then, unless something has that name."""
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
        os.fsync(parent)


def rename(source: str, target: str) -> None:
    """Rename, and fsync the directory of the target: for files that are durable themselves."""
    os.rename(source, target)
    sync_directory(os.path.dirname(target))


def replace(path: str, content: bytes) -> None:
    """Replace a file by one with that content and mode 0600. It is durable, name and all, when this returns.

    Only for one writer at a time: see `Replacement`.
    """
    with Replacement(path) as new:
        new.file.write(content)
    sync_directory(os.path.dirname(path))


class Replacement:
    """A new file that takes the place of `path` once it is complete. Until then that stays as it is.

        with Replacement(path) as new:
            new.file.write(content)

    What raises in the block leaves the old file, and nothing of the new one. The death of the process leaves the new
    one as `temporary`, by default `path` with ".new" after it, which the next writer removes; so two at once need names
    of their own. Both names are relative to the open directory `directory`, if one is given, which stays the caller's.

    Its content is fsynced before the rename, so that after a power cut one of the two files is there, whole; not with
    `durable=False`, after which it can be empty. That it is the new one takes an fsync of the directory besides, which
    is the caller's: see `replace` and `sync_directory`.
    """

    file: BinaryIO

    def __init__(
        self,
        path: str,
        *,
        temporary: str | None = None,
        directory: int | None = None,
        mode: int = 0o600,
        durable: bool = True,
    ) -> None:
        self._path = path
        self._temporary = temporary or f"{path}.new"
        self._directory = directory
        self._mode = mode
        self._durable = durable
        self._is_there = False

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.put()
        finally:
            self.discard()

    def open(self) -> None:
        """Open the new file, empty."""
        try:
            descriptor = os.open(self._temporary, _NEW, self._mode, dir_fd=self._directory)
        except FileExistsError:
            os.unlink(self._temporary, dir_fd=self._directory)
            descriptor = os.open(self._temporary, _NEW, self._mode, dir_fd=self._directory)
        self._is_there = True
        self.file = open(descriptor, "wb")  # noqa: SIM115 - `complete` and `discard` close it

    def complete(self) -> None:
        """Fsync and close the new file, if it is open: it takes no more content. For callers that inspect it, or clear
        its target, before it is put in place.
        """
        if not self.file.closed:
            self.file.flush()
            if self._durable:
                os.fsync(self.file.fileno())
            self.file.close()

    def put(self) -> None:
        """Put the new file in place, complete."""
        self.complete()
        os.rename(self._temporary, self._path, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self._is_there = False

    def discard(self) -> None:
        """Remove the new file, if it is not in place. Raises nothing: the remains are those of a dead writer."""
        if self._is_there:
            self._is_there = False
            with suppress(OSError):  # a full disk: buffered data cannot be written
                self.file.close()
            with suppress(OSError):
                os.unlink(self._temporary, dir_fd=self._directory)
