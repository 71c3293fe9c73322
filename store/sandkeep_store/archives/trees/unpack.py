"""Restoring a tree from an archive: inspected first, extracted in a jail beside its target, then swapped in.

The archive is read twice: once to inspect it, once to extract it, checked again member by member. The extracted tree
counts only if both reads gave the same bytes.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from sandkeep.system.staging import Stage
from sandkeep_store.archives.tar.inspect import CheckedArchive, Inspection, Moved
from sandkeep_store.archives.tar.limits import DEFAULT_LIMITS, Limits
from sandkeep_store.archives.trees.extract import extracting, unwritable
from sandkeep_store.archives.trees.swap import swap


def unpack(
    archive: int,
    target: str,
    *,
    owner: tuple[int, int] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    sha256: str | None = None,
    durable: bool = True,
    moved: Moved | None = None,
) -> Inspection:
    """Restore the tree of an archive, an open file, at `target`; an existing directory is replaced.

    As root, the files belong to the uid and gid `owner`, else to the daemon's user; set-uid bits are dropped. With
    `sha256`, the archive has to have that digest. With `durable` the new tree survives a power cut. `moved` gets the
    number of bytes done, in each of the two passes; raising ends the work.

    Raises `snapshot_corrupt`, and `storage_unavailable` when there is no room or the archive cannot be read; then
    `target` is unchanged. Blocks.
    """
    first = CheckedArchive(archive, limits, moved=moved).to_end()
    first.check_digest(sha256)
    with staged(target, first.result) as stage:
        with extracting(stage, owner) as extraction:
            again = first.reread()
            for member in again:
                extraction.put(member, again.data())
        swap_in(stage, durable=durable)
    return first.result


@contextmanager
def staged(target: str, content: Inspection) -> Iterator[Stage]:
    """A stage beside `target`, for a block. Raises `storage_unavailable` where bytes or inodes do not suffice."""
    try:
        stage = Stage(os.fsencode(target), beside=True)
    except OSError as error:
        raise unwritable(error.strerror) from None
    with stage:
        room = os.statvfs(stage.path)
        if room.f_bavail * room.f_frsize < content.data_bytes or (room.f_files > 0 and room.f_favail < content.members):
            raise unwritable(os.strerror(errno.ENOSPC))
        yield stage


def swap_in(stage: Stage, *, durable: bool) -> None:
    """Swap the staged tree in. Raises `storage_unavailable`; then nothing is changed."""
    try:
        swap(stage, durable=durable)
    except OSError as error:
        raise unwritable(error.strerror) from None
