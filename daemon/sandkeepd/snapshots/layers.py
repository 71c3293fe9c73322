"""References to layers: kept files that sandboxes begin with, removed with the last sandbox that uses them.

The log has the references: the plans of sandboxes that have not ended. `held` counts those that are about to go on
record.
"""

import logging
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import trio

from sandkeep.errors import SandkeepError
from sandkeep_store.views.branches import MergeState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.snapshots import ForkState
from sandkeepd.contract.engine import Recovering
from sandkeepd.contract.layers import Layering
from sandkeepd.core.core import Core
from sandkeepd.core.holds import Holds

logger = logging.getLogger("sandkeepd")


class LayerReferences:
    """The references to kept files, and their removal with the last reference."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._holds = Holds()
        self.held = self._holds.held
        self._turns: dict[str, trio.Lock] = {}

    def turn(self, name: str) -> trio.Lock:
        """Return the lock for making or removing kept files of that name."""
        return self._turns.setdefault(name, trio.Lock())

    def is_needed(self, name: str) -> bool:
        """Return True if a sandbox uses these files, or is about to."""
        state = self._core.state
        fork, snapshot = state.forks.get(name), state.snapshots.get(name)
        being_copied = (fork is not None and fork.ended_us is None) or (
            snapshot is not None and snapshot.status == "creating"
        )
        if self._holds.count(name) or being_copied:
            return True
        users = ((s.requested.provider, s.plans) for s in state.sandboxes.values() if not s.hidden)
        kept = ((c.requested.provider, [c.requested.plan]) for c in state.checkpoints.values() if c.alive)
        merges = (
            (m.requested.provider, self._plans_of(m)) for m in state.merges.values() if m.waits or self._is_used(m)
        )
        is_being_made = any(
            name == m.merge_id or (m.waits and name in m.requested.points.values())
            for m in state.merges.values() if m.waits or self._is_unmade(m)
        )  # fmt: skip
        return is_being_made or any(name in self._of(provider, plans) for provider, plans in (*users, *kept, *merges))

    def _is_used(self, merge: MergeState) -> bool:
        """Return True if the sandbox that was made of a merge has not ended."""
        sandbox = self._core.state.sandboxes.get(merge.sandbox_id)
        return sandbox is not None and (not sandbox.hidden or self._is_unmade(merge))

    def _is_unmade(self, merge: MergeState) -> bool:
        """Return True if only a daemon's end kept the sandbox of a merge from being made: it may be made after all."""
        sandbox = self._core.state.sandboxes.get(merge.sandbox_id)
        return sandbox is not None and sandbox.interrupted and not sandbox.made

    def _plans_of(self, merge: MergeState) -> list[dict[str, Any]]:
        """Return plans with the files that a merge needs, or that its branches are compared with later."""
        points = [point.files for point in merge.points]
        return [merge.requested.base_plan, *points] if merge.waits or self._is_unmade(merge) else points

    def _layers(self, provider_name: str) -> Layering | None:
        provider = self._core.providers.get(provider_name)
        return provider.layers if provider is not None else None

    def _of(self, provider_name: str, plans: Sequence[dict[str, Any]]) -> Collection[str]:
        """Return the layers of these plans."""
        layers = self._layers(provider_name)
        return [name for plan in plans for name in layers.layers_of(plan)] if layers is not None else ()

    async def release(self, sandbox: SandboxState) -> None:
        """Remove the layers of a sandbox that has ended, if it was their last user.

        Error handling: a failed removal is repeated when the provider's engine is back, or the daemon starts again.
        """
        merge = self._core.state.merges.get(sandbox.requested.fork_id or "")
        await self.drop_plans(sandbox.requested.provider, sandbox.plans)
        if merge is not None:
            await self.drop_merge(merge)

    async def drop_merge(self, merge: MergeState) -> None:
        """Remove what was kept for a merge, if unused. See `release`."""
        asked = merge.requested
        await self.drop(asked.provider, [merge.merge_id, *asked.points.values()])
        await self.drop_plans(asked.provider, [asked.base_plan, *(point.files for point in merge.points)])

    async def drop_copies(self, batch: ForkState) -> None:
        """Remove the copied files of a fork, or of branches of a sandbox, if unused. See `release`."""
        source = self._core.state.sandboxes.get(batch.sandbox_id)
        if source is not None:
            await self.drop(source.requested.provider, [batch.fork_id])

    async def drop_plans(self, provider_name: str, plans: Sequence[dict[str, Any]]) -> None:
        """Remove the layers of these plans, if unused. See `release`."""
        await self.drop(provider_name, self._of(provider_name, plans))

    async def drop(self, provider_name: str, names: Collection[str]) -> None:
        """Remove those that nobody needs. See `release`."""
        layers = self._layers(provider_name)
        for name in names:
            turn = self.turn(name)
            async with turn:
                if layers is not None and not self.is_needed(name):
                    try:
                        await layers.discard_layers([name])
                    except SandkeepError as error:
                        logger.warning("kept files stay", extra={"files": name, "why": error.message})
                        engine = self._core.provider(provider_name).engine
                        if "engine" in error.data and engine is not None:
                            again = partial(self._drop_later, engine, provider_name, name)
                            self._core.start_task(again, f"removing the kept files {name}")
            if self._turns.get(name) is turn and not turn.locked():  # a waiter has it now
                del self._turns[name]

    async def _drop_later(self, engine: Recovering, provider_name: str, name: str) -> None:
        """Remove unused layers after the engine has recovered. They may be in use again by then."""
        await engine.recovered()
        await self.drop(provider_name, [name])
