"""The common part of packing archives of sandboxes, for all providers."""

from typing import Final

from sandkeep.model import ArchiveFormat
from sandkeep_store.archives.tar.compression import Codec
from sandkeep_store.archives.trees.pack import PackedArchive
from sandkeepd.contract.snapshots import PackedFiles
from sandkeepd.host.cgroups.pause import Pause

CODECS: Final[dict[ArchiveFormat, Codec]] = {"tar": "none", "tar.gz": "gzip", "tar.zst": "zstd"}


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
