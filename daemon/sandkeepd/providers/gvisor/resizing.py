"""Changing the limits of gVisor sandboxes. See `Resizing`."""

import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec

from sandkeep.errors import SandkeepError, SetupError
from sandkeepd.contract.resizing import LimitChange, Resizing
from sandkeepd.providers.common.group_limits import changed
from sandkeepd.providers.gvisor import plan as gvisor_plan
from sandkeepd.providers.gvisor.plan import Plan

if TYPE_CHECKING:
    from sandkeepd.providers.gvisor.instance import GvisorInstance
    from sandkeepd.providers.gvisor.provider import GvisorProvider

logger: Final = logging.getLogger("sandkeepd")


class GvisorResizing(Resizing):
    """Changes the limits of a provider's sandboxes. A saved one gets them when it is restored."""

    def __init__(self, provider: "GvisorProvider") -> None:
        self._provider = provider

    async def reserve(self, sandbox_id: str, plan: dict[str, Any], change: LimitChange) -> dict[str, Any]:
        if change.pids is not None:
            raise SetupError("not_supported", gvisor_plan.PIDS, field="pids")
        if change.disk_bytes is not None:
            raise SetupError("not_supported", f"{gvisor_plan.DISK}: limit memory instead", field="disk_bytes")
        provider, decided = self._provider, msgspec.convert(plan, Plan)
        decided = await provider.in_thread(changed, decided, sandbox_id, change, provider.hierarchies)
        return {**plan, **msgspec.to_builtins(decided)}

    async def apply(self, sandbox_id: str, plan: dict[str, Any]) -> None:
        instance, decided = self._provider.instances.get(sandbox_id), msgspec.convert(plan, Plan)
        if instance is not None and decided.updated:
            async with instance.turn:  # a container that is being saved or restored has other groups
                instance.plan, instance.cgroups = decided, decided.cgroups
                if instance.pidfd >= 0:
                    groups, limits = decided.cgroups, decided.limits
                    await self._provider.in_thread(self._provider.hierarchies.change, groups, limits)

    async def fit_adopted(self, instance: "GvisorInstance") -> None:
        """Apply what an earlier daemon has recorded, and perhaps not applied."""
        try:
            await self.apply(instance.sandbox_id, msgspec.to_builtins(instance.plan))
        except SandkeepError as error:
            logger.warning("the limits of sandbox %s are not the recorded ones: %s", instance.sandbox_id, error)
