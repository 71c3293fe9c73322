"""Restoring a tree from an archive: looked through first, extracted beside its place in a jail, then swapped in.

The archive is read twice: once to know it safe, and once more to extract it, checked again member by member. Only when
both were the same bytes does what was extracted count.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from sandkeep.system.staging import Stage
from sandkeep_store.archives.tar.inspect import Examined, Inspection, Moved
from sandkeep_store.archives.tar.limits import Limits
from sandkeep_store.archives.tar.members import corrupt
from sandkeep_store.archives.trees.extract import extracting, unwritable
from sandkeep_store.archives.trees.swap import swap


def unpack(
    archive: int,
    target: str,
    *,
    owner: tuple[int, int] | None = None,
    limits: Limits | None = None,
    sha256: str | None = None,
    durable: bool = True,
    moved: Moved | None = None,
) -> Inspection:
    """Put at `target` the tree that an archive, an open file, holds; a directory that is there is replaced.

    As root, the files belong to the uid and gid `owner`, else to ourselves; no set-uid bit is kept. With `sha256`, the
    archive has to have that digest. With `durable` what is at `target` survives a power cut, too. `moved` is told how
    many bytes of the archive are through, for each of two times; what it raises ends the work.

    Raises `snapshot_corrupt`, and `storage_unavailable` when there is no room or the archive cannot be read; then
    `target` is as it was. Blocks.
    """
    first = Examined(archive, limits or Limits(), moved=moved)
    for _ in first:
        pass
    check_digest(first.result, sha256)
    with staged(target, first.result.data_bytes, first.result.members) as stage:
        with extracting(stage, owner) as extraction:
            again = first.again()
            for member in again:
                extraction.put(member, again.data())
        take_place(stage, durable=durable)
    return first.result


def check_digest(found: Inspection, sha256: str | None) -> None:
    """Raise `snapshot_corrupt` for an archive that is not the one that was recorded."""
    if sha256 is not None and found.sha256 != sha256:
        raise corrupt("is not the one that was recorded: its digest is another")


@contextmanager
def staged(target: str, size_bytes: int, members: int) -> Iterator[Stage]:
    """A stage beside `target`, for the length of a block. Raises `storage_unavailable` where there is no room for so
    much and so many.
    """
    try:
        stage = Stage(os.fsencode(target), beside=True)
    except OSError as error:
        raise unwritable(error.strerror) from None
    with stage:
        room = os.statvfs(stage.path)
        if room.f_bavail * room.f_frsize < size_bytes or (room.f_files > 0 and room.f_favail < members):
            raise unwritable(os.strerror(errno.ENOSPC))
        yield stage


def take_place(stage: Stage, *, durable: bool) -> None:
    """Make what is staged effective. Raises `storage_unavailable`; then nothing is changed."""
    try:
        swap(stage, durable=durable)
    except OSError as error:
        raise unwritable(error.strerror) from None
