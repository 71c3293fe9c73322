"""Folds of the events of branches."""

from sandkeep import events
from sandkeep_store.views.branches import CommitState, MergeState
from sandkeep_store.views.folds.register import begins, changes, folds
from sandkeep_store.views.snapshots import ForkState
from sandkeep_store.views.state import State
from sandkeep_store.views.view import Fact

begins("merges", MergeState, events.BranchMergeRequested)
changes("merges", events.BranchMergeFailed)(MergeState.fail)
changes("merges", events.BranchAbandonRequested, events.BranchAbandoned)(MergeState.end)
begins("commits", CommitState, events.BranchCommitRequested)
changes("commits", events.BranchCommitFailed)(CommitState.fail)
changes("forks", events.BranchCreateFailed)(ForkState.fail)


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


@changes("forks", events.BranchCreated)
def _created(branches: ForkState, event: events.BranchCreated, fact: Fact) -> None:
    branches.ended_us, branches.pause_ms = fact.time_us, event.pause_ms


@changes("merges", events.BranchConflicted)
def _conflicted(merge: MergeState, event: events.BranchConflicted, fact: Fact) -> None:
    merge.conflicts, merge.changed, merge.points = event.conflicts, event.changed, event.points
    merge.record, merge.size_bytes, merge.dropped = event.record, event.size_bytes, event.dropped


@changes("merges", events.BranchMerged)
def _merged(merge: MergeState, event: events.BranchMerged, fact: Fact) -> None:
    merge.changed, merge.provenance, merge.points = event.changed, event.provenance, event.points
    merge.conflicts, merge.ended_us, merge.record = 0, fact.time_us, None
    merge.sandbox_id, merge.dropped = event.sandbox_id, event.dropped


@changes("merges", events.BranchResolveRequested)
def _resolve_requested(merge: MergeState, event: events.BranchResolveRequested, fact: Fact) -> None:
    merge.resolving, merge.resolve_error, merge.resolve_interrupted = fact.position, None, False


@changes("merges", events.BranchResolved)
def _resolved(merge: MergeState, event: events.BranchResolved, fact: Fact) -> None:
    merge.conflicts, merge.changed, merge.record = event.conflicts, event.changed, event.record
    merge.dropped = event.dropped


@changes("merges", events.BranchResolveFailed)
def _resolve_failed(merge: MergeState, event: events.BranchResolveFailed, fact: Fact) -> None:
    merge.resolve_error, merge.resolve_interrupted = (event.code, event.message), event.interrupted


@changes("commits", events.BranchCommitted)
def _committed(commit: CommitState, event: events.BranchCommitted, fact: Fact) -> None:
    commit.made, commit.ended_us = event, fact.time_us
