"""Changing the limits of local sandboxes. See `Resizing`."""

import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from sandkeep.errors import SandkeepError
from sandkeepd.contract.resizing import LimitChange, Resizing
from sandkeepd.providers.common.group_limits import changed
from sandkeepd.providers.local.plan import Plan

if TYPE_CHECKING:
    from sandkeepd.providers.local.provider import LocalProvider

logger: Final = logging.getLogger("sandkeepd")


class LocalResizing(Resizing):
    """Changes the limits of a provider's sandboxes, and the sizes of their disks."""

    def __init__(self, provider: "LocalProvider") -> None:
        self._provider = provider

    async def reserve(self, sandbox_id: str, plan: dict[str, Any], change: LimitChange) -> dict[str, Any]:
        provider, decided = self._provider, msgspec.convert(plan, Plan)
        if change.of_group:
            decided = await provider.in_thread(changed, decided, sandbox_id, change, provider.hierarchies)
        if change.disk_bytes is not None:
            await provider.own_disks.reserve(sandbox_id, decided.disk_bytes, change.disk_bytes)
            decided = replace(decided, disk_bytes=change.disk_bytes)
        return {**plan, **msgspec.to_builtins(decided)}

    async def apply(self, sandbox_id: str, plan: dict[str, Any]) -> None:
        decided, instance = msgspec.convert(plan, Plan), self._provider.instances.get(sandbox_id)
        if instance is not None:
            await self._fit_groups(decided)
        await self._provider.own_disks.fit(sandbox_id, decided.disk_bytes)
        if instance is not None:
            instance.cgroups = decided.cgroups
            instance.set_plan(decided, own_disk=self._provider.layout.has_disk(sandbox_id))
            instance.measure_anew()

    async def _fit_groups(self, plan: Plan) -> None:
        """Let the limits of its groups be in force, if they were ever changed."""
        if plan.updated:
            await self._provider.in_thread(self._provider.hierarchies.change, plan.cgroups, plan.limits)

    async def fit_adopted(self, sandbox_id: str, plan: Plan) -> None:
        """Apply what an earlier daemon has recorded, and perhaps not applied."""
        await self._provider.own_disks.fit_found(sandbox_id, plan.disk_bytes)
        try:
            await self._fit_groups(plan)
        except SandkeepError as error:
            logger.warning("the limits of sandbox %s are not the recorded ones: %s", sandbox_id, error)
