"""Chains of snapshots: ancestors and descendants of each."""

from collections.abc import Iterator

from sandkeep_store.views.snapshots import SnapshotState
from sandkeep_store.views.state import State


def chain(state: State, snapshot: SnapshotState) -> Iterator[SnapshotState]:
    """A snapshot and all that it builds on, down to the full one or to the last above an image."""
    found: SnapshotState | None = snapshot
    while found is not None:
        yield found
        parent_id = found.requested.parent_id
        found = state.snapshots.get(parent_id) if parent_id is not None else None


def children(state: State, snapshot_id: str) -> Iterator[SnapshotState]:
    """The snapshots that build on one and whose archives are there, or are to be."""
    for other in state.snapshots.values():
        if other.requested.parent_id == snapshot_id and other.alive:
            yield other
