"""Folds of the events of daemon."""

from sandkeep import events
from sandkeep_store.views.folds.register import folds
from sandkeep_store.views.state import State
from sandkeep_store.views.view import Fact


@folds(events.DaemonStarted)
def _started(state: State, event: events.DaemonStarted, fact: Fact) -> None:
    """Changes nothing that a view shows."""


@folds(events.ProviderFellBack)
def _fell_back(state: State, event: events.ProviderFellBack, fact: Fact) -> None:
    """Changes nothing that a view shows."""


@folds(events.DaemonStopped)
def _stopped(state: State, event: events.DaemonStopped, fact: Fact) -> None:
    """Changes nothing that a view shows."""
