"""A gVisor sandbox, held by the daemon: its container may end and be restored, and the instance stays the same."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import trio

from sandkeep.errors import StateError
from sandkeep.model import SandboxSpec
from sandkeepd.contract.instance import Ending
from sandkeepd.keeper import pipes, requests
from sandkeepd.keeper.helpers import HELPER_OUTPUT_BYTES
from sandkeepd.keeper.pause import Pause
from sandkeepd.keeper.place import CONTROL
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
    look_after: float = 0.0
    most_written: float = 0.0

    def _make_viewers(self) -> Viewers:
        self._shown = GvisorViewers(self, self._talk, self._place, self.handle)
        return self._shown

    def prepare(self, image_id: str, plan: Plan, spec: SandboxSpec) -> None:
        """Set its image, plan and spec."""
        self.image_id, self.plan, self.spec, self.cgroups = image_id, plan, spec, plan.cgroups
        self.suspended = Pause()
        """Unlike `pause`, it is off while the sandbox is saved for a moment only."""
        self.turn = trio.Lock()
        """Held while it is being saved or restored."""
        self.scope = trio.CancelScope()
        self._helping = 0
        self._helped = trio.Event()
        self._held_control: int | None = None

    @property
    def disk_bytes(self) -> int:
        """Limit on its disk usage in bytes."""
        return self.plan.disk_bytes

    # Standing still

    @property
    def is_suspended(self) -> bool:
        """True if it is saved for more than a moment."""
        return self.suspended.is_on

    def stand(self) -> None:
        """Suspend requests to it, in a FIFO that is held open, and the timeouts of its processes."""
        self.pause.set(True)
        if self._held_control is None:
            self._held_control = self._place.open_fifo(CONTROL)

    def go(self) -> None:
        """It runs again."""
        if self._held_control is not None:
            os.close(self._held_control)
            self._held_control = None
        self.pause.set(False)

    def put_back(self) -> None:
        """Listen anew to the directories shared with the daemon, after another's files there were replaced by its own.
        Raises OSError, `NotAFileError`.
        """
        self._talk.listen_anew()

    # Being held

    def let_go_of_process(self) -> None:
        """Release its first process, as that is about to end, or has."""
        if self.pidfd >= 0:
            super().let_go_of_process()
            self.pidfd = -1

    async def aclose(self) -> None:
        """See `Instance.aclose`."""
        if self._held_control is not None:
            os.close(self._held_control)
            self._held_control = None
        if self.pidfd < 0:
            self.scope.cancel()
            if not self.is_closed:
                self._talk.close()
                await trio.lowlevel.checkpoint()
            return
        await super().aclose()

    async def went(self, ending: Ending) -> None:
        """See `KeeperInstance.went`."""
        self.go()
        await super().went(ending)

    # Helper commands, which are not to be saved with it

    @asynccontextmanager
    async def helping(self) -> AsyncIterator[None]:
        """Keep it from being saved for the length of a block."""
        async with self.turn:  # none begins while it is being saved
            self._helping += 1
        try:
            yield
        finally:
            self._helping -= 1
            self._helped.set()
            self._helped = trio.Event()

    async def without_helpers(self) -> None:
        """Wait until no helper command runs. Raises `conflict` when that takes too long."""
        with trio.move_on_after(HELPERS_S):
            while self._helping:
                await self._helped.wait()
        if self._helping:
            words = f"files of sandbox {self.sandbox_id} are being copied: try again when that is done"
            raise StateError("conflict", words, sandbox_id=self.sandbox_id)

    async def run_command(
        self,
        command: Sequence[str],
        stdin: bytes | None = None,
        *,
        working_dir: str | None = None,
        most_bytes: int = HELPER_OUTPUT_BYTES,
    ) -> tuple[int | None, bytes, bytes]:
        """See `Instance.run_command`."""
        async with self.helping():
            return await super().run_command(command, stdin, working_dir=working_dir, most_bytes=most_bytes)

    @asynccontextmanager
    async def run_piped(
        self, command: Sequence[str], *, incoming: bool, working_dir: str | None = None
    ) -> AsyncIterator[pipes.Piped]:
        """See `Instance.run_piped`."""
        async with self.helping(), super().run_piped(command, incoming=incoming, working_dir=working_dir) as piped:
            yield piped

    # Terminals

    async def without_viewers(self) -> None:
        """End all viewers of terminals: the processes that `runsc` started for them must not be saved."""
        await self._shown.end_all(super().run_command)

    def ask(self, line: bytes) -> None:
        """Send a request to the keeper, if there is room for it. Does not wait."""
        fd = self._place.open_fifo(CONTROL)
        if fd is not None:
            with suppress(OSError):
                os.write(fd, line)
            os.close(fd)

    # Known facts of processes

    async def rename(self, process_id: str, new: str) -> None:
        """Give a process another id, inside too. Its input is linked under both names: inside it cannot be renamed."""
        with (
            suppress(FileNotFoundError, FileExistsError),
            self._place.files.directory("in", writable=True) as directory,
        ):
            os.link(f"{process_id}.stdin", f"{new}.stdin", src_dir_fd=directory, dst_dir_fd=directory)
        await self._talk.send(requests.name(process_id, new))
