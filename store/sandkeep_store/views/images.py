"""The view of images."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from sandkeep import events, model
from sandkeep.protocol.clock import rfc3339
from sandkeep_store.views.view import Fact, folds

if TYPE_CHECKING:
    from sandkeep_store.views.state import State


class ImageState(Struct, kw_only=True, array_like=True):
    """What is known of an image. `reused` is the older image that stands for one that was not kept."""

    image_id: str
    requested: events.ImageCreateRequested
    requested_us: int
    revision: int
    status: model.ImageStatus = "creating"
    created: events.ImageCreated | None = None
    reused: str | None = None
    error: tuple[str, str] | None = None
    ended_us: int | None = None
    interrupted: bool = False

    @property
    def owner(self) -> str:
        """Whose it is."""
        return self.requested.owner

    @property
    def ended(self) -> bool:
        """Whether a plain list leaves it out."""
        return self.status in ("failed", "removed")

    @property
    def details(self) -> Mapping[str, Any]:
        """What its provider goes by when it makes sandboxes of it."""
        return self.created.details if self.created else {}

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
            base=self.requested.base,
            dockerfile=self.requested.dockerfile,
            docker_image_id=self.details.get("docker_image_id"),
            docker_image_tag=self.details.get("docker_image_tag"),
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
    image = _advance(state, fact, "ready")
    if image is not None:
        image.created = event


@folds(events.ImageReused)
def _reused(state: "State", event: events.ImageReused, fact: Fact) -> None:
    image = _advance(state, fact, "removed")
    if image is not None:
        image.reused, image.ended_us = event.image_id, fact.time_us


@folds(events.ImageCreateFailed)
def _create_failed(state: "State", event: events.ImageCreateFailed, fact: Fact) -> None:
    image = _advance(state, fact, "failed")
    if image is not None:
        image.error, image.ended_us = (event.code, event.message), fact.time_us
        image.interrupted = event.interrupted


@folds(events.ImageRemoveRequested)
def _remove_requested(state: "State", event: events.ImageRemoveRequested, fact: Fact) -> None:
    _advance(state, fact, "removing")


@folds(events.ImageRemoved)
def _removed(state: "State", event: events.ImageRemoved, fact: Fact) -> None:
    image = _advance(state, fact, "removed")
    if image is not None:
        image.ended_us = fact.time_us


def _advance(state: "State", fact: Fact, status: model.ImageStatus) -> ImageState | None:
    """Move an image on; None for one whose first events are in the archive already, as all of them soon will be."""
    image = state.images.get(fact.stream)
    if image is not None:
        image.status, image.revision = status, fact.revision
    return image
