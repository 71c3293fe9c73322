"""Creation of branches: several sandboxes that begin with one image, one snapshot, or the files of one sandbox."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec import Struct, field

from sandkeep import events, failpoints, ids
from sandkeep.errors import CallerError, SetupError
from sandkeep.model import BranchCreateResult, Image, SandboxSpec
from sandkeep.protocol.methods import BranchCreate, ImageCreate, SandboxCreate
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.snapshots import ForkState, SnapshotState
from sandkeepd.branches.points import Points
from sandkeepd.core import rules
from sandkeepd.core.access import Request, part_of_request
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Order
from sandkeepd.sandboxes.batch import SandboxBatch
from sandkeepd.sandboxes.creation import Maker
from sandkeepd.sandboxes.images import Images
from sandkeepd.sandboxes.sandboxes import Sandboxes
from sandkeepd.snapshots.forks import layering
from sandkeepd.snapshots.layers import LayerReferences
from sandkeepd.snapshots.restore import FromSnapshot, Unpacking, image_beneath, names_of


class Beginning(Struct, kw_only=True):
    """The beginning of branches: an image, and above it the `files` of a snapshot, or those of the sandbox `source`,
    which are not copied yet. `facts` are fields of the intents to make the branches.
    """

    owner: str
    provider: str
    image_id: str
    spec: SandboxSpec
    files: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    source: SandboxState | None = None
    snapshot: SnapshotState | None = None


class BranchCreation(SandboxBatch[BranchCreateResult]):
    """``branch.create``, and its handler. `payload` is the `Beginning`."""

    method = "branch.create"
    named = "sandbox_id"
    failure = events.BranchCreateFailed
    interrupted = "the daemon stopped while the branches were being made: make them again"

    def __init__(
        self, core: Core, images: Images, sandboxes: Sandboxes, layers: LayerReferences, unpacking: Unpacking,
        points: Points,
    ) -> None:  # fmt: skip
        super().__init__(core, sandboxes)
        self._images = images
        self._points = points
        self._layers = layers
        self._unpacking = unpacking

    def owns(self, subject: ForkState) -> bool:
        return subject.of_branches

    async def create(self, request: Request[BranchCreate]) -> BranchCreateResult:
        """Make branches of a directory, an image, a snapshot or a sandbox."""
        command = request.params
        given = [each for each in (command.source, command.image_id, command.snapshot_id, command.sandbox_id) if each]
        if len(given) != 1:
            message = f"source: give one of source, image_id, snapshot_id and sandbox_id, not {len(given)} of them"
            raise CallerError("invalid", message, field="source")
        source_id = await self._image_of(request) if command.source is not None else given[0]
        begins = await self._beginning(request, source_id)

        def intent(sandbox_ids: list[str]) -> NewEvent:
            event = events.BranchCreateRequested(
                owner=begins.owner, source_id=source_id, sandbox_ids=sandbox_ids, names=command.names
            )
            return NewEvent(ids.new_id(ids.FORK), event, None, 0)

        layers = names_of(self.core, begins.snapshot) if begins.snapshot is not None else []
        with self._images.holds.held(begins.image_id), self._layers.held(*layers):
            return await self.run_batch(
                begins.owner, command.names, command.count, intent, request, begins.spec, begins
            )

    async def _image_of(self, request: Request[BranchCreate]) -> str:
        """Make an image of the caller's directory, or find the one of the same content."""
        command = request.params
        if not (command.source or "").startswith("/"):
            message = f"source: {(command.source or '')[:200]!r} is not an absolute path; an image has a parameter"
            raise CallerError("invalid", message, field="source")
        # What a Docker image needs not, such as tests, is what branches are for.
        asked = ImageCreate(
            source=command.source or "", provider=command.provider, ignore=command.ignore, ignore_files=False
        )
        image: Image = await self._images.create(part_of_request(request, "image.create", asked))
        return image.image_id

    async def _beginning(self, request: Request[BranchCreate], source_id: str) -> Beginning:
        """Find out how branches of this begin. Raises what is in their way."""
        core, command = self.core, request.params
        if source_id in core.state.images:
            provider = core.provider_of_image(source_id)
            image, spec = rules.create_sandbox(
                core.state, SandboxCreate(image_id=source_id, labels=command.labels),
                network=provider.default_network(), memory_bytes=provider.default_memory(),
            )  # fmt: skip
            return Beginning(owner=request.owner, provider=provider.name, image_id=image.image_id, spec=spec)
        if source_id in core.state.snapshots:
            return await self._from_snapshot(request, rules.ready_snapshot(core.state, source_id))
        source = rules.sandbox(core.state, source_id)
        await self._sandboxes.runtimes.adopted(source.sandbox_id)
        rules.require_files(source)
        rules.require_secrets(source, command.secrets)
        layering(core.provider(source.requested.provider))
        asked = source.requested
        return Beginning(
            owner=source.owner, provider=asked.provider, image_id=asked.image_id, source=source,
            spec=rules.like(rules.asked_spec(asked), command.labels),
            facts={"forked_from": source.sandbox_id, "restored_from": source.restored_from},
        )  # fmt: skip

    async def _from_snapshot(self, request: Request[BranchCreate], snapshot: SnapshotState) -> Beginning:
        core = self.core
        source = core.state.sandboxes.get(snapshot.sandbox_id or "")
        if source is None:
            message = "the snapshot is of no sandbox here: restore one of it, and make branches of that"
            raise SetupError("not_supported", message)
        rules.require_secrets(source, request.params.secrets)
        provider = core.provider_of(snapshot)
        layers = layering(provider)
        files = await layers.files_of_layers(names_of(core, snapshot), image_beneath(core, snapshot))
        return Beginning(
            owner=source.owner, provider=provider.name, snapshot=snapshot, files=files,
            image_id=snapshot.requested.image_id or snapshot.snapshot_id,
            spec=rules.like(rules.asked_spec(source.requested), request.params.labels),
            facts={"restored_from": snapshot.snapshot_id, "needs_image": layers.needs_image(files)},
        )  # fmt: skip

    async def act(self, order: Order[ForkState]) -> Sequence[NewEvent]:
        begins: Beginning = order.payload
        done = events.BranchCreated()
        if begins.source is not None:
            layers = layering(self.core.provider(begins.provider))
            await order.progress("copying the changes of the sandbox")
            frozen = await self._points.take(begins.source, order.stream, order.progress)
            begins.files = frozen.files
            begins.facts |= {"fork_id": order.stream, "needs_image": layers.needs_image(frozen.files)}
            done = events.BranchCreated(pause_ms=frozen.pause_ms or 0.0, size_bytes=frozen.size_bytes)
        created = [self._created(order, one) for one in order.subject.sandbox_ids]
        failpoints.reach("branch.planned")
        return [NewEvent(order.stream, done), *created]

    def _created(self, order: Order[ForkState], sandbox_id: str) -> NewEvent:
        """The intent to make one of them; from here on its plan is known to those that follow."""
        request, begins = order.request, order.payload
        assert request is not None
        return self._sandboxes.reservations.intent(
            sandbox_id, self.core.provider(begins.provider), begins.image_id, begins.spec, request.caller,
            request.params.secrets, lambda plan: {**plan, **begins.files}, **begins.facts,
        )  # fmt: skip

    async def succeeded(self, order: Order[ForkState], facts: Sequence[Recorded]) -> None:
        assert order.request is not None
        self.start_each(facts, partial(self._maker, order.request, order.payload.snapshot))
        await order.progress(f"starting {len(order.subject.sandbox_ids)} sandboxes")

    def _maker(self, request: Request[Any], snapshot: SnapshotState | None) -> Maker:
        secrets = request.params.secrets
        if snapshot is None:
            return Maker(secrets)
        return FromSnapshot(secrets, self._unpacking, snapshot, request.progress)

    async def undone(self, order: Order[ForkState]) -> None:
        """See `Creation.undone`. Removes the copied files."""
        await self._layers.drop_copies(order.subject)

    async def answered(self, request: Request[Any], subject: ForkState) -> BranchCreateResult:  # noqa: ARG002
        """See `Operation.answered`. Raises the error of the first sandbox that failed."""
        made = await self.each_made(subject)
        return BranchCreateResult(source_id=subject.sandbox_id, sandboxes=made, pause_ms=subject.pause_ms)

    async def make_again(self, request: Request[Any], batch: ForkState, sandbox_ids: Sequence[str]) -> None:
        snapshot = self.core.state.snapshots.get(batch.sandbox_id)
        await self.begin_each_again(request, sandbox_ids, partial(self._maker, request, snapshot))
