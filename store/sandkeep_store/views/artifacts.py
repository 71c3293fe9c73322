"""The view of artifacts."""

from typing import ClassVar

from sandkeep import events, model
from sandkeep.lifecycle import ARTIFACT, Lifecycle
from sandkeep.protocol.clock import rfc3339
from sandkeep_store.views.view import ObjectState


class ArtifactState(ObjectState, kw_only=True, array_like=True):
    """The state of an artifact."""

    lifecycle: ClassVar[Lifecycle[model.ArtifactStatus]] = ARTIFACT

    artifact_id: str
    requested: events.ArtifactExportRequested
    status: model.ArtifactStatus = ARTIFACT.first
    exported: events.ArtifactExported | None = None

    @property
    def sandbox_id(self) -> str:
        """The sandbox that it was exported from, which may have ended."""
        return self.requested.sandbox_id

    @property
    def alive(self) -> bool:
        """True if the file exists, or is being made."""
        return self.status not in ("failed", "deleted")

    def view(self, session_id: str | None = None, download_url: str | None = None) -> model.Artifact:
        """Return the artifact as readers see it."""
        asked, made = self.requested, self.exported
        return model.Artifact(
            artifact_id=self.artifact_id,
            status=self.status,
            owner=asked.owner,
            sandbox_id=asked.sandbox_id,
            session_id=session_id,
            path=asked.path,
            name=made.name if made is not None else asked.name or "",
            media_type=made.media_type if made is not None else asked.media_type or "",
            size_bytes=made.size_bytes if made is not None else 0,
            download_url=download_url,
            created_at=rfc3339(self.requested_us),
            error=self.error[1] if self.error else None,
        )
