"""Changing the limits of local sandboxes. See `Resizing`."""

import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio
from msgspec.structs import replace

from sandkeep.errors import SandkeepError, SetupError
from sandkeepd.contract.resizing import LimitChange, Resizing
from sandkeepd.providers.common.disks import Disks, why_not_growing
from sandkeepd.providers.common.group_limits import changed
from sandkeepd.providers.local.plan import Plan

if TYPE_CHECKING:
    from sandkeepd.providers.local.provider import LocalProvider

logger: Final = logging.getLogger("sandkeepd")


class LocalResizing(Resizing):
    """Changes the limits of a provider's sandboxes: the sizes of their own disks, or the measured limits of others."""

    def __init__(self, provider: "LocalProvider") -> None:
        self._provider = provider
        self._disks = Disks(provider.layout)
        self._turn = trio.Lock()
        """Of two that grow the same disk at once, the kernel refuses one."""

    async def reserve(self, sandbox_id: str, plan: dict[str, Any], change: LimitChange) -> dict[str, Any]:
        provider, decided = self._provider, msgspec.convert(plan, Plan)
        if change.of_group:
            decided = await provider.in_thread(changed, decided, sandbox_id, change, provider.hierarchies)
        if change.disk_bytes is not None:
            await self._reserve_disk(sandbox_id, decided.disk_bytes, change.disk_bytes)
            decided = replace(decided, disk_bytes=change.disk_bytes)
        return {**plan, **msgspec.to_builtins(decided)}

    async def _reserve_disk(self, sandbox_id: str, before: int, disk_bytes: int) -> None:
        provider = self._provider
        if not provider.layout.has_disk(sandbox_id):
            await provider.require_measurable()
        elif disk_bytes > before and (why := why_not_growing()) is not None:
            words = f"the sandbox's disk cannot grow: {why}: run the daemon with it"
            raise SetupError("not_supported", words, field="disk_bytes")
        elif disk_bytes < before:
            words = f"the sandbox has a disk of its own, of {before} bytes, which cannot shrink: ask for more"
            raise SetupError("not_supported", words, field="disk_bytes")
        else:
            with trio.CancelScope(shield=True):
                await provider.in_thread(self._disks.reserve, sandbox_id, disk_bytes)

    async def apply(self, sandbox_id: str, plan: dict[str, Any]) -> None:
        decided, instance = msgspec.convert(plan, Plan), self._provider.instances.get(sandbox_id)
        if instance is not None:
            await self._fit_groups(decided)
        await self.fit(sandbox_id, decided)
        if instance is not None:
            instance.cgroups = decided.cgroups
            instance.set_plan(decided, own_disk=self._provider.layout.has_disk(sandbox_id))
            instance.measure_anew()

    async def _fit_groups(self, plan: Plan) -> None:
        """Let the limits of its groups be in force, if they were ever changed."""
        if plan.updated:
            await self._provider.in_thread(self._provider.hierarchies.change, plan.cgroups, plan.limits)

    async def fit_found(self, sandbox_id: str, plan: Plan) -> None:
        """Do as `fit` with a disk of an earlier daemon. A sandbox runs also on one that cannot grow."""
        try:
            await self.fit(sandbox_id, plan)
        except SandkeepError as error:
            logger.warning("the disk of sandbox %s is not of the recorded size: %s", sandbox_id, error)

    async def fit_adopted(self, sandbox_id: str, plan: Plan) -> None:
        """Apply what an earlier daemon has recorded, and perhaps not applied."""
        await self.fit_found(sandbox_id, plan)
        try:
            await self._fit_groups(plan)
        except SandkeepError as error:
            logger.warning("the limits of sandbox %s are not the recorded ones: %s", sandbox_id, error)

    async def fit(self, sandbox_id: str, plan: Plan) -> None:
        """Let the sandbox's own disk, if it has one, be of the plan's size."""
        if self._provider.layout.has_disk(sandbox_id):
            with trio.CancelScope(shield=True):
                async with self._turn:
                    await self._provider.in_thread(self._disks.fit, sandbox_id, plan.disk_bytes)
