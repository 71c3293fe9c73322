"""The view of snapshots."""

from collections.abc import Mapping
from typing import ClassVar

from sandkeep import events, ids, model
from sandkeep.lifecycle import FORK, SNAPSHOT, ForkStatus, Lifecycle
from sandkeep.protocol.clock import rfc3339
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.view import ObjectState


class SnapshotState(ObjectState, kw_only=True, array_like=True):
    """The state of a snapshot. `kept`: it was deleted, but its archive stays for the snapshots that build on it.
    `sent`: an archive that was on this machine alone has reached its target. It was ordered at `requested_position`,
    and complete at `stored_position`, at the time `stored_us`.
    """

    lifecycle: ClassVar[Lifecycle[model.SnapshotStatus]] = SNAPSHOT

    snapshot_id: str
    requested: events.SnapshotCreateRequested
    status: model.SnapshotStatus = SNAPSHOT.first
    stored: events.SnapshotStored | None = None
    kept: bool = False
    sent: bool = False
    stored_position: int = 0
    stored_us: int = 0
    requested_position: int = 0

    @property
    def sandbox_id(self) -> str | None:
        """The sandbox whose files it holds; None for an imported one."""
        return self.requested.sandbox_id

    @property
    def has_archive(self) -> bool:
        """True if its archive exists, or should."""
        return self.stored is not None and (self.status in ("ready", "deleting") or self.kept)

    @property
    def here(self) -> model.Place | None:
        """The place on this machine, while the archive has yet to be sent elsewhere."""
        return self.stored.here if self.stored is not None and self.has_archive and not self.sent else None

    @property
    def why_here(self) -> str | None:
        """A clause that says that the archive is on this machine alone, and why; None if it is not."""
        if self.here is None or self.stored is None:
            return None
        target = self.requested.places[0].uri
        return f"is on this machine alone so far, and is sent to {target} as soon as that works: {self.stored.unsent}"

    @property
    def places(self) -> list[model.Place]:
        """The present or future places of its archive."""
        return [self.here] if self.here is not None else self.requested.places

    @property
    def traces(self) -> list[model.Place]:
        """All places that may hold parts of it."""
        here = self.stored.here if self.stored is not None else None
        return [*self.requested.places, *([here] if here is not None else [])]

    @property
    def alive(self) -> bool:
        """True if its archive exists or is being made."""
        return self.status == "creating" or self.has_archive

    def has_workspace(self, sandboxes: Mapping[str, SandboxState]) -> bool:
        """Return True if it has the whole workspace of its sandbox, but for what it excludes."""
        sandbox = sandboxes.get(self.sandbox_id or "")
        if not self.requested.include or sandbox is None or sandbox.isolation is None:
            return not self.requested.include
        place = f"{sandbox.isolation.workspace}/"
        return any(place.startswith(f"{path}/") for path in self.requested.include)

    @property
    def is_part(self) -> bool:
        """True if it has only the included paths of a whole root file system, which take the place of an image's."""
        asked = self.requested
        has_image = (asked.image_id or "").startswith(f"{ids.IMAGE}_")
        return has_image and asked.kind == "full" and asked.root == "/" and bool(asked.include)

    @property
    def is_over_image(self) -> bool:
        """True if its sandboxes begin with the files of its image, too."""
        return self.is_part or (self.requested.kind == "incremental" and self.requested.parent_id is None)

    def needs_image(self, image_id: str) -> bool:
        """Return True if that is the image whose files it is over."""
        return self.is_over_image and self.requested.image_id == image_id

    @property
    def format(self) -> model.ArchiveFormat:
        """The format of its present or future archive."""
        return self.stored.format if self.stored is not None else self.requested.format

    def _note(self) -> str | None:
        if self.kept:
            return "its archive is kept for the incremental snapshots that build on it"
        return f"it {self.why_here}" if self.why_here else None

    def view(self) -> model.Snapshot:
        """The snapshot as readers see it."""
        asked, stored = self.requested, self.stored
        return model.Snapshot(
            snapshot_id=self.snapshot_id,
            status=self.status,
            kind=asked.kind,
            format=self.format,
            owner=asked.owner,
            created_at=rfc3339(self.requested_us),
            sandbox_id=asked.sandbox_id,
            image_id=asked.image_id,
            provider=asked.provider,
            parent_id=asked.parent_id,
            name=asked.name,
            labels=asked.labels,
            root=asked.root,
            include=asked.include,
            exclude=asked.exclude,
            imported=asked.sandbox_id is None,
            places=self.places if self.has_archive else [],
            digest=stored.digest if stored is not None else None,
            size_bytes=stored.size_bytes if stored is not None else 0,
            member_count=stored.member_count if stored is not None else 0,
            content_bytes=stored.content_bytes if stored is not None else 0,
            pause_ms=stored.pause_ms if stored is not None else None,
            remarks=stored.remarks if stored is not None else {},
            error=self.error[1] if self.error else None,
            note=self._note(),
            modal_image_id=stored.modal_image_id if stored is not None and self.has_archive else None,
        )


class ForkState(ObjectState, kw_only=True, array_like=True):
    """The state of a fork: source sandbox or checkpoint, the new sandboxes, and the outcome."""

    lifecycle: ClassVar[Lifecycle[ForkStatus]] = FORK

    fork_id: str
    sandbox_id: str
    owner: str
    sandbox_ids: list[str]
    status: ForkStatus = FORK.first
    pause_ms: float = 0.0
    checkpoint_id: str | None = None
    of_branches: bool = False
    """True if ``branch.create`` makes them; the source may be an image or a snapshot then."""

    @property
    def done(self) -> bool:
        """True if the files of the new sandboxes are complete."""
        return self.status == "ready"
