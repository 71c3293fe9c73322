"""Views: folds over the log, one for each event type, all of them pure.

A fold takes the state and one fact and changes the state; it never fails on a fact in the log, whatever came before it,
because the log is the truth and the view only follows. States are mutable and lean, since a starting daemon folds its
whole log; `view` makes the models for readers on demand.
"""

from collections.abc import Callable
from typing import Any, ClassVar, cast

from msgspec import Struct

from sandkeep.events import Event
from sandkeep.lifecycle import Lifecycle


class Fact(Struct, frozen=True, gc=False):
    """The place of an event in the log: all that a fold asks of it beside the event itself.

    `time_us` is the time of the commit, in microseconds since 1970. `stream` is the id of the object it tells about,
    `revision` the event's place in that stream, from 1. `sandbox_id` is the sandbox that it concerns, if any.
    """

    position: int
    time_us: int
    stream: str
    revision: int
    sandbox_id: str | None


class ObjectState(Struct, kw_only=True, array_like=True):
    """The part of a view that all objects with a lifecycle have. `error` is a code and a message; `interrupted` says
    that it failed only because a daemon ended.
    """

    lifecycle: ClassVar[Lifecycle[Any]]

    status: Any
    requested_us: int
    revision: int
    error: tuple[str, str] | None = None
    interrupted: bool = False
    ended_us: int | None = None

    @property
    def owner(self) -> str:
        """The owner, by its `requested` event."""
        owner: str = cast("Any", self).requested.owner
        return owner

    @property
    def ended(self) -> bool:
        """True in a final state. A plain list leaves it out."""
        return self.status in self.lifecycle.final

    def ended_before(self, time_us: int) -> bool:
        """Return True if it ended before a moment."""
        return self.ended_us is not None and self.ended_us < time_us

    def advance(self, event: Event, fact: Fact) -> None:
        """Move to the state that an event leads to."""
        self.status, self.revision = self.lifecycle.after(event, self.status), fact.revision

    def fail(self, event: Any, fact: Fact) -> None:
        """Note the outcome of an event that reports a failure."""
        self.error, self.interrupted, self.ended_us = (event.code, event.message), event.interrupted, fact.time_us

    def end(self, event: Event, fact: Fact) -> None:  # noqa: ARG002
        """Note the time of its end, once it has ended."""
        if self.ended:
            self.ended_us = fact.time_us


HANDLERS: dict[type[Event], Callable[[Any, Any, Fact], object]] = {}
"""The fold of each event type, of a state, an event and its fact; `folds.register` puts them here."""
