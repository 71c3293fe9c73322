"""A container as the daemon holds it."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeVar, TypeVarTuple

import msgspec
import trio

from sandkeep.errors import SetupError
from sandkeep.model import FileContent
from sandkeep_store.threads import Threads
from sandkeepd.contract.instance import Directory
from sandkeepd.host.cgroups import freezer
from sandkeepd.host.cgroups import groups as cgroups
from sandkeepd.host.cgroups.pause import reading
from sandkeepd.host.processes import Identity
from sandkeepd.keeper.pause import Pauses
from sandkeepd.providers.common.keeper_provider import HeldInstance
from sandkeepd.providers.docker import files, start
from sandkeepd.providers.docker.engine import Engine
from sandkeepd.providers.docker.plan import Plan

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

LOOK_AGAIN_S: Final = 0.01

FILES_AT_ONCE: Final = 4
"""Maximum number of concurrent file operations on one container without a shell: its disks may be slow."""


class DockerInstance(HeldInstance):
    """A container, and the `plan` that it was made by."""

    plan: Plan
    engine: Engine
    mark: str

    def set_up(self, plan: Plan, engine: Engine, mark: str) -> None:
        """Set its plan, and read its state. The file `mark` exists while it is frozen only to be read."""
        self.engine, self.mark = engine, mark
        self.set_plan(plan)
        self.cgroups = cgroups.groups_of_pid(self.handle["first"]["pid"])
        freezer.recover(self.cgroups, mark)
        self.pause.set(self.is_suspended())
        self.pauses = ContainerPauses(self)
        if not plan.tmux:
            self.no_terminals = "the sandbox's image has no tmux: put tmux into it, or launch without tty"

    def set_plan(self, plan: Plan) -> None:
        """Set its plan, and the limit of its disk, which is its own or measured."""
        self.plan = plan
        self.own_disk_bytes, self.disk_bytes = (plan.disk_bytes, None) if plan.own_disk else (None, plan.disk_bytes)

    def is_suspended(self) -> bool:
        """Return True if it is frozen from outside or by the daemon, for more than to read its files."""
        turn = freezer.freezer_state_of(self.cgroups)
        return cgroups.is_frozen(self.handle["first"]["pid"]) and not (turn is not None and turn.is_frozen_for_read)

    @property
    def container_id(self) -> str:
        """The engine's id of the container."""
        found: str = self.handle["container_id"]
        return found


class ContainerPauses(Pauses):
    """Suspends a container, by the engine."""

    def __init__(self, instance: DockerInstance) -> None:
        super().__init__(instance.pause)
        self._instance = instance

    async def suspend(self) -> None:
        container = self._instance.container_id
        async with self._freezer_lock():
            await self._instance.engine.call(lambda client: start.pause(client, container))
        self.pause.set(True)

    async def resume(self) -> None:
        container, groups = self._instance.container_id, self._instance.cgroups
        async with self._freezer_lock():
            await self._instance.engine.call(lambda client: start.pause(client, container, paused=False))
            freezer.thaw(groups)  # a daemon may have died while its files were read, and its guard, too
        self.pause.set(False)

    @asynccontextmanager
    async def _freezer_lock(self) -> AsyncIterator[None]:
        """For the length of a block, keep others from freezing it to read its files."""
        async with reading(self._instance.cgroups, self._instance.sandbox_id):
            yield


class ShelllessInstance(DockerInstance):
    """A container whose image has no shell: the daemon reads and writes its files from outside."""

    def set_up(self, plan: Plan, engine: Engine, mark: str) -> None:
        super().set_up(plan, engine, mark)
        self.no_terminals = "the sandbox's image has no shell, which terminals need: launch without tty"
        self.no_copies = "the sandbox's image has no shell, which copies need: read and write single files"
        first = msgspec.convert(self.handle["first"], Identity)
        self._root = files.Root(self.sandbox_id, first, (plan.uid, plan.gid), self.working_dir)
        self._in_file_thread = Threads(FILES_AT_ONCE)

    async def read_piece(self, path: str, offset: int, max_bytes: int) -> FileContent:
        return await self._run_in_thread(files.read_piece, self._root, path, offset, max_bytes)

    async def write_whole(self, path: str, data: bytes, *, mode: int | None = None, parents: bool = False) -> None:
        write = partial(files.write_whole, mode=mode, parents=parents, most_bytes=self.plan.disk_bytes)
        await self._run_in_thread(write, self._root, path, data)

    async def list_directory(self, path: str, after: bytes, limit: int) -> Directory:
        return await self._run_in_thread(files.list_directory, self._root, path, after, limit)

    async def _run_in_thread(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Run work with its files in a thread, once it is not suspended."""
        if os.geteuid() != 0:
            message = "the sandbox's image has no shell, and only root's daemon reaches its files: put a shell into it"
            raise SetupError("not_supported", message)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._give_up_when_gone, nursery.cancel_scope)
            await self.pause.changed(True)
            nursery.cancel_scope.cancel()
        return await self._in_file_thread(work, *arguments)

    async def _give_up_when_gone(self, scope: trio.CancelScope) -> None:
        await self.ended()
        scope.cancel()
