"""The common part of packing archives of sandboxes, for all providers."""

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from sandkeep.model import ArchiveFormat
from sandkeep_store.archives.tar.compression import Codec
from sandkeep_store.archives.trees.changes import Asked
from sandkeep_store.archives.trees.pack import PackedArchive
from sandkeep_store.archives.trees.tree import is_in
from sandkeep_store.buckets.config import STORAGE
from sandkeepd.contract.snapshots import PackedFiles
from sandkeepd.host.cgroups.pause import Pause

CODECS: Final[dict[ArchiveFormat, Codec]] = {"tar": "none", "tar.gz": "gzip", "tar.zst": "zstd"}


def never_packed(state_dir: str) -> list[str]:
    """Return the directories that no image and no archive may hold, though they lie in its source: those of archives
    would grow with every archive, and show one owner's files to another.
    """
    return [state_dir, *STORAGE.archive_directories()]


def packed_files(packed: PackedArchive, pause: Pause) -> PackedFiles:
    """Convert the result of packing."""
    remarks: dict[str, int] = {why: count for why, count in packed.remarks.counts.items()}  # noqa: C416 - of plain text
    return PackedFiles(
        sha256=packed.sha256,
        size_bytes=packed.size_bytes,
        member_count=packed.members,
        content_bytes=packed.content_bytes,
        pause_ms=pause.ms,
        remarks=remarks,
    )


def bytes_in(tree: int) -> int:
    """Return the bytes of the regular files in a directory, as far as they can be counted."""
    found = 0
    with suppress(OSError, RecursionError):  # a total is only shown
        for _, _, names, directory in os.fwalk(b".", dir_fd=tree):
            for name in names:
                with suppress(OSError):
                    seen = os.stat(name, dir_fd=directory, follow_symlinks=False)
                    found += seen.st_size if stat.S_ISREG(seen.st_mode) else 0
    return found


def wanted_names(include: Sequence[bytes], exclude: Sequence[bytes]) -> Asked:
    """Return a predicate that is True for the names that belong in an archive with these paths."""

    def is_wanted(name: bytes) -> bool:
        if any(is_in(name, place) for place in exclude):
            return False
        return not include or any(is_in(name, place) or is_in(place, name) for place in include)

    return is_wanted
