"""The view of images."""

from typing import TYPE_CHECKING

from msgspec import Struct

from sandkeep import events, model
from sandkeep.clock import rfc3339
from sandkeep_store.views.base import Fact, folds

if TYPE_CHECKING:
    from sandkeep_store.views.state import State


class ImageState(Struct, kw_only=True):
    """What is known of an image. `reused` is the older image that stands for one that was not kept."""

    image_id: str
    requested: events.ImageCreateRequested
    requested_us: int
    revision: int
    status: model.ImageStatus = "creating"
    created: events.ImageCreated | None = None
    reused: str | None = None
    error: tuple[str, str] | None = None
    interrupted: bool = False

    @property
    def owner(self) -> str:
        """Whose it is."""
        return self.requested.owner

    @property
    def ended(self) -> bool:
        """Whether a plain list leaves it out."""
        return self.status in ("failed", "removed")

    def view(self) -> model.Image:
        """The image as readers see it."""
        made = self.created
        return model.Image(
            image_id=self.image_id,
            provider=self.requested.provider,
            kind=self.requested.kind,
            source=self.requested.source,
            status=self.status,
            owner=self.owner,
            created_at=rfc3339(self.requested_us),
            labels=self.requested.labels,
            digest=made.digest if made else None,
            size_bytes=made.size_bytes if made else 0,
            file_count=made.file_count if made else 0,
            skipped_count=made.skipped_count if made else 0,
            skipped=made.skipped if made else [],
            error=self.error[1] if self.error else None,
        )


@folds(events.ImageCreateRequested)
def _requested(state: "State", event: events.ImageCreateRequested, fact: Fact) -> None:
    image_id = fact.stream
    state.images[image_id] = ImageState(
        image_id=image_id, requested=event, requested_us=fact.time_us, revision=fact.revision
    )


@folds(events.ImageCreated)
def _created(state: "State", event: events.ImageCreated, fact: Fact) -> None:
    image = state.images[fact.stream]
    image.created, image.status, image.revision = event, "ready", fact.revision


@folds(events.ImageReused)
def _reused(state: "State", event: events.ImageReused, fact: Fact) -> None:
    image = state.images[fact.stream]
    image.reused, image.status, image.revision = event.image_id, "removed", fact.revision


@folds(events.ImageCreateFailed)
def _create_failed(state: "State", event: events.ImageCreateFailed, fact: Fact) -> None:
    image = state.images[fact.stream]
    image.error, image.status, image.revision = (event.code, event.message), "failed", fact.revision
    image.interrupted = event.interrupted


@folds(events.ImageRemoveRequested)
def _remove_requested(state: "State", event: events.ImageRemoveRequested, fact: Fact) -> None:
    image = state.images[fact.stream]
    image.status, image.revision = "removing", fact.revision


@folds(events.ImageRemoved)
def _removed(state: "State", event: events.ImageRemoved, fact: Fact) -> None:
    image = state.images[fact.stream]
    image.status, image.revision = "removed", fact.revision
