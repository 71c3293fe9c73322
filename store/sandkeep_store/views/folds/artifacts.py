"""Folds of the events of artifacts."""

from sandkeep import events
from sandkeep_store.views.artifacts import ArtifactState
from sandkeep_store.views.folds.register import begins, changes
from sandkeep_store.views.view import Fact

begins("artifacts", ArtifactState, events.ArtifactExportRequested)
changes("artifacts", events.ArtifactExportFailed)(ArtifactState.fail)
changes("artifacts", events.ArtifactRemoveRequested, events.ArtifactRemoved)(ArtifactState.end)


@changes("artifacts", events.ArtifactExported)
def _exported(artifact: ArtifactState, event: events.ArtifactExported, fact: Fact) -> None:
    artifact.exported = event
