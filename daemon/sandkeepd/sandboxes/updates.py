"""Changes of the limits of sandboxes, while they run: `sandbox.update`.

The bytes of a new disk limit are reserved before it is on record, and the disk grows afterwards. So a daemon that dies
in between leaves a disk of either size, and the next one makes that the recorded size.
"""

from typing import Final
from weakref import WeakValueDictionary

import trio

from sandkeep import events, failpoints
from sandkeep.errors import SetupError, StateError
from sandkeep.model import Sandbox
from sandkeep.protocol.methods import SandboxUpdate
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.contract.resizing import Resizing
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core, Tries
from sandkeepd.core.operation import Command, DirectCommand
from sandkeepd.sandboxes.runtimes import Runtimes

UPDATED: Final = events.SandboxUpdated.type


class Updates:
    """The handler of ``sandbox.update``. Updates of the same sandbox are carried out one after the other."""

    def __init__(self, core: Core, runtimes: Runtimes) -> None:
        self._core = core
        self._runtimes = runtimes
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        self.command: Command = DirectCommand("sandbox.update", self._again)

    async def update(self, request: Request[SandboxUpdate]) -> Sandbox:
        """Change the disk limit of a sandbox."""
        sandbox, tries = rules.sandbox(self._core.state, request.params.sandbox_id), Tries()
        async with self._lock_of(sandbox):
            while True:
                resizing = await self._resizing_of(sandbox)
                self._core.require_sound()  # before any effect
                try:
                    await self._record(sandbox, resizing, request)
                    break
                except StateError as conflict:
                    if conflict.code != "conflict":
                        raise
                    await tries.again(conflict)  # another event got ahead: look again
            failpoints.reach("update.recorded")
            await resizing.apply(sandbox.sandbox_id, sandbox.requested.plan)
            failpoints.reach("update.applied")
        return sandbox.view()

    async def _record(self, sandbox: SandboxState, resizing: Resizing, request: Request[SandboxUpdate]) -> None:
        """Reserve the bytes, and record the limit. What is not on record is not reserved."""
        sandbox_id, disk_bytes, revision = sandbox.sandbox_id, request.params.disk_bytes, sandbox.revision
        more = max(0, disk_bytes - (sandbox.spec.disk_bytes or 0))
        self._core.quotas.reserve(request, sandbox.owner, {sandbox_id: {"disk": more}})
        try:
            plan = await resizing.reserve(sandbox_id, sandbox.requested.plan, disk_bytes)
            failpoints.reach("update.reserved")
            event = events.SandboxUpdated(disk_bytes=disk_bytes, plan=plan)
            try:
                await self._core.intend(NewEvent(sandbox_id, event, sandbox_id, revision), request.meta)
            except BaseException:
                with trio.CancelScope(shield=True):
                    if rules.may(sandbox, UPDATED):  # else the next start returns them, or they go with the sandbox
                        await resizing.apply(sandbox_id, sandbox.requested.plan)
                raise
        finally:
            self._core.quotas.release(sandbox_id)

    async def _resizing_of(self, sandbox: SandboxState) -> Resizing:
        """Raise `not_ready` for a sandbox in no state for that, `not_supported` where disks are not limited."""
        if sandbox.status in rules.STANDING:
            await self._runtimes.standing(sandbox)  # its adoption, by the earlier plan, is over
        if not rules.may(sandbox, UPDATED):
            raise rules.not_ready(sandbox)
        provider = self._core.provider(sandbox.requested.provider)
        if provider.resizing is None:
            words = f"the {sandbox.requested.provider} provider does not limit the disk usage of sandboxes"
            raise SetupError("not_supported", f"{words}: limit memory instead", field="disk_bytes")
        return provider.resizing

    async def _again(self, request: Request[SandboxUpdate], first: Recorded) -> Sandbox:  # noqa: ARG002
        """Answer a command that was given before, once the recorded limit is in force."""
        sandbox = rules.sandbox(self._core.state, first.stream)
        async with self._lock_of(sandbox):
            if rules.may(sandbox, UPDATED):
                resizing = await self._resizing_of(sandbox)
                await resizing.apply(sandbox.sandbox_id, sandbox.requested.plan)
        return sandbox.view()

    def _lock_of(self, sandbox: SandboxState) -> trio.Lock:
        return self._locks.setdefault(sandbox.sandbox_id, trio.Lock())
