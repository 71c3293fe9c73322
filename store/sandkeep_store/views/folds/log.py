"""Folds of the events of log."""

from collections.abc import Callable
from typing import TypeVar

from sandkeep import events
from sandkeep.events import Event
from sandkeep_store.views.artifacts import ArtifactState
from sandkeep_store.views.blanks import REDACTED, redact_event
from sandkeep_store.views.branches import CommitState, MergeState
from sandkeep_store.views.checkpoints import CheckpointState
from sandkeep_store.views.folds.locks import forget_before
from sandkeep_store.views.folds.register import folds
from sandkeep_store.views.images import ImageState
from sandkeep_store.views.processes import ProcessState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.sessions import SessionState
from sandkeep_store.views.snapshots import SnapshotState
from sandkeep_store.views.state import State
from sandkeep_store.views.view import Fact
from sandkeep_store.views.volumes import forget_volumes_before

_E = TypeVar("_E", bound=Event)


_Fold = Callable[[State, _E, Fact], None]


def _folds(kind: type[_E]) -> Callable[[_Fold[_E]], _Fold[_E]]:
    """Register a handler of an event of the log's own, which also advances the object that has the stream."""

    def register(handler: _Fold[_E]) -> _Fold[_E]:
        @folds(kind)
        def fold(state: State, event: _E, fact: Fact) -> None:
            handler(state, event, fact)
            for held in (
                state.sandboxes, state.images, state.snapshots, state.checkpoints, state.locks, state.forks,
                state.sessions, state.artifacts, state.merges, state.commits, state.volumes,
            ):  # fmt: skip
                found = held.get(fact.stream)
                if found is not None:
                    found.revision = fact.revision

        return handler

    return register


@_folds(events.LogCompactRequested)
def _compact_requested(state: State, event: events.LogCompactRequested, fact: Fact) -> None:
    log = state.log
    log.archived_before_us = max(log.archived_before_us, event.before_us)
    log.compacting, log.leaving = True, event.sandboxes
    for image_id in event.images:
        state.images.pop(image_id, None)
    _forget_snapshots(state, set(event.snapshots), set(event.sandboxes))
    for artifact_id in event.artifacts:
        state.artifacts.pop(artifact_id, None)
    for key in event.sessions:
        state.forget_session(key)
    forget_before(state, event.before_us)
    forget_volumes_before(state.volumes, event.before_us)
    without_sandbox, without_name = set(), True
    for sandbox_id in event.sandboxes:
        sandbox = state.sandboxes.pop(sandbox_id, None)
        if sandbox is None:
            without_sandbox.add(sandbox_id)
            continue
        for process in (*sandbox.active.values(), *sandbox.recent_named, *sandbox.recent_unnamed):
            state.processes.pop(process.process_id, None)
        without_name = without_name and sandbox.name is None
    if not without_name:
        state.index_names()
    if without_sandbox:  # their events are half gone
        gone = [process_id for process_id, of in state.processes.items() if of.sandbox_id in without_sandbox]
        for process_id in gone:
            del state.processes[process_id]


def _forget_snapshots(state: State, ended: set[str], sandboxes: set[str]) -> None:
    """Those that are named, and all of sandboxes that are."""
    for held in (state.snapshots, state.checkpoints, state.forks):
        gone = [name for name, of in held.items() if name in ended or of.sandbox_id in sandboxes]
        for name in gone:
            del held[name]
    for name in ended:
        state.merges.pop(name, None)
        state.commits.pop(name, None)


@_folds(events.LogRedactRequested)
def _redact_requested(state: State, event: events.LogRedactRequested, fact: Fact) -> None:
    state.log.redacting = [*state.log.redacting, event.position]


@_folds(events.LogRedacted)
def _redacted(state: State, event: events.LogRedacted, fact: Fact) -> None:
    """Forget redacted data in the views."""
    state.log.redacting = [position for position in state.log.redacting if position != event.position]
    for held in (
        state.images, state.sandboxes, state.processes, state.snapshots, state.checkpoints, state.sessions,
        state.artifacts, state.merges, state.commits,
    ):  # fmt: skip
        entity = held.get(event.of)
        if entity is not None:
            _blank(entity, event)
    image, sandbox, process = state.images.get(event.of), state.sandboxes.get(event.of), state.processes.get(event.of)
    for order in (state.locks.get(event.of), state.volumes.get(event.of)):
        if order is not None and order.error is not None and event.time_us == order.ended_us:
            order.error = (order.error[0], REDACTED)
    if image is not None and image.created is not None and event.what == events.ImageCreated.type:
        image.created = redact_event(image.created)
    if sandbox is not None:
        sandbox.seen = None
    if process is not None and event.what == events.ProcessRestored.type and event.time_us == process.requested_us:
        process.requested = redact_event(process.requested)


def _blank(
    entity: "ImageState | SandboxState | ProcessState | SnapshotState | CheckpointState | SessionState | ArtifactState"
    " | MergeState | CommitState",
    redacted: events.LogRedacted,
) -> None:
    """Blank the redacted field. The times distinguish an earlier object with the same id."""
    if redacted.what == entity.requested.type:
        if redacted.time_us == entity.requested_us:
            entity.requested = redact_event(entity.requested)
    elif redacted.what.endswith(("failed", "lost")) and redacted.time_us >= entity.requested_us:
        entity.error = (entity.error[0], REDACTED) if entity.error else None


@_folds(events.LogEventLost)
def _event_lost(state: State, event: events.LogEventLost, fact: Fact) -> None:
    """Change nothing: the lost event is unknown."""


@_folds(events.LogCompacted)
def _compacted(state: State, event: events.LogCompacted, fact: Fact) -> None:
    state.log.compacting, state.log.leaving = False, []
