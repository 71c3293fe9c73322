"""Restarting a local sandbox on its remaining files, or on others in their place. See `Reviving`, `Replacing`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from sandkeep import failpoints
from sandkeep.errors import StateError
from sandkeep.model import SandboxSpec
from sandkeepd.contract.replacement import Replacing
from sandkeepd.contract.revival import Reviving
from sandkeepd.host.processes import identify
from sandkeepd.host.undo import undo_on_error
from sandkeepd.providers.local.plan import Plan
from sandkeepd.providers.local.start import Handle

if TYPE_CHECKING:
    from sandkeepd.providers.local.provider import LocalInstance, LocalProvider


class LocalRevival(Reviving):
    """Revives the sandboxes of a provider."""

    def __init__(self, provider: "LocalProvider") -> None:
        self._provider = provider

    async def revive(
        self,
        sandbox_id: str,
        image_id: str,
        spec: SandboxSpec,
        secrets: Mapping[str, str],
        plan: dict[str, Any],
        handle: dict[str, Any],
    ) -> "LocalInstance":
        await self.halt(sandbox_id, plan, handle)
        await self._provider.own_disks.attach(sandbox_id)
        if not await trio.Path(f"{self._provider.layout.sandbox(sandbox_id)}/upper").is_dir():
            raise StateError("not_ready", f"the files of sandbox {sandbox_id} are gone: create another")
        files = msgspec.convert(handle, Handle).files
        return await self.start_anew(sandbox_id, image_id, spec, secrets, plan, files)

    async def start_anew(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, secrets: Mapping[str, str], plan: dict[str, Any],
        files: str,
    ) -> "LocalInstance":  # fmt: skip
        """Start a halted sandbox. On any error none of its processes run."""
        provider = self._provider
        decided, found = msgspec.convert(plan, Plan), await provider.abilities()
        provider.require_uid(sandbox_id, decided)
        lowers, own_disk = await provider.lowers(image_id, decided), provider.layout.has_disk(sandbox_id)
        job = provider.job(sandbox_id, spec, decided, lowers, files, found, own_disk=own_disk)
        job = msgspec.structs.replace(job, anew=True)
        await provider.own_disks.fit_found(sandbox_id, decided.disk_bytes)
        left = [f"{job.directory}/{name}" for name in ("in", "work", "mount")]
        await provider.in_thread(provider.layout.discard, left)
        async with undo_on_error(self.halt, sandbox_id, plan, {}):
            instance = await provider.start(job, spec, secrets, found)
            await instance.remember_earlier()
        return instance

    async def halt(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> None:
        provider, decided = self._provider, msgspec.convert(plan, Plan)
        with trio.CancelScope(shield=True):
            await provider.in_thread(provider.cleanup.end, sandbox_id, decided, handle)
            await provider.await_end(sandbox_id)
            await provider.in_thread(provider.cleanup.end_escaped, sandbox_id, decided)


class LocalReplacement(Replacing):
    """Replaces the files of sandboxes: the old ones are put aside until the new ones are on record."""

    def __init__(self, provider: "LocalProvider", revival: LocalRevival) -> None:
        self._provider = provider
        self._revival = revival

    def plan_replacement(self, plan: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
        return {**plan, **files}

    async def replace_files(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, secrets: Mapping[str, str],
        plans: tuple[dict[str, Any], dict[str, Any]], handle: dict[str, Any],
    ) -> "LocalInstance":  # fmt: skip
        provider, (before, after) = self._provider, plans
        await self._revival.halt(sandbox_id, before, handle)
        async with undo_on_error(self.put_back, sandbox_id, before, handle):
            files = provider.files_for(msgspec.convert(after, Plan), await provider.abilities())
            await provider.in_thread(provider.layout.put_aside, sandbox_id)
            failpoints.reach("replace.aside")
            return await self._revival.start_anew(sandbox_id, image_id, spec, secrets, after, files)

    async def put_back(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> bool:
        layout, in_thread = self._provider.layout, self._provider.in_thread
        first = msgspec.convert(handle, Handle).first
        if await in_thread(layout.has_aside, sandbox_id):
            await self._revival.halt(sandbox_id, plan, {})
            await in_thread(layout.put_back, sandbox_id)
        return identify(first.pid) != first

    async def drop_replaced(self, sandbox_id: str) -> None:
        await self._provider.in_thread(self._provider.layout.drop_aside, sandbox_id)
