"""A provider without any isolation: a keeper in a directory of this machine.

Its code has the rights of the daemon's own user, so it is an example, and no sandbox.
"""

import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import trio

from sandkeep.errors import ProviderError, SetupError
from sandkeep.model import Isolation, ProviderCapabilities, SandboxSpec
from sandkeepd.contract.caller import Caller
from sandkeepd.contract.instance import Ending
from sandkeepd.contract.ledger import Ledger, Swept
from sandkeepd.contract.provider import Provider
from sandkeepd.host import processes
from sandkeepd.host.processes import TOOL_ENV, Identity
from sandkeepd.keeper import program
from sandkeepd.keeper.watcher import Watcher
from sandkeepd.providers.common.directory_images import DirectoryImages, require_directories
from sandkeepd.providers.common.errors import converted_errors
from sandkeepd.providers.common.keeper_provider import HeldInstance, KeeperProvider, running
from sandkeepd.providers.common.layout import SANDBOX_MARK, write_mark

Json = dict[str, Any]

MARK = "SANDKEEP_PLAIN_SANDBOX"
"""The variable by which a sandbox's processes are found. Its value is the sandbox's directory."""


class PlainProvider(KeeperProvider[HeldInstance]):
    """See `Provider`. It has none of the optional parts."""

    name = "plain"

    def __init__(
        self, state_dir: str, log_id: str, watcher: Watcher, nursery: trio.Nursery
    ) -> None:  # fmt: skip
        super().__init__(state_dir, log_id, watcher, nursery)
        in_thread = self.in_thread
        self.images = DirectoryImages(self.layout, log_id, in_thread, owner=None, nursery=nursery)

    async def capabilities(self) -> ProviderCapabilities:
        why = program.why_missing()
        return ProviderCapabilities(provider=self.name, works=why is None, why=why)

    def plan(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, caller: Caller,
        taken: Sequence[Json], *, details: Mapping[str, Any], owner: str,
    ) -> Json:  # fmt: skip
        self.layout.sandbox(sandbox_id)  # raises `invalid`
        self.layout.image(image_id)
        if spec.network == "bridge":
            message = f"the {self.name} provider has no networks"
            raise SetupError("not_supported", message, field="network")
        return {}  # all that `create` needs follows from the ids

    async def create(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, secrets: Mapping[str, str],
        plan: Json,
    ) -> HeldInstance:  # fmt: skip
        try:
            await require_directories([self.images.root(image_id)])
            with trio.CancelScope(shield=True):  # an abandoned start could not be undone
                first = await self.in_thread(self._start, sandbox_id, image_id)
            return await self.begin(sandbox_id, spec, secrets, first)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.discard(sandbox_id, plan)
            raise

    def _start(self, sandbox_id: str, image_id: str) -> Identity:
        directory = self.layout.sandbox(sandbox_id)
        with converted_errors():
            self.layout.discard([f"{directory}/out"])  # of a daemon that was killed in here
            shutil.copytree(self.images.root(image_id), f"{directory}/upper", symlinks=True)
            for name in ("in", "out", "out/p"):
                os.mkdir(f"{directory}/{name}")
            write_mark(f"{directory}/{SANDBOX_MARK}", self.log_id)
            os.mkfifo(f"{directory}/in/.control", 0o600)
            os.mknod(f"{directory}/out/exits")
            return start_keeper(directory)

    async def begin(
        self, sandbox_id: str, spec: SandboxSpec, secrets: Mapping[str, str], first: Identity
    ) -> HeldInstance:  # fmt: skip
        """Hold a sandbox whose keeper was just started."""
        isolation = Isolation(
            mechanism=self.name, files="copy", host_uid=os.geteuid(), notes=["nothing isolates it"],
            workspace=f"{self.layout.sandbox(sandbox_id)}/upper",
        )  # fmt: skip
        handle = {"first": msgspec.to_builtins(first), "secrets": list(secrets)}
        instance = self._hold(sandbox_id, spec, isolation, handle)
        if instance is None:
            processes.reap(first.pid)
            raise ProviderError("provider_unavailable", "the keeper ended while it started")
        instance.child = first.pid
        await instance.share_secrets(secrets)
        return instance

    def _hold(
        self, sandbox_id: str, spec: SandboxSpec, isolation: Isolation, handle: Json
    ) -> HeldInstance | None:  # fmt: skip
        directory = self.layout.sandbox(sandbox_id)
        env = {"PATH": TOOL_ENV["PATH"], "HOME": isolation.workspace, MARK: directory, **spec.env}
        make = partial(
            HeldInstance, sandbox_id, self.files(sandbox_id), self._watcher, isolation=isolation,
            handle=handle, env={name: env[name] for name in env.keys() - set(handle["secrets"])},
            working_dir=spec.directory(isolation.workspace), inside=directory,
        )  # fmt: skip
        return self._hold_first(msgspec.convert(handle["first"], Identity), make)

    async def _why_ended(self, instance: HeldInstance) -> Ending:
        return Ending(kind="failed", message="its keeper was ended from outside")

    async def adopt(
        self, sandbox_id: str, spec: SandboxSpec, plan: Json, isolation: Isolation, handle: Json
    ) -> HeldInstance | None:  # fmt: skip
        return await self._hold_earlier(lambda: self._hold(sandbox_id, spec, isolation, handle))

    async def end(self, sandbox_id: str, handle: Json) -> None:
        """End the processes of a sandbox, and leave its files."""
        await self.in_thread(kill, self.layout.sandbox(sandbox_id), handle)
        await self.await_end(sandbox_id)

    async def terminate(self, sandbox_id: str, plan: Json, handle: Json) -> None:
        with trio.CancelScope(shield=True):
            await self.end(sandbox_id, handle)
        self.remove_files(sandbox_id, partial(self.layout.clear, sandbox_id))

    async def found(self) -> tuple[list[str], list[str]]:
        return await self.in_thread(self.layout.found)

    async def clean_up(self, ledger: Ledger) -> Swept:
        swept = await self.images.clean_up(ledger)
        for sandbox_id in (await self.found())[0]:
            if self.layout.log_of_sandbox(sandbox_id) not in (None, self.log_id):
                swept.foreign.append(f"directory {self.layout.sandbox(sandbox_id)}")
            elif not ledger.owns_sandbox(sandbox_id):
                await self.discard(sandbox_id, {})
                swept.removed.append(f"sandbox {sandbox_id}")
        return swept


def start_keeper(directory: str) -> Identity:
    """Start the keeper of a sandbox, and wait until it is ready. It outlives the daemon."""
    program.install(f"{directory}/in")
    control = os.open(f"{directory}/in/.control", os.O_RDWR | os.O_CLOEXEC)
    told, telling = os.pipe()
    try:
        argv = program.keeper_argv(f"{directory}/in", f"{directory}/out")
        env = {**TOOL_ENV, MARK: directory}
        child = processes.spawn(argv, stdin=control, output=telling, env=env)
        is_ready = b"ready\n" in processes.read_until_ready(told, 30)
        first = processes.identify(child) if is_ready else None
    finally:
        for fd in (control, told, telling):
            os.close(fd)
    if first is None:
        raise ProviderError("provider_unavailable", "the keeper did not start")
    return first


def kill(directory: str, handle: Json) -> None:
    """Kill all processes of a sandbox, also without a handle. Blocks."""
    if handle:
        processes.kill_process(msgspec.convert(handle["first"], Identity))
    processes.kill_all(lambda: processes.find_by_environment({MARK: directory}, {os.geteuid()}))


@asynccontextmanager
async def open_plain(state_dir: str, log_id: str = "") -> AsyncIterator[Provider]:
    """Open the provider for the length of a block. Its sandboxes outlive it."""
    async with running(partial(PlainProvider, state_dir, log_id)) as provider:
        yield provider
