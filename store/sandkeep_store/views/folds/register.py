"""Registration of folds, one for each event type."""

from collections.abc import Callable
from typing import Any, TypeVar

from sandkeep.events import Event
from sandkeep_store.views.state import State
from sandkeep_store.views.view import HANDLERS, Fact, ObjectState

_F = TypeVar("_F", bound=Callable[[State, Any, Fact], object])
_S = TypeVar("_S", bound=ObjectState)


def folds(*kinds: type[Event]) -> Callable[[_F], _F]:
    """Register the fold of these event types. There is exactly one for each."""

    def register(fold: _F) -> _F:
        for kind in kinds:
            if kind in HANDLERS:
                raise TypeError(f"{kind.type} has a fold already")
            HANDLERS[kind] = fold
        return fold

    return register


def advance(objects: dict[str, _S], event: Event, fact: Fact) -> _S | None:
    """Move the object of an event's stream on; None for one whose first events are in the archive already."""
    found = objects.get(fact.stream)
    if found is not None:
        found.advance(event, fact)
    return found


def note_in_history(state: State, fact: Fact) -> None:
    """Count an event in the history of its sandbox, whose document changes. It is no activity in the sandbox."""
    sandbox = state.sandboxes.get(fact.sandbox_id or "")
    if sandbox is not None:
        sandbox.position = max(sandbox.position, fact.position)


def advance_in_history(state: State, objects: dict[str, _S], event: Event, fact: Fact) -> _S | None:
    """Move an object of a sandbox on, and note that in the sandbox's history."""
    note_in_history(state, fact)
    return advance(objects, event, fact)
