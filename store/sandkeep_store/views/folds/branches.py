"""Folds of the events of branches."""

from sandkeep import events
from sandkeep_store.views.branches import CommitState, MergeState
from sandkeep_store.views.folds.register import advance, folds
from sandkeep_store.views.snapshots import ForkState
from sandkeep_store.views.state import State
from sandkeep_store.views.view import Fact


@folds(events.BranchCreateRequested)
def _create_requested(state: State, event: events.BranchCreateRequested, fact: Fact) -> None:
    state.forks[fact.stream] = ForkState(
        fork_id=fact.stream,
        sandbox_id=event.source_id,
        owner=event.owner,
        sandbox_ids=event.sandbox_ids,
        requested_us=fact.time_us,
        revision=fact.revision,
        of_branches=True,
    )


@folds(events.BranchCreated)
def _created(state: State, event: events.BranchCreated, fact: Fact) -> None:
    branches = advance(state.forks, event, fact)
    if branches is not None:
        branches.ended_us, branches.pause_ms = fact.time_us, event.pause_ms


@folds(events.BranchCreateFailed)
def _create_failed(state: State, event: events.BranchCreateFailed, fact: Fact) -> None:
    branches = advance(state.forks, event, fact)
    if branches is not None:
        branches.fail(event, fact)


@folds(events.BranchMergeRequested)
def _merge_requested(state: State, event: events.BranchMergeRequested, fact: Fact) -> None:
    state.merges[fact.stream] = MergeState(
        merge_id=fact.stream, requested=event, requested_us=fact.time_us, revision=fact.revision
    )


@folds(events.BranchConflicted)
def _conflicted(state: State, event: events.BranchConflicted, fact: Fact) -> None:
    merge = advance(state.merges, event, fact)
    if merge is not None:
        merge.conflicts, merge.changed, merge.points = event.conflicts, event.changed, event.points
        merge.record, merge.size_bytes = event.record, event.size_bytes


@folds(events.BranchMerged)
def _merged(state: State, event: events.BranchMerged, fact: Fact) -> None:
    merge = advance(state.merges, event, fact)
    if merge is not None:
        merge.changed, merge.provenance, merge.points = event.changed, event.provenance, event.points
        merge.conflicts, merge.ended_us, merge.record = 0, fact.time_us, None
        merge.sandbox_id = event.sandbox_id


@folds(events.BranchMergeFailed)
def _merge_failed(state: State, event: events.BranchMergeFailed, fact: Fact) -> None:
    merge = advance(state.merges, event, fact)
    if merge is not None:
        merge.fail(event, fact)


@folds(events.BranchResolveRequested)
def _resolve_requested(state: State, event: events.BranchResolveRequested, fact: Fact) -> None:
    merge = advance(state.merges, event, fact)
    if merge is not None:
        merge.resolving, merge.resolve_error, merge.resolve_interrupted = fact.position, None, False


@folds(events.BranchResolved)
def _resolved(state: State, event: events.BranchResolved, fact: Fact) -> None:
    merge = advance(state.merges, event, fact)
    if merge is not None:
        merge.conflicts, merge.changed, merge.record = event.conflicts, event.changed, event.record


@folds(events.BranchResolveFailed)
def _resolve_failed(state: State, event: events.BranchResolveFailed, fact: Fact) -> None:
    merge = advance(state.merges, event, fact)
    if merge is not None:
        merge.resolve_error, merge.resolve_interrupted = (event.code, event.message), event.interrupted


@folds(events.BranchAbandonRequested, events.BranchAbandoned)
def _abandoned(state: State, event: events.BranchAbandonRequested | events.BranchAbandoned, fact: Fact) -> None:
    merge = advance(state.merges, event, fact)
    if merge is not None and merge.ended:
        merge.ended_us = fact.time_us


@folds(events.BranchCommitRequested)
def _commit_requested(state: State, event: events.BranchCommitRequested, fact: Fact) -> None:
    state.commits[fact.stream] = CommitState(
        commit_id=fact.stream, requested=event, requested_us=fact.time_us, revision=fact.revision
    )


@folds(events.BranchCommitted)
def _committed(state: State, event: events.BranchCommitted, fact: Fact) -> None:
    commit = advance(state.commits, event, fact)
    if commit is not None:
        commit.made, commit.ended_us = event, fact.time_us


@folds(events.BranchCommitFailed)
def _commit_failed(state: State, event: events.BranchCommitFailed, fact: Fact) -> None:
    commit = advance(state.commits, event, fact)
    if commit is not None:
        commit.fail(event, fact)
