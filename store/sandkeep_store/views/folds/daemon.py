"""Folds of the daemon's own events."""

from sandkeep import events
from sandkeep_store.views.folds.register import folds
from sandkeep_store.views.state import State
from sandkeep_store.views.view import Fact


@folds(events.OutputRemoveRequested)
def _remove_output(state: State, event: events.OutputRemoveRequested, fact: Fact) -> None:
    state.log.pruning[fact.position] = event.sandboxes


@folds(events.OutputRemoved)
def _end_removal_of_output(state: State, event: events.OutputRemoved, fact: Fact) -> None:
    state.log.pruning.pop(event.position, None)  # the events of old removals are in the archive


@folds(events.DaemonStarted, events.DaemonStopped, events.ProviderFellBack)
def _ignored(state: State, event: events.Event, fact: Fact) -> None:
    """Change nothing."""
