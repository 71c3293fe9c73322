"""Folds of the events of sandboxes."""

from collections.abc import Mapping
from typing import get_args

from msgspec.structs import replace

from sandkeep import events, model
from sandkeep.events import Event
from sandkeep.model import LimitField
from sandkeep_store.views.folds.register import advance, changes, folds
from sandkeep_store.views.sandboxes import Change, FilesReplaced, SandboxState
from sandkeep_store.views.state import State
from sandkeep_store.views.view import Fact

changes("sandboxes", events.SandboxCreateFailed)(SandboxState.fail)


@folds(events.SandboxCreateRequested)
def _create_requested(state: State, event: events.SandboxCreateRequested, fact: Fact) -> None:
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
    state.index_name(made)


@changes("sandboxes", events.SandboxCreated)
def _created(sandbox: SandboxState, event: events.SandboxCreated, fact: Fact) -> None:
    sandbox.made, sandbox.isolation, sandbox.handle = True, event.isolation, event.handle
    _note_files_replaced(sandbox, sandbox.restored_from, fact)


@changes("sandboxes", events.SandboxFailed, events.SandboxLost)
def _failed(sandbox: SandboxState, event: events.SandboxFailed | events.SandboxLost, fact: Fact) -> None:
    sandbox.error, sandbox.ended_us = ("provider_unavailable", event.message), fact.time_us
    if isinstance(event, events.SandboxLost):
        sandbox.last_status = event.last_status


@folds(events.SandboxSuspended)
def _suspended(state: State, event: events.SandboxSuspended, fact: Fact) -> None:
    _finish_change(state, fact)
    sandbox = advance(state.sandboxes, event, fact)
    if sandbox is not None:
        sandbox.suspended_reason = event.reason


@folds(events.SandboxResumed)
def _resumed(state: State, event: events.SandboxResumed, fact: Fact) -> None:
    _finish_change(state, fact)
    sandbox = advance(state.sandboxes, event, fact)
    if sandbox is not None:
        sandbox.ended_us = sandbox.error = None
        sandbox.isolation = event.isolation or sandbox.isolation
        sandbox.handle = sandbox.handle if event.handle is None else event.handle


@changes("sandboxes", events.SandboxUpdated)
def _updated(sandbox: SandboxState, event: events.SandboxUpdated, fact: Fact) -> None:
    named = {name: getattr(event, name) for name in get_args(LimitField)}
    given = {name: limit for name, limit in named.items() if limit is not None or name in event.unset}
    sandbox.requested = replace(sandbox.requested, spec=replace(sandbox.spec, **given), plan=event.plan)
    sandbox.isolation = _with_limits(sandbox.isolation, given)


def _with_limits(isolation: model.Isolation | None, given: Mapping[str, object]) -> model.Isolation | None:
    """Return the isolation of a sandbox whose limits were changed: control groups enforce those, but for the disk's."""
    if isolation is None:
        return None
    held = {name.removesuffix("_bytes"): "cgroup" for name, limit in given.items() if limit is not None}
    held.pop("disk", None)
    return replace(isolation, limits={**isolation.limits, **held})


@folds(events.SandboxRestoreRequested)
def _restore_requested(state: State, event: events.SandboxRestoreRequested, fact: Fact) -> None:
    sandbox = state.sandboxes.get(fact.stream)
    if sandbox is not None:
        sandbox.restore = event
    _begin_change(state, event, fact)


@folds(events.SandboxRestored)
def _restored(state: State, event: events.SandboxRestored, fact: Fact) -> None:
    _finish_change(state, fact)
    sandbox = advance(state.sandboxes, event, fact)
    if sandbox is None:
        return
    asked, sandbox.restore = sandbox.restore, None
    if asked is not None:
        sandbox.requested = replace(sandbox.requested, plan=asked.plan, needs_image=asked.needs_image)
    sandbox.restored_from, sandbox.ended_us, sandbox.error = event.checkpoint_id or event.snapshot_id, None, None
    sandbox.restored_us = fact.time_us
    _note_files_replaced(sandbox, event.checkpoint_id or event.snapshot_id, fact)
    sandbox.isolation, sandbox.handle = event.isolation, event.handle


@folds(events.SandboxRestoreFailed)
def _restore_failed(state: State, event: events.SandboxRestoreFailed, fact: Fact) -> None:
    _undo_change(state, event, fact)
    sandbox = state.sandboxes.get(fact.stream)
    if sandbox is not None:
        sandbox.restore = None
        if event.ended:
            sandbox.error, sandbox.ended_us = (event.code, event.message), fact.time_us


@folds(events.SandboxFileWritten)
def _file_written(state: State, event: events.SandboxFileWritten, fact: Fact) -> None:
    sandbox = state.sandboxes.get(fact.sandbox_id or "")
    if sandbox is not None:
        sandbox.touch(fact)


@changes("sandboxes", events.SandboxMoved)
def _moved(sandbox: SandboxState, event: events.SandboxMoved, fact: Fact) -> None:
    sandbox.moved_to = event.to


@changes("sandboxes", events.SandboxTerminateRequested, events.SandboxTerminated)
def _terminated(
    sandbox: SandboxState, event: events.SandboxTerminateRequested | events.SandboxTerminated, fact: Fact
) -> None:
    sandbox.terminated_reason = event.reason
    if isinstance(event, events.SandboxTerminated):
        sandbox.ended_us = fact.time_us


def _note_files_replaced(sandbox: SandboxState, snapshot_id: str | None, fact: Fact) -> None:
    if snapshot_id is not None:
        sandbox.files_replaced.append(
            FilesReplaced(snapshot_id=snapshot_id, position=fact.position, time_us=fact.time_us)
        )


@folds(events.SandboxSuspendRequested, events.SandboxResumeRequested)
def _begin_change(state: State, event: Event, fact: Fact) -> None:
    sandbox = state.sandboxes.get(fact.stream)
    if sandbox is not None:
        sandbox.change = Change(position=fact.position, before=sandbox.status)
    advance(state.sandboxes, event, fact)


def _finish_change(state: State, fact: Fact) -> None:
    sandbox = state.sandboxes.get(fact.stream)
    if sandbox is not None and sandbox.change is not None and sandbox.status in ("suspending", "resuming", "restoring"):
        sandbox.change.done = True


@folds(events.SandboxSuspendFailed, events.SandboxResumeFailed)
def _undo_change(
    state: State,
    event: events.SandboxSuspendFailed | events.SandboxResumeFailed | events.SandboxRestoreFailed,
    fact: Fact,
) -> None:
    sandbox = state.sandboxes.get(fact.stream)
    change = sandbox.change if sandbox is not None else None
    if change is not None:
        change.error, change.interrupted = (event.code, event.message), event.interrupted
    advance(state.sandboxes, event, fact)


@folds(events.SandboxAdopted)
def _adopted(state: State, event: events.SandboxAdopted, fact: Fact) -> None:
    advance(state.sandboxes, event, fact)
