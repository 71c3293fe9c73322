"""Folds of the events of snapshots."""

from msgspec.structs import replace

from sandkeep import events
from sandkeep_store.views.folds.register import advance_in_history, changes, folds, note_in_history
from sandkeep_store.views.sandboxes import SnapshotSummary
from sandkeep_store.views.snapshots import ForkState, SnapshotState
from sandkeep_store.views.state import State
from sandkeep_store.views.view import Fact

changes("snapshots", events.SnapshotFailed, in_history=True)(SnapshotState.fail)
changes("forks", events.SandboxForkFailed, events.CheckpointRestoreFailed, in_history=True)(ForkState.fail)


@folds(events.SnapshotCreateRequested)
def _requested(state: State, event: events.SnapshotCreateRequested, fact: Fact) -> None:
    snapshot_id = fact.stream
    state.snapshots[snapshot_id] = SnapshotState(
        snapshot_id=snapshot_id, requested=event, requested_us=fact.time_us, revision=fact.revision,
        requested_position=fact.position,
    )  # fmt: skip
    note_in_history(state, fact)


@folds(events.SnapshotStored)
def _stored(state: State, event: events.SnapshotStored, fact: Fact) -> None:
    snapshot = advance_in_history(state, state.snapshots, event, fact)
    if snapshot is None:
        return
    snapshot.stored, snapshot.stored_position, snapshot.stored_us = event, fact.position, fact.time_us
    if event.places:
        snapshot.requested = replace(snapshot.requested, places=event.places)
    if event.kind is not None:
        snapshot.requested = replace(snapshot.requested, kind=event.kind)
    sandbox = state.sandboxes.get(fact.sandbox_id or "")
    if sandbox is not None:
        sandbox.snapshots.append(_kept(snapshot, event))
        session = state.session_of(sandbox)
        if session is not None:
            # One that was ordered before another, and takes longer, has older files.
            later = (name for name in session.snapshot_ids if _was_ordered_after(state, name, snapshot))
            at = next(map(session.snapshot_ids.index, later), len(session.snapshot_ids))
            session.snapshot_ids.insert(at, snapshot.snapshot_id)


def _was_ordered_after(state: State, snapshot_id: str, other: SnapshotState) -> bool:
    found = state.snapshots.get(snapshot_id)
    return found is not None and found.requested_position > other.requested_position


def _kept(snapshot: SnapshotState, event: events.SnapshotStored) -> SnapshotSummary:
    return SnapshotSummary(
        snapshot_id=snapshot.snapshot_id,
        created_us=snapshot.requested_us,
        kind=snapshot.requested.kind,
        parent_id=snapshot.requested.parent_id,
        name=snapshot.requested.name,
        place=snapshot.places[0],
        digest=event.digest,
        size_bytes=event.size_bytes,
    )


@folds(events.SnapshotSent)
def _sent(state: State, event: events.SnapshotSent, fact: Fact) -> None:
    snapshot = advance_in_history(state, state.snapshots, event, fact)
    if snapshot is None:
        return
    snapshot.sent = True
    sandbox = state.sandboxes.get(fact.sandbox_id or "")
    for at, kept in enumerate(sandbox.snapshots if sandbox is not None else ()):
        if sandbox is not None and kept.snapshot_id == snapshot.snapshot_id:
            sandbox.snapshots[at] = replace(kept, place=snapshot.places[0])


@folds(events.SnapshotDeleteRequested)
def _delete_requested(state: State, event: events.SnapshotDeleteRequested, fact: Fact) -> None:
    snapshot = advance_in_history(state, state.snapshots, event, fact)
    sandbox = state.sandboxes.get(fact.sandbox_id or "")
    if snapshot is not None and sandbox is not None:
        sandbox.snapshots = [kept for kept in sandbox.snapshots if kept.snapshot_id != snapshot.snapshot_id]
        session = state.session_of(sandbox)
        if session is not None and snapshot.snapshot_id in session.snapshot_ids:
            session.snapshot_ids.remove(snapshot.snapshot_id)


@changes("snapshots", events.SnapshotDeleted, in_history=True)
def _deleted(snapshot: SnapshotState, event: events.SnapshotDeleted, fact: Fact) -> None:
    snapshot.ended_us, snapshot.kept = fact.time_us, event.kept


@folds(events.ArchiveRemoveRequested)
def _remove_requested(state: State, event: events.ArchiveRemoveRequested, fact: Fact) -> None:
    state.log.removing.append(fact.position)


@folds(events.ArchiveRemoved, events.ArchiveRemoveFailed)
def _end_removal(state: State, event: events.ArchiveRemoved | events.ArchiveRemoveFailed, fact: Fact) -> None:
    if event.position in state.log.removing:  # the events of old removals are in the archive
        state.log.removing.remove(event.position)


@folds(events.SandboxForkRequested)
def _fork_requested(state: State, event: events.SandboxForkRequested, fact: Fact) -> None:
    source = state.sandboxes.get(fact.sandbox_id or "")
    if source is not None:
        state.forks[fact.stream] = ForkState(
            fork_id=fact.stream,
            sandbox_id=source.sandbox_id,
            owner=source.owner,
            sandbox_ids=event.sandbox_ids,
            requested_us=fact.time_us,
            revision=fact.revision,
        )
        source.touch(fact)


@changes("forks", events.SandboxForked, events.CheckpointRestored, in_history=True)
def _forked(fork: ForkState, event: events.SandboxForked | events.CheckpointRestored, fact: Fact) -> None:
    fork.ended_us = fact.time_us
    if isinstance(event, events.SandboxForked):
        fork.pause_ms = event.pause_ms
