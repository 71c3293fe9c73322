"""The processes of a container without a shell: launched, found again, signalled, written to.

They are started through the engine, and followed by the daemon (`docker_carrying`). A process is known by its identity
on the host, so that signals need no engine.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import trio

from sandkeep import failpoints
from sandkeep.errors import CallerError, ProviderError, SandkeepError, SetupError, StateError
from sandkeepd.hostile_files import HostileTree
from sandkeepd.hostprocess import Identity
from sandkeepd.keeper import journal, requests
from sandkeepd.keeper.pausing import Pause
from sandkeepd.keeper.place import no_room
from sandkeepd.keeper.processes import LOST_WITH_SANDBOX, Earlier
from sandkeepd.providers import docker_pids
from sandkeepd.providers.base import Exit, InputNote, Launch
from sandkeepd.providers.docker_carrying import Carrier, Exec
from sandkeepd.providers.docker_engine import Engine
from sandkeepd.providers.docker_exec_stream import ExecStream
from sandkeepd.providers.docker_records import Record, Records

if TYPE_CHECKING:
    from docker import APIClient

START_S: Final = 60.0
"""How long the engine may take to start a process."""


class Execs:
    """The processes of one container, which run as `user`. `first` is its first process."""

    def __init__(
        self, engine: Engine, container_id: str, out: HostileTree, pause: Pause, nursery: trio.Nursery, *,
        first: Identity, user: tuple[int, int], working_dir: str, most_bytes: int,
    ) -> None:  # fmt: skip
        self.processes: dict[str, Exec] = {}
        self.records = Records(out)
        self.gone = trio.Event()
        self._engine = engine
        self._container_id = container_id
        self._out = out
        self._pause = pause
        self._nursery = nursery
        self._user = user
        self._working_dir = working_dir
        self._earlier = Earlier()
        self._finding = trio.Lock()
        self._carrier = Carrier(engine, out, self.records, pause, first, most_bytes)

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
        failpoints.reach("launch.written")
        self.processes[process_id] = process
        self._nursery.start_soon(self._carrier.carry, process_id, process, launch.stdin, version)
        with self._pause.patience(START_S):
            while process.pid is None and process.failure is None:
                await process.news.wait()
        if process.pid is None:
            raise self._not_started(process_id, process)
        return process.pid

    def _not_started(self, process_id: str, process: Exec) -> SandkeepError:
        if process.failure is None:
            return ProviderError("provider_unavailable", "the Docker engine has not started it yet: see what it does")
        self.processes.pop(process_id, None)
        self.records.remove(process_id)
        return process.failure

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
            found = await self._carrier.settled(process)
            if found is None or (not found["Pid"] and found["ExitCode"] is None):
                return False
            await self._carrier.believe(process_id, process, found)
        lost = "what it wrote while no daemon was there is lost" + (", and its input ended" * record.has_input)
        await self._carrier.lose(process_id, process, lost)
        self._nursery.start_soon(self._carrier.await_end, process_id, process)
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
        self._carrier.close()
        for process in self.processes.values():
            if process.exit is None:
                process.end(Exit(exit_code=None, message=LOST_WITH_SANDBOX))
            process.failure = process.failure or StateError("not_ready", "the sandbox has ended: create another")
            process.tell()

    def close(self) -> None:
        """Follow the processes no more. They go on, and what they write is lost."""
        self._carrier.close()


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
