"""Archives of snapshots as sources for a provider, within limits on what they may unpack to."""

from typing import Final

from sandkeep_store.archives.tar.limits import Limits
from sandkeep_store.views.snapshots import SnapshotState
from sandkeep_store.views.state import State
from sandkeepd.contract.layers import KeptArchive

IMPLIED: Final = 10_000
"""How many directories may be in an archive that it does not name."""


def limits_of(snapshot: SnapshotState) -> Limits:
    """What an archive may ask for: one of a sandbox what it held when it was made, and one of elsewhere no more than
    when it was brought in.
    """
    stored = snapshot.stored
    assert stored is not None
    if snapshot.sandbox_id is None:
        return limits_of_import(snapshot.requested.root)
    members = stored.member_count + IMPLIED
    return Limits(members=members, content_bytes=stored.content_bytes, ratio=1 << 40, outward_symlinks=True)


def limits_of_import(root: str) -> Limits:
    """What an archive of elsewhere may ask for whose names begin at `root`: nothing leads out of what has it all."""
    return Limits(outward_symlinks=root == "/")


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
    )
