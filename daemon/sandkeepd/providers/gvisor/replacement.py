"""The state put aside of a gVisor sandbox that returns to a checkpoint. See `Replacing`.

Files alone are not replaced: they lie in the memory of the sandbox's kernel.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from sandkeep.errors import SetupError
from sandkeep.model import SandboxSpec
from sandkeepd.contract.replacement import Replacing
from sandkeepd.providers.gvisor import start
from sandkeepd.providers.gvisor.instance import GvisorInstance
from sandkeepd.providers.gvisor.plan import Plan

if TYPE_CHECKING:
    from sandkeepd.providers.gvisor.provider import GvisorProvider


class GvisorReplacement(Replacing):
    """Puts back, or drops, the state that `GvisorCheckpoints.restore_in_place` has put aside."""

    def __init__(self, provider: "GvisorProvider") -> None:
        self._provider = provider

    def plan_replacement(self, plan: Mapping[str, Any], files: Mapping[str, Any]) -> dict[str, Any]:
        message = "the files of a gVisor sandbox cannot be replaced: restore the snapshot into a new sandbox"
        raise SetupError("not_supported", message)

    async def replace_files(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, secrets: Mapping[str, str],
        plans: tuple[dict[str, Any], dict[str, Any]], handle: dict[str, Any],
    ) -> GvisorInstance:  # fmt: skip
        raise SetupError("not_supported", str(self.plan_replacement(plans[0], {})))

    async def put_back(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> bool:
        """See `Replacing.put_back`. `adopt` restores the state that is put back."""
        self._provider.instances.pop(sandbox_id, None)  # its holder has closed it
        decided, secrets = msgspec.convert(plan, Plan), handle.get("secrets", [])
        job = await self._provider.job(sandbox_id, handle["image_id"], SandboxSpec(), secrets, decided)
        return await self._provider.in_thread(start.put_back, job)

    async def drop_replaced(self, sandbox_id: str) -> None:
        await self._provider.in_thread(start.remove_aside, self._provider.bundle(sandbox_id))
