"""The processes of a container without a shell: started through the engine, and followed by the daemon.

The engine starts a process and carries its streams; the kernel says when it has ended, and the engine how. A process is
known by its identity on the host, so that signals need no engine. What the engine forgets when it is restarted, it
tells nobody any more: then nobody knows how a process ended.
"""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import trio

from sandkeep.errors import CallerError, ProviderError, SandkeepError, SetupError, StateError
from sandkeepd.hostprocess import Identity
from sandkeepd.keeper import journal, requests
from sandkeepd.keeper.pausing import Pause
from sandkeepd.keeper.place import no_room
from sandkeepd.keeper.processes import LOST_WITH_SANDBOX, Earlier, Known
from sandkeepd.providers import docker_pids
from sandkeepd.providers.base import Exit, InputNote, Launch, unnoted
from sandkeepd.providers.docker_engine import Engine, RefusedError
from sandkeepd.providers.docker_exec_stream import ExecStream, start_exec
from sandkeepd.providers.docker_records import JournalWriter, Record, Records

if TYPE_CHECKING:
    from docker import APIClient

START_S: Final = 60.0
"""How long the engine may take to start a process."""

FIRST_LOOK_S: Final = 0.03
LOOK_S: Final = 0.01
"""How soon after it was ordered the engine is asked whether it has started a process, and how often then."""

DRAIN_S: Final = 2.0
"""How long after the end of a process its output may take to arrive. What it left behind may go on writing for ever."""

TOLD_S: Final = 30.0
"""How long the engine may take to say how a process ended."""

ASK_AGAIN_S: Final = 1.0
"""How often an engine that is down is asked meanwhile."""

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
        self.refused = False
        """The engine could not start it, and what it writes is the engine's word."""


class Execs:
    """The processes of one container, which run as `user`. `first` is its first process."""

    def __init__(
        self, engine: Engine, container_id: str, out_dir: str, pause: Pause, nursery: trio.Nursery, *,
        first: Identity, user: tuple[int, int], working_dir: str, most_bytes: int,
    ) -> None:  # fmt: skip
        self.processes: dict[str, Exec] = {}
        self.records = Records(out_dir)
        self.gone = trio.Event()
        self._engine = engine
        self._container_id = container_id
        self._out = out_dir
        self._pause = pause
        self._nursery = nursery
        self._user = user
        self._working_dir = working_dir
        self._most_bytes = most_bytes
        self._first = first
        self._earlier = Earlier()
        self._finding = trio.Lock()
        self._closed = False
        self._scopes: set[trio.CancelScope] = set()

    # Starting

    async def launch(self, launch: Launch) -> int:
        """See `Instance.launch`."""
        process_id = requests.check_process_id(launch.process_id)
        _check(launch)
        if process_id in self.processes or self.records.load(process_id) is not None:
            raise _started_before(process_id)
        await self.awake()
        exec_id, version = await self._engine.call(lambda client: self._create(client, launch))
        process = Exec(Record(exec_id=exec_id, has_input=launch.stdin is not None and launch.stdin is not False))
        await self._begin(process_id, process.record)
        self.processes[process_id] = process
        self._nursery.start_soon(self._carry, process_id, process, launch.stdin, version)
        with self._pause.patience(START_S):
            while process.pid is None and process.failure is None:
                await process.news.wait()
        if process.pid is None:
            raise process.failure or ProviderError("provider_unavailable", "the Docker engine does not start it")
        return process.pid

    def _create(self, client: "APIClient", launch: Launch) -> tuple[str, str]:
        uid, gid = self._user
        made = client.exec_create(
            self._container_id, list(launch.command), stdin=launch.stdin not in (None, False), user=f"{uid}:{gid}",
            environment=dict(launch.env), workdir=os.path.join(self._working_dir, launch.working_dir or ""),
        )  # fmt: skip
        return made["Id"], client.api_version

    async def _begin(self, process_id: str, record: Record) -> None:
        try:
            await trio.to_thread.run_sync(self.records.begin, process_id, record)
        except FileExistsError:
            raise _started_before(process_id) from None
        except OSError as error:
            self.records.remove(process_id)
            raise no_room(error) from None

    # Carrying

    async def _carry(self, process_id: str, process: Exec, stdin: bytes | bool | None, version: str) -> None:
        """Start a process, keep what it writes, and see its end."""
        with self._within():
            try:
                process.stream = await start_exec(self._engine.path, version, process.record.exec_id)
            except SandkeepError as error:
                del self.processes[process_id]
                self.records.remove(process_id)
                process.failure = error
                process.tell()
                return
            try:
                found = await self._started(process)
                await self._believe(process_id, process, found)
                await self._connect(process_id, process, stdin)
                await self._end(process_id, process)  # before the connection is broken, which the engine may mistake
            finally:
                await process.stream.aclose()

    async def _started(self, process: Exec) -> dict[str, Any] | None:
        """What the engine says of a process once it was started, or could not be; None when it does not answer."""
        await trio.sleep(FIRST_LOOK_S)
        with suppress(ProviderError):
            return await self._settled(process)
        return None

    async def _settled(self, process: Exec) -> dict[str, Any] | None:
        """The same, however soon it is asked; None when it knows of none. Raises `provider_unavailable`."""
        while True:
            found = await self._inspect(process)
            if found is None or found["Pid"] or not found["Running"]:
                return found
            await trio.sleep(LOOK_S)

    async def _believe(self, process_id: str, process: Exec, found: dict[str, Any] | None) -> None:
        """Take note of which process it is. One that has ended already is only told of."""
        record = process.record
        pid = found["Pid"] if found else 0
        process.refused = found is not None and not pid
        record.first = docker_pids.identify_in(self._first, pid)
        record.pid = docker_pids.pid_inside(pid) if record.first else 0
        with suppress(OSError):  # a later daemon asks the engine, then
            await trio.to_thread.run_sync(self.records.save, process_id, record)
        self.records.tell(process_id, f"+{record.pid}")
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
            await self._lose(process_id, process, f"its output could not be kept: {error.strerror}")
            return
        try:
            async for pieces in process.stream.output():
                kept = [("stderr", data) for _, data in pieces] if process.refused else pieces
                await trio.to_thread.run_sync(writer.write, kept)
                if writer.why_not is not None and process.record.gap is None:
                    await self._lose(process_id, process, f"its output was cut: {writer.why_not}")
                    if writer.is_full:
                        docker_pids.send(process.record.first, signal.SIGXFSZ)  # as too large a file ends it elsewhere
        finally:
            writer.close()

    async def _lose(self, process_id: str, process: Exec, gap: str) -> None:
        process.record.gap = gap
        with suppress(OSError):
            await trio.to_thread.run_sync(self.records.save, process_id, process.record)

    # Ending

    async def _await_end(self, process_id: str, process: Exec) -> None:
        """Follow a process that an earlier daemon started."""
        with self._within():
            await self._end(process_id, process)

    async def _end(self, process_id: str, process: Exec) -> None:
        if process.record.first is not None:
            await docker_pids.ended(process.record.first)
        how = await self._how(process_id, process)
        if how.exit_code is not None:
            self.records.tell(process_id, str(how.exit_code))
        process.end(how)
        process.tell()

    async def _how(self, process_id: str, process: Exec) -> Exit:
        """How a process ended that runs no more."""
        how = Exit(exit_code=None, message=SILENT)
        with self._pause.patience(TOLD_S):
            how = await self._told(process)
        if how.message == FORGOTTEN:
            await self._lose(process_id, process, f"some of its output may be lost: {FORGOTTEN}")
        return how

    async def _told(self, process: Exec) -> Exit:
        while True:
            try:
                found = await self._inspect(process)
            except ProviderError:  # it may be back in a moment
                await trio.sleep(ASK_AGAIN_S)
                continue
            if found is None:
                return Exit(exit_code=None, message=FORGOTTEN)
            if found["ExitCode"] is not None and not found["Running"]:
                return _exit(process, found)
            await trio.sleep(LOOK_S)

    async def _inspect(self, process: Exec) -> dict[str, Any] | None:
        """What the engine says of a process; None when it knows of none. Raises `provider_unavailable`."""
        try:
            found: dict[str, Any] = await self._engine.call(lambda client: client.exec_inspect(process.record.exec_id))
        except RefusedError as refused:
            if refused.status == 404:
                return None
            raise
        return found

    # Finding

    async def remember_earlier(self) -> None:
        """Take note of what an earlier daemon has put down."""
        exits = journal.ExitsReader(self._out)
        try:
            for _ in range(journal.MAX_ROUNDS):
                answers, more = exits.read()
                for answer in answers:
                    self._earlier.remember(answer)
                if not more:
                    return
                await trio.lowlevel.checkpoint()
        finally:
            exits.close()

    async def find(self, process_id: str) -> int | None:
        """See `Instance.find`."""
        requests.check_process_id(process_id)
        async with self._finding:
            process = self.processes.get(process_id) or await self._from_record(process_id)
        if process is None:
            return None
        while process.pid is None and process.failure is None:
            await process.news.wait()
        return process.pid

    async def _from_record(self, process_id: str) -> Exec | None:
        record = self.records.load(process_id)
        if record is None:
            return None
        process = Exec(record)
        process.pid = record.pid
        self._earlier.tell(process_id, process)
        if process.exit is None and not await self._look(process_id, process):
            return None
        self.processes[process_id] = process
        return process

    async def _look(self, process_id: str, process: Exec) -> bool:
        """Find out what became of a process that an earlier daemon started; whether it was started at all."""
        record = process.record
        if self.gone.is_set():
            process.end(Exit(exit_code=None, message=LOST_WITH_SANDBOX))
            return record.pid is not None
        if record.first is None:
            found = await self._settled(process)
            if found is None or (not found["Pid"] and found["ExitCode"] is None):
                return False
            await self._believe(process_id, process, found)
        lost = "what it wrote while no daemon was there is lost" + (", and its input ended" * record.has_input)
        await self._lose(process_id, process, lost)
        self._nursery.start_soon(self._await_end, process_id, process)
        return True

    # Acting on

    def known(self, process_id: str) -> Exec:
        """A process that was started or found. Raises `not_found`."""
        process = self.processes.get(process_id)
        if process is None:
            words = f"the sandbox has no process {process_id[:80]!r}"
            raise CallerError("not_found", words, process_id=process_id)
        return process

    async def signal(self, process_id: str, number: int) -> None:
        """Send a signal to the group of a process, if it has not ended."""
        process = self.known(process_id)
        await self.awake()
        while process.pid is None and process.failure is None:
            await process.news.wait()
        docker_pids.send(process.record.first, number)

    async def write(self, process_id: str, data: bytes, done: int, note: InputNote) -> ExecStream:
        """Send input to a process; answer the way to it. Raises `not_ready`."""
        stream = self.known(process_id).stream
        if stream is None or not stream.takes_input or not self.known(process_id).record.has_input:
            words = f"process {process_id} takes no input: it has none, or it was closed"
            raise StateError("not_ready", words, process_id=process_id)
        taken = await stream.send(data, done, note)
        if taken < len(data):
            raise StateError("not_ready", f"process {process_id} ended after {taken} bytes of input", taken=taken)
        return stream

    async def awake(self) -> None:
        """Wait until the sandbox does not stand still. Raises `not_ready` when it is gone."""
        if self._pause.is_on and not self.gone.is_set():
            async with trio.open_nursery() as nursery:

                async def give_up() -> None:
                    await self.gone.wait()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(give_up)
                await self._pause.changed(True)
                nursery.cancel_scope.cancel()
        if self.gone.is_set():
            raise StateError("not_ready", "the sandbox has ended: create another")

    # The end of the container

    def break_off(self) -> None:
        """The container is gone, and what still ran in it has ended with it."""
        self.gone.set()
        self.close()
        for process in self.processes.values():
            if process.exit is None:
                process.end(Exit(exit_code=None, message=LOST_WITH_SANDBOX))
            process.failure = process.failure or StateError("not_ready", "the sandbox has ended: create another")
            process.tell()

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


def refuse_secrets(secrets: Mapping[str, str]) -> None:
    """Raise `not_supported` when there are any: the engine would keep them in its files."""
    if secrets:
        words = "the image has no shell, and secrets would lie in the Docker engine's files: put a shell into the image"
        raise SetupError("not_supported", words, field="secrets")


def _check(launch: Launch) -> None:
    refuse_secrets(launch.secrets)
    if launch.terminal is not None:
        raise SetupError("not_supported", "the image has no shell, which terminals need: leave out tty")
    for word in launch.command:
        requests.to_bytes(word, "command")
    for name, value in launch.env.items():
        requests.variable(name, "env")
        requests.to_bytes(value, "env")


def _started_before(process_id: str) -> SandkeepError:
    return StateError("conflict", f"process {process_id} was started before: use another id", process_id=process_id)


def _exit(process: Exec, found: dict[str, Any]) -> Exit:
    """How the engine says that a process ended."""
    if found["ExitCode"] == NOT_STARTED and found["Pid"] and process.stream is None:
        return Exit(exit_code=None, message=UNSEEN)
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
