"""A container as the daemon holds it, whatever carries out what happens inside."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from sandkeepd import cgroups, freezer
from sandkeepd.keeper.pausing import Pausable
from sandkeepd.providers import docker_start
from sandkeepd.providers.docker_engine import Engine
from sandkeepd.providers.docker_plan import Plan
from sandkeepd.providers.kept import KeptInstance

LOOK_AGAIN_S: Final = 0.01


class Container(Pausable):
    """What holds of every container."""

    handle: dict[str, Any]
    plan: Plan
    engine: Engine
    control_groups: Mapping[str, str]
    mark: str
    look_after: float = 0.0

    def contain(self, plan: Plan, engine: Engine, mark: str) -> None:
        """Take note of what it was made as, and of its state. `mark` says while it stands still only to be read."""
        self.plan, self.engine, self.mark = plan, engine, mark
        self.control_groups = cgroups.groups_of_pid(self.handle["first"]["pid"])
        freezer.recover(self.control_groups, mark)
        self.pause.set(self.is_suspended())

    def groups(self) -> Mapping[str, str]:
        """See `Measuring.groups`."""
        return self.control_groups

    def is_suspended(self) -> bool:
        """Whether somebody has it stand still, for more than to read its files."""
        turn = freezer.turn_of(self.control_groups)
        return cgroups.is_frozen(self.handle["first"]["pid"]) and not (turn is not None and turn.is_ours)

    async def suspend(self) -> None:
        """See `Pausing.suspend`."""
        async with self._in_turn():
            await self.engine.call(lambda client: docker_start.pause(client, self.container_id))
        self.pause.set(True)

    async def resume(self) -> None:
        """See `Pausing.resume`."""
        async with self._in_turn():
            await self.engine.call(lambda client: docker_start.pause(client, self.container_id, paused=False))
            freezer.thaw(self.control_groups)  # a daemon may have died while its files were read, and its guard, too
        self.pause.set(False)

    @asynccontextmanager
    async def _in_turn(self) -> AsyncIterator[None]:
        """For the length of a block nobody has it stand still to read its files."""
        turn = freezer.turn_of(self.control_groups)
        while turn is not None and not turn.lock.acquire(blocking=False):  # noqa: ASYNC110 - threads hold it
            await trio.sleep(LOOK_AGAIN_S)
        try:
            yield
        finally:
            if turn is not None:
                turn.lock.release()

    @property
    def disk_bytes(self) -> int:
        """How much it may have on the disk."""
        return self.plan.disk_bytes

    @property
    def container_id(self) -> str:
        """What the engine calls it."""
        found: str = self.handle["container_id"]
        return found


class DockerInstance(Container, KeptInstance):
    """A container with a keeper."""
