"""A container as the daemon holds it, whatever carries out what happens inside."""

from collections.abc import Mapping
from typing import Any

from sandkeepd import cgroups
from sandkeepd.keeper.pausing import Pausable
from sandkeepd.providers import docker_start
from sandkeepd.providers.docker_engine import Engine
from sandkeepd.providers.docker_plan import Plan
from sandkeepd.providers.kept import KeptInstance


class Container(Pausable):
    """What holds of every container."""

    handle: dict[str, Any]
    plan: Plan
    engine: Engine
    control_groups: Mapping[str, str]
    look_after: float = 0.0

    def contain(self, plan: Plan, engine: Engine) -> None:
        """Take note of what it was made as, and of its state."""
        first = self.handle["first"]["pid"]
        self.plan, self.engine = plan, engine
        self.control_groups = cgroups.groups_of_pid(first)
        self.pause.set(cgroups.is_frozen(first))

    def groups(self) -> Mapping[str, str]:
        """See `Measuring.groups`."""
        return self.control_groups

    async def suspend(self) -> None:
        """See `Pausing.suspend`."""
        await self.engine.call(lambda client: docker_start.pause(client, self.container_id))
        self.pause.set(True)

    async def resume(self) -> None:
        """See `Pausing.resume`."""
        await self.engine.call(lambda client: docker_start.pause(client, self.container_id, paused=False))
        self.pause.set(False)

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
