"""Archives on their way from the disk of this machine to where others see them, and off the disk when they are there.

A snapshot is never deleted before a verified copy exists: `send` leaves the one on disk in any case, and `release`
deletes it only when the other is still there, complete.
"""

import hashlib
import os
from collections.abc import Mapping

from sandkeep.errors import StateError
from sandkeep_store.archives.stores.directory import DirectoryArchives
from sandkeep_store.archives.stores.store import ArchiveStore
from sandkeep_store.archives.stores.transfer import DigestedCopy
from sandkeep_store.archives.stores.types import Fence, Progress, Stored, corrupt


def send(
    local: DirectoryArchives,
    path: str,
    target: ArchiveStore,
    target_path: str,
    *,
    sha256: str,
    metadata: Mapping[str, str] | None = None,
    fence: Fence | None = None,
    progress: Progress = lambda _: None,
) -> Stored:
    """Copy an archive, verifying its digest while reading; buckets also verify theirs on arrival. An identical object
    that an earlier daemon sent is accepted.

    Raises `snapshot_corrupt` and writes nothing if the archive on disk does not match `sha256`.
    """
    with open(local.open_file(path), "rb", buffering=0) as file:
        try:
            return target.write(
                target_path,
                file,
                size_bytes=os.fstat(file.fileno()).st_size,
                sha256=sha256,
                metadata=metadata,
                fence=fence,
                progress=progress,
            )
        except StateError as error:
            found = _same(target, target_path, sha256, progress) if error.code == "conflict" else None
            if found is None:
                raise
            return found


def _same(target: ArchiveStore, path: str, sha256: str, progress: Progress) -> Stored | None:
    """Return the object at `path` if its digest is `sha256`, else None."""
    copy = DigestedCopy(hashlib.sha256)
    stored = target.download(path, copy.begin, progress=progress)
    return stored if copy.digest.hexdigest() == sha256 else None


def release(local: DirectoryArchives, path: str, target: ArchiveStore, sent: Stored) -> bool:
    """Delete the archive on disk if the copy `sent` still exists unchanged. Return False if the archive was already
    deleted.

    Raises if the copy is missing or damaged; the archive on disk stays.
    """
    found = target.stat(sent.path)
    if (found.generation, found.size_bytes) != (sent.generation, sent.size_bytes):
        raise corrupt(target.where(sent.path), "it is not what was sent there")
    return local.delete(path)
