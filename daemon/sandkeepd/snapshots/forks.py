"""Forks: sandboxes that begin with the files of another at one moment.

A provider keeps the source's changes; see `sandboxes.batch` for their use.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from sandkeep import events, failpoints, ids
from sandkeep.errors import SetupError
from sandkeep.model import ForkResult
from sandkeep.protocol.methods import SandboxFork
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.snapshots import ForkState
from sandkeepd.contract.layers import CopiedChanges, Layering
from sandkeepd.contract.provider import Provider
from sandkeepd.contract.snapshots import Source
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.core.operation import Order
from sandkeepd.sandboxes.batch import SandboxBatch
from sandkeepd.sandboxes.creation import Maker
from sandkeepd.sandboxes.sandboxes import Sandboxes
from sandkeepd.snapshots.layers import LayerReferences


class Forks(SandboxBatch[ForkResult]):
    """``sandbox.fork``, and its handler."""

    method = "sandbox.fork"
    named = "sandbox_id"
    failure = events.SandboxForkFailed
    interrupted = "the daemon stopped while the sandbox was being forked: fork it again"

    def __init__(self, core: Core, sandboxes: Sandboxes, layers: LayerReferences) -> None:
        super().__init__(core, sandboxes)
        self._layers = layers

    def owns(self, subject: ForkState) -> bool:
        return subject.checkpoint_id is None and not subject.of_branches

    async def fork(self, request: Request[SandboxFork]) -> ForkResult:
        """Make sandboxes that begin with the files of one."""
        command, core = request.params, self.core
        source = rules.sandbox(core.state, command.sandbox_id)
        await self._sandboxes.runtimes.adopted(source.sandbox_id)
        rules.require_files(source)
        rules.require_secrets(source, command.secrets)
        able = layering(core.provider(source.requested.provider))
        if able.no_forks is not None:
            raise SetupError("not_supported", able.no_forks)
        spec = rules.like(rules.asked_spec(source.requested), command.labels)

        def intent(sandbox_ids: list[str]) -> NewEvent:
            event = events.SandboxForkRequested(sandbox_ids=sandbox_ids, names=command.names)
            return NewEvent(ids.new_id(ids.FORK), event, source.sandbox_id, 0)

        return await self.run_batch(source.owner, command.names, command.count, intent, request, spec)

    async def act(self, order: Order[ForkState]) -> Sequence[NewEvent]:
        request, batch, core = order.request, order.subject, self.core
        assert request is not None
        source = core.state.sandboxes[batch.sandbox_id]
        await order.progress("copying the changes of the sandbox")
        with self._sandboxes.runtimes.reading(source.sandbox_id):
            provider = layering(core.provider(source.requested.provider))
            frozen = await provider.freeze(order.stream, source_of(source))
        created = [self._created(request, source, order.stream, one, frozen) for one in batch.sandbox_ids]
        failpoints.reach("fork.frozen")
        done = events.SandboxForked(pause_ms=frozen.pause_ms or 0.0, size_bytes=frozen.size_bytes)
        return [NewEvent(order.stream, done, source.sandbox_id), *created]

    def _created(
        self, request: Request[SandboxFork], source: SandboxState, fork_id: str, sandbox_id: str, frozen: CopiedChanges
    ) -> NewEvent:
        """The intent to make one of them; from here on its plan is known to those that follow."""
        provider = self.core.provider(source.requested.provider)
        return self._sandboxes.reservations.intent(
            sandbox_id, provider, source.requested.image_id,
            rules.like(rules.asked_spec(source.requested), request.params.labels),
            request.caller, request.params.secrets, lambda plan: {**plan, **frozen.files},
            forked_from=source.sandbox_id, fork_id=fork_id, restored_from=source.restored_from,
            needs_image=layering(provider).needs_image(frozen.files),
        )  # fmt: skip

    async def succeeded(self, order: Order[ForkState], facts: Sequence[Recorded]) -> None:
        assert order.request is not None
        self.start_each(facts, partial(Maker, order.request.params.secrets))
        await order.progress(f"starting {len(order.subject.sandbox_ids)} sandboxes")

    async def undone(self, order: Order[ForkState]) -> None:
        """See `Creation.undone`. Removes the copied files."""
        await self._layers.drop_copies(order.subject)

    async def answered(self, request: Request[Any], subject: ForkState) -> ForkResult:  # noqa: ARG002
        """See `Operation.answered`. Raises the error of the first sandbox that failed."""
        return ForkResult(
            sandbox_id=subject.sandbox_id, sandboxes=await self.each_made(subject), pause_ms=subject.pause_ms
        )

    async def make_again(
        self,
        request: Request[Any],
        batch: ForkState,  # noqa: ARG002
        sandbox_ids: Sequence[str],
    ) -> None:
        """See `SandboxBatch.make_again`. The files are there that the others have."""
        await self.begin_each_again(request, sandbox_ids, partial(Maker, request.params.secrets))


def layering(provider: Provider) -> Layering:
    """Return the provider's layers. Raises `not_supported` if it has none."""
    if provider.layers is not None:
        return provider.layers
    raise SetupError("not_supported", f"the {provider.name} provider cannot fork yet: use the local provider")


def source_of(sandbox: SandboxState) -> Source:
    """A sandbox whose files are to be read, for its provider."""
    return Source(
        sandbox_id=sandbox.sandbox_id,
        image_id=sandbox.requested.image_id,
        plan=sandbox.requested.plan,
        handle=sandbox.handle,
    )
