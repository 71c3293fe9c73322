"""Contents that outlive the trees: the spool of merged texts, and the blobs of conflicts. Everything here blocks."""

import hashlib
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from sandkeep.errors import DaemonError, DataError, SandkeepError
from sandkeep.system.descriptors import closing_fd
from sandkeep_store.merging.content import copy_content, no_progress, write_all
from sandkeep_store.merging.model import FromBlob, FromSpool
from sandkeep_store.merging.trees import Progress

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class Spool:
    """An open, unnamed file, the caller's, to which merged texts are appended."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._end = os.fstat(fd).st_size

    def put(self, data: bytes) -> FromSpool:
        """Append a text. Raises `storage_unavailable`."""
        try:
            write_all(self._fd, data, self._end)
        except OSError as error:
            raise unwritable(error) from None
        stored = FromSpool(self._end, len(data))
        self._end += len(data)
        return stored


class Blobs:
    """An open directory, the caller's, of files that have their SHA-256 as name."""

    def __init__(self, directory: int, progress: Progress = no_progress) -> None:
        self._directory = directory
        self._progress = progress

    def copy(self, view: int, name: bytes) -> str:
        """Store a file of a view; return its SHA-256. Raises `storage_unavailable`, and as `open_file`."""
        return self._store(lambda target: copy_content(view, name, target, self._progress))

    def put(self, data: bytes) -> FromBlob:
        """Store some bytes. Raises `storage_unavailable`."""

        def write(target: int) -> str:
            write_all(target, data, 0)
            return hashlib.sha256(data).hexdigest()

        return FromBlob(self._store(write))

    def read(self, sha256: str) -> bytes:
        """Read a stored file. Raises `snapshot_missing`."""
        try:
            with open(os.open(sha256, _READ, dir_fd=self._directory), "rb") as file:
                return file.read()
        except OSError:
            message = f"a version of a file in conflict ({sha256[:12]}) is no longer stored: merge again"
            raise DataError("snapshot_missing", message) from None

    def _store(self, write: Callable[[int], str]) -> str:
        temporary = f".new-{secrets.token_hex(8)}"
        try:
            with closing_fd(os.open(temporary, _NEW, 0o600, dir_fd=self._directory)) as target:
                digest = write(target)
            os.rename(temporary, digest, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except BaseException as error:
            self._remove(temporary)
            if isinstance(error, OSError):
                raise unwritable(error) from None
            raise
        return digest

    def _remove(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(name, dir_fd=self._directory)


def unwritable(error: OSError) -> SandkeepError:
    """Return the error for a merge that cannot be stored."""
    why = os.strerror(error.errno or 5)
    return DaemonError("storage_unavailable", f"the merge cannot be stored: {why}: make room there")
