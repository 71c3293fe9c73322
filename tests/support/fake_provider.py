"""The plain provider of `examples`, for tests: it can also suspend and revive, and be told to misbehave.

It keeps the whole contract of `contract.provider`, with the real keeper and real processes, so that what is built on
providers can be tested where nothing can be isolated. See `Faults` for what can go wrong.
"""

import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import trio
from examples.plain_provider import MARK, PlainProvider, kill, start_keeper

from sandkeep.errors import SandkeepError, StateError
from sandkeep.model import Isolation, SandboxSpec
from sandkeepd.contract.caller import Caller, Progress
from sandkeepd.contract.images import ImageRequest, ImportedImage
from sandkeepd.contract.instance import Ending
from sandkeepd.contract.ledger import Ledger, Swept
from sandkeepd.host.processes import Identity, find_by_environment
from sandkeepd.host.undo import undo_on_error
from sandkeepd.keeper.pause import Pause, Pauses
from sandkeepd.keeper.watcher import Watcher
from sandkeepd.providers.common.directory_images import DirectoryImages
from sandkeepd.providers.common.keeper_provider import HeldInstance, running


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

    async def recovered(self) -> None:
        """See `Recovering.recovered`."""
        await self.mended.wait()


class FakeImages(DirectoryImages):
    """Images that cannot be made, or removed, while the provider is to fail."""

    faults: Faults

    async def make(self, image_id: str, request: ImageRequest, caller: Caller, progress: Progress) -> ImportedImage:
        """See `Images.make`."""
        if self.faults.import_error:
            raise self.faults.import_error
        return await super().make(image_id, request, caller, progress)

    async def remove(self, image_id: str) -> None:
        """See `Images.remove`."""
        await self.faults.answer()
        await super().remove(image_id)


class FakePauses(Pauses):
    """Stops the processes of a sandbox one by one."""

    def __init__(self, pause: Pause, directory: str, first: int, faults: Faults) -> None:
        super().__init__(pause)
        self._directory = directory
        self._faults = faults
        pause.set(_is_still(first) and stands_still(directory))

    async def suspend(self) -> None:
        """See `Pausing.suspend`."""
        await self._faults.answer()
        await trio.to_thread.run_sync(_stop, self._directory)
        self.pause.set(True)

    async def resume(self) -> None:
        """See `Pausing.resume`."""
        await self._faults.answer()
        await trio.to_thread.run_sync(_continue, self._directory)
        self.pause.set(False)


class FakeRevival:
    """Starts another keeper on the files of a sandbox."""

    def __init__(self, provider: "FakeProvider") -> None:
        self._provider = provider

    async def revive(
        self,
        sandbox_id: str,
        image_id: str,
        spec: SandboxSpec,
        secrets: Mapping[str, str],
        plan: dict[str, Any],
        handle: dict[str, Any],
    ) -> HeldInstance:
        """See `Reviving.revive`."""
        await self.halt(sandbox_id, plan, handle)
        directory = self._provider.layout.sandbox(sandbox_id)
        if not await trio.Path(f"{directory}/upper").is_dir():
            raise StateError("not_ready", f"the files of sandbox {sandbox_id} are gone: create another")
        async with undo_on_error(self._provider.end, sandbox_id, {}):
            with trio.CancelScope(shield=True):
                first = await trio.to_thread.run_sync(start_keeper, directory)
            return await self._provider.begin(sandbox_id, spec, secrets, first)

    async def halt(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> None:
        """See `Reviving.halt`."""
        await self._provider.faults.answer()
        with trio.CancelScope(shield=True):
            await self._provider.end(sandbox_id, handle)


class FakeProvider(PlainProvider):
    """See `Provider`. `open_fake` makes it; `faults` tells it to fail."""

    name = "fake"

    def __init__(self, state_dir: str, log_id: str, watcher: Watcher, nursery: trio.Nursery) -> None:
        super().__init__(state_dir, log_id, watcher, nursery)
        self.engine = self.faults = Faults()
        self.images = FakeImages(self.layout, log_id, self.in_thread, owner=None, nursery=nursery)
        self.images.faults = self.faults
        self.revival = FakeRevival(self)

    async def create(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, secrets: Mapping[str, str], plan: dict[str, Any]
    ) -> HeldInstance:
        """See `Provider.create`."""
        await trio.sleep(self.faults.create_delay_s)
        if self.faults.create_error:
            raise self.faults.create_error
        return await super().create(sandbox_id, image_id, spec, secrets, plan)

    def _hold_first(self, first: Identity, make: Callable[[], HeldInstance]) -> HeldInstance | None:
        def pausing() -> HeldInstance:
            instance = make()
            directory = self.layout.sandbox(instance.sandbox_id)
            instance.pauses = FakePauses(instance.pause, directory, first.pid, self.faults)
            return instance

        return super()._hold_first(first, pausing)

    async def _why_ended(self, instance: HeldInstance) -> Ending:
        return self.faults.ending

    async def adopt(
        self, sandbox_id: str, spec: SandboxSpec, plan: dict[str, Any], isolation: Isolation, handle: dict[str, Any]
    ) -> HeldInstance | None:
        """See `Provider.adopt`."""
        await self.faults.answer()
        return await super().adopt(sandbox_id, spec, plan, isolation, handle)

    async def terminate(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> None:
        """See `Provider.terminate`."""
        await self.faults.answer()
        if self.faults.terminate_error:
            raise self.faults.terminate_error
        await super().terminate(sandbox_id, plan, handle)

    async def lose(self, sandbox_id: str, handle: dict[str, Any]) -> None:
        """End a sandbox as if it had died by itself. Its files stay."""
        await trio.to_thread.run_sync(kill, self.layout.sandbox(sandbox_id), handle)

    async def clean_up(self, ledger: Ledger) -> Swept:
        """See `Provider.clean_up`."""
        await self.faults.answer()
        return await super().clean_up(ledger)


@asynccontextmanager
async def open_fake(state_dir: str, log_id: str = "") -> AsyncIterator[FakeProvider]:
    """Open a fake provider for the length of a block. Its sandboxes outlive it, as real ones do."""
    async with running(partial(FakeProvider, state_dir, log_id)) as provider:
        yield provider


def pids(directory: str) -> list[int]:
    """The processes of a sandbox."""
    return find_by_environment({MARK: directory}, {os.geteuid()})


def _stop(directory: str) -> None:
    """Stop all its processes, again and again until none was started meanwhile. Blocks."""
    told = set[int]()
    while running := [pid for pid in pids(directory) if pid not in told or not _is_still(pid)]:
        _signal(running, signal.SIGSTOP)
        told.update(running)


def _continue(directory: str) -> None:
    _signal(pids(directory), signal.SIGCONT)


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def stands_still(directory: str) -> bool:
    """Whether the processes of a sandbox are stopped. Blocks."""
    found = pids(directory)
    return all(_is_still(pid) for pid in found) and any(_state(pid) == b"T" for pid in found)


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
