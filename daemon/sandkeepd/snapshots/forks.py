"""Forks: sandboxes that begin with the files that another has at one moment.

The order is an intent in a stream of its own. A carrier has the provider keep what the source changed; then, in one
append, it goes on record that this is done and which sandboxes are about to be made of it, each of which has a carrier
as every new sandbox has. From that append on nothing of the source matters to them.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

from sandkeep import events, failpoints, ids
from sandkeep.errors import SetupError, error_from
from sandkeep.model import ForkResult
from sandkeep.protocol.methods import SandboxFork
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.contract.provider import Frozen, Layering, Provider, Source
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import ANEW, Core, as_sandkeep_error
from sandkeepd.sandboxes.sandboxes import Sandboxes
from sandkeepd.snapshots.layers import LayerReferences


class Forks:
    """The handler of ``sandbox.fork``."""

    def __init__(self, core: Core, sandboxes: Sandboxes, layers: LayerReferences) -> None:
        self._core = core
        self._sandboxes = sandboxes
        self._layers = layers

    async def fork(self, request: Request[SandboxFork]) -> ForkResult:
        """Make sandboxes that begin with the files of one."""
        command, core = request.params, self._core
        source = rules.sandbox(core.state, command.sandbox_id)
        await self._sandboxes.adopted(source.sandbox_id)
        rules.require_files(source)
        rules.require_secrets(source, command.secrets)
        able = layering(core.provider(source.requested.provider))
        if able.no_forks is not None:
            raise SetupError("not_supported", able.no_forks)
        rules.like(source.spec, command.labels)
        fork_id = ids.new_id(ids.FORK)

        def order(sandbox_ids: list[str]) -> NewEvent:
            event = events.SandboxForkRequested(sandbox_ids=sandbox_ids, names=command.names)
            return NewEvent(fork_id, event, source.sandbox_id, 0)

        intent = await self._sandboxes.order(source.owner, command.names, command.count, order, request.meta)
        failpoints.reach("fork.planned")
        core.carry(partial(self._carry, request, source, intent), f"fork of {source.sandbox_id}")
        return await self.answer(fork_id)

    async def _carry(self, request: Request[SandboxFork], source: SandboxState, intent: Recorded) -> None:
        core, fork_id = self._core, intent.stream
        fork = core.state.forks[fork_id]
        try:
            try:
                recorded = await self._freeze(request, source, intent)
            finally:
                self._sandboxes.unreserve(*fork.sandbox_ids)
        except Exception as unforeseen:  # noqa: BLE001  # an outcome is recorded whatever happened
            error = as_sandkeep_error(unforeseen)
            failed = events.SandboxForkFailed(code=error.code, message=error.message)
            await core.record([NewEvent(fork_id, failed, source.sandbox_id)], intent)
            await self._layers.drop(source.requested.provider, [fork_id])
            return
        await request.progress(f"starting {len(fork.sandbox_ids)} sandboxes")
        for fact in recorded[1:]:
            self._sandboxes.begin(fact, request.params.secrets)

    async def _freeze(
        self, request: Request[SandboxFork], source: SandboxState, intent: Recorded
    ) -> Sequence[Recorded]:
        """Keep the files that the forks begin with, and put on record that this is done, and what they will be."""
        core, fork_id = self._core, intent.stream
        await request.progress("copying what the sandbox changed")
        with self._sandboxes.reading(source.sandbox_id):
            provider = layering(core.provider(source.requested.provider))
            frozen = await provider.freeze(fork_id, source_of(source))
        ids_of_forks = core.state.forks[fork_id].sandbox_ids
        created = [self._created(request, source, fork_id, one, frozen) for one in ids_of_forks]
        failpoints.reach("fork.frozen")
        done = events.SandboxForked(pause_ms=frozen.pause_ms or 0.0, size_bytes=frozen.size_bytes)
        return await core.record([NewEvent(fork_id, done, source.sandbox_id), *created], intent)

    def _created(
        self, request: Request[SandboxFork], source: SandboxState, fork_id: str, sandbox_id: str, frozen: Frozen
    ) -> NewEvent:
        """The intent to make one of them; from here on its plan is known to those that follow."""
        asked, provider = source.requested, self._core.provider(source.requested.provider)
        spec = rules.like(source.spec, request.params.labels)
        plan = self._sandboxes.plan(provider, sandbox_id, asked.image_id, spec, request.caller, source.owner)
        layered = layering(provider).layered(plan, frozen.files)
        name = self._sandboxes.give(sandbox_id, provider.name, layered)
        event = events.SandboxCreateRequested(
            owner=source.owner,
            image_id=asked.image_id,
            provider=provider.name,
            spec=spec,
            secrets=sorted(request.params.secrets),
            plan=layered,
            forked_from=source.sandbox_id,
            fork_id=fork_id,
            restored_from=source.restored_from,
            needs_image=frozen.needs_image,
            name=name,
        )
        return NewEvent(sandbox_id, event, sandbox_id, 0)

    async def answer(self, fork_id: str) -> ForkResult:
        """Wait until all forks run, and answer them. Raises what the fork failed with, or the first of them."""
        fork = self._core.state.forks[fork_id]
        await self._core.settled(fork_id, lambda: fork.done or fork.error is not None)
        if fork.error is not None:
            raise error_from(*fork.error, {"sandbox_id": fork.sandbox_id})
        made = [await self._sandboxes.answer_create(sandbox_id) for sandbox_id in fork.sandbox_ids]
        return ForkResult(sandbox_id=fork.sandbox_id, sandboxes=made, pause_ms=fork.pause_ms)

    async def forked_before(self, request: Request[SandboxFork], first: Recorded) -> Any:
        """The answer to a command that was given before. Forks that only a daemon's end kept from being made are made
        now; if that is all of them, of what the source has by now.
        """
        undone = await self._sandboxes.undone(self._core.state.forks[first.stream])
        if undone is None:
            return ANEW
        for sandbox_id in undone:  # the files are there that the others have
            self._sandboxes.begin(await self._sandboxes.intend_again(sandbox_id), request.params.secrets)
        return await self.answer(first.stream)


def layering(provider: Provider) -> Layering:
    """What keeps files for others to begin with. Raises `not_supported` where nothing does."""
    if isinstance(provider, Layering):
        return provider
    raise SetupError("not_supported", f"the {provider.name} provider cannot fork yet: use the local provider")


def source_of(sandbox: SandboxState) -> Source:
    """A sandbox whose files are to be read, for its provider."""
    return Source(
        sandbox_id=sandbox.sandbox_id,
        image_id=sandbox.requested.image_id,
        plan=sandbox.requested.plan,
        handle=sandbox.handle,
    )
