"""The operation engine: recording, execution, answering and repetition of orders, and recovery after a crash.

An operation is declared once, by a class. The engine does the rest, always the same way::

    begin      the intent is appended, durable, with the caller's `command_id`
    act        a task of the daemon's own does the work, whether or not the caller is still there
    record     the outcome is appended, success or failure, in any case
    answer     is read from the state once that has settled, by the call or by one that repeats its command
    recover    the next daemon undoes, or finishes, the orders of a dead one

A `Creation` can fail, and is undone if the daemon dies meanwhile; a repeated order begins anew. A `Removal` cannot fail
once it is ordered: the daemon retries it until it is done, if need be the next daemon. An `Upkeep` is about the log or
a store, not about an object of a view. An operation that is `interruptible` ends without an outcome when another order
on the same subject interrupts it, and sees to the rest.

The model is Change and Task of canonical/pebble.
"""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from functools import partial
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar, cast

import trio

from sandkeep import failpoints
from sandkeep.errors import SandkeepError, StateError, error_from
from sandkeep.events import Event, Meta
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.threads import working_for
from sandkeepd.contract.caller import Caller, Progress, no_progress
from sandkeepd.core.access import Request
from sandkeepd.core.core import RUN_AGAIN, Core, Tries, as_sandkeep_error
from sandkeepd.core.interruption import Interruptible
from sandkeepd.core.retry import insist

logger = logging.getLogger("sandkeepd")

STEPS: Final = ("begun", "acted", "recorded", "done")
"""Failpoints of each operation, such as ``SandboxCreation.acted``: see `sandkeep.failpoints`."""


class Subject(Protocol):
    """An object of a view, which an operation makes or ends. Its id is the stream of the operation's intent.

    `status` is its state in its lifecycle, `error` code and message of a failed creation; `interrupted`: it failed only
    because the daemon died.
    """

    error: tuple[str, str] | None
    interrupted: bool

    @property
    def status(self) -> str:
        """The state in its lifecycle."""
        ...


class Revised(Subject, Protocol):
    """A subject with the number of events in its stream."""

    revision: int


S = TypeVar("S", bound=Subject)
R = TypeVar("R", bound=Revised)
A = TypeVar("A")
"""The answer to a command."""


class Order(Interruptible, Generic[S]):
    """One order, while it is carried out. One begun by an earlier daemon has neither `intent` nor `request`.

    `resources` are released when it has failed, or its outcome is on record. `abandoned` is cancelled when the caller
    has gone, for work that is useless without the caller. `payload` is unrecorded input of `act`, such as secrets.
    """

    def __init__(
        self,
        stream: str,
        subject: S,
        intent: Recorded | None = None,
        request: Request[Any] | None = None,
        payload: Any = None,
    ) -> None:
        super().__init__()
        self.stream = stream
        self.subject = subject
        self.intent = intent
        self.request = request
        self.payload = payload
        self.resources = AsyncExitStack()
        self.context: Any = None
        """Left by `act` for `failed` and `recorded`."""
        self.abandoned = trio.CancelScope()
        self.rolled_back = False
        self.error: SandkeepError | None = None
        """Of an `Upkeep` that is `finished`: there is no view to tell of it."""

    @property
    def caller(self) -> Caller:
        """The credentials with which host paths are accessed."""
        assert self.request is not None, "what is recovered has no caller"
        return self.request.caller

    @property
    def progress(self) -> Progress:
        """Sends progress messages to the caller, if there is one."""
        return self.request.progress if self.request is not None else no_progress


Handle = Callable[[Request[Any]], Awaitable[Any]]
Again = Callable[[Request[Any], Any], Awaitable[Any]]


class Command(Protocol):
    """A method that changes something, and the answer to a repeated call."""

    @property
    def method(self) -> str:
        """The name of the method."""
        ...

    @property
    def again(self) -> Again:
        """Answer a repeated command, whose first event is given, or None for one without events that was carried out.
        Return RUN_AGAIN if the first call had no effect.
        """
        ...


class DirectCommand(NamedTuple):
    """A command that is done within the call, and on record by one event alone, or by a line beside the log."""

    method: str
    again: Again


def eventless_command(method: str, answer: Handle) -> DirectCommand:
    """Return a command that makes no event; `answer` answers it once it was carried out, and changes nothing."""
    return DirectCommand(method, lambda request, _: answer(request))


class Operation(ABC, Generic[S, A]):
    """Base of all operations: commands that tasks of the daemon's own carry out."""

    method: ClassVar[str]
    """The method that gives such an order."""

    view: ClassVar[str]
    """The attribute of the state that has the subjects, by their streams."""

    under_way: ClassVar[str]
    """The status of a subject between the intent and the outcome."""

    failure: ClassVar[type[Any]]
    """The event of a failure, with `code`, `message` and `interrupted`, unless `failed` returns others."""

    essential: ClassVar[bool] = False
    """True if intent and outcome may use the log's reserve on a full disk."""

    interruptible: ClassVar[bool] = False
    """True if `Core.under_way` interrupts its orders."""

    recovers: ClassVar[bool] = True
    """False if another part brings the orders of an earlier daemon to an end."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._due: dict[tuple[str, Any], Order[S]] = {}

    @property
    def subjects(self) -> Mapping[str, S]:
        """The view with the subjects, by their streams."""
        return cast("Mapping[str, S]", getattr(self.core.state, self.view))

    def owns(self, subject: S) -> bool:  # noqa: ARG002  # most own all
        """Tell if a subject that is under way is this operation's, where several have the same view and status."""
        return True

    def is_current(self, order: Order[S]) -> bool:
        """Tell if the subject still waits for the order's outcome, and no other order has got ahead."""
        return order.subject.status == self.under_way

    # Declared by each operation

    @abstractmethod
    async def act(self, order: Order[S]) -> Sequence[NewEvent]:
        """Carry it out; return the outcome to record. Cancelled when the daemon stops, or another order interrupts."""

    async def roll_back(self, order: Order[S]) -> None:
        """Undo on the subject what `act` has done before it raised. An error of this is logged."""

    async def failed(self, order: Order[S], error: SandkeepError) -> Sequence[NewEvent]:
        """Return the events to record of an order whose `act` raised `error`. Nothing interrupts it any more, so it
        must not act on the subject: that is for `roll_back`. A repeated order of a caller that left begins it again.
        """
        return [self.failure_of(order, error, interrupted=order.abandoned.cancelled_caught)]

    def failure_of(self, order: Order[S], error: SandkeepError, *, interrupted: bool) -> NewEvent:
        """Return the event of a failure. `interrupted`: a repeated order begins it again."""
        event, subject = self.failure(code=error.code, message=error.message, interrupted=interrupted), order.subject
        revision = getattr(subject, "revision", None) if self.interruptible else None
        return NewEvent(order.stream, event, getattr(subject, "sandbox_id", None), revision)

    async def recorded(self, order: Order[S], facts: Sequence[Recorded]) -> None:
        """Go on once the outcome is on record: the order's subject has its new status."""

    async def answered(self, request: Request[Any], subject: S) -> A:  # noqa: ARG002
        """Return the answer, once the order is carried out."""
        return cast("A", cast("Any", subject).view())

    # Carrying out

    async def run(self, new: NewEvent, request: Request[Any], payload: Any = None) -> A:
        """Begin the order, wait until it is carried out, and answer it. Raises the error of a failure."""
        order = await self.begin(new, request.meta, request, payload)
        try:
            return await self.answer(request, order.stream)
        finally:
            order.abandoned.cancel()

    async def begin(
        self, new: NewEvent, meta: Meta, request: Request[Any] | None = None, payload: Any = None
    ) -> Order[S]:
        """Give the order. It is on record when this returns. Raises as `Core.intend` does."""
        intent = await self.core.intend(new, meta, essential=self.essential)
        return self.start(intent, request, payload)

    def start(self, intent: Recorded, request: Request[Any] | None = None, payload: Any = None) -> Order[S]:
        """Start carrying out a recorded order."""
        order = Order(intent.stream, self.subjects[intent.stream], intent, request, payload)
        if self.interruptible:
            self.core.under_way.register(order.stream, order)
        self.spawn(order, f"{intent.type} of {order.stream}")
        return order

    def spawn(self, order: Order[S], what: str) -> None:
        """Start the task that carries out an order: one of the daemon's own, which ends with the daemon. Its blocking
        work is charged to the caller, or to the subject's owner if the daemon itself gave the order.
        """
        with nullcontext() if order.request is not None else working_for(getattr(order.subject, "owner", "")):
            self.core.start_task(partial(self._execute, order), what)

    async def _execute(self, order: Order[S]) -> None:
        async with order.resources:
            self._reach("begun")
            try:
                outcome = await self._acted(order)
                self._reach("acted")
                facts = await self._record(order, outcome)
            except Exception as unforeseen:  # noqa: BLE001  # an outcome is recorded in any case
                facts = await self.fail(order, as_sandkeep_error(unforeseen))
            self._reach("recorded")
            if facts:
                await self.recorded(order, facts)
        self._reach("done")

    def _reach(self, step: str) -> None:
        """Reach the failpoint of one of the `STEPS`."""
        if failpoints.armed:
            failpoints.reach(f"{type(self).__name__}.{step}")

    async def _acted(self, order: Order[S]) -> Sequence[NewEvent]:
        """Act; return the outcome, or nothing if it was interrupted."""
        outcome: Sequence[NewEvent] = ()
        with self._interruptible(order):
            if self.is_current(order):
                try:
                    outcome = await self.act(order)
                except Exception:
                    await self._roll_back(order)  # here: an order that interrupts this one waits for it
                    raise
        return outcome

    async def _roll_back(self, order: Order[S]) -> None:
        """Roll back once: an outcome that the log refuses comes after `act`."""
        if not order.rolled_back:
            order.rolled_back = True
            try:
                await self.roll_back(order)
            except Exception as unforeseen:  # noqa: BLE001  # the order has failed of something else
                as_sandkeep_error(unforeseen)

    def _interruptible(self, order: Order[S]) -> AbstractContextManager[None]:
        return self.core.under_way.running(order.stream, order) if self.interruptible else nullcontext()

    async def _record(self, order: Order[S], outcome: Sequence[NewEvent]) -> Sequence[Recorded]:
        """Record an outcome; return nothing if another order got ahead, even while the append was in flight."""
        if not outcome or not self.is_current(order):
            return ()
        try:
            return await self.core.record(outcome, order.intent, essential=self.essential)
        except StateError:
            if self.is_current(order):
                raise
            return ()

    async def fail(self, order: Order[S], error: SandkeepError) -> Sequence[Recorded]:
        """Record the failure of an order, and return the events; none if another order got ahead."""
        try:
            await order.resources.aclose()  # a caller that gets the failure may want them for another order
        except Exception as unforeseen:  # noqa: BLE001  # a failure to release a resource is none of the order's
            as_sandkeep_error(unforeseen)
        if not self.is_current(order):
            return ()
        await self._roll_back(order)
        return await self._record(order, await self.failed(order, error))

    async def insist(
        self,
        stream: str,
        work: Callable[[], Awaitable[object]],
        then: str,
        provider: str = "",
        deadline_s: float = math.inf,
        waiting: Sequence[str] = (),
    ) -> None:
        """Retry a part of an order until it is done; callers that are `waiting` for these streams get the reason of a
        delay, too. See `core.retry.insist`.
        """
        what = f"{type(self).__name__} of {stream}"
        await insist(self.core, [stream, *waiting], work, what, then, provider=provider, deadline_s=deadline_s)

    # Answering

    async def settled(self, stream: str) -> S:
        """Return the subject, once nothing of this operation is under way with it. Raises as `Core.settled` does."""
        subject = self.subjects[stream]
        await self.core.settled(stream, lambda: subject.status != self.under_way)
        return subject

    async def answer(self, request: Request[Any], stream: str) -> A:
        """Wait until the order is carried out, and answer it."""
        return await self.answered(request, await self.settled(stream))

    async def again(self, request: Request[Any], first: Recorded) -> Any:
        """Answer a repeated command, whose first event is given. See `Command.again`."""
        return await self.answer(request, first.stream)

    # After a crash

    def begun(self) -> Iterator[Order[S]]:
        """Yield the orders that are on record as begun."""
        for stream, subject in self.subjects.items():
            if subject.status == self.under_way and self.owns(subject):
                yield Order(stream, subject)

    def announce(self) -> None:
        """Note the orders that are on record as begun: orders of clients from now on are not for `recover`."""
        for order in self.begun() if self.recovers else ():
            key = (order.stream, order.payload)
            if key not in self._due:
                self._due[key] = order
                if self.interruptible:
                    self.core.under_way.register(order.stream, order)

    async def recover(self) -> None:
        """Finish the noted orders, each in its own task, so that an engine that is down delays no other."""
        due, self._due = self._due, {}
        async with trio.open_nursery() as nursery:
            for order in due.values():
                what = f"{type(self).__name__} of {order.stream}, begun by an earlier daemon"
                nursery.start_soon(self.core.run_logged, partial(self._recover_due, order), what)

    async def _recover_due(self, order: Order[S]) -> None:
        with self._interruptible(order), working_for(getattr(order.subject, "owner", "")):
            if self.is_current(order):
                await self._recover(order)

    async def _recover(self, order: Order[S]) -> None:
        """Undo or finish an order of an earlier daemon; does nothing where another part records the outcome."""


class Creation(Operation[S, A]):
    """An operation that makes its subject, or fails."""

    under_way = "creating"

    interrupted: ClassVar[str]
    """The sentence about one that the daemon's death interrupted."""

    named: ClassVar[str]
    """The subject's field that names it in the data of the error that it failed with."""

    def charge(self, order: Order[S], owner: str, quota: str, size: int) -> None:
        """Reserve the size of the subject, known by now, until the outcome is on record. Raises `quota_exceeded`."""
        self.core.quotas.reserve(order.request, owner, {order.stream: {quota: size}})
        order.resources.callback(self.core.quotas.release, order.stream)

    async def undo(self, order: Order[S]) -> None:
        """Remove everything that an earlier daemon may have made, retrying until done."""

    async def undone(self, order: Order[S]) -> None:
        """Go on once it is on record that it failed or was undone."""

    async def succeeded(self, order: Order[S], facts: Sequence[Recorded]) -> None:
        """Go on once it is on record that it was made."""

    async def recorded(self, order: Order[S], facts: Sequence[Recorded]) -> None:
        await (self.succeeded(order, facts) if order.subject.error is None else self.undone(order))

    async def answer(self, request: Request[Any], stream: str) -> A:
        """See `Operation.answer`. Raises the error of a failed creation."""
        subject = await self.settled(stream)
        if subject.error is not None:
            raise self.error_of(subject)
        return await self.answered(request, subject)

    def error_of(self, subject: S) -> SandkeepError:
        """Return the error that a subject failed with."""
        assert subject.error is not None
        return error_from(*subject.error, {self.named: getattr(subject, self.named)})

    async def again(self, request: Request[Any], first: Recorded) -> Any:
        subject = await self.settled(first.stream)
        return RUN_AGAIN if subject.interrupted else await self.answer(request, first.stream)

    async def _recover(self, order: Order[S]) -> None:
        await self.undo(order)
        why = StateError("not_ready", self.interrupted)
        if await self._record(order, [self.failure_of(order, why, interrupted=True)]):
            await self.undone(order)


class Removal(Operation[R, A]):
    """An operation that ends its subject. `act` insists until it has."""

    essential = True

    def may(self, subject: R) -> bool:
        """Tell if the end of a subject can be ordered, and is not."""
        return subject.status == "ready"

    async def failed(self, order: Order[R], error: SandkeepError) -> Sequence[NewEvent]:  # noqa: ARG002
        """See `Operation.failed`. Only a defect gets here; the next daemon goes on with it."""
        raise error

    async def order(self, stream: str, event: Event, sandbox_id: str | None, meta: Meta) -> None:
        """Give the order by this intent, unless it was given already. It is on record when this returns."""
        subject, tries = self.subjects[stream], Tries()
        while self.may(subject):
            try:
                await self.begin(NewEvent(stream, event, sandbox_id, subject.revision), meta)
            except StateError as conflict:
                await tries.again(conflict)  # another event got ahead: look again

    async def _recover(self, order: Order[R]) -> None:
        await self._execute(order)


class Upkeep(Operation[Any, Any]):
    """An operation on the log or a store, whose orders have no object of a view. Those of the same `turn` are carried
    out one after the other.

    One that fails is on record as failed, or still as begun: then `recover` goes on with it, later or in the next
    daemon. `payload` is the input of `act`; for an order that is recovered, its entry in `pending`.
    """

    stream: ClassVar[str]
    """The stream of intents and outcomes."""

    def __init__(self, core: Core, turn: trio.Semaphore | None = None) -> None:
        super().__init__(core)
        self._turn = turn or trio.Semaphore(1)

    @abstractmethod
    def pending(self) -> Sequence[Any]:
        """Return what is on record as begun, and has no outcome."""

    @abstractmethod
    async def plan(self, asked: Any) -> tuple[Event, Any] | None:
        """Return the intent and the input of `act`; None if there is nothing to do."""

    @property
    def subjects(self) -> Mapping[str, Any]:
        return {self.stream: self.core.state.log}

    def is_current(self, order: Order[Any]) -> bool:
        return order.intent is not None or order.payload in self.pending()

    def begun(self) -> Iterator[Order[Any]]:
        return (Order(self.stream, self.core.state.log, payload=entry) for entry in self.pending())

    async def failed(self, order: Order[Any], error: SandkeepError) -> Sequence[NewEvent]:  # noqa: ARG002
        raise error

    async def carry_out(self, asked: Any, meta: Meta) -> Any:
        """Give an order in its turn, after those of earlier daemons, and return the `context` that `act` left; None if
        there is nothing to do. Raises its error.
        """
        async with AsyncExitStack() as turn:
            await turn.enter_async_context(self._turn)
            await super().recover()
            return await self.carry_out_in_turn(asked, meta, turn)

    async def carry_out_in_turn(self, asked: Any, meta: Meta, turn: AsyncExitStack) -> Any:
        """The same, while `turn` is held, which passes to the order: that goes on if its caller is cancelled."""
        planned = await self.plan(asked)
        if planned is None:
            return None
        event, payload = planned
        order = await self.begin(NewEvent(self.stream, event), meta, payload=payload)
        order.resources.push_async_exit(turn.pop_all())
        await self.core.settled(self.stream, order.finished.is_set)
        if order.error is not None:
            raise order.error
        return order.context

    async def recover(self) -> None:
        """See `Operation.recover`. They are finished in their turn."""
        if self._due:
            async with self._turn:
                await super().recover()

    async def _execute(self, order: Order[Any]) -> None:
        try:
            await super()._execute(order)
        except Exception as unforeseen:  # noqa: BLE001  # it is for the caller
            order.error = as_sandkeep_error(unforeseen)
        finally:
            order.finished.set()
            self.core.wake(self.stream)

    async def _recover(self, order: Order[Any]) -> None:
        await self._execute(order)
        if order.error is not None:
            extra = {"what": type(self).__name__, "why": order.error.message}
            logger.warning("upkeep of an earlier daemon is not done yet", extra=extra)
