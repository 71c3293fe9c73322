"""Registration of folds, one for each event type."""

from collections.abc import Callable
from typing import TypeVar

from sandkeep.events import Event
from sandkeep_store.views.state import State
from sandkeep_store.views.view import HANDLERS, Fact

_E = TypeVar("_E", bound=Event)
Fold = Callable[[State, _E, Fact], None]


def folds(kind: type[_E]) -> Callable[[Fold[_E]], Fold[_E]]:
    """Register the fold of one event type. There is exactly one for each."""

    def register(fold: Fold[_E]) -> Fold[_E]:
        if kind in HANDLERS:
            raise TypeError(f"{kind.type} has a fold already")
        HANDLERS[kind] = fold
        return fold

    return register
