"""The view of images."""

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import field

from sandkeep import events, model
from sandkeep.lifecycle import IMAGE, Lifecycle
from sandkeep.protocol.clock import rfc3339
from sandkeep_store.views.view import ObjectState


class ImageState(ObjectState, kw_only=True, array_like=True):
    """The state of an image. `reused` is the older image that stands for a duplicate. `names` are those that its owner
    gave it, each without the tag ``latest``; `published` maps references to the owners to whom it is published by them,
    which are everybody if there are none.
    """

    lifecycle: ClassVar[Lifecycle[model.ImageStatus]] = IMAGE

    image_id: str
    requested: events.ImageCreateRequested
    status: model.ImageStatus = IMAGE.first
    created: events.ImageCreated | None = None
    reused: str | None = None
    names: list[str] = field(default_factory=list)
    published: dict[str, list[str]] = field(default_factory=dict)

    @property
    def details(self) -> Mapping[str, Any]:
        """The provider's data, from which it makes sandboxes of the image."""
        return self.created.details if self.created else {}

    def published_to(self, owner: str) -> dict[str, list[str]]:
        """The references by which an owner may use the image, without the other owners who may."""
        return {
            reference: [owner] if owners else []
            for reference, owners in self.published.items()
            if not owners or owner in owners
        }

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
            modal_image_id=self.details.get("modal_image_id"),
            labels=self.requested.labels,
            names=self.names,
            published=self.published,
            digest=made.digest if made else None,
            size_bytes=made.size_bytes if made else 0,
            file_count=made.file_count if made else 0,
            skipped_count=made.skipped_count if made else 0,
            skipped=made.skipped if made else [],
            error=self.error[1] if self.error else None,
        )
