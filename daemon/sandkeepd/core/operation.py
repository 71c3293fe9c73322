"""The operation engine: how an order gets on record, is carried out, answered, repeated, and recovered after a crash.

An operation is declared once, by a class. The engine does the rest, always the same way::

    begin      the intent is appended, durable, with the caller's `command_id`
    act        a task of the daemon's own does the work, whether or not the caller is still there
    record     the outcome is appended, or the failure, whatever happened
    answer     is read from the state once that has settled, by the call or by one that repeats its command
    recover    the next daemon undoes, or finishes, what a dead one had begun

A `Creation` can fail, and is undone if the daemon dies of it; who gives the order again has it begun anew. A `Removal`
cannot fail once it is ordered: it is tried until it is done, if need be by the next daemon.

The model is Change and Task of canonical/pebble.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import trio

from sandkeep.errors import SandkeepError, StateError, error_from
from sandkeep.events import Event, Meta
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeepd.contract.caller import Caller, Progress
from sandkeepd.core.access import Request
from sandkeepd.core.call import no_progress
from sandkeepd.core.core import ANEW, Core, Tries, as_sandkeep_error
from sandkeepd.core.retry import insist


class Subject(Protocol):
    """An object of a view, which an operation makes or ends. Its id is the stream of the operation's intent.

    `status` says where in its life it is, `error` with code and message what its creation failed with; `interrupted`:
    only as the daemon died.
    """

    error: tuple[str, str] | None
    interrupted: bool
    revision: int

    @property
    def status(self) -> str:
        """See above."""
        ...


S = TypeVar("S", bound=Subject)


class Order(Generic[S]):
    """One order, while it is carried out. What an earlier daemon had begun has neither `intent` nor `request`.

    What is entered into `resources` is let go when it has failed, or is through and its outcome is on record.
    `abandoned` is cancelled when the caller has gone, for work that is nothing without him.
    """

    def __init__(self, stream: str, subject: S, intent: Recorded | None = None, request: Request[Any] | None = None):
        self.stream = stream
        self.subject = subject
        self.intent = intent
        self.request = request
        self.resources = AsyncExitStack()
        self.context: Any = None
        """Left by `act` for `recorded`."""
        self.abandoned = trio.CancelScope()

    @property
    def caller(self) -> Caller:
        """With whose rights host paths are touched."""
        assert self.request is not None, "what is recovered has no caller"
        return self.request.caller

    @property
    def progress(self) -> Progress:
        """Tells the caller how far it is, if there is one."""
        return self.request.progress if self.request is not None else no_progress


class Operation(ABC, Generic[S]):
    """Base of all operations. Derive from `Creation` or `Removal`."""

    method: ClassVar[str]
    """The method that gives such an order: repeated calls of it are answered here."""

    under_way: ClassVar[str]
    """The status of a subject between the intent and the outcome."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._due: list[str] = []

    @property
    @abstractmethod
    def subjects(self) -> Mapping[str, S]:
        """The view with the subjects, by their streams."""

    def owns(self, subject: S) -> bool:  # noqa: ARG002  # most own all
        """Tell if a subject that is under way is this operation's, where several have the same view and status."""
        return True

    # What a declaration fills in

    @abstractmethod
    async def act(self, order: Order[S]) -> Sequence[NewEvent]:
        """Carry it out; answer the outcome to record. Cancelled only when the daemon stops."""

    @abstractmethod
    async def failed(self, order: Order[S], error: SandkeepError) -> Sequence[NewEvent]:
        """Answer the events to record of an order of which `act` raised this."""

    async def recorded(self, order: Order[S], facts: Sequence[Recorded]) -> None:
        """Go on once the outcome is on record: the order's subject has its new status."""

    @abstractmethod
    async def answered(self, request: Request[Any], subject: S) -> Any:
        """The answer, once the order is carried out."""

    # Carrying out

    async def run(self, new: NewEvent, request: Request[Any]) -> Any:
        """Give the order, wait until it is carried out, and answer it. Raises what it failed with."""
        order = await self.begin(new, request.meta, request)
        try:
            return await self.answer(request, order.stream)
        finally:
            order.abandoned.cancel()

    async def begin(
        self, new: NewEvent, meta: Meta, request: Request[Any] | None = None, *, essential: bool = False
    ) -> Order[S]:
        """Give the order. It is on record when this returns. Raises as `Core.intend` does."""
        intent = await self.core.intend(new, meta, essential=essential)
        order = Order(new.stream, self.subjects[new.stream], intent, request)
        self.core.carry(partial(self._carry, order), f"{new.event.type} of {new.stream}")
        return order

    async def _carry(self, order: Order[S]) -> None:
        async with order.resources:
            try:
                facts = await self.core.record(await self.act(order), order.intent)
            except Exception as unforeseen:  # noqa: BLE001  # an outcome is recorded whatever happened
                facts = await self._fail(order, as_sandkeep_error(unforeseen))
            await self.recorded(order, facts)

    async def _fail(self, order: Order[S], error: SandkeepError) -> Sequence[Recorded]:
        try:
            await order.resources.aclose()  # who hears of the failure may want them for another order
        except Exception as unforeseen:  # noqa: BLE001  # a failure to let go of something is none of the order's
            as_sandkeep_error(unforeseen)
        return await self.core.record(await self.failed(order, error), order.intent)

    async def insist(
        self,
        stream: str,
        work: Callable[[], Awaitable[object]],
        then: str,
        provider: str = "",
        deadline_s: float = math.inf,
    ) -> None:
        """Do a part of an order, again and again until it is done. See `core.retry.insist`."""
        what = f"{type(self).__name__} of {stream}"
        await insist(self.core, [stream], work, what, then, provider=provider, deadline_s=deadline_s)

    # Answering

    async def settled(self, stream: str) -> S:
        """The subject, once nothing of this operation is under way with it. Raises as `Core.settled` does."""
        subject = self.subjects[stream]
        await self.core.settled(stream, lambda: subject.status != self.under_way)
        return subject

    @abstractmethod
    async def answer(self, request: Request[Any], stream: str) -> Any:
        """Wait until the order is carried out, and answer it."""

    @abstractmethod
    async def again(self, request: Request[Any], first: Recorded) -> Any:
        """Answer a command that was given before, as `first` has it; ANEW if nothing came of that."""

    # After a crash

    def announce(self) -> None:
        """Note what is on record as begun: what clients begin from now on is not for `recover`."""
        begun = (stream for stream, subject in self.subjects.items() if subject.status == self.under_way)
        self._due = [stream for stream in begun if self.owns(self.subjects[stream])]

    async def recover(self) -> None:
        """Bring to an end what was noted, each by itself, so that an engine that is down delays no other."""
        async with trio.open_nursery() as nursery:
            for stream in self._due:
                order = Order(stream, self.subjects[stream])
                if order.subject.status == self.under_way:
                    what = f"{type(self).__name__} of {stream}, begun by an earlier daemon"
                    nursery.start_soon(self.core.guarded, partial(self._recover, order), what)

    @abstractmethod
    async def _recover(self, order: Order[S]) -> None:
        """Undo or finish an order of an earlier daemon."""


class Creation(Operation[S]):
    """An operation that makes its subject, or fails."""

    under_way = "creating"

    interrupted: ClassVar[str]
    """The sentence about one that the daemon's death interrupted."""

    @abstractmethod
    def failure(self, subject: S, error: SandkeepError, *, interrupted: bool) -> Sequence[NewEvent]:
        """Events to record of one of which nothing came. `interrupted`: who gives the order again has it begun anew."""

    async def undo(self, order: Order[S]) -> None:
        """Remove whatever an earlier daemon may have made, however often that takes."""

    async def undone(self, order: Order[S]) -> None:
        """Go on once it is on record that it was undone."""

    @abstractmethod
    def told(self, subject: S) -> dict[str, Any]:
        """Name the subject in the data of the error that it failed with."""

    async def failed(self, order: Order[S], error: SandkeepError) -> Sequence[NewEvent]:
        """See `Operation.failed`."""
        return self.failure(order.subject, error, interrupted=False)

    async def answer(self, request: Request[Any], stream: str) -> Any:
        """See `Operation.answer`. Raises what the creation failed with."""
        subject = await self.settled(stream)
        if subject.error is not None:
            raise error_from(*subject.error, self.told(subject))
        return await self.answered(request, subject)

    async def again(self, request: Request[Any], first: Recorded) -> Any:
        """See `Operation.again`."""
        subject = await self.settled(first.stream)
        return ANEW if subject.interrupted else await self.answer(request, first.stream)

    async def _recover(self, order: Order[S]) -> None:
        await self.undo(order)
        why = StateError("not_ready", self.interrupted)
        await self.core.record(self.failure(order.subject, why, interrupted=True), None)
        await self.undone(order)


class Removal(Operation[S]):
    """An operation that ends its subject. `act` insists until it has."""

    async def failed(self, order: Order[S], error: SandkeepError) -> Sequence[NewEvent]:  # noqa: ARG002
        """See `Operation.failed`. Only a defect gets here; the next daemon goes on with it."""
        raise error

    async def order(self, stream: str, event: Event, sandbox_id: str | None, meta: Meta) -> None:
        """Give the order by this intent, unless it was given. It is on record when this returns."""
        subject, tries = self.subjects[stream], Tries()
        while subject.status == "ready":
            try:
                await self.begin(NewEvent(stream, event, sandbox_id, subject.revision), meta, essential=True)
            except StateError as conflict:
                await tries.again(conflict)  # something else happened to it at that instant: look again

    async def answer(self, request: Request[Any], stream: str) -> Any:
        """See `Operation.answer`."""
        return await self.answered(request, await self.settled(stream))

    async def again(self, request: Request[Any], first: Recorded) -> Any:
        """See `Operation.again`."""
        return await self.answer(request, first.stream)

    async def _recover(self, order: Order[S]) -> None:
        await self._carry(order)
