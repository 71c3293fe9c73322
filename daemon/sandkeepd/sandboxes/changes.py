"""Changes of existing sandboxes: the base of suspending, resuming and restoring them.

Unlike an end, a change that fails is not retried: the sandbox keeps its status, and the caller gets the error at once.
"""

from typing import Any, Final

from sandkeep import events
from sandkeep.errors import StateError, error_from
from sandkeep.model import Sandbox
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import RUN_AGAIN, Core, Tries
from sandkeepd.core.operation import Operation, Order
from sandkeepd.sandboxes.runtimes import Runtimes

CHANGING: Final = ("suspending", "resuming", "restoring")

_DONE: Final = (events.SandboxSuspended, events.SandboxResumed, events.SandboxRestored)
_UNDONE: Final = (events.SandboxSuspendFailed, events.SandboxResumeFailed, events.SandboxRestoreFailed)


class SandboxChange(Operation[SandboxState, Sandbox]):
    """An order that changes a sandbox. Termination interrupts it.

    The adoption of a sandbox records the outcome of a change that the daemon's death interrupted, so there is nothing
    to recover here.
    """

    view = "sandboxes"
    recovers = False
    interruptible = True

    def __init__(self, core: Core, runtimes: Runtimes) -> None:
        super().__init__(core)
        self.runtimes = runtimes

    def is_current(self, order: Order[SandboxState]) -> bool:
        if order.intent is None:
            return super().is_current(order)
        return _is_under_way(order.subject, order.intent.position)

    async def try_to_begin(
        self, sandbox: SandboxState, event: events.Event, request: Request[Any], payload: Any, tries: Tries
    ) -> bool:
        """Give the order; return False when another event of the sandbox got ahead. A shared sandbox that is not surely
        this daemon's may only be suspended.
        """
        if not isinstance(event, events.SandboxSuspendRequested):
            rules.require_lock(self.core.state, sandbox)
            if sandbox.sandbox_id in self.core.withheld:
                raise rules.not_ready(sandbox, "lost its lock, and is not ready yet: try again in a moment")
        if not rules.may(sandbox, event.type):
            return False
        new = NewEvent(sandbox.sandbox_id, event, sandbox.sandbox_id, sandbox.revision)
        try:
            await self.begin(new, request.meta, request, payload)
        except StateError as conflict:
            await tries.again(conflict)
            return False
        return True

    async def answer(self, request: Request[Any], stream: str) -> Sandbox:  # noqa: ARG002
        """See `Operation.answer`. Answers for the last change, and raises its error."""
        sandbox = self.subjects[stream]
        change = sandbox.change
        if change is None:
            return sandbox.view()
        await self.core.settled(stream, lambda: not _is_under_way(sandbox, change.position))
        if change.error is not None:
            raise error_from(*change.error, {"sandbox_id": stream})
        if not change.done:
            raise rules.not_ready(sandbox)
        return sandbox.view()

    async def again(self, request: Request[Any], first: Recorded) -> Any:
        sandbox = self.subjects[first.stream]
        await self.core.settled(first.stream, lambda: not _is_under_way(sandbox, first.position))
        change = sandbox.change
        if change is None or change.position != first.position:
            return await self._answer_earlier(first)
        return RUN_AGAIN if change.interrupted else await self.answer(request, first.stream)

    async def _answer_earlier(self, first: Recorded) -> Any:
        """Answer from the log, for a sandbox that has changed again since: the state remembers the last change."""
        outcome = await self._outcome_of(first)
        if isinstance(outcome, _UNDONE):
            if outcome.interrupted:
                return RUN_AGAIN
            raise error_from(outcome.code, outcome.message, {"sandbox_id": first.stream})
        return self.subjects[first.stream].view()

    async def _outcome_of(self, first: Recorded) -> events.Event | None:
        """Return the event by which a change ended; None if its sandbox ended instead."""
        position, caught_up = first.position, False
        while not caught_up:
            found = await self.core.log.page(position, stream=first.stream, type="sandbox")
            for recorded in found.events:
                if isinstance(recorded.event, (*_DONE, *_UNDONE)):
                    return recorded.event
            position, caught_up = found.position, found.caught_up
        return None


def _is_under_way(sandbox: SandboxState, position: int) -> bool:
    """Tell if the change that was ordered at that position is being carried out."""
    is_last = sandbox.change is not None and sandbox.change.position == position
    return is_last and sandbox.status in CHANGING
