"""The common part of providers whose sandboxes are elsewhere: mirrors, and the tasks that follow sandboxes.

A keeper in each sandbox runs the processes, as everywhere; one stream that stays open carries its requests and journals
to a mirror in the state directory, see `keeper.relay` and `RelayedInstance`.
"""

import logging
import os
import sys
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, TypeVar

import trio

from sandkeep.errors import ProviderError, SandkeepError, StateError
from sandkeep.settings.daemon import REMOTE_LIFETIME, RETAIN_OUTPUT
from sandkeepd.contract.engine import Recovering
from sandkeepd.contract.instance import Ending
from sandkeepd.contract.processes import Dropped
from sandkeepd.keeper.relay import Relay
from sandkeepd.keeper.shared_directory import CONTROL
from sandkeepd.keeper.watcher import Watcher
from sandkeepd.providers.common.errors import converted_errors
from sandkeepd.providers.common.keeper_provider import KeeperProvider
from sandkeepd.providers.common.layout import SANDBOX_MARK, write_mark
from sandkeepd.providers.common.relayed_instance import RelayedInstance

logger = logging.getLogger("sandkeepd")

REMOVED_AGAIN_S: Final = 10.0
"""Seconds until the remains of a failed start are removed again, when the service has not done it."""

CANCELLED_S: Final = 20.0
"""Seconds that the removal of the remains of a start may take that was cancelled."""

READY_S: Final = 30.0
"""Seconds that the keeper of a sandbox that runs may take to answer."""

LATE_S: Final = (20.0, 120.0, 600.0)
"""Seconds after which the remains of a start that was not answered are looked for again, one after the other: the
service may carry it out later.
"""

RelayedT = TypeVar("RelayedT", bound=RelayedInstance)


class RelayedProvider(KeeperProvider[RelayedT]):
    """See `KeeperProvider`. A subclass knows the service, which is its `engine`."""

    def __init__(
        self, state_dir: str, log_id: str, watcher: Watcher, nursery: trio.Nursery, engine: Recovering
    ) -> None:
        super().__init__(state_dir, log_id, watcher, nursery)
        self.engine = self._service = engine
        self._token = trio.lowlevel.current_trio_token()

    def default_lifetime(self) -> float | None:
        return REMOTE_LIFETIME()

    @abstractmethod
    async def _await_end(self, instance: RelayedT) -> Ending:
        """Wait until a sandbox has ended, however long the service does not answer; return why it did."""

    # Making

    async def _undone_on_error(
        self, sandbox_id: str, create: Callable[[], Awaitable[RelayedT]], plan: Mapping[str, Any] | None = None
    ) -> RelayedT:
        """Make a sandbox, and remove all of it on any error. `plan` is what `terminate` needs of the plan."""
        self.layout.prepare()
        try:
            return await create()
        except BaseException as error:
            with trio.CancelScope(shield=True) as scope:
                if isinstance(error, trio.Cancelled):  # the daemon may be stopping
                    scope.deadline = trio.current_time() + CANCELLED_S
                await self._remove_remains(sandbox_id, plan or {})
            if scope.cancelled_caught:
                self.nursery.start_soon(self._remove_remains_later, sandbox_id, plan or {})
            if isinstance(error, SandkeepError) and "engine" in error.data:
                self.nursery.start_soon(self._remove_late, sandbox_id, plan or {})
            raise

    async def _remove_remains(self, sandbox_id: str, plan: Mapping[str, Any]) -> None:
        """Remove the remains of a failed start; if the service does not answer, once it does again."""
        try:
            await self.terminate(sandbox_id, dict(plan), {})
        except SandkeepError:
            self.nursery.start_soon(self._remove_remains_later, sandbox_id, plan)

    async def _remove_remains_later(self, sandbox_id: str, plan: Mapping[str, Any]) -> None:
        await trio.sleep(REMOVED_AGAIN_S)
        await self._service.recovered()
        await self._remove_remains(sandbox_id, plan)

    async def _remove_late(self, sandbox_id: str, plan: Mapping[str, Any]) -> None:
        """Remove what the service makes of a start that it did not answer in time."""
        for pause_s in LATE_S:
            await trio.sleep(pause_s)
            if sandbox_id in self.instances:  # another attempt has succeeded
                return
            try:
                await self._remove_remains(sandbox_id, plan)
            except Exception:  # nothing else depends on it, and the next daemon looks, too
                logger.exception("remains of sandbox %s may be left", sandbox_id)

    def _make_mirror(self, sandbox_id: str) -> None:
        """Make the directory that mirrors the keeper's. Blocks."""
        directory = self.layout.sandbox(sandbox_id)
        with converted_errors():
            self.layout.discard([f"{directory}/in", f"{directory}/out"])  # of a daemon that was killed in here
            for name in ("in", "out/p"):
                os.makedirs(f"{directory}/{name}", mode=0o700)
            os.mkfifo(f"{directory}/in/{CONTROL}", 0o600)  # here, and not by the relay: a thread may wait for the disk
            os.mknod(f"{directory}/out/exits", 0o600)
            write_mark(f"{directory}/{SANDBOX_MARK}", self.log_id)

    async def _require_alive(self, instance: RelayedT, ready_s: float = READY_S) -> None:
        """Wait until the keeper of a new sandbox answers. Raises `provider_unavailable` when it does not, or ends."""
        alive = False
        with trio.move_on_after(ready_s):
            alive = await instance.is_alive()
        if not alive:
            why = instance.why_ended or instance.why_disconnected or "it does not answer"
            message = f"the keeper in {instance.remote.name} cannot be reached: {why}"
            raise ProviderError("provider_unavailable", message)

    # Holding

    def _relay(self, sandbox_id: str) -> Relay:
        """Open the mirror of a sandbox. Raises OSError."""
        return Relay(self.files(sandbox_id), most_bytes=RETAIN_OUTPUT() or sys.maxsize)

    def _hold_relayed(self, instance: RelayedT) -> None:
        """Hold a sandbox, and follow it, until it is released."""
        instance.scope = trio.CancelScope()
        self.instances[instance.sandbox_id] = instance
        self.nursery.start_soon(self._follow, instance)

    async def _follow(self, instance: RelayedT) -> None:
        """Keep the channel to a sandbox open until that has ended."""
        with instance.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(instance.connect)
                ending = await self._await_end(instance)
                nursery.cancel_scope.cancel()
            await instance.went(instance.ending or ending)

    def running(self, sandbox_id: str) -> RelayedT:
        """Return the instance of a sandbox that runs. Raises `not_ready`."""
        instance = self.instances.get(sandbox_id)
        if instance is None or instance.is_closed or instance.suspended.is_on:
            message = f"sandbox {sandbox_id} does not run: resume it, or create another"
            raise StateError("not_ready", message, sandbox_id=sandbox_id)
        return instance

    # Output

    def trim_output(self, sandbox_id: str, running: Collection[str], most_bytes: int) -> Dropped:
        dropped = super().trim_output(sandbox_id, running, most_bytes)
        self._trim_there(sandbox_id)
        return dropped

    def drop_output(self, sandbox_id: str, process_ids: Collection[str]) -> None:
        super().drop_output(sandbox_id, process_ids)
        self._trim_there(sandbox_id)

    def _trim_there(self, sandbox_id: str) -> None:
        """Make the sandbox free what was dropped from the mirror. Called in a thread."""
        instance = self.instances.get(sandbox_id)
        if instance is not None and not instance.is_closed:
            self._token.run_sync_soon(self.nursery.start_soon, instance.trimmed)
