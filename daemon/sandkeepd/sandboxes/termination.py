"""Ends of sandboxes: ordered, or by themselves."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NoReturn

import trio

from sandkeep import events, failpoints
from sandkeep.errors import DaemonError, StateError
from sandkeep.model import Sandbox
from sandkeep.protocol.methods import SandboxTerminate
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.contract.instance import Ending
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core, Tries, as_sandkeep_error
from sandkeepd.core.operation import Order, Removal
from sandkeepd.core.retry import answering
from sandkeepd.sandboxes.process_ends import ends_of_killed, process_ends
from sandkeepd.sandboxes.runtimes import Runtime, Runtimes

logger = logging.getLogger("sandkeepd")

END_DEADLINE_S = 60.0
"""Seconds a provider may take to end a sandbox, without its files, before the request is repeated, if it can be
interrupted.
"""


class Termination(Removal[SandboxState, Sandbox]):
    """``sandbox.terminate``, and its handler: a sandbox ends, complete or half made, running or not, with all that is
    under way with it. Limits and losses of sandboxes end here, too.
    """

    method = "sandbox.terminate"
    view = "sandboxes"
    under_way = "stopping"

    def __init__(self, core: Core, runtimes: Runtimes) -> None:
        super().__init__(core)
        self._runtimes = runtimes
        runtimes.on_end = self._ended_by_itself
        self.on_ended: Callable[[SandboxState], Awaitable[None]]
        """Called with each sandbox that has ended; `SnapshotServices` sets it."""
        self.unrecorded: set[str] = set()  # those that ended while the log could not be written

    def may(self, subject: SandboxState) -> bool:
        return rules.may(subject, "sandbox.terminate_requested")

    # -- ordered ------------------------------------------------------------------------------------------------------

    async def terminate(self, request: Request[SandboxTerminate]) -> Sandbox:
        """End a sandbox and all that runs in it. One that has ended is answered as it is."""
        sandbox = rules.sandbox(self.core.state, request.params.sandbox_id)
        if sandbox.spec.shared is not None and await self._is_given_up(sandbox.sandbox_id):
            await self.core.settled(sandbox.sandbox_id, lambda: sandbox.hidden)
            return sandbox.view()
        await self.end(sandbox.sandbox_id, "requested", request.meta)
        return await self.answer(request, sandbox.sandbox_id)

    async def _is_given_up(self, sandbox_id: str) -> bool:
        """Return True for a shared sandbox that other daemons may have, which ends here anyway. For one that is about
        to be given up the outcome is awaited.
        """
        lock, leaving = rules.shared_lock(self.core.state, sandbox_id), self.core.leaving
        if lock is None or lock.handover is None:
            return False
        with trio.move_on_after(END_DEADLINE_S):
            await self.core.settled(lock.lock_id, lambda: lock.status != "handing_over" or sandbox_id not in leaving)
        return lock.given_back

    async def end(self, sandbox_id: str, reason: str, meta: events.Meta | None = None) -> None:
        """Order the end of a sandbox, if that is not ordered already. It is on record when this returns."""
        event, meta = events.SandboxTerminateRequested(reason=reason), meta or events.Meta()
        try:
            await self.order(sandbox_id, event, sandbox_id, meta)
        except DaemonError as refused:
            revision = self.subjects[sandbox_id].revision
            await self._end_unrecorded(NewEvent(sandbox_id, event, sandbox_id, revision), reason, meta, refused)

    async def act(self, order: Order[SandboxState]) -> Sequence[NewEvent]:
        sandbox_id, sandbox = order.stream, order.subject
        order.context = runtime = await self._stop(sandbox_id)
        failpoints.reach("end.stopped")
        provider = sandbox.requested.provider
        terminate = partial(self.end_and_clear, sandbox)
        then = f"the termination of sandbox {sandbox_id} is on record, and will be carried out when it answers"
        await self.insist(sandbox_id, terminate, then, provider=provider, waiting=list(sandbox.active))
        failpoints.reach("end.discarded")
        outcome = events.SandboxTerminated(reason=sandbox.terminated_reason or "requested")
        return [*await ends_of_killed(self.core, sandbox, runtime), NewEvent(sandbox_id, outcome, sandbox_id)]

    async def recorded(self, order: Order[SandboxState], facts: Sequence[Recorded]) -> None:  # noqa: ARG002
        if order.context is not None:
            self._runtimes.by_id.pop(order.stream, None)
            await order.context.instance.aclose()
        await self.on_ended(order.subject)

    async def end_and_clear(self, sandbox: SandboxState) -> None:
        """Have its provider end a sandbox, complete or half made, and remove its files, of which there may be many."""
        provider = self.core.provider(sandbox.requested.provider)
        with answering(provider, END_DEADLINE_S):
            await provider.terminate(sandbox.sandbox_id, sandbox.requested.plan, sandbox.handle)
        await provider.cleared(sandbox.sandbox_id)

    async def _stop(self, sandbox_id: str) -> Runtime | None:
        """End the tasks that look after it."""
        await self.core.under_way.interrupt(sandbox_id)
        runtime = self._runtimes.by_id.get(sandbox_id)
        if runtime is not None:
            await runtime.stop()
        return runtime

    # -- while the log cannot be written ------------------------------------------------------------------------------

    async def _end_unrecorded(self, order: NewEvent, reason: str, meta: events.Meta, refused: DaemonError) -> NoReturn:
        """End a sandbox although the log cannot record it: its end must not depend on a disk. It is recorded when the
        disk recovers; with a damaged log, the daemon after the repair finds the sandbox lost.
        """
        core, sandbox = self.core, self.subjects[order.stream]
        logger.warning("ended, but not on record", extra={"sandbox_id": order.stream, "why": refused.message})
        await self._stop(order.stream)
        record = "cannot go on record" if core.problems else "is not on record yet"
        outcome = f"sandbox {order.stream} is ended, but that {record}"
        try:
            await self.end_and_clear(sandbox)
        except Exception as unforeseen:  # noqa: BLE001  # the disk that refuses the record may refuse this, too
            error = as_sandkeep_error(unforeseen)
            logger.warning("cannot clear away a sandbox", extra={"sandbox_id": order.stream, "why": error.message})
            outcome = f"what ran in sandbox {order.stream} could not be ended completely ({error.message})"
        if not core.problems and order.stream not in self.unrecorded:
            self.unrecorded.add(order.stream)
            core.start_task(partial(self._record_end, order, reason, meta), f"record of the end of {order.stream}")
        raise DaemonError("storage_unavailable", f"{outcome}: {refused.message}", sandbox_id=order.stream)

    async def _record_end(self, order: NewEvent, reason: str, meta: events.Meta) -> None:
        intent: Recorded | None = None
        try:
            [intent] = await self.core.record([order], None, meta=meta, essential=True)
        except StateError:
            pass  # something else went on record first, such as that it was made after all: order it anew
        finally:
            self.unrecorded.discard(order.stream)
        if intent is not None:
            self.start(intent)
        else:
            with suppress(DaemonError, StateError):  # then it is tried again, or the daemon's log says why not
                await self.end(order.stream, reason, meta)

    # -- by itself ----------------------------------------------------------------------------------------------------

    async def _ended_by_itself(self, runtime: Runtime, why: Ending) -> None:
        sandbox_id = runtime.instance.sandbox_id
        sandbox, tries = self.subjects[sandbox_id], Tries()
        while rules.may(sandbox, "sandbox.failed"):
            told = {"sandbox_id": sandbox_id, "kind": why.kind, "why": why.message}
            logger.warning("sandbox ended by itself", extra=told)
            unseen = f"its sandbox {'was lost' if why.kind == 'lost' else 'ended'}: {why.message}"
            ends = process_ends(self.core, sandbox, runtime.instance.exit_of, None, why=unseen, runtime=runtime)
            event: events.Event = events.SandboxFailed(message=why.message)
            if why.kind == "lost":
                event = events.SandboxLost(last_status=sandbox.status, message=why.message)
            ended = NewEvent(sandbox_id, event, sandbox_id, sandbox.revision)
            try:
                await self.core.record([*ends, ended], None)
            except StateError as conflict:
                await tries.again(conflict)  # something else happened to it at that instant: look again
                continue
            self._runtimes.by_id.pop(sandbox_id, None)
            await runtime.instance.aclose()
            return
