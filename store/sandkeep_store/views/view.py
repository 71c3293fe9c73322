"""Views: folds over the log, one for each event type, all of them pure.

A fold takes the state and one fact and changes the state; it never fails on a fact in the log, whatever came before it,
because the log is the truth and the view only follows. States are mutable and lean, since a starting daemon folds its
whole log; `view` makes the models for readers on demand.
"""

from collections.abc import Callable
from typing import Any, Protocol

from sandkeep.events import Event


class Fact(Protocol):
    """An event with its place in the log, as the event log hands it out."""

    @property
    def position(self) -> int:
        """Its place in the log."""
        ...

    @property
    def time_us(self) -> int:
        """Time of the commit, in microseconds since 1970."""
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


HANDLERS: dict[type[Event], Callable[[Any, Any, Fact], None]] = {}
"""The fold of each event type, of a state, an event and its fact; `folds.register` puts them here."""
