"""Daemons inside the test whose provider suspends, each in its own way, and what others do to their sandbox `box`."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.support import fake_provider as fake_module
from tests.support.fake_provider import open_fake
from tests.support.inside import Inside, inside

from sandkeep_store.views.sandboxes import SandboxState
from sandkeepd.host.cgroups import freezer, placement
from sandkeepd.host.cgroups.groups import Hierarchies
from sandkeepd.providers.common.layout import READ_MARK
from sandkeepd.providers.docker.engine import Engine
from sandkeepd.providers.docker.provider import open_docker
from sandkeepd.providers.local.provider import LocalProvider, open_local

UID_BASE = 1_900_000_000
DISK = 1 << 30
UNIFIED = "/sys/fs/cgroup/unified"


class House:
    """One with the fake provider, whose processes are stopped one by one."""

    opened: Any = staticmethod(open_fake)
    options: Mapping[str, Any] = {}

    def __init__(self, state_dir: str, source: str) -> None:
        self._state_dir = state_dir
        self.sandbox_id = ""
        self._source = source

    @property
    def directory(self) -> str:
        """Where the sandbox lies."""
        return f"{self._state_dir}/sandboxes/{self.sandbox_id}"

    def daemon(self) -> AbstractAsyncContextManager[Inside]:
        """A daemon on the one state directory that there is."""
        return inside(self._state_dir, opened=self.opened)

    async def box(self, daemon: Inside, **options: Any) -> SandboxState:
        """The sandbox."""
        image = await daemon.image(self._source)
        made = await daemon.call("sandbox.create", image_id=image, name="box", **self.options, **options)
        self.sandbox_id = made.sandbox_id
        return daemon.box()

    def stop(self) -> None:
        """Somebody has it stand still. Blocks, as all of these."""
        fake_module._stop(self.directory)

    def go_on(self) -> None:
        """Somebody has it go on."""
        fake_module._continue(self.directory)

    def stands_still(self) -> bool:
        """Whether it does."""
        return fake_module.stands_still(self.directory)

    def notice(self, daemon: Inside) -> None:
        """The provider sees what others did."""
        daemon.fake.instances[self.sandbox_id].pause.set(self.stands_still())

    async def outside(self, daemon: Inside, *, paused: bool) -> None:
        """Somebody has it stand still, or go on, and the provider sees it."""
        await trio.to_thread.run_sync(self.stop if paused else self.go_on)
        self.notice(daemon)

    async def clear(self) -> None:
        """End it."""
        fake_module.kill(self.directory, {})


class LocalHouse(House):
    """One with the local provider, which freezes a control group."""

    opened = staticmethod(
        lambda state_dir, log_id: open_local(state_dir, uid_base=UID_BASE, disk_limit=DISK, log_id=log_id)
    )
    groups: Mapping[str, str] = {}

    async def box(self, daemon: Inside, **options: Any) -> SandboxState:
        made = await super().box(daemon, **options)
        self.groups = made.requested.plan["cgroups"]
        return made

    def stop(self) -> None:
        self._turn(freeze=True)

    def go_on(self) -> None:
        self._turn(freeze=False)

    def _turn(self, *, freeze: bool) -> None:
        switch = freezer.switch_of(self.groups)
        assert switch is not None
        placement.write(switch.file, switch.freeze if freeze else switch.thaw)
        freezer.wait_until(lambda: self.stands_still() == freeze)

    def stands_still(self) -> bool:
        return freezer.are_frozen(self.groups)

    def mark(self) -> Path:
        """What is there while it stands still only to be read."""
        return Path(self.directory, READ_MARK)

    def notice(self, daemon: Inside) -> None:
        daemon.provider.instances[self.sandbox_id].freezer.refresh()

    async def clear(self) -> None:
        if os.path.exists(self._state_dir):
            async with self.daemon() as daemon:
                await daemon.reconciler.run()
                if self.sandbox_id in daemon.core.state.sandboxes:
                    await daemon.call("sandbox.terminate", sandbox_id=self.sandbox_id)


class BareHouse(LocalHouse):
    """The same without isolation."""

    options = {"isolation": "none"}  # noqa: RUF012 - nobody changes it


class _Unified(Hierarchies):
    """Groups of version 1, but for the one that freezes, which is of version 2."""

    def __init__(self, log_id: str) -> None:
        super().__init__(log_id=log_id)
        self._base["freezer"], self._version["freezer"] = f"{UNIFIED}/skt-{log_id}", 2

    def _make(self, name: str, directory: str) -> None:
        os.makedirs(directory, exist_ok=True)  # no controller is handed on: it freezes without


@asynccontextmanager
async def _open_unified(state_dir: str, log_id: str) -> AsyncIterator[LocalProvider]:
    async with open_local(state_dir, uid_base=UID_BASE, disk_limit=DISK, log_id=log_id) as provider:
        provider.hierarchies = _Unified(log_id)
        yield provider


class UnifiedHouse(LocalHouse):
    """One with the local provider, on a machine that has both versions of control groups."""

    opened = staticmethod(_open_unified)

    async def clear(self) -> None:
        await super().clear()
        os.rmdir(os.path.dirname(self.groups["freezer"]))


class DockerHouse(LocalHouse):
    """One with Docker, whose engine pauses containers, and tells it."""

    def __init__(self, state_dir: str, engine: Any) -> None:
        super().__init__(state_dir, engine.guest())
        self._engine = engine
        self.opened = partial(_open_docker, engine)

    async def box(self, daemon: Inside, **options: Any) -> SandboxState:
        return await House.box(self, daemon, **options)

    def stop(self) -> None:
        self._ask("pause")

    def go_on(self) -> None:
        self._ask("unpause")

    def _ask(self, what: str) -> None:
        status, body = self._engine.ask("POST", f"/containers/sandbox-{self.sandbox_id}/{what}")
        assert status < 300, body

    def stands_still(self) -> bool:
        return bool(self._engine.container_of(self.sandbox_id)["State"]["Paused"])

    def notice(self, daemon: Inside) -> None:
        """It has heard of it."""


def _open_docker(engine: Any, state_dir: str, log_id: str) -> Any:
    return open_docker(state_dir, disk_limit=DISK, log_id=log_id, engine=Engine(engine.socket))


HOUSES = [
    House,
    pytest.param(LocalHouse, marks=[pytest.mark.needs("bwrap"), pytest.mark.needs("freezer")]),
    pytest.param(BareHouse, marks=pytest.mark.needs("freezer")),
    pytest.param(
        UnifiedHouse,
        marks=[
            pytest.mark.needs("bwrap"),
            pytest.mark.skipif(not os.access(f"{UNIFIED}/cgroup.procs", os.W_OK), reason="version 2 is not beside 1"),
        ],
    ),
    pytest.param(DockerHouse, marks=[pytest.mark.needs("docker"), pytest.mark.needs("busybox")]),
]
