"""Suspension and resumption of sandboxes, and the restart of those that were lost or failed."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import trio

from sandkeep import events
from sandkeep.errors import ProviderError, SetupError, StateError
from sandkeep.model import Sandbox
from sandkeep.protocol.methods import SandboxResume, SandboxSuspend
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.contract.instance import Instance
from sandkeepd.contract.pauses import Pausing
from sandkeepd.contract.revival import Reviving
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import Tries
from sandkeepd.core.operation import Order
from sandkeepd.sandboxes.changes import SandboxChange
from sandkeepd.sandboxes.termination import END_DEADLINE_S

RESUME_INTERRUPTED: Final = "the daemon stopped while it was being resumed: resume it again"
SUSPEND_INTERRUPTED: Final = "the daemon stopped while it was being suspended: suspend it again"


class PauseChange(SandboxChange):
    """The base of suspending and resuming, which undo each other. A restart leaves its instance in the context."""

    target: ClassVar[str]
    """The status that the order leads to."""

    opposite: ClassVar[str]
    """The status while the other of the two is under way, whose end is awaited first."""

    async def ensure(self, request: Request[SandboxSuspend] | Request[SandboxResume]) -> Sandbox:
        """Give the order, unless the sandbox has the target status or the order was payload, and answer it."""
        sandbox, tries = rules.sandbox(self.core.state, request.params.sandbox_id), Tries()
        while sandbox.status != self.target:
            if sandbox.status == self.opposite:
                await self.core.settled(sandbox.sandbox_id, lambda: sandbox.status != self.opposite)
            elif sandbox.status == self.under_way or await self.try_to_order(sandbox, request, tries):
                return await self.answer(request, sandbox.sandbox_id)
        return sandbox.view()

    @abstractmethod
    async def try_to_order(self, sandbox: SandboxState, request: Request[Any], tries: Tries) -> bool:
        """Give the order if the sandbox can take it; False if it changed meanwhile."""

    async def recorded(self, order: Order[SandboxState], facts: Sequence[Recorded]) -> None:  # noqa: ARG002
        runtime = self.runtimes.by_id.get(order.stream)
        if order.context is not None:
            self.runtimes.keep(order.context)
        elif runtime is not None:  # another program may have frozen or thawed it meanwhile
            await self.runtimes.agree(runtime)


class Suspension(PauseChange):
    """``sandbox.suspend``: a sandbox is frozen. `payload` is the `Pausing` instance."""

    method = "sandbox.suspend"
    under_way = "suspending"
    target = "suspended"
    opposite = "resuming"
    failure = events.SandboxSuspendFailed

    async def try_to_order(self, sandbox: SandboxState, request: Request[Any], tries: Tries) -> bool:
        rules.require_running(sandbox)
        runtime = await self.runtimes.standing(sandbox)
        able = pausing(runtime.instance, sandbox.requested.provider)
        return await self.try_to_begin(sandbox, events.SandboxSuspendRequested(), request, able, tries)

    async def act(self, order: Order[SandboxState]) -> Sequence[NewEvent]:
        pauses: Pausing = order.payload
        await in_time(pauses.suspend, pauses.deadline_s)
        return [NewEvent(order.stream, events.SandboxSuspended(), order.stream, order.subject.revision)]


class Revival(NamedTuple):
    """The means to restart a sandbox. The secrets are cleared afterwards."""

    provider: Reviving
    secrets: dict[str, str]


class Resumption(PauseChange):
    """``sandbox.resume``: a suspended sandbox is thawed, one that was lost or failed is restarted. `payload` is the
    `Pausing` instance, or a `Revival`.
    """

    method = "sandbox.resume"
    recovers = True
    under_way = "resuming"
    target = "running"
    opposite = "suspending"
    failure = events.SandboxResumeFailed

    async def try_to_order(self, sandbox: SandboxState, request: Request[Any], tries: Tries) -> bool:
        payload: Pausing | Revival
        if sandbox.status == "suspended":
            runtime = await self.runtimes.standing(sandbox)
            payload = pausing(runtime.instance, sandbox.requested.provider)
        else:
            provider = self.core.provider(sandbox.requested.provider)
            rules.revive(sandbox, request.params.secrets, can_revive=provider.revival is not None)
            assert provider.revival is not None
            payload = Revival(provider.revival, dict(request.params.secrets))
        event = events.SandboxResumeRequested(anew=isinstance(payload, Revival))
        return await self.try_to_begin(sandbox, event, request, payload, tries)

    async def act(self, order: Order[SandboxState]) -> Sequence[NewEvent]:
        payload: Pausing | Revival = order.payload
        resumed = events.SandboxResumed()
        if isinstance(payload, Revival):
            order.resources.callback(payload.secrets.clear)
            sandbox, asked = order.subject, order.subject.requested
            order.context = instance = await payload.provider.revive(
                order.stream, asked.image_id, asked.spec, payload.secrets, asked.plan, sandbox.handle
            )
            resumed = events.SandboxResumed(isolation=instance.isolation, handle=instance.handle)
        else:
            await in_time(payload.resume, payload.deadline_s)
        return [NewEvent(order.stream, resumed, order.stream, order.subject.revision)]

    def owns(self, subject: SandboxState) -> bool:
        """See `Operation.owns`. Only restarts are recovered here: the provider has no such sandbox to adopt."""
        return is_reviving(subject)

    async def _recover(self, order: Order[SandboxState]) -> None:
        sandbox, asked = order.subject, order.subject.requested

        async def halt() -> None:
            revival = self.core.provider(asked.provider).revival
            if revival is not None:
                await revival.halt(sandbox.sandbox_id, asked.plan, sandbox.handle)

        then = "it can be resumed again when that answers"
        await self.insist(order.stream, halt, then, provider=asked.provider, deadline_s=END_DEADLINE_S)
        why = StateError("not_ready", RESUME_INTERRUPTED)
        await self._record(order, [self.failure_of(order, why, interrupted=True)])


def is_reviving(sandbox: SandboxState) -> bool:
    """Tell if a sandbox is being restarted."""
    change = sandbox.change
    return sandbox.status == "resuming" and change is not None and change.before != "suspended"


def outcome_of_change(sandbox: SandboxState, instance: Instance) -> list[events.Event]:
    """Return the outcome of an order to suspend or resume that an earlier daemon left unfinished, from the state of the
    sandbox.
    """
    paused = instance.pauses is not None and instance.pauses.is_paused()
    if sandbox.status == "suspending":
        undone = events.SandboxSuspendFailed(code="not_ready", message=SUSPEND_INTERRUPTED, interrupted=True)
        return [events.SandboxSuspended() if paused else undone]
    if sandbox.status == "resuming":
        not_yet = events.SandboxResumeFailed(code="not_ready", message=RESUME_INTERRUPTED, interrupted=True)
        return [not_yet if paused else events.SandboxResumed()]
    return []


def pausing(instance: Instance, provider: str) -> Pausing:
    """Return the instance's pauses. Raises `not_supported` if it cannot be suspended."""
    if instance.pauses is None:
        message = f"the {provider} provider cannot suspend yet: terminate the sandbox, or let it run"
        raise SetupError("not_supported", message)
    if instance.pauses.no_pauses is not None:
        message = f"the sandbox cannot be suspended: {instance.pauses.no_pauses}, terminate the sandbox, or let it run"
        raise SetupError("not_supported", message)
    return instance.pauses


async def in_time(work: Callable[[], Awaitable[None]], deadline_s: float) -> None:
    """Run a provider's operation. Raises `provider_unavailable` after the deadline."""
    try:
        with trio.fail_after(deadline_s):
            await work()
    except trio.TooSlowError:
        message = f"its provider did not answer within {deadline_s:g} s: try again"
        raise ProviderError("provider_unavailable", message) from None
