"""The view of the creations and removals of named volumes."""

from typing import ClassVar

from sandkeep import model
from sandkeep.lifecycle import VOLUME, Lifecycle
from sandkeep.protocol.clock import rfc3339
from sandkeep_store.views.view import ObjectState


class VolumeState(ObjectState, kw_only=True, array_like=True):
    """The state of a creation or removal of a volume. Which volumes there are, their provider knows."""

    lifecycle: ClassVar[Lifecycle[model.VolumeStatus]] = VOLUME

    volume_id: str
    status: model.VolumeStatus
    owner: str
    provider: str
    name: str

    def view(self) -> model.NamedVolume:
        """Return the volume as the order knows it."""
        created_at = rfc3339(self.ended_us or self.requested_us) if self.status == "created" else None
        return model.NamedVolume(name=self.name, provider=self.provider, owner=self.owner, created_at=created_at)


def forget_volumes_before(volumes: "dict[str, VolumeState]", before_us: int) -> None:
    """Forget orders that had ended before a moment: their events go into the archive."""
    for volume_id in [name for name, volume in volumes.items() if volume.ended_before(before_us)]:
        del volumes[volume_id]
