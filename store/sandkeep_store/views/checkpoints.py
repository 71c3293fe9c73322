"""The view of checkpoints."""

from typing import TYPE_CHECKING

from msgspec import Struct

from sandkeep import events, model
from sandkeep.protocol.clock import rfc3339
from sandkeep_store.views.sandboxes import KeptCheckpoint, note_in_history
from sandkeep_store.views.snapshots import ForkState, end_fork
from sandkeep_store.views.view import Fact, folds

if TYPE_CHECKING:
    from sandkeep_store.views.state import State


class CheckpointState(Struct, kw_only=True, array_like=True):
    """What is known of a checkpoint."""

    checkpoint_id: str
    requested: events.CheckpointCreateRequested
    requested_us: int
    revision: int
    status: model.CheckpointStatus = "creating"
    stored: events.CheckpointStored | None = None
    stored_position: int = 0
    stored_us: int = 0
    error: tuple[str, str] | None = None
    interrupted: bool = False
    ended_us: int | None = None

    @property
    def owner(self) -> str:
        """Whose it is."""
        return self.requested.owner

    @property
    def sandbox_id(self) -> str:
        """Of which sandbox it is."""
        return self.requested.sandbox_id

    @property
    def ended(self) -> bool:
        """Whether a plain list leaves it out."""
        return self.status in ("failed", "deleted")

    @property
    def alive(self) -> bool:
        """Whether there is something of it, or is about to be."""
        return self.status in ("creating", "ready", "deleting")

    def needs_image(self, image_id: str) -> bool:
        """Whether it cannot be brought back without that image."""
        return self.requested.needs_image and self.requested.image_id == image_id

    def view(self) -> model.Checkpoint:
        """The checkpoint as readers see it."""
        asked, stored = self.requested, self.stored
        return model.Checkpoint(
            checkpoint_id=self.checkpoint_id,
            status=self.status,
            owner=asked.owner,
            created_at=rfc3339(self.requested_us),
            sandbox_id=asked.sandbox_id,
            image_id=asked.image_id,
            provider=asked.provider,
            leave_running=asked.leave_running,
            place=asked.place,
            name=asked.name,
            labels=asked.labels,
            facts=asked.facts,
            files=stored.files if stored is not None else [],
            size_bytes=sum(file.size_bytes for file in stored.files) if stored is not None else 0,
            processes=stored.processes if stored is not None else 0,
            pause_ms=stored.pause_ms if stored is not None else None,
            error=self.error[1] if self.error else None,
        )


@folds(events.CheckpointCreateRequested)
def _requested(state: "State", event: events.CheckpointCreateRequested, fact: Fact) -> None:
    state.checkpoints[fact.stream] = CheckpointState(
        checkpoint_id=fact.stream, requested=event, requested_us=fact.time_us, revision=fact.revision
    )
    note_in_history(state, fact)


@folds(events.CheckpointStored)
def _stored(state: "State", event: events.CheckpointStored, fact: Fact) -> None:
    checkpoint = _advance(state, fact, "ready")
    if checkpoint is None:
        return
    checkpoint.stored, checkpoint.stored_position, checkpoint.stored_us = event, fact.position, fact.time_us
    sandbox = state.sandboxes.get(fact.sandbox_id or "")
    if sandbox is not None:
        asked = checkpoint.requested
        kept = KeptCheckpoint(
            checkpoint_id=checkpoint.checkpoint_id,
            created_us=checkpoint.requested_us,
            name=asked.name,
            place=asked.place,
            size_bytes=sum(file.size_bytes for file in event.files),
        )
        sandbox.checkpoints = [*sandbox.checkpoints, kept]


@folds(events.CheckpointFailed)
def _failed(state: "State", event: events.CheckpointFailed, fact: Fact) -> None:
    checkpoint = _advance(state, fact, "failed")
    if checkpoint is not None:
        checkpoint.error, checkpoint.interrupted = (event.code, event.message), event.interrupted
        checkpoint.ended_us = fact.time_us


@folds(events.CheckpointDeleteRequested)
def _delete_requested(state: "State", event: events.CheckpointDeleteRequested, fact: Fact) -> None:
    checkpoint = _advance(state, fact, "deleting")
    sandbox = state.sandboxes.get(fact.sandbox_id or "")
    if checkpoint is not None and sandbox is not None:
        sandbox.checkpoints = [kept for kept in sandbox.checkpoints if kept.checkpoint_id != fact.stream]


@folds(events.CheckpointDeleted)
def _deleted(state: "State", event: events.CheckpointDeleted, fact: Fact) -> None:
    checkpoint = _advance(state, fact, "deleted")
    if checkpoint is not None:
        checkpoint.ended_us = fact.time_us


@folds(events.CheckpointRestoreRequested)
def _restore_requested(state: "State", event: events.CheckpointRestoreRequested, fact: Fact) -> None:
    state.forks[fact.stream] = ForkState(
        fork_id=fact.stream,
        sandbox_id=fact.sandbox_id or "",
        owner=event.owner,
        sandbox_ids=event.sandbox_ids,
        revision=fact.revision,
        checkpoint_id=event.checkpoint_id,
    )
    note_in_history(state, fact)


@folds(events.CheckpointRestored)
def _restored(state: "State", event: events.CheckpointRestored, fact: Fact) -> None:
    fork = end_fork(state, fact)
    if fork is not None:
        fork.done = True


@folds(events.CheckpointRestoreFailed)
def _restore_failed(state: "State", event: events.CheckpointRestoreFailed, fact: Fact) -> None:
    fork = end_fork(state, fact)
    if fork is not None:
        fork.error, fork.interrupted = (event.code, event.message), event.interrupted


def _advance(state: "State", fact: Fact, status: model.CheckpointStatus) -> CheckpointState | None:
    """Move a checkpoint on; None for one whose first events are in the archive already."""
    checkpoint = state.checkpoints.get(fact.stream)
    if checkpoint is not None:
        checkpoint.status, checkpoint.revision = status, fact.revision
    note_in_history(state, fact)
    return checkpoint
