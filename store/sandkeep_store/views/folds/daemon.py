"""Folds of the daemon's own events, which no view shows."""

from sandkeep import events
from sandkeep_store.views.folds.register import folds
from sandkeep_store.views.state import State
from sandkeep_store.views.view import Fact


@folds(events.DaemonStarted, events.DaemonStopped, events.ProviderFellBack)
def _ignored(state: State, event: events.Event, fact: Fact) -> None:
    """Change nothing."""
