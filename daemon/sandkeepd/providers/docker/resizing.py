"""Changing the measured disk limits of containers. See `Resizing`."""

from typing import TYPE_CHECKING, Any

import msgspec

from sandkeepd.contract.resizing import Resizing
from sandkeepd.providers.docker.plan import Plan, require_disk_limit

if TYPE_CHECKING:
    from sandkeepd.providers.docker.provider import DockerProvider


class DockerResizing(Resizing):
    """Changes the limits of a provider's containers."""

    def __init__(self, provider: "DockerProvider") -> None:
        self._provider = provider

    async def reserve(self, sandbox_id: str, plan: dict[str, Any], disk_bytes: int) -> dict[str, Any]:
        require_disk_limit()
        return {**plan, "disk_bytes": disk_bytes}

    async def apply(self, sandbox_id: str, plan: dict[str, Any]) -> None:
        instance = self._provider.instances.get(sandbox_id)
        if instance is not None:
            instance.plan = msgspec.convert(plan, Plan)
            instance.disk_bytes = instance.plan.disk_bytes
            instance.measure_anew()
