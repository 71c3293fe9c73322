"""The view of snapshots."""

from typing import ClassVar

from msgspec import Struct

from sandkeep import events, model
from sandkeep.lifecycle import FORK, SNAPSHOT, ForkStatus, Lifecycle
from sandkeep.protocol.clock import rfc3339


class SnapshotState(Struct, kw_only=True, array_like=True):
    """What is known of a snapshot. `kept` says of one that was deleted that its archive is still there, for those that
    build on it. `sent`: what was on this machine alone at first is where it was to be. At `stored_position`, which was
    at `stored_us`, it was complete.
    """

    lifecycle: ClassVar[Lifecycle[model.SnapshotStatus]] = SNAPSHOT

    snapshot_id: str
    requested: events.SnapshotCreateRequested
    requested_us: int
    revision: int
    status: model.SnapshotStatus = SNAPSHOT.first
    stored: events.SnapshotStored | None = None
    error: tuple[str, str] | None = None
    interrupted: bool = False
    ended_us: int | None = None
    kept: bool = False
    sent: bool = False
    stored_position: int = 0
    stored_us: int = 0

    @property
    def owner(self) -> str:
        """Whose it is."""
        return self.requested.owner

    @property
    def sandbox_id(self) -> str | None:
        """Whose files they were; None for what came from elsewhere."""
        return self.requested.sandbox_id

    @property
    def ended(self) -> bool:
        """Whether a plain list leaves it out."""
        return self.status in SNAPSHOT.final

    @property
    def has_archive(self) -> bool:
        """Whether its archive is there, or should be."""
        return self.stored is not None and (self.status in ("ready", "deleting") or self.kept)

    @property
    def here(self) -> model.Place | None:
        """Where its archive is on this machine alone, as long as it is to be sent elsewhere."""
        return self.stored.here if self.stored is not None and self.has_archive and not self.sent else None

    @property
    def why_here(self) -> str | None:
        """That this is so, and why, in words that follow a name."""
        if self.here is None or self.stored is None:
            return None
        target = self.requested.places[0].uri
        return f"is on this machine alone so far, and is sent to {target} as soon as that works: {self.stored.unsent}"

    @property
    def places(self) -> list[model.Place]:
        """Where its archive is, or is about to be."""
        return [self.here] if self.here is not None else self.requested.places

    @property
    def traces(self) -> list[model.Place]:
        """Wherever there may be something of it."""
        here = self.stored.here if self.stored is not None else None
        return [*self.requested.places, *([here] if here is not None else [])]

    @property
    def alive(self) -> bool:
        """Whether there is something of it, or is about to be."""
        return self.status == "creating" or self.has_archive

    def needs_image(self, image_id: str) -> bool:
        """Whether it holds only what differs from that image."""
        asked = self.requested
        return asked.kind == "incremental" and asked.parent_id is None and asked.image_id == image_id

    @property
    def format(self) -> model.ArchiveFormat:
        """What its archive is, or is to be."""
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
        )


class ForkState(Struct, kw_only=True, array_like=True):
    """What is known of a fork: of which sandbox, or checkpoint of it, into which others, and what came of it."""

    lifecycle: ClassVar[Lifecycle[ForkStatus]] = FORK

    fork_id: str
    sandbox_id: str
    owner: str
    sandbox_ids: list[str]
    revision: int
    status: ForkStatus = FORK.first
    pause_ms: float = 0.0
    error: tuple[str, str] | None = None
    interrupted: bool = False
    ended_us: int | None = None
    checkpoint_id: str | None = None

    @property
    def done(self) -> bool:
        """Tell if what the sandboxes begin with is there."""
        return self.status == "ready"
