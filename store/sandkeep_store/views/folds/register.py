"""Registration of folds, one for each event type."""

from collections.abc import Callable
from typing import Any, TypeVar

from sandkeep.events import Event
from sandkeep_store.views.state import State
from sandkeep_store.views.view import HANDLERS, Fact, ObjectState

_F = TypeVar("_F", bound=Callable[[State, Any, Fact], object])
_S = TypeVar("_S", bound=ObjectState)
_C = TypeVar("_C", bound=Callable[[Any, Any, Fact], object])


def folds(*kinds: type[Event]) -> Callable[[_F], _F]:
    """Register the fold of these event types. There is exactly one for each."""

    def register(fold: _F) -> _F:
        for kind in kinds:
            if kind in HANDLERS:
                raise TypeError(f"{kind.type} has a fold already")
            HANDLERS[kind] = fold
        return fold

    return register


def begins(view: str, made: type[ObjectState], kind: type[Event], *, in_history: bool = False) -> None:
    """Register the fold of an intent that makes the object of its stream, whose id is its first field of its own."""
    named = made.__struct_fields__[len(ObjectState.__struct_fields__)]

    @folds(kind)
    def fold(state: State, event: Event, fact: Fact) -> None:
        fields: dict[str, Any] = {named: fact.stream, "requested": event}
        getattr(state, view)[fact.stream] = made(**fields, requested_us=fact.time_us, revision=fact.revision)
        if in_history:
            note_in_history(state, fact)


def changes(view: str, *kinds: type[Event], in_history: bool = False) -> Callable[[_C], _C]:
    """Register a change of the object of an event's stream, which has moved on by then. Without the object, whose first
    events are in the archive, there is no change. `in_history`: see `advance_in_history`.
    """

    def register(change: _C) -> _C:
        @folds(*kinds)
        def fold(state: State, event: Event, fact: Fact) -> None:
            if in_history:
                note_in_history(state, fact)
            found = advance(getattr(state, view), event, fact)
            if found is not None:
                change(found, event, fact)

        return change

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
