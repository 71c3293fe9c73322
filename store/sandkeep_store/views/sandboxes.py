"""The view of sandboxes."""

from typing import Any, ClassVar

from msgspec import Struct, field

from sandkeep import events, ids, model
from sandkeep.events import Event
from sandkeep.lifecycle import SANDBOX, Lifecycle
from sandkeep.protocol.clock import optional_rfc3339, rfc3339
from sandkeep_store.views.processes import ProcessState
from sandkeep_store.views.view import Fact, ObjectState


class Change(Struct, kw_only=True):
    """The last request to suspend, resume or restore: its position, the status before, and its outcome or error."""

    position: int
    before: model.SandboxStatus
    done: bool = False
    error: tuple[str, str] | None = None
    interrupted: bool = False


class SnapshotSummary(Struct, kw_only=True, frozen=True, array_like=True):
    """The part of a snapshot's record that a sandbox's own document contains."""

    snapshot_id: str
    created_us: int
    kind: model.SnapshotKind
    parent_id: str | None
    name: str | None
    place: model.Place
    digest: str
    size_bytes: int


class CheckpointSummary(Struct, kw_only=True, frozen=True, array_like=True):
    """The same of a checkpoint."""

    checkpoint_id: str
    created_us: int
    name: str | None
    place: model.Place
    size_bytes: int


class FilesReplaced(Struct, kw_only=True, frozen=True, array_like=True):
    """A moment when a sandbox had the files of a snapshot, or its state in a checkpoint, by that one's id."""

    snapshot_id: str
    position: int
    time_us: int


class SandboxState(ObjectState, kw_only=True):
    """The state of a sandbox. `made` says that it ran once; otherwise it holds nothing. `interrupted`: its creation
    failed only because a daemon ended. While it is `restoring`, `restore` holds its future. The event at `touched` was
    the last activity in it.
    """

    lifecycle: ClassVar[Lifecycle[model.SandboxStatus]] = SANDBOX

    sandbox_id: str
    requested: events.SandboxCreateRequested
    position: int
    last_activity_us: int
    touched: int = 0
    status: model.SandboxStatus = SANDBOX.first
    made: bool = False
    isolation: model.Isolation | None = None
    handle: dict[str, Any] = field(default_factory=dict)
    terminated_reason: str | None = None
    suspended_reason: str | None = None
    last_status: str | None = None
    change: Change | None = None
    restored_from: str | None = None
    restored_us: int = 0
    restore: events.SandboxRestoreRequested | None = None
    snapshots: list[SnapshotSummary] = field(default_factory=list)
    checkpoints: list[CheckpointSummary] = field(default_factory=list)
    files_replaced: list[FilesReplaced] = field(default_factory=list)
    exec_count: int = 0
    active: dict[str, ProcessState] = field(default_factory=dict)
    named: dict[str, ProcessState] = field(default_factory=dict)
    recent_named: list[ProcessState] = field(default_factory=list)  # an empty deque would take 760 bytes
    recent_unnamed: list[ProcessState] = field(default_factory=list)
    limits_met: dict[model.LimitName, int] = field(default_factory=dict)
    moved_to: list[str] | None = None
    seen: model.Sandbox | None = None

    @property
    def name(self) -> str | None:
        """The name given by its owner, or the id, if an older daemon let the caller choose that."""
        return self.requested.name or (None if ids.looks_like_id(self.sandbox_id) else self.sandbox_id)

    @property
    def spec(self) -> model.SandboxSpec:
        """The requested spec."""
        return self.requested.spec

    @property
    def hidden(self) -> bool:
        """True if a plain list leaves it out: it was stopped, or creation failed."""
        return self.status == "stopped" or (self.status == "failed" and not self.made)

    @property
    def needs_image(self) -> bool:
        """True if its image must not be removed."""
        later = self.restore is not None and self.restore.needs_image
        return not self.hidden and (self.requested.needs_image or later)

    @property
    def plans(self) -> list[dict[str, Any]]:
        """The provider's plans: the present one, and the future one of a restore in progress."""
        return [self.requested.plan] + ([self.restore.plan] if self.restore is not None else [])

    @property
    def expires_us(self) -> int | None:
        """The end of its lifetime, in microseconds since 1970; None for never."""
        limit = self.spec.max_lifetime_s
        return None if limit is None else self.requested_us + int(limit * 1e6)

    def advance(self, event: Event, fact: Fact) -> None:
        """See `ObjectState.advance`. It is activity in the sandbox."""
        self.touch(fact)
        before = self.change.before if self.change is not None else None
        self.status, self.revision = SANDBOX.after(event, self.status, before), fact.revision

    def touch(self, fact: Fact) -> None:
        """Record activity; of several facts, in any order, the last in the log counts."""
        self.position = max(self.position, fact.position)
        if fact.position > self.touched:
            self.touched, self.last_activity_us = fact.position, fact.time_us

    def view(self) -> model.Sandbox:
        """Return the sandbox as readers see it. Every change advances `position`, so the result is cached by it."""
        if self.seen is None or self.seen.position != self.position:
            self.seen = self._look()
        return self.seen

    def _look(self) -> model.Sandbox:
        asked = self.requested
        return model.Sandbox(
            sandbox_id=self.sandbox_id,
            image_id=asked.image_id,
            provider=asked.provider,
            status=self.status,
            owner=asked.owner,
            created_at=rfc3339(self.requested_us),
            spec=asked.spec,
            secrets=asked.secrets,
            isolation=self.isolation,
            running_processes=len(self.active),
            exec_count=self.exec_count,
            ended_at=optional_rfc3339(self.ended_us),
            terminated_reason=self.terminated_reason,
            suspended_reason=self.suspended_reason if self.status == "suspended" else None,
            error=self.error[1] if self.error else None,
            position=self.position,
            last_status=self.last_status,
            forked_from=asked.forked_from,
            restored_from=self.restored_from,
            latest_snapshot_id=self.snapshots[-1].snapshot_id if self.snapshots else None,
            latest_checkpoint_id=self.checkpoints[-1].checkpoint_id if self.checkpoints else None,
            name=self.name,
            limits_met=dict(self.limits_met),
            moved_to=self.moved_to,
            expires_at=optional_rfc3339(self.expires_us if self.ended_us is None else None),
            container_id=self.handle.get("container_id"),
            container_name=self._container_name(),
            modal_sandbox_id=self.handle.get("modal_sandbox_id"),
            ssh_address=self.handle.get("ssh_address"),
        )

    def _container_name(self) -> str | None:
        if "container_id" not in self.handle:
            return None
        name = self.handle.get("name") or self.requested.plan.get("name")
        return ids.regular_name(name) if name else None
