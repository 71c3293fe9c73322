"""Archives in a directory of this machine, or in a mounted bucket.

An unfinished archive lies in `.partial` and is published by a hard link, which fails if the name is taken. Mounts
without hard links get a rename over an empty file that was created exclusively. A directory keeps no metadata; the
generation is derived from the file's identity.
"""

import errno
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Self

from sandkeep.errors import DaemonError, ProviderError, SandkeepError
from sandkeep.system.descriptors import closing_fd, write_all
from sandkeep_store.archives.stores.confined_directory import ConfinedDirectory, NotRegularFileError
from sandkeep_store.archives.stores.store import ArchiveStore
from sandkeep_store.archives.stores.types import (
    CHUNK_BYTES,
    Stored,
    Waiting,
    conflict,
    corrupt,
    missing,
)
from sandkeep_store.buckets.config import PARTIAL, Root, checked_path

PART_BYTES: Final = 1024**2

_NEW_FILE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINKS: Final = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL)


class DirectoryArchives(ArchiveStore):
    """See `base`. `root` is a mount, or a directory of our own, which is made when it is first written to."""

    def __init__(self, root: Root) -> None:
        super().__init__(root)
        self.files = ConfinedDirectory(root.base, is_private=root.where != "mount")

    def require_private(self) -> None:
        """Raise `not_configured` if other users can write to the base, or if it is not a directory."""
        self.files.require_private()

    def create(self, path: str) -> "DirectoryUpload":
        """Begin an object that the caller writes directly through its descriptor."""
        return self._new(checked_path(path))

    def open_file(self, path: str) -> int:
        """A descriptor of an object, for reading it in place. The caller closes it."""
        with self.translated(checked_path(path)):
            return self.files.open(path)

    def objects(self, prefix: str = "") -> Iterator[Stored]:
        with self.translated(prefix):
            for path, found in self.files.walk(prefix):
                yield stored(path, found)

    def sweep(
        self,
        older_than_s: float,
        prefix: str = "",  # noqa: ARG002  # all in there is ours, and has no path yet
        is_over: Callable[[str], bool] = lambda path: True,  # noqa: ARG002, ARG005
    ) -> int:
        removed = 0
        with self.translated(PARTIAL), suppress(FileNotFoundError), self.files.directory(PARTIAL) as directory:
            for name in os.listdir(directory):
                with suppress(FileNotFoundError):
                    if os.lstat(name, dir_fd=directory).st_mtime < time.time() - older_than_s:
                        os.unlink(name, dir_fd=directory)
                        removed += 1
        return removed

    def generation_of(self, path: str) -> str | None:
        """Return the generation of the object at `path`, or None if there is none."""
        found = self._found(path)
        return None if found is None else found.generation

    def _begin(self, path: str, metadata: dict[str, str], waiting: Waiting) -> "DirectoryUpload":  # noqa: ARG002
        return self._new(path)

    def _new(self, path: str) -> "DirectoryUpload":
        found = self._found(path)
        if found is not None and found.size_bytes:
            raise conflict(self.where(path))
        return DirectoryUpload(self, path)

    def _stat(self, path: str) -> Stored:
        with self.translated(path), closing_fd(self.files.open(path)) as descriptor:
            return stored(path, os.fstat(descriptor))

    def _fetch(self, stored: Stored, offset: int) -> Iterator[bytes]:
        with self.translated(stored.path), closing_fd(self.files.open(stored.path)) as descriptor:
            if _generation(os.fstat(descriptor)) != stored.generation:
                raise conflict(self.where(stored.path))
            os.posix_fadvise(descriptor, offset, 0, os.POSIX_FADV_SEQUENTIAL)
            while chunk := os.pread(descriptor, CHUNK_BYTES, offset):
                offset += len(chunk)
                yield chunk

    def _delete(self, path: str, generation: str | None) -> bool:
        with self.translated(path), self.files.exclusive():
            found = self.generation_of(path)
            if found is None:
                return False
            if generation not in (None, found):
                raise conflict(self.where(path))
            parent, name = os.path.split(path)
            with self.files.directory(parent) as directory:
                os.unlink(name, dir_fd=directory)
                os.fsync(directory)
            self.files.prune(parent)
        return True

    @contextmanager
    def translated(self, path: str) -> Iterator[None]:
        """Turns the system's errors about an object into ours."""
        where = f"{self.root.base}/{path}"
        try:
            yield
        except FileExistsError:
            raise conflict(where) from None
        except (FileNotFoundError, NotADirectoryError):
            if self.root.where == "mount" and not os.path.isdir(self.root.base):
                raise ProviderError(
                    "provider_unavailable", f"there is no directory {self.root.base}: mount it, then try again"
                ) from None
            raise missing(where) from None
        except NotRegularFileError:
            raise corrupt(where, "it is not a regular file") from None
        except OSError as error:
            raise self._failure(where, error) from error

    def _failure(self, where: str, error: OSError) -> SandkeepError:
        if error.errno == errno.ELOOP:
            return corrupt(where, "it is a link, or lies behind one")
        if self.root.where == "mount":
            return ProviderError(
                "provider_unavailable", f"{where} cannot be used ({error.strerror}): check what is mounted there"
            )
        return DaemonError(
            "storage_unavailable", f"{where} cannot be used ({error.strerror}): free space or repair the disk"
        )


class DirectoryUpload:
    """A new object: a file in `.partial` until it is published. The caller may write to its `descriptor`.

    Leaving the `with` block removes an unfinished object.
    """

    part_bytes = PART_BYTES

    def __init__(self, store: DirectoryArchives, path: str) -> None:
        self._store = store
        self._path = path
        self._name = secrets.token_hex(16)
        with store.translated(path), store.files.directory(PARTIAL, create=True) as directory:
            self.descriptor = os.open(self._name, _NEW_FILE, 0o600, dir_fd=directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()

    def send(self, part: bytes) -> None:
        """See `types.Upload`."""
        with self._store.translated(self._path):
            write_all(self.descriptor, part)

    def finish(self, part: bytes = b"") -> Stored:
        """See `types.Upload`."""
        self._complete(part)
        with self._put() as (partial, directory, name):
            try:
                os.link(self._name, name, src_dir_fd=partial, dst_dir_fd=directory, follow_symlinks=False)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                _take_name(name, directory)
                os.rename(self._name, name, src_dir_fd=partial, dst_dir_fd=directory)
        return self._store.stat(self._path)

    def abort(self) -> None:
        """See `types.Upload`."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        with suppress(OSError), self._store.files.directory(PARTIAL) as partial:
            os.unlink(self._name, dir_fd=partial)

    def _complete(self, part: bytes) -> None:
        """All bytes are on the disk."""
        self.send(part)
        with self._store.translated(self._path):
            os.fsync(self.descriptor)
        os.close(self.descriptor)
        self.descriptor = -1

    @contextmanager
    def _put(self) -> Iterator[tuple[int, int, str]]:
        """The directory that the file is in, and the directory and name that it shall have."""
        parent, name = os.path.split(self._path)
        files = self._store.files
        with (
            self._store.translated(self._path),
            files.exclusive(),
            files.directory(PARTIAL) as partial,
            files.directory(parent, create=True) as directory,
        ):
            yield partial, directory, name
            with suppress(FileNotFoundError):
                os.unlink(self._name, dir_fd=partial)
            os.fsync(directory)


def _take_name(name: str, directory: int) -> None:
    """Reserve a name with an empty file, where hard links are missing. A writer that dies leaves an empty file, which
    is no archive.
    """
    try:
        os.close(os.open(name, _NEW_FILE, 0o600, dir_fd=directory))
    except FileExistsError:
        if os.stat(name, dir_fd=directory, follow_symlinks=False).st_size:
            raise


def stored(path: str, found: os.stat_result) -> Stored:
    """Return the `Stored` of a file, from its status."""
    return Stored(path, found.st_size, _generation(found), {}, found.st_mtime)


def _generation(found: os.stat_result) -> str:
    return f"{found.st_ino:x}-{found.st_mtime_ns:x}-{found.st_size:x}"
