"""Changes of the limits of sandboxes, while they run: `sandbox.update`.

The bytes of a new disk limit are reserved before it is on record, and the disk grows afterwards. So a daemon that dies
in between leaves a disk of either size, and the next one makes that the recorded size. Other limits are likewise on
record first. If the sandbox's processes turn out to need more, the earlier limits are recorded again.
"""

from contextlib import suppress
from typing import Any, Final
from weakref import WeakValueDictionary

import trio
from msgspec.structs import asdict

from sandkeep import events, failpoints
from sandkeep.errors import CallerError, SandkeepError, SetupError, StateError
from sandkeep.model import Sandbox
from sandkeep.protocol.methods import SandboxUpdate
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.contract.resizing import LimitChange, Resizing
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
        """Change limits of a sandbox."""
        change = _change(request.params)
        sandbox, tries = rules.sandbox(self._core.state, request.params.sandbox_id), Tries()
        async with self._lock_of(sandbox):
            while True:
                resizing = await self._resizing_of(sandbox)
                self._core.require_sound()  # before any effect
                before = sandbox.requested
                try:
                    await self._record(sandbox, resizing, request, change)
                    break
                except StateError as conflict:
                    if conflict.code != "conflict":
                        raise
                    await tries.again(conflict)  # another event got ahead: look again
            failpoints.reach("update.recorded")
            try:
                await self._apply(sandbox, resizing)
            except StateError:
                await self._take_back(sandbox, resizing, before, change)
                raise
            failpoints.reach("update.applied")
        return sandbox.view()

    async def _apply(self, sandbox: SandboxState, resizing: Resizing) -> None:
        await resizing.apply(sandbox.sandbox_id, sandbox.requested.plan)
        self._runtimes.limits_changed(sandbox.sandbox_id)

    async def _take_back(
        self, sandbox: SandboxState, resizing: Resizing, before: events.SandboxCreateRequested, change: LimitChange
    ) -> None:
        """Record the earlier limits again, and let them be in force."""
        asked = [name for name, value in asdict(change).items() if value is not None]
        limits = {name: getattr(before.spec, name) for name in asked}
        unset: list[Any] = [name for name in asked if limits[name] is None]
        event = events.SandboxUpdated(**limits, unset=unset, plan={**before.plan, "updated": True})
        sandbox_id = sandbox.sandbox_id
        await self._core.record([NewEvent(sandbox_id, event, sandbox_id)], None)
        with suppress(SandkeepError):
            await self._apply(sandbox, resizing)

    async def _record(
        self, sandbox: SandboxState, resizing: Resizing, request: Request[SandboxUpdate], change: LimitChange
    ) -> None:
        """Reserve what the limits take, and record them. What is not on record is not reserved."""
        sandbox_id, revision, spec = sandbox.sandbox_id, sandbox.revision, sandbox.spec
        more = {
            "disk": max(0, (change.disk_bytes or 0) - (spec.disk_bytes or 0)),
            "memory": max(0, (change.memory_bytes or 0) - (spec.memory_bytes or 0)),
        }
        self._core.quotas.reserve(request, sandbox.owner, {sandbox_id: more})
        try:
            plan = await resizing.reserve(sandbox_id, sandbox.requested.plan, change)
            failpoints.reach("update.reserved")
            event = events.SandboxUpdated(**asdict(change), plan=plan)
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
        """Raise `not_ready` for a sandbox in no state for that, `not_supported` where no limit can be changed."""
        if sandbox.status in rules.STANDING:
            await self._runtimes.standing(sandbox)  # its adoption, by the earlier plan, is over
        if not rules.may(sandbox, UPDATED):
            raise rules.not_ready(sandbox)
        provider = self._core.provider(sandbox.requested.provider)
        if provider.resizing is None:
            message = f"the {sandbox.requested.provider} provider cannot change the limits of sandboxes: create another"
            raise SetupError("not_supported", message)
        return provider.resizing

    async def _again(self, request: Request[SandboxUpdate], first: Recorded) -> Sandbox:  # noqa: ARG002
        """Answer a command that was given before, once the recorded limit is in force."""
        sandbox = rules.sandbox(self._core.state, first.stream)
        async with self._lock_of(sandbox):
            if rules.may(sandbox, UPDATED):
                resizing = await self._resizing_of(sandbox)
                await self._apply(sandbox, resizing)
        return sandbox.view()

    def _lock_of(self, sandbox: SandboxState) -> trio.Lock:
        return self._locks.setdefault(sandbox.sandbox_id, trio.Lock())


def _change(asked: SandboxUpdate) -> LimitChange:
    """Return the requested change. Raises `invalid` for none, and `not_supported` for one that no provider can make."""
    change = LimitChange(cpus=asked.cpus, memory_bytes=asked.memory_bytes, pids=asked.pids, disk_bytes=asked.disk_bytes)
    if asked.network is not None:
        message = "network: the network of a sandbox cannot be changed: snapshot it, and create another from that"
        raise SetupError("not_supported", message, field="network")
    if change == LimitChange():
        raise CallerError("invalid", "give a limit to change: cpus, memory_bytes, pids or disk_bytes")
    return change
