"""How a view is made: a fold over the log, one handler an event type, all of them pure.

A handler takes the state and one fact and changes the state; it never fails on a fact that the log holds, whatever came
before it, because the log is the truth and the view only follows. States are mutable and lean, since a daemon that
starts folds its whole log; what readers see is made from them on demand (`view`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from sandkeep.events import Event

if TYPE_CHECKING:
    from sandkeep_store.views.state import State


class Fact(Protocol):
    """An event with its place in the log, as the event log hands it out."""

    @property
    def position(self) -> int:
        """Its place in the log."""
        ...

    @property
    def time_us(self) -> int:
        """When it was committed, in microseconds since 1970."""
        ...

    @property
    def stream(self) -> str:
        """The id of the entity it tells about."""
        ...

    @property
    def revision(self) -> int:
        """Its place in that stream, from 1."""
        ...

    @property
    def sandbox_id(self) -> str | None:
        """The sandbox it concerns, if any."""
        ...


Handler = Callable[["State", Any, Fact], None]
HANDLERS: dict[type[Event], Handler] = {}

_E = TypeVar("_E", bound=Event)


def folds(kind: type[_E]) -> Callable[[Callable[["State", _E, Fact], None]], Callable[["State", _E, Fact], None]]:
    """Register the handler of one event type. There is exactly one for each."""

    def register(handler: Callable[["State", _E, Fact], None]) -> Callable[["State", _E, Fact], None]:
        if kind in HANDLERS:
            raise TypeError(f"{kind.type} has a handler already")
        HANDLERS[kind] = handler
        return handler

    return register
