"""Carrying a process of a container without a shell: from its start through its streams to the word of how it ended.

The engine starts it and carries its streams, the kernel says when it has ended, and the engine how. What the engine
forgets when it is restarted, it tells nobody any more: then nobody knows how a process ended.
"""

import re
import signal
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Any, Final

import trio

from sandkeep import failpoints
from sandkeep.errors import ProviderError, SandkeepError
from sandkeepd.hostile_files import HostileTree
from sandkeepd.hostprocess import Identity
from sandkeepd.keeper.pausing import Pause
from sandkeepd.keeper.processes import LOST_WITH_SANDBOX, Known
from sandkeepd.providers import docker_pids
from sandkeepd.providers.base import Exit, unnoted
from sandkeepd.providers.docker_engine import Engine, RefusedError
from sandkeepd.providers.docker_exec_stream import ExecStream, Piece, start_exec
from sandkeepd.providers.docker_records import JournalWriter, Record, Records

FIRST_LOOK_S: Final = 0.06
"""How soon after it was ordered the engine is asked whether it has started a process that says nothing."""

LOOK_S: Final = 0.01
MOST_LOOK_S: Final = 0.5
"""How soon it is asked again, and how late at most: each time it takes twice as long."""

STARTS_AT_ONCE: Final = 4
"""How many processes of one container are started at once. More take no less time."""

DRAIN_S: Final = 2.0
"""How long after the end of a process its output may take to arrive. What it left behind may go on writing for ever."""

TOLD_S: Final = 30.0
"""How long the engine may take to say how a process ended."""

ASK_AGAIN_S: Final = 1.0
"""How often an engine that is down is asked meanwhile."""

DYING_S: Final = 0.2
"""How much later than its processes a container may end that takes them along."""

KILLED: Final = 128 + signal.SIGKILL
MAX_WORDS_BYTES: Final = 4096
NOT_FOUND: Final = 127
_NO_SUCH: Final = re.compile(rb'exec: "[^"]*": (?:executable file not found|stat [^:]*: no such file)')
"""How an engine that has no exit code for it says that there is no such program."""

NOT_STARTED: Final = 126
"""The exit code that the engine gives also when only the connection to a process broke."""

FORGOTTEN: Final = "the Docker engine was restarted while it ran, and does not know how it ended"
UNSEEN: Final = "it ended while no daemon was there, and the Docker engine does not know how"
SILENT: Final = "the Docker engine does not say how it ended"


class Exec(Known):
    """What is known of one process, and the connection to it, if there is one."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self.record = record
        self.stream: ExecStream | None = None
        self.failure: SandkeepError | None = None
        """Why it was not started."""
        self.refused = False
        """The engine could not start it: what comes as its output is the engine's word, and `words` its beginning."""
        self.words = b""

    def told_apart(self, pieces: list[Piece]) -> list[Piece]:
        """Output, of which the engine's own word is for stderr."""
        if not self.refused:
            return pieces
        self.words += b"".join(data for _, data in pieces)[:MAX_WORDS_BYTES]
        return [("stderr", data) for _, data in pieces]


class _Rounds:
    """How long to wait until the engine is asked once more."""

    def __init__(self) -> None:
        self._delay = LOOK_S

    async def wait(self) -> None:
        await trio.sleep(self._delay)
        self._delay = min(2 * self._delay, MOST_LOOK_S)


class Carrier:
    """Carries the processes of one container, whose first is `first`. No stream is kept beyond `most_bytes`."""

    def __init__(
        self, engine: Engine, out: HostileTree, records: Records, pause: Pause, first: Identity, most_bytes: int
    ) -> None:
        self._engine = engine
        self._out = out
        self._records = records
        self._pause = pause
        self._first = first
        self._most_bytes = most_bytes
        self._starts = trio.CapacityLimiter(STARTS_AT_ONCE)
        self._closed = False
        self._scopes: set[trio.CancelScope] = set()

    async def carry(self, process_id: str, process: Exec, stdin: bytes | bool | None, version: str) -> None:
        """Start a process, keep what it writes, and see its end."""
        with self._within():
            try:
                found = await self._start(process, version)
                await self.believe(process_id, process, found)
                await self._connect(process_id, process, stdin)
                await self._end(process_id, process)  # before the connection is broken, which the engine may mistake
            except SandkeepError as error:
                process.failure = error
                process.tell()
            finally:
                if process.stream is not None:
                    await process.stream.aclose()

    async def _start(self, process: Exec, version: str) -> dict[str, Any] | None:
        async with self._starts:
            try:
                process.stream = await start_exec(self._engine.path, version, process.record.exec_id)
            except OSError as error:
                raise self._engine.down(error) from None
            failpoints.reach("launch.sent")
            return await self._started(process)

    async def _started(self, process: Exec) -> dict[str, Any] | None:
        """What the engine says of a process once it was started, or could not be; None when it does not answer."""
        assert process.stream is not None
        with trio.move_on_after(FIRST_LOOK_S):
            await process.stream.wait_readable()
        with suppress(ProviderError):
            return await self.settled(process, begun=True)
        return None

    async def settled(self, process: Exec, *, begun: bool = False) -> dict[str, Any] | None:
        """What the engine says of a process, once that can be told from one that it is still starting. With `begun` it
        is certain that it was told to start it. None when it knows of none. Raises `provider_unavailable`.
        """
        rounds = _Rounds()
        while True:
            found = await self.inspect(process)
            if found is None or found["Pid"] or found["ExitCode"] is not None:
                return found
            if not found["Running"] and not begun:
                return found
            await rounds.wait()

    async def believe(self, process_id: str, process: Exec, found: dict[str, Any] | None) -> None:
        """Take note of which process it is. One that has ended already is only told of."""
        record = process.record
        pid = found["Pid"] if found else 0
        process.refused = found is not None and not pid
        record.first = docker_pids.identify_in(self._first, pid)
        record.pid = docker_pids.pid_inside(pid) if record.first else 0
        with suppress(OSError):  # a later daemon asks the engine, then
            await trio.to_thread.run_sync(self._records.save, process_id, record)
        self._records.tell(process_id, f"+{record.pid}")
        process.learn(f"+{record.pid}")

    async def _connect(self, process_id: str, process: Exec, stdin: bytes | bool | None) -> None:
        """Carry what goes in and what comes out, for as long as the process runs, and a while longer."""
        async with trio.open_nursery() as nursery:
            if isinstance(stdin, bytes):
                nursery.start_soon(_feed, process, stdin)
            if process.record.first is not None:
                nursery.start_soon(_stop_late, process.record.first, nursery.cancel_scope)
            await self._keep_output(process_id, process)
            nursery.cancel_scope.cancel()

    async def _keep_output(self, process_id: str, process: Exec) -> None:
        assert process.stream is not None
        try:
            writer = await trio.to_thread.run_sync(JournalWriter, self._out, process_id, self._most_bytes)
        except OSError as error:
            await self.lose(process_id, process, f"its output could not be kept: {error.strerror}")
            return
        try:
            async with aclosing(process.stream.output()) as output:
                async for pieces in output:
                    await trio.to_thread.run_sync(writer.write, process.told_apart(pieces))
                    if writer.why_not is not None and process.record.gap is None:
                        await self._cut(process_id, process, writer)
        finally:
            writer.close()

    async def _cut(self, process_id: str, process: Exec, writer: JournalWriter) -> None:
        """What follows is not kept."""
        await self.lose(process_id, process, f"its output was cut: {writer.why_not}")
        if writer.is_full:
            docker_pids.send(process.record.first, signal.SIGXFSZ)  # as too large a file ends it elsewhere

    async def lose(self, process_id: str, process: Exec, gap: str) -> None:
        """Note that some of a process's output is lost, and why."""
        process.record.gap = gap
        with suppress(OSError):
            await trio.to_thread.run_sync(self._records.save, process_id, process.record)

    # Ending

    async def await_end(self, process_id: str, process: Exec) -> None:
        """Follow a process that an earlier daemon started."""
        with self._within():
            await self._end(process_id, process)

    async def _end(self, process_id: str, process: Exec) -> None:
        if process.record.first is not None:
            await docker_pids.ended(process.record.first)
        how = await self._how(process_id, process)
        if how.exit_code == KILLED:
            with trio.move_on_after(DYING_S):
                await docker_pids.ended(self._first)
                how = Exit(exit_code=None, message=LOST_WITH_SANDBOX)
        if how.exit_code is not None:
            self._records.tell(process_id, str(how.exit_code))
        process.end(how)
        process.tell()

    async def _how(self, process_id: str, process: Exec) -> Exit:
        """How a process ended that runs no more."""
        how = Exit(exit_code=None, message=SILENT)
        with self._pause.patience(TOLD_S):
            how = await self._told(process)
        if how.message == FORGOTTEN:
            await self.lose(process_id, process, f"some of its output may be lost: {FORGOTTEN}")
        return how

    async def _told(self, process: Exec) -> Exit:
        rounds = _Rounds()
        while True:
            try:
                found = await self.inspect(process)
            except ProviderError:  # it may be back in a moment
                await trio.sleep(ASK_AGAIN_S)
                continue
            if found is None:
                return Exit(exit_code=None, message=FORGOTTEN)
            if found["ExitCode"] is not None and not found["Running"]:
                return _exit(process, found)
            await rounds.wait()

    async def inspect(self, process: Exec) -> dict[str, Any] | None:
        """What the engine says of a process; None when it knows of none. Raises `provider_unavailable`."""
        try:
            found: dict[str, Any] = await self._engine.call(lambda client: client.exec_inspect(process.record.exec_id))
        except RefusedError as refused:
            if refused.status == 404:
                return None
            raise
        return found

    def close(self) -> None:
        """Follow the processes no more. They go on, and what they write is lost."""
        self._closed = True
        for scope in self._scopes:
            scope.cancel()

    @contextmanager
    def _within(self) -> Iterator[None]:
        """Something that goes on until this is closed."""
        with trio.CancelScope() as scope:
            if self._closed:
                scope.cancel()
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)


def _exit(process: Exec, found: dict[str, Any]) -> Exit:
    """How the engine says that a process ended."""
    if found["ExitCode"] == NOT_STARTED and found["Pid"] and process.stream is None:
        return Exit(exit_code=None, message=UNSEEN)
    if process.refused and _NO_SUCH.search(process.words):
        return Exit(exit_code=NOT_FOUND)
    return Exit(exit_code=found["ExitCode"])


async def _feed(process: Exec, data: bytes) -> None:
    """Send all the input that there will be."""
    assert process.stream is not None
    await process.stream.send(data, 0, unnoted)
    await process.stream.end_input()


async def _stop_late(first: Identity, scope: trio.CancelScope) -> None:
    """Cancel some time after a process has ended."""
    await docker_pids.ended(first)
    scope.deadline = trio.current_time() + DRAIN_S
