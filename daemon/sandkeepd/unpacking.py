"""One archive of a snapshot as something that a provider can have put into a place of its own."""

from collections.abc import Callable
from functools import partial

from sandkeep_store.archives.limits import Limits
from sandkeep_store.archives.overlaying import unpack_layer
from sandkeep_store.archives.unpack import unpack
from sandkeep_store.views.snapshots import SnapshotState
from sandkeepd.providers.base import Fill, Filling


def limits_of(snapshot: SnapshotState) -> Limits:
    """What an archive may ask for: what it held when it was made or brought in, and nothing more."""
    stored = snapshot.stored
    assert stored is not None
    return Limits(
        members=stored.member_count,
        content_bytes=stored.content_bytes,
        ratio=1 << 40,
        outward_symlinks=snapshot.sandbox_id is not None,
    )


def putting(snapshot: SnapshotState, archive: int) -> Fill:
    """What puts the files of an archive, an open file, somewhere, once all of it was looked through."""
    return partial(_put, snapshot, archive)


def _put(snapshot: SnapshotState, archive: int, filling: Filling, moved: Callable[[int], None]) -> None:
    stored = snapshot.stored
    assert stored is not None
    sha256 = stored.digest.removeprefix("sha256:")
    limits = limits_of(snapshot)
    if snapshot.requested.kind == "incremental":
        unpack_layer(
            archive, filling.target, overlay=filling.overlay, owner=filling.owner, limits=limits, sha256=sha256,
            moved=moved,
        )  # fmt: skip
    else:
        unpack(archive, filling.target, owner=filling.owner, limits=limits, sha256=sha256, durable=False, moved=moved)
