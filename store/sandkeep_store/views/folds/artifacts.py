"""Folds of the events of artifacts."""

from sandkeep import events
from sandkeep_store.views.artifacts import ArtifactState
from sandkeep_store.views.folds.register import advance, folds
from sandkeep_store.views.state import State
from sandkeep_store.views.view import Fact


@folds(events.ArtifactExportRequested)
def _requested(state: State, event: events.ArtifactExportRequested, fact: Fact) -> None:
    state.artifacts[fact.stream] = ArtifactState(
        artifact_id=fact.stream, requested=event, requested_us=fact.time_us, revision=fact.revision
    )


@folds(events.ArtifactExported)
def _exported(state: State, event: events.ArtifactExported, fact: Fact) -> None:
    artifact = advance(state.artifacts, event, fact)
    if artifact is not None:
        artifact.exported = event


@folds(events.ArtifactExportFailed)
def _failed(state: State, event: events.ArtifactExportFailed, fact: Fact) -> None:
    artifact = advance(state.artifacts, event, fact)
    if artifact is not None:
        artifact.fail(event, fact)


@folds(events.ArtifactRemoveRequested, events.ArtifactRemoved)
def _removed(state: State, event: events.ArtifactRemoveRequested | events.ArtifactRemoved, fact: Fact) -> None:
    artifact = advance(state.artifacts, event, fact)
    if artifact is not None and artifact.ended:
        artifact.ended_us = fact.time_us
