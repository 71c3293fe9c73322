"""Archives on their way from the disk of this machine to where others see them, and off the disk when they are there.

A snapshot is never deleted before a verified copy exists: `send` leaves the one on disk in any case, and `release`
deletes it only when the other is still there, complete.
"""

import os
from typing import Final

from sandkeep_store.archives.base import ArchiveStore
from sandkeep_store.archives.directory import DirectoryArchives
from sandkeep_store.archives.objects import Fence, Progress, Stored, corrupt

DIGEST: Final = "sha256"
"""The key of the metadata that tells an archive's digest."""


def send(
    local: DirectoryArchives,
    path: str,
    target: ArchiveStore,
    target_path: str,
    *,
    sha256: str,
    fence: Fence | None = None,
    progress: Progress = lambda _: None,
) -> Stored:
    """Copy an archive. The digest is compared with what was read, and by buckets their own with what arrived.

    Raises `snapshot_corrupt` when the archive on disk is not what it has to be; nothing was written then.
    """
    with open(local.open_file(path), "rb", buffering=0) as file:
        return target.write(
            target_path,
            file,
            size_bytes=os.fstat(file.fileno()).st_size,
            sha256=sha256,
            metadata={DIGEST: sha256},
            fence=fence,
            progress=progress,
        )


def release(local: DirectoryArchives, path: str, target: ArchiveStore, sent: Stored) -> bool:
    """Delete the archive on disk, if what was `sent` is there; False when it was deleted before.

    Raises what is wrong with the copy, and the archive on disk stays.
    """
    found = target.stat(sent.path)
    if (found.generation, found.size_bytes) != (sent.generation, sent.size_bytes):
        raise corrupt(target.where(sent.path), "it is not what was sent there")
    return local.delete(path)
