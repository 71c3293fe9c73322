"""Archives of snapshots as sources for a provider, with limits on their expansion."""

from typing import Final

from sandkeep_store.archives.tar.limits import DEFAULT_LIMITS, Limits
from sandkeep_store.views.snapshots import SnapshotState
from sandkeep_store.views.state import State
from sandkeepd.contract.layers import KeptArchive

IMPLIED: Final = 10_000
"""Maximum number of directories that an archive contains only implicitly."""


def limits_of(snapshot: SnapshotState) -> Limits:
    """Return the limits of an archive: for a sandbox's own, its recorded contents; for an imported one, those of
    every import.
    """
    stored = snapshot.stored
    assert stored is not None
    if snapshot.sandbox_id is None:
        return DEFAULT_LIMITS
    return own_limits(stored.member_count, stored.content_bytes)


def own_limits(members: int, content_bytes: int) -> Limits:
    """Return the limits of an archive that was packed here, with so many members and bytes in files."""
    return Limits(members=members + IMPLIED, content_bytes=content_bytes, ratio=1 << 40)


def archive_of(state: State, snapshot: SnapshotState, descriptor: int) -> KeptArchive:
    """The archive of a snapshot, which lies in an open file."""
    stored, asked = snapshot.stored, snapshot.requested
    assert stored is not None
    image = state.images.get(asked.image_id or "")
    return KeptArchive(
        descriptor=descriptor,
        sha256=stored.digest.removeprefix("sha256:"),
        limits=limits_of(snapshot),
        is_layer=asked.kind == "incremental",
        beneath=asked.parent_id,
        image_id=asked.image_id,
        details=image.details if image is not None else {},
        only=asked.include if snapshot.is_part else (),
    )
