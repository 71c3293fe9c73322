"""The view of snapshots."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from sandkeep import events, model
from sandkeep.protocol.clock import rfc3339
from sandkeep_store.views.sandboxes import KeptSnapshot, note_in_history
from sandkeep_store.views.view import Fact, folds

if TYPE_CHECKING:
    from sandkeep_store.views.state import State


class SnapshotState(Struct, kw_only=True, array_like=True):
    """What is known of a snapshot. `kept` says of one that was deleted that its archive is still there, for those that
    build on it. `sent`: what was on this machine alone at first is where it was to be. At `stored_position`, which was
    at `stored_us`, it was complete.
    """

    snapshot_id: str
    requested: events.SnapshotCreateRequested
    requested_us: int
    revision: int
    status: model.SnapshotStatus = "creating"
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
        return self.status in ("failed", "deleted")

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

    fork_id: str
    sandbox_id: str
    owner: str
    sandbox_ids: list[str]
    revision: int
    done: bool = False
    pause_ms: float = 0.0
    error: tuple[str, str] | None = None
    interrupted: bool = False
    ended_us: int | None = None
    checkpoint_id: str | None = None


def chain(state: "State", snapshot: SnapshotState) -> Iterator[SnapshotState]:
    """A snapshot and all that it builds on, down to the full one or to the last above an image."""
    found: SnapshotState | None = snapshot
    while found is not None:
        yield found
        parent_id = found.requested.parent_id
        found = state.snapshots.get(parent_id) if parent_id is not None else None


def children(state: "State", snapshot_id: str) -> Iterator[SnapshotState]:
    """The snapshots that build on one and whose archives are there, or are to be."""
    for other in state.snapshots.values():
        if other.requested.parent_id == snapshot_id and other.alive:
            yield other


@folds(events.SnapshotCreateRequested)
def _requested(state: "State", event: events.SnapshotCreateRequested, fact: Fact) -> None:
    snapshot_id = fact.stream
    state.snapshots[snapshot_id] = SnapshotState(
        snapshot_id=snapshot_id, requested=event, requested_us=fact.time_us, revision=fact.revision
    )
    note_in_history(state, fact)


@folds(events.SnapshotStored)
def _stored(state: "State", event: events.SnapshotStored, fact: Fact) -> None:
    snapshot = _advance(state, fact, "ready")
    if snapshot is None:
        return
    snapshot.stored, snapshot.stored_position, snapshot.stored_us = event, fact.position, fact.time_us
    if event.places:
        snapshot.requested = replace(snapshot.requested, places=event.places)
    sandbox = state.sandboxes.get(fact.sandbox_id or "")
    if sandbox is not None:
        sandbox.snapshots.append(_kept(snapshot, event))


def _kept(snapshot: SnapshotState, event: events.SnapshotStored) -> KeptSnapshot:
    return KeptSnapshot(
        snapshot_id=snapshot.snapshot_id,
        created_us=snapshot.requested_us,
        kind=snapshot.requested.kind,
        parent_id=snapshot.requested.parent_id,
        name=snapshot.requested.name,
        place=snapshot.places[0],
        digest=event.digest,
        size_bytes=event.size_bytes,
    )


@folds(events.SnapshotSent)
def _sent(state: "State", event: events.SnapshotSent, fact: Fact) -> None:
    snapshot = _advance(state, fact, None)
    if snapshot is None:
        return
    snapshot.sent = True
    sandbox = state.sandboxes.get(fact.sandbox_id or "")
    for at, kept in enumerate(sandbox.snapshots if sandbox is not None else ()):
        if sandbox is not None and kept.snapshot_id == snapshot.snapshot_id:
            sandbox.snapshots[at] = replace(kept, place=snapshot.places[0])


@folds(events.SnapshotFailed)
def _failed(state: "State", event: events.SnapshotFailed, fact: Fact) -> None:
    snapshot = _advance(state, fact, "failed")
    if snapshot is not None:
        snapshot.error, snapshot.interrupted = (event.code, event.message), event.interrupted
        snapshot.ended_us = fact.time_us


@folds(events.SnapshotDeleteRequested)
def _delete_requested(state: "State", event: events.SnapshotDeleteRequested, fact: Fact) -> None:
    snapshot = _advance(state, fact, "deleting")
    sandbox = state.sandboxes.get(fact.sandbox_id or "")
    if snapshot is not None and sandbox is not None:
        sandbox.snapshots = [kept for kept in sandbox.snapshots if kept.snapshot_id != snapshot.snapshot_id]


@folds(events.SnapshotDeleted)
def _deleted(state: "State", event: events.SnapshotDeleted, fact: Fact) -> None:
    snapshot = _advance(state, fact, "deleted")
    if snapshot is not None:
        snapshot.ended_us, snapshot.kept = fact.time_us, event.kept


@folds(events.ArchiveRemoveRequested)
def _remove_requested(state: "State", event: events.ArchiveRemoveRequested, fact: Fact) -> None:
    state.log.removing.append(fact.position)


@folds(events.ArchiveRemoved)
def _removed(state: "State", event: events.ArchiveRemoved, fact: Fact) -> None:
    _end_removal(state, event.position)


@folds(events.ArchiveRemoveFailed)
def _remove_failed(state: "State", event: events.ArchiveRemoveFailed, fact: Fact) -> None:
    _end_removal(state, event.position)


def _end_removal(state: "State", position: int) -> None:
    if position in state.log.removing:  # the events of old removals are in the archive
        state.log.removing.remove(position)


@folds(events.SandboxForkRequested)
def _fork_requested(state: "State", event: events.SandboxForkRequested, fact: Fact) -> None:
    source = state.sandboxes.get(fact.sandbox_id or "")
    if source is not None:
        state.forks[fact.stream] = ForkState(
            fork_id=fact.stream,
            sandbox_id=source.sandbox_id,
            owner=source.owner,
            sandbox_ids=event.sandbox_ids,
            revision=fact.revision,
        )
        source.touch(fact)


@folds(events.SandboxForked)
def _forked(state: "State", event: events.SandboxForked, fact: Fact) -> None:
    fork = end_fork(state, fact)
    if fork is not None:
        fork.done, fork.pause_ms = True, event.pause_ms


@folds(events.SandboxForkFailed)
def _fork_failed(state: "State", event: events.SandboxForkFailed, fact: Fact) -> None:
    fork = end_fork(state, fact)
    if fork is not None:
        fork.error, fork.interrupted = (event.code, event.message), event.interrupted


def end_fork(state: "State", fact: Fact) -> ForkState | None:
    """Take note of when a fork, or a restore of a checkpoint, ended; None for one whose first events are in the archive
    already.
    """
    fork = state.forks.get(fact.stream)
    if fork is not None:
        fork.revision, fork.ended_us = fact.revision, fact.time_us
    note_in_history(state, fact)
    return fork


def _advance(state: "State", fact: Fact, status: model.SnapshotStatus | None) -> SnapshotState | None:
    """Move a snapshot on; None for one whose first events are in the archive already."""
    snapshot = state.snapshots.get(fact.stream)
    if snapshot is not None:
        snapshot.status, snapshot.revision = status or snapshot.status, fact.revision
    note_in_history(state, fact)
    return snapshot
