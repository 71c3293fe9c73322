"""Helper commands: run inside a sandbox for the daemon's own purposes, outside the record, and then removed."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from signal import Signals
from typing import Final

import trio

from sandkeep.errors import SandkeepError
from sandkeep.ids import new_id
from sandkeep_store.threads import in_thread
from sandkeepd.contract.instance import Instance
from sandkeepd.contract.processes import Launch
from sandkeepd.keeper import input_files, pipes, requests
from sandkeepd.keeper.channel import REQUEST_DEADLINE_S, Channel
from sandkeepd.keeper.launch import Launcher
from sandkeepd.keeper.processes import KnownProcess
from sandkeepd.keeper.shared_directory import SharedDirectory
from sandkeepd.keeper.watcher import Watcher

HELPER_OUTPUT_BYTES: Final = 64 * 1024
"""Maximum bytes of a helper's output, if no more is expected: the code inside can add any amount."""

CLEAN_UP_S: Final = 25.0
"""Seconds a cancelled helper has to clean up."""

KILL_S: Final = 1.0
"""Seconds to wait for the end of a killed helper: the code inside can suppress the report."""

SIGNAL_PERIOD_S: Final = 1.0
"""Seconds between repeated signals meanwhile."""


class Helpers:
    """The helper commands of one sandbox, which are processes of `instance` as others are."""

    def __init__(
        self, instance: Instance, channel: Channel, shared: SharedDirectory, launcher: Launcher, watcher: Watcher
    ) -> None:
        self._watcher = watcher
        self._instance = instance
        self._channel = channel
        self._shared = shared
        self._launcher = launcher

    async def run(
        self, command: Sequence[str], stdin: bytes | None, *, working_dir: str | None, most_bytes: int
    ) -> tuple[int | None, bytes, bytes]:
        """See `Instance.run_command`. Its journals are removed when it is done."""
        process_id = new_id(pipes.HELPER)
        try:
            launch = Launch(process_id=process_id, command=command, stdin=stdin, working_dir=working_dir)
            await self._launcher.launch(launch)
            ended = await self._instance.wait(process_id)
            stdout = await in_thread(self._instance.read, process_id, "stdout", 0, most_bytes)
            stderr = self._instance.read(process_id, "stderr", 0, HELPER_OUTPUT_BYTES)
            return ended.exit_code, stdout.data, stderr.data or pipes.unwritten_stderr(self._instance)
        finally:
            await self._clean_up(process_id)

    @asynccontextmanager
    async def piped(
        self, command: Sequence[str], *, incoming: bool, working_dir: str | None
    ) -> AsyncIterator[pipes.Piped]:
        """See `Instance.run_piped`."""
        launch = Launch(process_id=new_id(pipes.HELPER), command=command, working_dir=working_dir)
        start = self._fed if self._shared.fed else self._by_fifos
        piped: pipes.Piped | None = None
        try:
            async with start(launch, incoming=incoming) as piped:
                yield piped
        finally:
            if piped is None or not piped.left_alone or self._instance.exit_of(launch.process_id):
                await self._clean_up(launch.process_id)

    @asynccontextmanager
    async def _by_fifos(self, launch: Launch, *, incoming: bool) -> AsyncIterator[pipes.Piped]:
        process_id = launch.process_id
        self._shared.free_inodes()
        with closing(pipes.Fifos(self._shared.files, process_id, self._shared.input_owner)) as fifos:
            await self._launcher.launch(launch, "in" if incoming else "out")
            data, control = fifos.data(incoming=incoming), fifos.control()
            with closing(pipes.Piped(self._instance, process_id, data, control)) as piped:
                await self._wait_ready(piped)
                fifos.close()
                yield piped

    @asynccontextmanager
    async def _fed(self, launch: Launch, *, incoming: bool) -> AsyncIterator[pipes.Piped]:
        """The same where there can be no FIFOs."""
        process_id = launch.process_id
        try:
            for end in (pipes.DATA, pipes.CONTROL) if incoming else (pipes.CONTROL,):
                await self._shared.write(process_id + end, b"")
            await self._launcher.launch(launch, "fed-in" if incoming else "fed-out")
            async with input_files.piped(
                self._instance, self._channel, self._shared, self._watcher, process_id, incoming=incoming
            ) as piped:
                await self._wait_ready(piped)
                yield piped
        except OSError as error:
            raise self._shared.no_room(error) from None

    async def _wait_ready(self, piped: pipes.Piped) -> None:
        with self._channel.pause.timeout(REQUEST_DEADLINE_S) as scope:
            await piped.expect("ready")
        if scope.cancelled_caught:
            raise self._channel.no_answer()

    async def end_earlier(self) -> None:
        """End the unfinished helper commands of an earlier daemon, and remove their files."""
        for process_id in pipes.leftover_helpers(self._shared.names()):
            with suppress(SandkeepError):  # it is ending
                await self._kill(process_id, Signals.SIGTERM)
            self._shared.remove_helper(process_id)

    async def _clean_up(self, process_id: str) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + REQUEST_DEADLINE_S):
            await self._end_and_remove(process_id)

    async def _end_and_remove(self, process_id: str) -> None:
        process = self._channel.processes.get(process_id)
        if process:
            with trio.move_on_after(CLEAN_UP_S):  # a helper removes its unfinished work
                await self._terminate(process_id, process)
        ends = self._channel.gone.is_set() or self._channel.pause.is_on  # one that stands still cleans up afterwards
        if process and process.exit is None and not ends:
            for _ in range(2):  # of one whose pid is not known the second takes what it would be told by
                await self._kill(process_id, Signals.SIGKILL)
                with trio.move_on_after(KILL_S):
                    await process.ended.wait()
                    break
        self._instance.forget(process_id)
        self._shared.remove_helper(process_id)

    async def _terminate(self, process_id: str, process: KnownProcess) -> None:
        """Signal a helper until it ends: a shell that starts a program at that moment takes the signal from it, and
        waits for it. SIGCONT wakes processes that the code inside has stopped.
        """
        while process.exit is None and not self._channel.gone.is_set():
            for number in (Signals.SIGTERM, Signals.SIGCONT):
                await self._kill(process_id, number)
            with trio.move_on_after(SIGNAL_PERIOD_S):
                await process.ended.wait()

    async def _kill(self, process_id: str, signal: int) -> None:
        await self._channel.send(requests.request("kill", process_id, str(int(signal))))
