"""The common part of packing archives of sandboxes, for all providers."""

from collections.abc import Sequence
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


def wanted_names(include: Sequence[bytes], exclude: Sequence[bytes]) -> Asked:
    """Return a predicate that is True for the names that belong in an archive with these paths."""

    def is_wanted(name: bytes) -> bool:
        if any(is_in(name, place) for place in exclude):
            return False
        return not include or any(is_in(name, place) or is_in(place, name) for place in include)

    return is_wanted
