"""Creation of sandboxes: of an image, or by a `Maker` from another source."""

from collections.abc import Mapping, Sequence
from typing import Any

from sandkeep import events
from sandkeep.errors import CallerError, SandkeepError, StateError, error_from
from sandkeep.model import Sandbox
from sandkeep.protocol.methods import SandboxCreate
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.snapshots import ForkState
from sandkeepd.contract.instance import Instance
from sandkeepd.contract.provider import Provider
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import ANEW, Core
from sandkeepd.core.operation import Creation, Order
from sandkeepd.sandboxes.images import Images
from sandkeepd.sandboxes.reservations import Reservations
from sandkeepd.sandboxes.runtimes import Runtime, Runtimes
from sandkeepd.sandboxes.termination import END_DEADLINE_S, Termination


class Maker:
    """Makes a sandbox that is on record as about to be: here, its provider does, of its image.

    `secrets` are cleared when it is made, or is not.
    """

    def __init__(self, secrets: Mapping[str, str]) -> None:
        self.secrets = dict(secrets)

    async def make(self, provider: Provider, sandbox: SandboxState) -> Instance:
        """Make it and start it. On any error, cancellation included, nothing is left of it."""
        asked = sandbox.requested
        return await provider.create(sandbox.sandbox_id, asked.image_id, asked.spec, self.secrets, asked.plan)

    def found(self) -> list[NewEvent]:
        """Return further events to record with the creation."""
        return []

    def begun(self, runtime: Runtime) -> None:
        """Go on: it is on record, and looked after."""

    def done(self) -> None:
        """Release the sources, after success or failure."""
        self.secrets.clear()


class SandboxCreation(Creation[SandboxState]):
    """``sandbox.create``, and its handler."""

    method = "sandbox.create"
    under_way = "creating"
    interruptible = True
    interrupted = "the daemon stopped while it was being made: create it again"

    def __init__(
        self, core: Core, images: Images, reservations: Reservations, runtimes: Runtimes, termination: Termination
    ) -> None:
        super().__init__(core)
        self._images = images
        self._reservations = reservations
        self._runtimes = runtimes
        self._termination = termination

    @property
    def subjects(self) -> Mapping[str, SandboxState]:
        """See `Operation.subjects`."""
        return self.core.state.sandboxes

    async def create(self, request: Request[SandboxCreate]) -> Sandbox:
        """Make a sandbox and start it."""
        core, command = self.core, request.params
        provider = core.provider(rules.image(core.state, command.image_id).requested.provider)
        image, spec = rules.create_sandbox(core.state, command, network=provider.default_network())
        _check_volumes(request)
        with self._reservations.one(request.owner, command.name) as sandbox_id:
            plan = self._reservations.plan(provider, sandbox_id, image.image_id, spec, request.caller, request.owner)
            self._reservations.keep(sandbox_id, provider.name, plan)
            event = events.SandboxCreateRequested(
                owner=request.owner,
                image_id=image.image_id,
                provider=provider.name,
                spec=spec,
                secrets=sorted(command.secrets),
                plan=plan,
                name=command.name,
            )
            with self._images.holds.held(image.image_id):
                await self.begin(
                    NewEvent(sandbox_id, event, sandbox_id, 0), request.meta, request, Maker(command.secrets)
                )
        return await self.made(sandbox_id)

    def start(self, intent: Recorded, request: Request[Any] | None = None, given: Any = None) -> Order[SandboxState]:
        """Start making a recorded sandbox, by the `Maker` in `given`."""
        order = super().start(intent, request, given)
        order.resources.callback(given.done)
        return order

    async def act(self, order: Order[SandboxState]) -> Sequence[NewEvent]:
        """See `Operation.act`."""
        maker, sandbox, intent = order.given, order.subject, order.intent
        assert intent is not None
        order.context = made = await maker.make(self.core.provider(sandbox.requested.provider), sandbox)
        created = events.SandboxCreated(isolation=made.isolation, handle=made.handle)
        return [NewEvent(order.stream, created, order.stream, intent.revision), *maker.found()]

    async def recorded(self, order: Order[SandboxState], facts: Sequence[Recorded]) -> None:  # noqa: ARG002
        """See `Operation.recorded`."""
        if order.subject.error is None:
            order.given.begun(self._runtimes.keep(order.context))
        else:
            await self.undone(order)

    def failure(self, subject: SandboxState, error: SandkeepError, *, interrupted: bool) -> Sequence[NewEvent]:
        """See `Creation.failure`."""
        failed = events.SandboxCreateFailed(code=error.code, message=error.message, interrupted=interrupted)
        return [NewEvent(subject.sandbox_id, failed, subject.sandbox_id, subject.revision)]

    async def undo(self, order: Order[SandboxState]) -> None:
        """See `Creation.undo`."""
        sandbox_id, asked = order.stream, order.subject.requested

        async def terminate() -> None:
            await self.core.provider(asked.provider).terminate(sandbox_id, asked.plan, {})

        then = "what an earlier daemon had begun to make will be removed when that answers"
        await self.insist(sandbox_id, terminate, then, provider=asked.provider, deadline_s=END_DEADLINE_S)

    async def undone(self, order: Order[SandboxState]) -> None:
        """See `Creation.undone`."""
        await self._termination.told_ended(order.subject)

    def told(self, subject: SandboxState) -> dict[str, Any]:
        """See `Creation.told`."""
        return {"sandbox_id": subject.sandbox_id}

    # -- answering ----------------------------------------------------------------------------------------------------

    async def made(self, sandbox_id: str) -> Sandbox:
        """Wait until the sandbox runs or failed, and answer it."""
        sandbox = await self.settled(sandbox_id)
        if sandbox.made:
            return sandbox.view()
        if sandbox.error is not None:
            raise error_from(*sandbox.error, self.told(sandbox))
        words = f"sandbox {sandbox_id} was terminated while it was being made"
        raise StateError("conflict", words, sandbox_id=sandbox_id)

    async def answer(self, request: Request[Any], stream: str) -> Sandbox:  # noqa: ARG002
        """See `Operation.answer`."""
        return await self.made(stream)

    async def answered(self, request: Request[Any], subject: SandboxState) -> Sandbox:  # noqa: ARG002
        """See `Operation.answered`."""
        return subject.view()

    async def again(self, request: Request[Any], first: Recorded) -> Any:
        """See `Operation.again`."""
        sandbox = await self.settled(first.stream)
        is_another = sandbox.requested_us != first.time_us  # by which the id was used again
        return ANEW if sandbox.interrupted or is_another else await self.answer(request, first.stream)

    # -- several at once ----------------------------------------------------------------------------------------------

    async def unmade(self, batch: ForkState) -> list[str] | None:
        """List those of a batch's sandboxes that only a daemon's end kept from being made; None when that is so of all
        of it. Waits until the others are made, or are not.
        """
        await self.core.settled(batch.fork_id, lambda: batch.done or batch.error is not None)
        if batch.interrupted:
            return None
        for sandbox_id in batch.sandbox_ids if batch.done else ():
            await self.settled(sandbox_id)
        unmade = [one for one in batch.sandbox_ids if rules.interrupted_sandbox(self.core.state, one, batch.owner)]
        return None if batch.done and unmade == batch.sandbox_ids else unmade

    async def begin_again(self, sandbox_id: str, maker: Maker) -> None:
        """Make one of these after all, by the plan that it had. Raises `conflict` when another has its name by now."""
        sandbox = self.subjects[sandbox_id]
        try:
            with self._reservations.again(sandbox) as event:
                [intent] = await self.core.record([NewEvent(sandbox_id, event, sandbox_id, sandbox.revision)], None)
        except BaseException:
            maker.done()
            raise
        self.start(intent, given=maker)


def _check_volumes(request: Request[SandboxCreate]) -> None:
    """Allow host directories as volumes to administrators only."""
    for volume in request.params.volumes:
        if volume.source.startswith("/") and not request.admin:
            words = f"volumes: {volume.source!r} is a directory of the host, for administrators: give a name instead"
            raise CallerError("permission_denied", words, field="volumes")
