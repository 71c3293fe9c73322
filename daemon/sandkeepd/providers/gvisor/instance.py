"""A gVisor sandbox, held by the daemon: its container may end and be restored, and the instance stays the same."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import trio

from sandkeep.errors import StateError
from sandkeep.model import SandboxSpec
from sandkeepd.contract.instance import Ending
from sandkeepd.keeper import pipes
from sandkeepd.keeper.helpers import HELPER_OUTPUT_BYTES
from sandkeepd.keeper.pause import Pause
from sandkeepd.keeper.shared_directory import CONTROL
from sandkeepd.keeper.viewers import Viewers
from sandkeepd.providers.common.keeper_provider import HeldInstance
from sandkeepd.providers.gvisor.plan import Plan
from sandkeepd.providers.gvisor.viewers import GvisorViewers, Runsc

HELPERS_S: Final = 30.0
"""Seconds that file copies and other helpers may delay the save of a sandbox."""


class GvisorInstance(HeldInstance):
    """See the module's text. Without a `pidfd` it is saved, and none of its processes run."""

    image_id: str
    plan: Plan
    spec: SandboxSpec
    runsc: Runsc
    container: str = ""
    pidfd: int = -1

    def _make_viewers(self) -> Viewers:
        self._shown = GvisorViewers(self, self._channel, self._shared, self.handle)
        return self._shown

    def prepare(self, image_id: str, plan: Plan, spec: SandboxSpec) -> None:
        """Set its image, plan and spec."""
        self.image_id, self.plan, self.spec = image_id, plan, spec
        self.cgroups, self.disk_bytes = plan.cgroups, plan.disk_bytes
        self.suspended = Pause()
        """Unlike `pause`, it is off while the sandbox is saved for a moment only."""
        self.turn = trio.Lock()
        """Held while it is being saved or restored."""
        self.scope = trio.CancelScope()
        self._helpers_running = 0
        self._helper_ended = trio.Event()
        self._held_control: int | None = None

    def disk_usage(self) -> tuple[int | None, int | None]:
        return None, None  # its files lie in memory, and only its journals are limited

    # Standing still

    @property
    def is_suspended(self) -> bool:
        """True if it is saved for more than a moment."""
        return self.suspended.is_on

    def hold_requests(self) -> None:
        """Suspend requests to it, in a FIFO that is held open, and the timeouts of its processes."""
        self.pause.set(True)
        if self._held_control is None:
            self._held_control = self._shared.open_fifo(CONTROL)

    def release_requests(self) -> None:
        """Let requests to it, and the timeouts of its processes, go on: it runs again."""
        self._close_control()
        self.pause.set(False)

    def _close_control(self) -> None:
        if self._held_control is not None:
            os.close(self._held_control)
            self._held_control = None

    def listen_anew(self) -> None:
        """Listen anew to the directories shared with the daemon, after another's files there were replaced by its own.
        Raises OSError, `NotAFileError`.
        """
        self._channel.reopen_answers()

    # Being held

    def release_process(self) -> None:
        """Release its first process, as that is about to end, or has."""
        if self.pidfd >= 0:
            super().release_process()
            self.pidfd = -1

    async def aclose(self) -> None:
        self._close_control()
        if self.pidfd < 0:
            self.scope.cancel()
            if not self.is_closed:
                self._channel.close()
                await trio.lowlevel.checkpoint()
            return
        await super().aclose()

    async def went(self, ending: Ending) -> None:
        self.release_requests()
        await super().went(ending)

    # Helper commands, which are not to be saved with it

    @asynccontextmanager
    async def delaying_saves(self) -> AsyncIterator[None]:
        """Keep it from being saved for the length of a block."""
        async with self.turn:  # none begins while it is being saved
            self._helpers_running += 1
        try:
            yield
        finally:
            self._helpers_running -= 1
            self._helper_ended.set()
            self._helper_ended = trio.Event()

    async def await_helpers(self) -> None:
        """Wait until no helper command runs. Raises `conflict` when that takes too long."""
        with trio.move_on_after(HELPERS_S):
            while self._helpers_running:
                await self._helper_ended.wait()
        if self._helpers_running:
            message = f"files of sandbox {self.sandbox_id} are being copied: try again when that is done"
            raise StateError("conflict", message, sandbox_id=self.sandbox_id)

    async def run_command(
        self,
        command: Sequence[str],
        stdin: bytes | None = None,
        *,
        working_dir: str | None = None,
        most_bytes: int = HELPER_OUTPUT_BYTES,
    ) -> tuple[int | None, bytes, bytes]:
        async with self.delaying_saves():
            return await super().run_command(command, stdin, working_dir=working_dir, most_bytes=most_bytes)

    @asynccontextmanager
    async def run_piped(
        self, command: Sequence[str], *, incoming: bool, working_dir: str | None = None
    ) -> AsyncIterator[pipes.Piped]:
        async with (
            self.delaying_saves(),
            super().run_piped(command, incoming=incoming, working_dir=working_dir) as piped,
        ):
            yield piped

    # Terminals

    async def end_viewers(self) -> None:
        """End all viewers of terminals: the processes that `runsc` started for them must not be saved."""
        await self._shown.end_all(super().run_command)
