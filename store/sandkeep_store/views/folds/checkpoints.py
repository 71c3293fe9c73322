"""Folds of the events of checkpoints."""

from sandkeep import events
from sandkeep_store.views.checkpoints import CheckpointState
from sandkeep_store.views.folds.register import advance_in_history, begins, changes, folds, note_in_history
from sandkeep_store.views.sandboxes import CheckpointSummary
from sandkeep_store.views.snapshots import ForkState
from sandkeep_store.views.state import State
from sandkeep_store.views.view import Fact

begins("checkpoints", CheckpointState, events.CheckpointCreateRequested, in_history=True)
changes("checkpoints", events.CheckpointFailed, in_history=True)(CheckpointState.fail)
changes("checkpoints", events.CheckpointDeleted, in_history=True)(CheckpointState.end)


@folds(events.CheckpointStored)
def _stored(state: State, event: events.CheckpointStored, fact: Fact) -> None:
    checkpoint = advance_in_history(state, state.checkpoints, event, fact)
    if checkpoint is None:
        return
    checkpoint.stored, checkpoint.stored_position, checkpoint.stored_us = event, fact.position, fact.time_us
    sandbox = state.sandboxes.get(fact.sandbox_id or "")
    if sandbox is not None:
        asked = checkpoint.requested
        kept = CheckpointSummary(
            checkpoint_id=checkpoint.checkpoint_id,
            created_us=checkpoint.requested_us,
            name=asked.name,
            place=asked.place,
            size_bytes=sum(file.size_bytes for file in event.files),
        )
        sandbox.checkpoints = [*sandbox.checkpoints, kept]


@folds(events.CheckpointDeleteRequested)
def _delete_requested(state: State, event: events.CheckpointDeleteRequested, fact: Fact) -> None:
    checkpoint = advance_in_history(state, state.checkpoints, event, fact)
    sandbox = state.sandboxes.get(fact.sandbox_id or "")
    if checkpoint is not None and sandbox is not None:
        sandbox.checkpoints = [kept for kept in sandbox.checkpoints if kept.checkpoint_id != fact.stream]


@folds(events.CheckpointRestoreRequested)
def _restore_requested(state: State, event: events.CheckpointRestoreRequested, fact: Fact) -> None:
    state.forks[fact.stream] = ForkState(
        fork_id=fact.stream,
        sandbox_id=fact.sandbox_id or "",
        owner=event.owner,
        sandbox_ids=event.sandbox_ids,
        requested_us=fact.time_us,
        revision=fact.revision,
        checkpoint_id=event.checkpoint_id,
    )
    note_in_history(state, fact)
