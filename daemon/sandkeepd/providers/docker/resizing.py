"""Changing the limits of containers. See `Resizing`."""

import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from sandkeep.errors import SandkeepError
from sandkeepd.contract.resizing import LimitChange, Resizing
from sandkeepd.host.cgroups import usage
from sandkeepd.host.cgroups.groups import needs_more, require_enough_memory
from sandkeepd.providers.docker.engine import Client, RefusedError, post
from sandkeepd.providers.docker.plan import Plan, check_memory, limit_pids

if TYPE_CHECKING:
    from sandkeepd.providers.docker.instance import DockerInstance
    from sandkeepd.providers.docker.provider import DockerProvider

logger: Final = logging.getLogger("sandkeepd")


class DockerResizing(Resizing):
    """Changes the limits of a provider's containers, by the engine, and the sizes of their disks."""

    def __init__(self, provider: "DockerProvider") -> None:
        self._provider = provider

    async def reserve(self, sandbox_id: str, plan: dict[str, Any], change: LimitChange) -> dict[str, Any]:
        decided = msgspec.convert(plan, Plan)
        check_memory(change.memory_bytes)
        limit_pids(change.pids)
        instance = self._provider.instances.get(sandbox_id)
        if change.memory_bytes is not None and instance is not None:
            await self._provider.in_thread(require_enough_memory, instance.cgroups, change.memory_bytes)
        if change.disk_bytes is not None:
            await self._provider.own_disks.reserve(sandbox_id, decided.disk_bytes, change.disk_bytes)
        asked = {name: value for name, value in msgspec.structs.asdict(change).items() if value is not None}
        decided = replace(decided, **asked, updated=decided.updated or change.of_group)
        return {**plan, **msgspec.to_builtins(decided)}

    async def apply(self, sandbox_id: str, plan: dict[str, Any]) -> None:
        instance, decided = self._provider.instances.get(sandbox_id), msgspec.convert(plan, Plan)
        await self._provider.own_disks.fit(sandbox_id, decided.disk_bytes)
        if instance is None:
            return
        if decided.updated and not _is_in_force(instance, decided):
            container = instance.container_id
            try:
                await self._provider.docker.call(lambda client: set_limits(client, container, decided))
            except RefusedError as error:
                if "busy" in error.reason and decided.memory_bytes is not None:
                    raise needs_more(decided.memory_bytes) from None
                raise
        instance.set_plan(decided)
        instance.measure_anew()

    async def fit_adopted(self, instance: "DockerInstance") -> None:
        """Apply what an earlier daemon has recorded, and perhaps not applied."""
        try:
            await self.apply(instance.sandbox_id, msgspec.to_builtins(instance.plan))
        except SandkeepError as error:
            logger.warning("the limits of sandbox %s are not the recorded ones: %s", instance.sandbox_id, error)


def _is_in_force(instance: "DockerInstance", plan: Plan) -> bool:
    """Tell by its control groups if a container has the limits already."""
    found = usage.measure(instance.cgroups)
    return found is not None and (found.memory_limit_bytes, found.pids_limit, found.cpus_limit) == (
        plan.memory_bytes, plan.pids, plan.cpus,
    )  # fmt: skip


def set_limits(client: Client, container_id: str, plan: Plan) -> None:
    """Give a container, which runs or has ended, the limits of its plan. Blocks."""
    limits: dict[str, Any] = {"PidsLimit": plan.pids}
    if plan.memory_bytes is not None:
        limits |= {"Memory": plan.memory_bytes, "MemorySwap": plan.memory_bytes}
    if plan.cpus is not None:
        limits["NanoCpus"] = int(plan.cpus * 1e9)
    # The SDK's own method knows neither the limit of processes nor CPUs.
    post(client, f"/containers/{container_id}/update", limits)
