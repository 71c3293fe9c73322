"""The view of checkpoints."""

from typing import ClassVar

from sandkeep import events, model
from sandkeep.lifecycle import CHECKPOINT, Lifecycle
from sandkeep.protocol.clock import rfc3339
from sandkeep_store.views.view import ObjectState


class CheckpointState(ObjectState, kw_only=True, array_like=True):
    """The state of a checkpoint."""

    lifecycle: ClassVar[Lifecycle[model.CheckpointStatus]] = CHECKPOINT

    checkpoint_id: str
    requested: events.CheckpointCreateRequested
    status: model.CheckpointStatus = CHECKPOINT.first
    stored: events.CheckpointStored | None = None
    stored_position: int = 0
    stored_us: int = 0

    @property
    def sandbox_id(self) -> str:
        """Of which sandbox it is."""
        return self.requested.sandbox_id

    @property
    def alive(self) -> bool:
        """True if its files exist or are being made."""
        return not self.ended

    def needs_image(self, image_id: str) -> bool:
        """Return True if it cannot be restored without that image."""
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
