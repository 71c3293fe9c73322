"""Restarting a container that ended by itself. See `Reviving`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from sandkeep.errors import SandkeepError
from sandkeep.model import SandboxSpec
from sandkeepd.contract.revival import Reviving
from sandkeepd.host.undo import undo_on_error
from sandkeepd.providers.docker import start as docker_start
from sandkeepd.providers.docker.instance import DockerInstance
from sandkeepd.providers.docker.plan import Plan
from sandkeepd.providers.docker.start import Handle

if TYPE_CHECKING:
    from sandkeepd.providers.docker.provider import DockerProvider


class DockerRevival(Reviving):
    """Revives the containers of a provider."""

    def __init__(self, provider: "DockerProvider") -> None:
        self._provider = provider

    async def revive(
        self,
        sandbox_id: str,
        image_id: str,
        spec: SandboxSpec,
        secrets: Mapping[str, str],
        plan: dict[str, Any],
        handle: dict[str, Any],
    ) -> DockerInstance:
        earlier = msgspec.convert(handle, Handle)
        await self._provider.follow_engine()
        await self.halt(sandbox_id, plan, handle)
        decided = msgspec.convert(plan, Plan)
        if decided.own_disk:
            await self._provider.own_disks.attach(sandbox_id)
            await self._provider.own_disks.fit_found(sandbox_id, decided.disk_bytes)
        async with undo_on_error(self.halt, sandbox_id, plan, {}, ignored=[SandkeepError]):
            return await self._provider.start(
                self._provider.job(sandbox_id, spec, secrets, plan),
                secrets,
                lambda client, job: docker_start.start_again(client, earlier.container_id, job),
            )

    async def halt(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> None:
        provider = self._provider
        with trio.CancelScope(shield=True):
            await provider.in_thread(docker_start.kill, handle)
            await provider.docker.call(lambda client: docker_start.halt(client, sandbox_id, provider.log_id))
            await provider.await_end(sandbox_id)
