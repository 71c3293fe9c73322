"""The view of sandboxes."""

from collections import deque
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from sandkeep import events, ids, model
from sandkeep.protocol.clock import optional_rfc3339, rfc3339
from sandkeep_store.views.processes import ProcessState
from sandkeep_store.views.view import Fact, folds

if TYPE_CHECKING:
    from sandkeep_store.views.state import State


class Change(Struct, kw_only=True):
    """The last order to suspend, resume or restore a sandbox: its position, what the sandbox was before, and whether it
    was carried out, or with what it failed.
    """

    position: int
    before: model.SandboxStatus
    done: bool = False
    error: tuple[str, str] | None = None
    interrupted: bool = False


class KeptSnapshot(Struct, kw_only=True, frozen=True, array_like=True):
    """What a sandbox's own document tells of a snapshot of it that is there."""

    snapshot_id: str
    created_us: int
    kind: model.SnapshotKind
    parent_id: str | None
    name: str | None
    place: model.Place
    digest: str
    size_bytes: int


class KeptCheckpoint(Struct, kw_only=True, frozen=True, array_like=True):
    """The same of a checkpoint."""

    checkpoint_id: str
    created_us: int
    name: str | None
    place: model.Place
    size_bytes: int


class Filled(Struct, kw_only=True, frozen=True, array_like=True):
    """When a sandbox had exactly the files of a snapshot: as it began with them, or as they replaced its own. Or when
    it was what it is in a checkpoint, by the id of that.
    """

    snapshot_id: str
    position: int
    time_us: int


class SandboxState(Struct, kw_only=True):
    """What is known of a sandbox. `made` says that it ran once; one that never did holds nothing. `interrupted`: only
    the end of an earlier daemon kept it from being made. While it is `restoring`, it will be what `restore` says. The
    event at `touched` was the last thing done in it or with it.
    """

    sandbox_id: str
    requested: events.SandboxCreateRequested
    requested_us: int
    revision: int
    position: int
    last_activity_us: int
    touched: int = 0
    status: model.SandboxStatus = "creating"
    made: bool = False
    isolation: model.Isolation | None = None
    handle: dict[str, Any] = field(default_factory=dict)
    ended_us: int | None = None
    terminated_reason: str | None = None
    error: tuple[str, str] | None = None
    last_status: str | None = None
    interrupted: bool = False
    change: Change | None = None
    restored_from: str | None = None
    restored_us: int = 0
    restore: events.SandboxRestoreRequested | None = None
    snapshots: list[KeptSnapshot] = field(default_factory=list)
    checkpoints: list[KeptCheckpoint] = field(default_factory=list)
    filled: list[Filled] = field(default_factory=list)
    exec_count: int = 0
    active: dict[str, ProcessState] = field(default_factory=dict)
    named: dict[str, ProcessState] = field(default_factory=dict)
    recent_named: deque[ProcessState] = field(default_factory=deque)
    recent_unnamed: deque[ProcessState] = field(default_factory=deque)
    seen: model.Sandbox | None = None

    @property
    def owner(self) -> str:
        """Whose it is."""
        return self.requested.owner

    @property
    def name(self) -> str | None:
        """What its owner calls it. The id is that, too, where an older daemon had the caller choose it."""
        return self.requested.name or (None if ids.looks_like_id(self.sandbox_id) else self.sandbox_id)

    @property
    def spec(self) -> model.SandboxSpec:
        """What it was asked to be."""
        return self.requested.spec

    @property
    def hidden(self) -> bool:
        """Whether a plain list leaves it out: it ended in good order, or never came to be."""
        return self.status == "stopped" or (self.status == "failed" and not self.made)

    @property
    def needs_image(self) -> bool:
        """Whether its image has to stay."""
        later = self.restore is not None and self.restore.needs_image
        return not self.hidden and (self.requested.needs_image or later)

    @property
    def plans(self) -> list[dict[str, Any]]:
        """What its provider goes by: its plan, and the one that it is to have, while it is being restored."""
        return [self.requested.plan] + ([self.restore.plan] if self.restore is not None else [])

    def touch(self, fact: Fact) -> None:
        """Something happened in it; of several facts, in whatever order, the last in the log counts."""
        self.position = max(self.position, fact.position)
        if fact.position > self.touched:
            self.touched, self.last_activity_us = fact.position, fact.time_us

    def view(self) -> model.Sandbox:
        """The sandbox as readers see it. Whatever changes it also changes `position`, so the last one is kept."""
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
            error=self.error[1] if self.error else None,
            position=self.position,
            last_status=self.last_status,
            forked_from=asked.forked_from,
            restored_from=self.restored_from,
            latest_snapshot_id=self.snapshots[-1].snapshot_id if self.snapshots else None,
            latest_checkpoint_id=self.checkpoints[-1].checkpoint_id if self.checkpoints else None,
            name=self.name,
        )


@folds(events.SandboxCreateRequested)
def _create_requested(state: "State", event: events.SandboxCreateRequested, fact: Fact) -> None:
    made = state.sandboxes[fact.stream] = SandboxState(
        sandbox_id=fact.stream,
        requested=event,
        requested_us=fact.time_us,
        revision=fact.revision,
        position=fact.position,
        last_activity_us=fact.time_us,
        touched=fact.position,
        restored_from=event.restored_from,
    )
    state.note_name(made)


@folds(events.SandboxCreated)
def _created(state: "State", event: events.SandboxCreated, fact: Fact) -> None:
    sandbox = _advance(state, fact, "running")
    if sandbox is not None:
        sandbox.made, sandbox.isolation, sandbox.handle = True, event.isolation, event.handle
        _note_filled(sandbox, sandbox.restored_from, fact)


@folds(events.SandboxCreateFailed)
def _create_failed(state: "State", event: events.SandboxCreateFailed, fact: Fact) -> None:
    sandbox = _end(state, fact, "failed", (event.code, event.message))
    if sandbox is not None:
        sandbox.interrupted = event.interrupted


@folds(events.SandboxAdopted)
def _adopted(state: "State", event: events.SandboxAdopted, fact: Fact) -> None:
    _advance(state, fact)


@folds(events.SandboxFailed)
def _failed(state: "State", event: events.SandboxFailed, fact: Fact) -> None:
    _end(state, fact, "failed", ("provider_unavailable", event.message))


@folds(events.SandboxLost)
def _lost(state: "State", event: events.SandboxLost, fact: Fact) -> None:
    sandbox = _end(state, fact, "lost", ("provider_unavailable", event.message))
    if sandbox is not None:
        sandbox.last_status = event.last_status


@folds(events.SandboxSuspendRequested)
def _suspend_requested(state: "State", event: events.SandboxSuspendRequested, fact: Fact) -> None:
    _begin_change(state, fact, "suspending")


@folds(events.SandboxSuspended)
def _suspended(state: "State", event: events.SandboxSuspended, fact: Fact) -> None:
    _finish_change(state, fact)
    _advance(state, fact, "suspended")


@folds(events.SandboxSuspendFailed)
def _suspend_failed(state: "State", event: events.SandboxSuspendFailed, fact: Fact) -> None:
    _undo_change(state, event, fact)


@folds(events.SandboxResumeRequested)
def _resume_requested(state: "State", event: events.SandboxResumeRequested, fact: Fact) -> None:
    _begin_change(state, fact, "resuming")


@folds(events.SandboxResumed)
def _resumed(state: "State", event: events.SandboxResumed, fact: Fact) -> None:
    _finish_change(state, fact)
    sandbox = _advance(state, fact, "running")
    if sandbox is not None:
        sandbox.ended_us = sandbox.error = None
        sandbox.isolation = event.isolation or sandbox.isolation
        sandbox.handle = sandbox.handle if event.handle is None else event.handle


@folds(events.SandboxResumeFailed)
def _resume_failed(state: "State", event: events.SandboxResumeFailed, fact: Fact) -> None:
    _undo_change(state, event, fact)


@folds(events.SandboxRestoreRequested)
def _restore_requested(state: "State", event: events.SandboxRestoreRequested, fact: Fact) -> None:
    sandbox = state.sandboxes.get(fact.stream)
    if sandbox is not None:
        sandbox.restore = event
    _begin_change(state, fact, "restoring")


@folds(events.SandboxRestored)
def _restored(state: "State", event: events.SandboxRestored, fact: Fact) -> None:
    _finish_change(state, fact)
    sandbox = _advance(state, fact, "running")
    if sandbox is None:
        return
    asked, sandbox.restore = sandbox.restore, None
    if asked is not None:
        sandbox.requested = replace(sandbox.requested, plan=asked.plan, needs_image=asked.needs_image)
    sandbox.restored_from, sandbox.ended_us, sandbox.error = event.checkpoint_id or event.snapshot_id, None, None
    sandbox.restored_us = fact.time_us
    _note_filled(sandbox, event.checkpoint_id or event.snapshot_id, fact)
    sandbox.isolation, sandbox.handle = event.isolation, event.handle


@folds(events.SandboxRestoreFailed)
def _restore_failed(state: "State", event: events.SandboxRestoreFailed, fact: Fact) -> None:
    _undo_change(state, event, fact)
    sandbox = state.sandboxes.get(fact.stream)
    if sandbox is not None:
        sandbox.restore = None
    if event.ended:
        _end(state, fact, "failed", (event.code, event.message))


@folds(events.SandboxFileWritten)
def _file_written(state: "State", event: events.SandboxFileWritten, fact: Fact) -> None:
    sandbox = state.sandboxes.get(fact.sandbox_id or "")
    if sandbox is not None:
        sandbox.touch(fact)


@folds(events.SandboxTerminateRequested)
def _terminate_requested(state: "State", event: events.SandboxTerminateRequested, fact: Fact) -> None:
    sandbox = _advance(state, fact, "stopping")
    if sandbox is not None:
        sandbox.terminated_reason = event.reason


@folds(events.SandboxTerminated)
def _terminated(state: "State", event: events.SandboxTerminated, fact: Fact) -> None:
    sandbox = _advance(state, fact, "stopped")
    if sandbox is not None:
        sandbox.terminated_reason, sandbox.ended_us = event.reason, fact.time_us


def note_in_history(state: "State", fact: Fact) -> None:
    """What is filed under a sandbox is in its history, and its document changes. It does not count as something done
    in it.
    """
    sandbox = state.sandboxes.get(fact.sandbox_id or "")
    if sandbox is not None:
        sandbox.position = max(sandbox.position, fact.position)


def _note_filled(sandbox: SandboxState, snapshot_id: str | None, fact: Fact) -> None:
    if snapshot_id is not None:
        sandbox.filled.append(Filled(snapshot_id=snapshot_id, position=fact.position, time_us=fact.time_us))


def _begin_change(state: "State", fact: Fact, status: model.SandboxStatus) -> None:
    sandbox = state.sandboxes.get(fact.stream)
    if sandbox is not None:
        sandbox.change = Change(position=fact.position, before=sandbox.status)
    _advance(state, fact, status)


def _finish_change(state: "State", fact: Fact) -> None:
    sandbox = state.sandboxes.get(fact.stream)
    if sandbox is not None and sandbox.change is not None and sandbox.status in ("suspending", "resuming", "restoring"):
        sandbox.change.done = True


def _undo_change(
    state: "State",
    event: events.SandboxSuspendFailed | events.SandboxResumeFailed | events.SandboxRestoreFailed,
    fact: Fact,
) -> None:
    sandbox = state.sandboxes.get(fact.stream)
    change = sandbox.change if sandbox is not None else None
    if change is not None:
        change.error, change.interrupted = (event.code, event.message), event.interrupted
    _advance(state, fact, change.before if change is not None else None)


def _end(state: "State", fact: Fact, status: model.SandboxStatus, error: tuple[str, str]) -> SandboxState | None:
    sandbox = _advance(state, fact, status)
    if sandbox is not None:
        sandbox.error, sandbox.ended_us = error, fact.time_us
    return sandbox


def _advance(state: "State", fact: Fact, status: model.SandboxStatus | None = None) -> SandboxState | None:
    """Move a sandbox on; None for one whose first events are in the archive already, as all of them soon will be."""
    sandbox = state.sandboxes.get(fact.stream)
    if sandbox is not None:
        sandbox.revision = fact.revision
        sandbox.touch(fact)
        sandbox.status = status or sandbox.status
    return sandbox
