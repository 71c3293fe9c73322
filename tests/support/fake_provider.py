"""A provider that isolates nothing, for tests: a keeper in a directory, run as the daemon's own user.

It keeps the whole contract of `contract.provider`, with the real keeper and real processes, so that what is built on
providers can be tested where nothing can be isolated. And it can be told to misbehave: see `Faults`.
"""

import os
import shutil
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import msgspec
import trio

from sandkeep.errors import CallerError, ProviderError, SandkeepError, SetupError, StateError
from sandkeep.ids import check_name
from sandkeep.model import Isolation, ProviderCapabilities, SandboxSpec
from sandkeepd.contract.caller import Caller, Progress
from sandkeepd.contract.images import ImageRequest, ImportedImage
from sandkeepd.contract.instance import Ending
from sandkeepd.contract.ledger import Ledger, Swept
from sandkeepd.host.caller_paths import import_tree
from sandkeepd.host.processes import (
    TOOL_ENV,
    Identity,
    identify,
    kill_all,
    kill_known,
    listen,
    marked,
    reap,
    spawn,
)
from sandkeepd.keeper import program
from sandkeepd.keeper.watcher import Watcher
from sandkeepd.providers.common.keeper_provider import HeldInstance, KeeperProvider, running

_MARK = "SANDKEEP_FAKE_SANDBOX"
"""The variable by which the processes of a sandbox are found: its directory, as ids are other daemons' too."""


class Faults:
    """What shall go wrong. Set the attributes; they hold until they are changed."""

    def __init__(self) -> None:
        self.create_delay_s = 0.0
        self.create_error: SandkeepError | None = None
        self.terminate_error: SandkeepError | None = None
        self.import_error: SandkeepError | None = None
        self.ending = Ending(kind="failed", message="the fake sandbox was ended")
        """What sandboxes that end by themselves say."""
        self.down: SandkeepError | None = None
        """What is raised at once, as by a provider whose engine is down."""
        self.mended = trio.Event()
        self.silent: trio.Event | None = None
        """Until it is set, the provider answers nobody who adopts, ends, or asks what there is."""

    def mend(self) -> None:
        """Have the engine answer again, and say so."""
        self.down = None
        self.mended.set()
        self.mended = trio.Event()

    async def answer(self) -> None:
        """Wait while the provider is to be silent, and fail while it is to be down."""
        if self.silent is not None:
            await self.silent.wait()
        if self.down is not None:
            raise self.down


class FakeInstance(HeldInstance):
    """A fake sandbox in `directory`. `identity` is its keeper's."""

    directory: str
    identity: Identity
    faults: Faults

    async def suspend(self) -> None:
        """See `Pausing.suspend`."""
        await self.faults.answer()
        await trio.to_thread.run_sync(_stop, self.directory)
        self.pause.set(True)

    async def resume(self) -> None:
        """See `Pausing.resume`."""
        await self.faults.answer()
        await trio.to_thread.run_sync(_continue, self.directory)
        self.pause.set(False)


class FakeProvider(KeeperProvider[FakeInstance]):
    """See `Provider`. `open_fake` makes it; `faults` tells it to fail."""

    name = "fake"

    def __init__(self, state_dir: str, log_id: str, watcher: Watcher, nursery: trio.Nursery) -> None:
        super().__init__(watcher, nursery)
        self.faults = Faults()
        self._log_id = log_id
        self._state_dir = state_dir

    async def capabilities(self) -> ProviderCapabilities:
        """See `Provider.capabilities`."""
        return ProviderCapabilities(provider=self.name, works=True)

    async def import_image(
        self, image_id: str, request: ImageRequest, caller: Caller, progress: Progress
    ) -> ImportedImage:
        """See `Provider.import_image`."""
        if self.faults.import_error:
            raise self.faults.import_error
        try:
            target = f"{self._image(image_id)}/root"
            os.makedirs(self._image(image_id), exist_ok=True)
            _mark(f"{self._image(image_id)}/log", self._log_id)
            hide = self._state_dir
            return await import_tree(request.source, caller, target, owner=None, hide=hide, progress=progress)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.remove_image(image_id)
            raise

    async def remove_image(self, image_id: str) -> None:
        """See `Provider.remove_image`."""
        await self.faults.answer()
        await trio.to_thread.run_sync(_remove, self._image(image_id))

    def plan(
        self,
        sandbox_id: str,
        image_id: str,
        spec: SandboxSpec,
        caller: Caller,
        taken: Sequence[dict[str, Any]],
        *,
        details: Mapping[str, Any],
        owner: str,
    ) -> dict[str, Any]:
        """See `Provider.plan`."""
        self._sandbox(sandbox_id)
        self._image(image_id)
        if spec.network == "bridge":
            raise SetupError("not_supported", "the fake provider has no networks", field="network")
        return {"number": len(taken), "caller": caller.uid}

    async def create(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, secrets: Mapping[str, str], plan: dict[str, Any]
    ) -> FakeInstance:
        """See `Provider.create`."""
        try:
            await trio.sleep(self.faults.create_delay_s)
            if self.faults.create_error:
                raise self.faults.create_error
            with trio.CancelScope(shield=True):
                identity = await trio.to_thread.run_sync(self._start, sandbox_id, image_id)
            return await self._begin(sandbox_id, spec, secrets, identity)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._undo(sandbox_id, {})
            raise

    async def _begin(
        self, sandbox_id: str, spec: SandboxSpec, secrets: Mapping[str, str], identity: Identity
    ) -> FakeInstance:
        workspace = f"{self._sandbox(sandbox_id)}/upper"
        isolation = Isolation(
            mechanism="fake", files="copy", host_uid=os.geteuid(), workspace=workspace, notes=["nothing isolates"]
        )
        handle = {"first": msgspec.to_builtins(identity), "secrets": list(secrets)}
        instance = self._hold(sandbox_id, spec, isolation, handle)
        if instance is None:
            reap(identity.pid)
            raise ProviderError("provider_unavailable", "the fake sandbox ended while it started")
        instance.child = identity.pid
        await instance.share_secrets(secrets)
        return instance

    def _start(self, sandbox_id: str, image_id: str) -> Identity:
        root, directory = f"{self._image(image_id)}/root", self._sandbox(sandbox_id)
        if not os.path.isdir(root):
            raise CallerError("not_found", f"there is no image {image_id}", image_id=image_id)
        os.makedirs(directory, exist_ok=True)
        if os.path.lexists(f"{directory}/out"):  # an earlier daemon was killed while it made this sandbox
            shutil.rmtree(f"{directory}/out")
        shutil.copytree(root, f"{directory}/upper", symlinks=True)
        for name in ("in", "out", "out/p"):
            os.mkdir(f"{directory}/{name}")
        _mark(f"{directory}/in/.log", self._log_id)
        os.mkfifo(f"{directory}/in/.control", 0o600)
        with open(f"{directory}/out/exits", "xb"):
            pass
        return _start_keeper(directory)

    def _hold(
        self, sandbox_id: str, spec: SandboxSpec, isolation: Isolation, handle: dict[str, Any]
    ) -> FakeInstance | None:
        identity = msgspec.convert(handle["first"], Identity)
        directory = self._sandbox(sandbox_id)
        env = {"PATH": TOOL_ENV["PATH"], "HOME": isolation.workspace, _MARK: directory, **spec.env}

        def make() -> FakeInstance:
            instance = FakeInstance(
                sandbox_id, self.files(sandbox_id), self._watcher, isolation=isolation, handle=handle,
                env={name: value for name, value in env.items() if name not in handle["secrets"]},
                working_dir=spec.working_dir or isolation.workspace, inside=directory,
            )  # fmt: skip
            instance.directory, instance.identity, instance.faults = directory, identity, self.faults
            instance.pause.set(_is_still(identity.pid) and stands_still(directory))
            return instance

        return self._take_hold(identity, make)

    async def _why_ended(self, instance: FakeInstance) -> Ending:
        return self.faults.ending

    async def adopt(
        self, sandbox_id: str, spec: SandboxSpec, plan: dict[str, Any], isolation: Isolation, handle: dict[str, Any]
    ) -> FakeInstance | None:
        """See `Provider.adopt`."""
        await self.faults.answer()
        instance = self._hold(sandbox_id, spec, isolation, handle)
        if instance is not None:
            await instance.remember_earlier()
        return instance

    async def revive(
        self,
        sandbox_id: str,
        image_id: str,
        spec: SandboxSpec,
        secrets: Mapping[str, str],
        plan: dict[str, Any],
        handle: dict[str, Any],
    ) -> FakeInstance:
        """See `Reviving.revive`."""
        await self.halt(sandbox_id, plan, handle)
        directory = self._sandbox(sandbox_id)
        if not await trio.Path(f"{directory}/upper").is_dir():
            raise StateError("not_ready", f"the files of sandbox {sandbox_id} are gone: create another")
        try:
            with trio.CancelScope(shield=True):
                identity = await trio.to_thread.run_sync(_start_keeper, directory)
            return await self._begin(sandbox_id, spec, secrets, identity)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._halt(sandbox_id, {})
            raise

    async def halt(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> None:
        """See `Reviving.halt`."""
        await self.faults.answer()
        with trio.CancelScope(shield=True):
            await self._halt(sandbox_id, handle)

    async def terminate(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> None:
        """See `Provider.terminate`."""
        await self.faults.answer()
        if self.faults.terminate_error:
            raise self.faults.terminate_error
        with trio.CancelScope(shield=True):
            await self._undo(sandbox_id, handle)

    async def recovered(self) -> None:
        """See `Recovering.recovered`."""
        await self.faults.mended.wait()

    async def _undo(self, sandbox_id: str, handle: dict[str, Any]) -> None:
        await self._halt(sandbox_id, handle)
        for name in ("upper", "in"):
            await trio.to_thread.run_sync(_remove, f"{self._sandbox(sandbox_id)}/{name}")

    async def _halt(self, sandbox_id: str, handle: dict[str, Any]) -> None:
        await self.lose(sandbox_id, handle)
        instance = self._instances.get(sandbox_id)
        if instance is not None:
            await self._see_end(instance)

    async def lose(self, sandbox_id: str, handle: dict[str, Any]) -> None:
        """End a sandbox as if it had died by itself. Its files stay."""
        await trio.to_thread.run_sync(_kill, self._sandbox(sandbox_id), handle)

    async def forget(self, sandbox_ids: Sequence[str]) -> None:
        """See `Provider.forget`."""
        for sandbox_id in sandbox_ids:
            await trio.to_thread.run_sync(_remove, self._sandbox(sandbox_id))

    async def found(self) -> tuple[list[str], list[str]]:
        """See `Provider.found`."""
        sandboxes = [
            name for name in _list(f"{self._state_dir}/sandboxes")
            if {"upper", "in"} & set(_list(f"{self._state_dir}/sandboxes/{name}"))
        ]  # fmt: skip
        return sorted(sandboxes), sorted(_list(f"{self._state_dir}/images"))

    async def clean_up(self, ledger: Ledger) -> Swept:
        """See `Provider.clean_up`."""
        await self.faults.answer()
        removed, foreign = [], []
        sandboxes, images = await self.found()
        for sandbox_id in sandboxes:
            if _is_foreign(f"{self._sandbox(sandbox_id)}/in/.log", self._log_id):
                foreign.append(f"directory {self._sandbox(sandbox_id)}")
            elif not ledger.owns_sandbox(sandbox_id):
                removed.append(f"sandbox {sandbox_id}")
                await self.terminate(sandbox_id, {}, {})
        for image_id in images:
            if _is_foreign(f"{self._image(image_id)}/log", self._log_id):
                foreign.append(f"directory {self._image(image_id)}")
            elif not ledger.owns_image(image_id):
                removed.append(f"image {image_id}")
                await self.remove_image(image_id)
        return Swept(removed=removed, foreign=foreign)

    def _image(self, image_id: str) -> str:
        return f"{self._state_dir}/images/{check_name(image_id, 'image_id')}"

    def _sandbox(self, sandbox_id: str) -> str:
        return f"{self._state_dir}/sandboxes/{check_name(sandbox_id, 'sandbox_id')}"


@asynccontextmanager
async def open_fake(state_dir: str, log_id: str = "") -> AsyncIterator[FakeProvider]:
    """Open a fake provider for the length of a block. Its sandboxes outlive it, as real ones do."""
    async with running(partial(FakeProvider, state_dir, log_id)) as provider:
        yield provider


def _start_keeper(directory: str) -> Identity:
    program.install(f"{directory}/in")
    control = os.open(f"{directory}/in/.control", os.O_RDWR | os.O_CLOEXEC)
    talk, talk_end = os.pipe()
    try:
        argv = program.command(f"{directory}/in", f"{directory}/out")
        child = spawn(argv, stdin=control, output=talk_end, env={**TOOL_ENV, _MARK: directory})
        identity = identify(child) if b"ready\n" in listen(talk, 30) else None
    finally:
        for fd in (control, talk, talk_end):
            os.close(fd)
    if identity is None:
        raise ProviderError("provider_unavailable", "the keeper did not start")
    return identity


def _kill(directory: str, handle: dict[str, Any]) -> None:
    if handle:
        kill_known(msgspec.convert(handle["first"], Identity))
    kill_all(lambda: _processes(directory))


def _processes(directory: str) -> list[int]:
    return marked({_MARK: directory}, {os.geteuid()})


def _stop(directory: str) -> None:
    """Stop all its processes, again and again until none was started meanwhile. Blocks."""
    told = set[int]()
    while running := [pid for pid in _processes(directory) if pid not in told or not _is_still(pid)]:
        _signal(running, signal.SIGSTOP)
        told.update(running)


def _continue(directory: str) -> None:
    _signal(_processes(directory), signal.SIGCONT)


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def stands_still(directory: str) -> bool:
    """Whether the processes of a sandbox are stopped. Blocks."""
    pids = _processes(directory)
    return all(_is_still(pid) for pid in pids) and any(_state(pid) == b"T" for pid in pids)


def _is_still(pid: int) -> bool:
    """Whether a process, told to stop, does nothing: it is stopped, has ended, or waits, as a shell does in the kernel
    for a child that was stopped before it began.
    """
    return _state(pid) in b"TtZXD"


def _state(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1]
    except (FileNotFoundError, ProcessLookupError):
        return b"X"


def _remove(path: str) -> None:
    shutil.rmtree(path, ignore_errors=True)


def _mark(path: str, log_id: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(log_id)


def _is_foreign(path: str, log_id: str) -> bool:
    if not os.path.isfile(path):
        return False
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read() != log_id


def _list(path: str) -> list[str]:
    return os.listdir(path) if os.path.isdir(path) else []
