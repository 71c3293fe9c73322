"""Replacing the files of a container: by another container in its place. See `Replacing` for the interface.

The old container is neither changed nor moved: it stays beside the new one, ended, with its own volume, until the new
one is on record. The recorded handle determines the sandbox's container; the others are removed, or, if the engine is
down, once it is back.
"""

import logging
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import msgspec
import trio

from sandkeep import failpoints
from sandkeep.errors import SandkeepError
from sandkeep.model import SandboxSpec
from sandkeepd.contract.replacement import Replacing
from sandkeepd.host.processes import identify
from sandkeepd.host.undo import undo_on_error
from sandkeepd.providers.docker import disk
from sandkeepd.providers.docker import plan as docker_plan
from sandkeepd.providers.docker import start as docker_start
from sandkeepd.providers.docker.instance import DockerInstance
from sandkeepd.providers.docker.plan import Plan
from sandkeepd.providers.docker.revival import DockerRevival
from sandkeepd.providers.docker.start import Handle

if TYPE_CHECKING:
    from sandkeepd.providers.docker.provider import DockerProvider

logger = logging.getLogger("sandkeepd")


class DockerReplacement(Replacing):
    """Replaces the containers of a provider's sandboxes."""

    def __init__(self, provider: "DockerProvider", revival: DockerRevival) -> None:
        self._revival = revival
        self._provider = provider
        self._engine = provider.docker
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        self._owed: dict[str, str] = {}
        """By sandbox, the only container to keep, if the others could not be removed."""

    def forget(self, sandbox_id: str) -> None:
        """Drop the decision on the container to keep of a sandbox."""
        self._owed.pop(sandbox_id, None)

    def plan_replacement(self, plan: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
        """See `Replacing.plan_replacement`. While both are there they cannot have the same names."""
        after = docker_plan.beside(msgspec.convert({**plan, **files}, Plan))
        return dict(msgspec.to_builtins(after))

    async def replace_files(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, secrets: Mapping[str, str],
        plans: tuple[dict[str, Any], dict[str, Any]], handle: dict[str, Any],
    ) -> DockerInstance:  # fmt: skip
        provider, (before, after) = self._provider, plans
        async with self._lock_of(sandbox_id):
            self.forget(sandbox_id)
            await self._revival.halt(sandbox_id, before, handle)
            async with undo_on_error(self._put_back, sandbox_id, handle):
                await self._remove_others(sandbox_id, handle["container_id"])  # nothing else is started next
                failpoints.reach("replace.aside")
                job = provider.job(sandbox_id, spec, secrets, after)
                instance = await provider.start(job, secrets, docker_start.start)
                await instance.remember_earlier()
            return instance

    async def put_back(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> bool:
        async with self._lock_of(sandbox_id):
            await self._put_back(sandbox_id, handle)
        first = msgspec.convert(handle, Handle).first
        return identify(first.pid) != first

    async def _put_back(self, sandbox_id: str, handle: dict[str, Any]) -> None:
        try:
            await self._remove_others(sandbox_id, handle["container_id"])
        except SandkeepError as error:
            self._remove_others_later(sandbox_id, handle["container_id"], error)
            raise
        finally:
            instance = self._provider.instances.get(sandbox_id)
            if instance is not None and instance.handle["container_id"] != handle["container_id"]:
                await self._provider.await_end(sandbox_id)

    async def drop_replaced(self, sandbox_id: str) -> None:
        """See `Replacing.drop_replaced`. The held container is the recorded one.

        Error handling: containers that cannot be removed now are removed when the engine is back, or the daemon starts
        again, or the sandbox ends.
        """
        instance = self._provider.instances.get(sandbox_id)
        async with self._lock_of(sandbox_id):
            if instance is None or self._provider.instances.get(sandbox_id) is not instance:
                return  # it is being replaced itself
            container_id = instance.handle["container_id"]
            try:
                await self._keep_only(sandbox_id, container_id)
            except SandkeepError as error:
                self._remove_others_later(sandbox_id, container_id, error)

    async def _keep_only(self, sandbox_id: str, container_id: str) -> None:
        await self._remove_others(sandbox_id, container_id)
        await self._engine.call(partial(docker_start.rename, container_id=container_id))

    async def _remove_others(self, sandbox_id: str, container_id: str) -> None:
        provider, layout = self._provider, self._provider.layout
        used = await self._engine.call(
            partial(docker_start.remove, sandbox_id=sandbox_id, log_id=provider.log_id, but=container_id)
        )
        if layout.has_disk(sandbox_id):
            unused = await provider.in_thread(disk.unused_volumes, layout.sandbox(sandbox_id), used)
            await provider.in_thread(layout.discard, unused)

    def _remove_others_later(self, sandbox_id: str, container_id: str, error: SandkeepError) -> None:
        logger.warning("replaced files stay", extra={"sandbox_id": sandbox_id, "why": error.message})
        if "engine" in error.data:
            self._owed[sandbox_id] = container_id
            self._provider.nursery.start_soon(self._remove_owed, sandbox_id, container_id)

    async def _remove_owed(self, sandbox_id: str, container_id: str) -> None:
        """Remove the others once the engine is back, unless the container to keep was decided anew meanwhile."""
        await self._engine.recovered()
        await self._engine.drained()
        async with self._lock_of(sandbox_id):
            if self._owed.get(sandbox_id) != container_id:
                return
            del self._owed[sandbox_id]
            try:
                await self._keep_only(sandbox_id, container_id)
            except SandkeepError as error:
                self._remove_others_later(sandbox_id, container_id, error)

    def _lock_of(self, sandbox_id: str) -> trio.Lock:
        return self._locks.setdefault(sandbox_id, trio.Lock())
