"""Folds of the events of snapshots."""

from msgspec.structs import replace

from sandkeep import events
from sandkeep.events import Event
from sandkeep.lifecycle import FORK, SNAPSHOT
from sandkeep_store.views.folds.register import folds
from sandkeep_store.views.folds.sandboxes import note_in_history
from sandkeep_store.views.sandboxes import KeptSnapshot
from sandkeep_store.views.snapshots import ForkState, SnapshotState
from sandkeep_store.views.state import State
from sandkeep_store.views.view import Fact


@folds(events.SnapshotCreateRequested)
def _requested(state: State, event: events.SnapshotCreateRequested, fact: Fact) -> None:
    snapshot_id = fact.stream
    state.snapshots[snapshot_id] = SnapshotState(
        snapshot_id=snapshot_id, requested=event, requested_us=fact.time_us, revision=fact.revision
    )
    note_in_history(state, fact)


@folds(events.SnapshotStored)
def _stored(state: State, event: events.SnapshotStored, fact: Fact) -> None:
    snapshot = _advance(state, event, fact)
    if snapshot is None:
        return
    snapshot.stored, snapshot.stored_position, snapshot.stored_us = event, fact.position, fact.time_us
    if event.places:
        snapshot.requested = replace(snapshot.requested, places=event.places)
    sandbox = state.sandboxes.get(fact.sandbox_id or "")
    if sandbox is not None:
        sandbox.snapshots.append(_kept(snapshot, event))


def _kept(snapshot: SnapshotState, event: events.SnapshotStored) -> KeptSnapshot:
    return KeptSnapshot(
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
    snapshot = _advance(state, event, fact)
    if snapshot is None:
        return
    snapshot.sent = True
    sandbox = state.sandboxes.get(fact.sandbox_id or "")
    for at, kept in enumerate(sandbox.snapshots if sandbox is not None else ()):
        if sandbox is not None and kept.snapshot_id == snapshot.snapshot_id:
            sandbox.snapshots[at] = replace(kept, place=snapshot.places[0])


@folds(events.SnapshotFailed)
def _failed(state: State, event: events.SnapshotFailed, fact: Fact) -> None:
    snapshot = _advance(state, event, fact)
    if snapshot is not None:
        snapshot.error, snapshot.interrupted = (event.code, event.message), event.interrupted
        snapshot.ended_us = fact.time_us


@folds(events.SnapshotDeleteRequested)
def _delete_requested(state: State, event: events.SnapshotDeleteRequested, fact: Fact) -> None:
    snapshot = _advance(state, event, fact)
    sandbox = state.sandboxes.get(fact.sandbox_id or "")
    if snapshot is not None and sandbox is not None:
        sandbox.snapshots = [kept for kept in sandbox.snapshots if kept.snapshot_id != snapshot.snapshot_id]


@folds(events.SnapshotDeleted)
def _deleted(state: State, event: events.SnapshotDeleted, fact: Fact) -> None:
    snapshot = _advance(state, event, fact)
    if snapshot is not None:
        snapshot.ended_us, snapshot.kept = fact.time_us, event.kept


@folds(events.ArchiveRemoveRequested)
def _remove_requested(state: State, event: events.ArchiveRemoveRequested, fact: Fact) -> None:
    state.log.removing.append(fact.position)


@folds(events.ArchiveRemoved)
def _removed(state: State, event: events.ArchiveRemoved, fact: Fact) -> None:
    _end_removal(state, event.position)


@folds(events.ArchiveRemoveFailed)
def _remove_failed(state: State, event: events.ArchiveRemoveFailed, fact: Fact) -> None:
    _end_removal(state, event.position)


def _end_removal(state: State, position: int) -> None:
    if position in state.log.removing:  # the events of old removals are in the archive
        state.log.removing.remove(position)


@folds(events.SandboxForkRequested)
def _fork_requested(state: State, event: events.SandboxForkRequested, fact: Fact) -> None:
    source = state.sandboxes.get(fact.sandbox_id or "")
    if source is not None:
        state.forks[fact.stream] = ForkState(
            fork_id=fact.stream,
            sandbox_id=source.sandbox_id,
            owner=source.owner,
            sandbox_ids=event.sandbox_ids,
            revision=fact.revision,
        )
        source.touch(fact)


@folds(events.SandboxForked)
def _forked(state: State, event: events.SandboxForked, fact: Fact) -> None:
    fork = end_fork(state, event, fact)
    if fork is not None:
        fork.pause_ms = event.pause_ms


@folds(events.SandboxForkFailed)
def _fork_failed(state: State, event: events.SandboxForkFailed, fact: Fact) -> None:
    fork = end_fork(state, event, fact)
    if fork is not None:
        fork.error, fork.interrupted = (event.code, event.message), event.interrupted


def end_fork(state: State, event: Event, fact: Fact) -> ForkState | None:
    """Take note of when a fork, or a restore of a checkpoint, ended; None for one whose first events are in the archive
    already.
    """
    fork = state.forks.get(fact.stream)
    if fork is not None:
        fork.status, fork.revision, fork.ended_us = FORK.targets[event.type], fact.revision, fact.time_us
    note_in_history(state, fact)
    return fork


def _advance(state: State, event: Event, fact: Fact) -> SnapshotState | None:
    """Move a snapshot on; None for one whose first events are in the archive already."""
    snapshot = state.snapshots.get(fact.stream)
    if snapshot is not None:
        snapshot.status, snapshot.revision = SNAPSHOT.after(event, snapshot.status), fact.revision
    note_in_history(state, fact)
    return snapshot
