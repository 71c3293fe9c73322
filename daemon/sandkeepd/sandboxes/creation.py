"""Creation of sandboxes: of an image, or by a `Maker` from another source."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sandkeep import events
from sandkeep.errors import CallerError, StateError
from sandkeep.model import Sandbox, SandboxSpec, Volume
from sandkeep.protocol.methods import SandboxCreate
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.snapshots import ForkState
from sandkeepd.contract.caller import STARTING
from sandkeepd.contract.instance import Instance
from sandkeepd.contract.provider import Provider
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import RUN_AGAIN, Core
from sandkeepd.core.operation import Creation, Order
from sandkeepd.sandboxes.images import Images
from sandkeepd.sandboxes.reservations import Reservations
from sandkeepd.sandboxes.runtimes import Runtime, Runtimes
from sandkeepd.sandboxes.termination import Termination


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


class SandboxCreation(Creation[SandboxState, Sandbox]):
    """``sandbox.create``, and its handler."""

    method = "sandbox.create"
    view = "sandboxes"
    named = "sandbox_id"
    failure = events.SandboxCreateFailed
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

    async def create(self, request: Request[SandboxCreate]) -> Sandbox:
        """Make a sandbox and start it."""
        core, command = self.core, request.params
        provider = core.provider_of_image(command.image_id)
        image, spec = rules.create_sandbox(
            core.state, command, network=provider.default_network(), memory_bytes=provider.default_memory()
        )
        check_volumes(request, command.volumes)
        return await self.create_as(request, image.image_id, spec)

    async def create_as(self, request: Request[SandboxCreate], image_id: str, spec: SandboxSpec) -> Sandbox:
        """Make a sandbox of this spec, which was checked; of the request only the name and the secrets count."""
        command, provider = request.params, self.core.provider_of_image(image_id)
        with self._reservations.one(request, command.name, spec) as sandbox_id:
            new = self._reservations.intent(sandbox_id, provider, image_id, spec, request.caller, command.secrets)
            with self._images.holds.held(image_id):
                await self.begin(new, request.meta, request, Maker(command.secrets))
        return await self.made(sandbox_id)

    def start(self, intent: Recorded, request: Request[Any] | None = None, payload: Any = None) -> Order[SandboxState]:
        """Start making a recorded sandbox, by the `Maker` in `payload`."""
        order = super().start(intent, request, payload)
        order.resources.callback(payload.done)
        return order

    async def act(self, order: Order[SandboxState]) -> Sequence[NewEvent]:
        maker, sandbox, intent = order.payload, order.subject, order.intent
        assert intent is not None
        STARTING.set(order.progress)
        order.context = made = await maker.make(self.core.provider(sandbox.requested.provider), sandbox)
        created = events.SandboxCreated(isolation=made.isolation, handle=made.handle)
        return [NewEvent(order.stream, created, order.stream, intent.revision), *maker.found()]

    async def succeeded(self, order: Order[SandboxState], facts: Sequence[Recorded]) -> None:  # noqa: ARG002
        order.payload.begun(self._runtimes.keep(order.context))

    async def undo(self, order: Order[SandboxState]) -> None:
        undo = partial(self._termination.end_and_clear, order.subject)
        then = "unfinished objects of an earlier daemon will be removed when it answers"
        await self.insist(order.stream, undo, then, provider=order.subject.requested.provider)

    async def undone(self, order: Order[SandboxState]) -> None:
        await self._termination.on_ended(order.subject)

    # -- answering ----------------------------------------------------------------------------------------------------

    async def made(self, sandbox_id: str) -> Sandbox:
        """Wait until the sandbox runs or failed, and answer it."""
        sandbox = await self.settled(sandbox_id)
        if sandbox.made:
            return sandbox.view()
        if sandbox.error is not None:
            raise self.error_of(sandbox)
        message = f"sandbox {sandbox_id} was terminated while it was being made"
        raise StateError("conflict", message, sandbox_id=sandbox_id)

    async def answer(self, request: Request[Any], stream: str) -> Sandbox:  # noqa: ARG002
        return await self.made(stream)

    async def again(self, request: Request[Any], first: Recorded) -> Any:
        sandbox = await self.settled(first.stream)
        is_another = sandbox.requested_us != first.time_us  # by which the id was used again
        return RUN_AGAIN if sandbox.interrupted or is_another else await self.answer(request, first.stream)

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
        known = [self.subjects[one] for one in batch.sandbox_ids if one in self.subjects]
        unmade = [s.sandbox_id for s in known if s.interrupted and s.status == "failed" and s.owner == batch.owner]
        return None if batch.done and unmade == batch.sandbox_ids else unmade

    async def begin_again(self, request: Request[Any], sandbox_id: str, maker: Maker) -> None:
        """Make one of these after all, by the plan that it had. Raises `conflict` when another has its name by now, and
        `quota_exceeded`.
        """
        sandbox = self.subjects[sandbox_id]
        try:
            with self._reservations.again(request, sandbox) as event:
                [intent] = await self.core.record([NewEvent(sandbox_id, event, sandbox_id, sandbox.revision)], None)
        except BaseException:
            maker.done()
            raise
        self.start(intent, payload=maker)


def check_volumes(request: Request[Any], volumes: Sequence[Volume]) -> None:
    """Allow host directories as volumes to administrators only."""
    for volume in volumes:
        if volume.source.startswith("/") and not request.admin:
            message = f"volumes: {volume.source!r} is a directory of the host, for administrators: give a name instead"
            raise CallerError("permission_denied", message, field="volumes")
