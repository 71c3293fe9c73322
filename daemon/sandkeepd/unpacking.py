"""One archive of a snapshot as something that a provider can have put into a place of its own."""

from collections.abc import Callable
from functools import partial
from typing import Final

from sandkeep_store.archives.limits import Limits
from sandkeep_store.archives.overlaying import unpack_layer
from sandkeep_store.archives.unpack import unpack
from sandkeep_store.views.snapshots import SnapshotState
from sandkeepd.providers.base import Fill, Filling

IMPLIED: Final = 10_000
"""How many directories may be in an archive that it does not name."""


def limits_of(snapshot: SnapshotState) -> Limits:
    """What an archive may ask for: one of a sandbox what it held when it was made, and one of elsewhere no more than
    when it was brought in.
    """
    stored = snapshot.stored
    assert stored is not None
    if snapshot.sandbox_id is None:
        return Limits()
    members = stored.member_count + IMPLIED
    return Limits(members=members, content_bytes=stored.content_bytes, ratio=1 << 40, outward_symlinks=True)


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
