"""Sandboxes that stand still and go on again, and those that are started anew after they were lost or failed.

An order is an intent, as every other; a carrier has the provider do it and records what came of it. Unlike an end, an
order that fails is not tried again: the sandbox is what it was, and its caller is told why at once.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import trio

from sandkeep import events
from sandkeep.errors import ProviderError, SandkeepError, SetupError, StateError, error_from
from sandkeep.model import Sandbox
from sandkeep.protocol.methods import SandboxResume, SandboxSuspend
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.contract.instance import Instance
from sandkeepd.contract.pauses import Pausing
from sandkeepd.contract.revival import Reviving
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import ANEW, Core, Tries, as_sandkeep_error
from sandkeepd.sandboxes.sandboxes import Pending, Sandboxes

ANSWER_DEADLINE_S: Final = 30.0
"""How long a provider may take for having a sandbox stand still or go on."""

Outcome = tuple[events.Event, Instance | None]
"""What to record, and the instance to look after from then on, if there is a new one."""


class Suspensions:
    """The handlers of ``sandbox.suspend`` and ``sandbox.resume``."""

    def __init__(self, core: Core, sandboxes: Sandboxes) -> None:
        self._core = core
        self._sandboxes = sandboxes

    # -- standing still -----------------------------------------------------------------------------------------------

    async def suspend(self, request: Request[SandboxSuspend]) -> Sandbox:
        """Have everything in a sandbox stand still. One that is suspended is answered as it is."""
        sandbox, tries = rules.sandbox(self._core.state, request.params.sandbox_id), Tries()
        while sandbox.status != "suspended":
            if sandbox.status == "resuming":
                await self._core.settled(sandbox.sandbox_id, lambda: sandbox.status != "resuming")
            elif sandbox.status == "suspending" or await self._begin_to_suspend(sandbox, request.meta, tries):
                return await self._outcome(sandbox)
        return sandbox.view()

    async def _begin_to_suspend(self, sandbox: SandboxState, meta: events.Meta, tries: Tries) -> bool:
        rules.require_running(sandbox)
        runtime = await self._sandboxes.held(sandbox)
        work = partial(self._suspended, pausing(runtime.instance, sandbox.requested.provider))
        return await self._order(sandbox, events.SandboxSuspendRequested(), work, meta, tries)

    async def _suspended(self, instance: Pausing) -> Outcome:
        await in_time(instance.suspend)
        return events.SandboxSuspended(), None

    # -- going on -----------------------------------------------------------------------------------------------------

    async def resume(self, request: Request[SandboxResume]) -> Sandbox:
        """Have a suspended sandbox go on, or start one that was lost or failed anew. One that runs is answered as it
        is.
        """
        sandbox, tries = rules.sandbox(self._core.state, request.params.sandbox_id), Tries()
        while sandbox.status != "running":
            if sandbox.status == "suspending":
                await self._core.settled(sandbox.sandbox_id, lambda: sandbox.status != "suspending")
            elif sandbox.status == "resuming" or await self._begin_to_resume(sandbox, request, tries):
                return await self._outcome(sandbox)
        return sandbox.view()

    async def _begin_to_resume(self, sandbox: SandboxState, request: Request[SandboxResume], tries: Tries) -> bool:
        anew = sandbox.status != "suspended"
        work = self._reviving(sandbox, dict(request.params.secrets)) if anew else await self._resuming(sandbox)
        return await self._order(sandbox, events.SandboxResumeRequested(anew=anew), work, request.meta, tries)

    async def _resuming(self, sandbox: SandboxState) -> Callable[[], Awaitable[Outcome]]:
        runtime = await self._sandboxes.held(sandbox)
        return partial(self._resumed, pausing(runtime.instance, sandbox.requested.provider))

    async def _resumed(self, instance: Pausing) -> Outcome:
        await in_time(instance.resume)
        return events.SandboxResumed(), None

    def _reviving(self, sandbox: SandboxState, secrets: dict[str, str]) -> Callable[[], Awaitable[Outcome]]:
        provider = self._core.provider(sandbox.requested.provider)
        rules.revive(sandbox, secrets, can_revive=provider.revival is not None)
        assert provider.revival is not None
        return partial(self._revived, sandbox, provider.revival, secrets)

    async def _revived(self, sandbox: SandboxState, provider: Reviving, secrets: dict[str, str]) -> Outcome:
        asked = sandbox.requested
        try:
            instance = await provider.revive(
                sandbox.sandbox_id, asked.image_id, asked.spec, secrets, asked.plan, sandbox.handle
            )
        finally:
            secrets.clear()
        return events.SandboxResumed(isolation=instance.isolation, handle=instance.handle), instance

    # -- both ---------------------------------------------------------------------------------------------------------

    async def _order(
        self,
        sandbox: SandboxState,
        event: events.Event,
        work: Callable[[], Awaitable[Outcome]],
        meta: events.Meta,
        tries: Tries,
    ) -> bool:
        """Put an order on record and begin to carry it out; False when something else has happened to the sandbox
        meanwhile.
        """
        core, sandbox_id = self._core, sandbox.sandbox_id
        if not rules.may(sandbox, event.type):
            return False
        try:
            intent = await core.intend(NewEvent(sandbox_id, event, sandbox_id, sandbox.revision), meta)
        except StateError as conflict:
            await tries.again(conflict)
            return False
        self._sandboxes.changing[sandbox_id] = Pending()
        core.carry(partial(self._carry, sandbox, work, intent), f"{event.type} of {sandbox_id}")
        return True

    async def _carry(self, sandbox: SandboxState, work: Callable[[], Awaitable[Outcome]], intent: Recorded) -> None:
        sandbox_id, core = sandbox.sandbox_id, self._core
        outcome: events.Event | None = None
        instance: Instance | None = None
        try:
            with self._sandboxes.carrying(sandbox_id):
                if _is_under_way(sandbox, intent.position):  # its end was not ordered at that instant
                    outcome, instance = await work()
        except Exception as unforeseen:  # noqa: BLE001  # an outcome is recorded whatever happened
            outcome = failure_of(sandbox, as_sandkeep_error(unforeseen))
        if outcome is None or not rules.may(sandbox, outcome.type):
            return  # it is being terminated, and that carrier ends what was made, or it ended by itself
        try:
            await core.record([NewEvent(sandbox_id, outcome, sandbox_id, intent.revision)], intent)
        except StateError:
            return  # the same, while this was on its way to the disk
        if instance is not None:
            self._sandboxes.keep(instance)
        elif sandbox_id in self._sandboxes.runtimes:
            await self._sandboxes.agree(self._sandboxes.runtimes[sandbox_id])

    async def ordered_before(self, request: Request[Any], first: Recorded) -> Any:  # noqa: ARG002
        """The answer to a command that was given before."""
        sandbox = self._core.state.sandboxes[first.stream]
        await self._core.settled(first.stream, lambda: not _is_under_way(sandbox, first.position))
        change = sandbox.change
        if change is None or change.position != first.position:
            return await self._sandboxes.answer_earlier(first)
        return ANEW if change.interrupted else await self._outcome(sandbox)

    async def _outcome(self, sandbox: SandboxState) -> Sandbox:
        """Wait until the last order is carried out, and answer the sandbox. Raises what the order failed with."""
        change = sandbox.change
        if change is None:
            return sandbox.view()
        await self._core.settled(sandbox.sandbox_id, lambda: not _is_under_way(sandbox, change.position))
        if change.error is not None:
            raise error_from(*change.error, {"sandbox_id": sandbox.sandbox_id})
        if not change.done:
            raise rules.not_ready(sandbox)
        return sandbox.view()


def _is_under_way(sandbox: SandboxState, position: int) -> bool:
    """Whether the order at that position is being carried out."""
    is_last = sandbox.change is not None and sandbox.change.position == position
    return is_last and sandbox.status in ("suspending", "resuming")


def failure_of(sandbox: SandboxState, error: SandkeepError, *, interrupted: bool = False) -> events.Event:
    """What is recorded of an order that failed."""
    kind = events.SandboxSuspendFailed if sandbox.status == "suspending" else events.SandboxResumeFailed
    return kind(code=error.code, message=error.message, interrupted=interrupted)


def pausing(instance: Instance, provider: str) -> Pausing:
    """What suspends an instance. Raises `not_supported` where nothing does."""
    if instance.pauses is None:
        words = f"the {provider} provider cannot suspend yet: terminate the sandbox, or let it run"
        raise SetupError("not_supported", words)
    if instance.pauses.no_pauses is not None:
        words = f"the sandbox cannot be suspended: {instance.pauses.no_pauses}, terminate the sandbox, or let it run"
        raise SetupError("not_supported", words)
    return instance.pauses


async def in_time(work: Callable[[], Awaitable[None]]) -> None:
    """Have a provider do something. Raises `provider_unavailable` when it takes too long."""
    try:
        with trio.fail_after(ANSWER_DEADLINE_S):
            await work()
    except trio.TooSlowError:
        message = f"its provider did not answer within {ANSWER_DEADLINE_S:g} s: try again"
        raise ProviderError("provider_unavailable", message) from None
