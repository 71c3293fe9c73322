"""A container whose image has no shell, and so no keeper: an `Instance` over the engine's own ways in.

`docker_execs` starts processes and follows them, `docker_records` is what is written down of them, `docker_exec_stream`
the connection to one, `docker_files` reads and writes files, `docker_idle` is the container's first program.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from signal import Signals
from typing import Any, Final, TypeVar, TypeVarTuple

import msgspec
import trio

from sandkeep.errors import SandkeepError, SetupError
from sandkeep.ids import new_id
from sandkeep.model import FileContent, Isolation
from sandkeepd.hostile_files import HostileTree
from sandkeepd.hostprocess import Identity
from sandkeepd.keeper import files
from sandkeepd.keeper.following import Journals
from sandkeepd.keeper.helpers import HELPER_OUTPUT_BYTES, outcome
from sandkeepd.keeper.pausing import Pause
from sandkeepd.keeper.pipes import HELPER
from sandkeepd.keeper.watcher import Watcher
from sandkeepd.providers import docker_files, docker_idle, docker_records
from sandkeepd.providers.base import Chunk, Directory, Ending, Exit, InputNote, Launch, unnoted
from sandkeepd.providers.docker_engine import Engine
from sandkeepd.providers.docker_execs import Execs, refuse_secrets
from sandkeepd.providers.docker_instance import Container
from sandkeepd.providers.docker_plan import Plan
from sandkeepd.providers.kept import release

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SLOWER: Final = (
    "its image has no shell, so commands go through the Docker engine: slower, not while that is down, and what they "
    "write while the daemon is down is lost"
)
FEWER: Final = "its image has no shell, so it takes no secrets, and has no terminals and no copies of trees"
NOTES: Final = (SLOWER, FEWER)
"""What is weaker, as it is told in the view."""

KILL_DEADLINE_S: Final = 20.0
"""How long the end of a process that was killed may take to be told."""

FILES_AT_ONCE: Final = 4

GO_S: Final = 2.0
"""How long a helper command that is not wanted any more has for ending by itself."""


class ExecInstance(Container):
    """A container without a keeper. `nursery` holds the tasks that follow its processes."""

    pidfd: int
    scope: trio.CancelScope
    child: int | None = None
    ending: Ending | None = None

    def __init__(
        self, sandbox_id: str, directory: HostileTree, watcher: Watcher, nursery: trio.Nursery, engine: Engine, *,
        isolation: Isolation, handle: dict[str, Any], plan: Plan, working_dir: str, read_mark: str,
    ) -> None:  # fmt: skip
        first = msgspec.convert(handle["first"], Identity)
        user = (plan.uid, plan.gid)
        self.sandbox_id = sandbox_id
        self.isolation = isolation
        self.handle = handle
        self.pause = Pause()
        self._out = directory.below("out")
        self._files = trio.CapacityLimiter(FILES_AT_ONCE)
        self._closed = False
        self._end = Ending(kind="failed", message="it is gone")
        self._journals = Journals(self._out, watcher)
        self._root = docker_files.Root(sandbox_id, first, user, working_dir)
        self._execs = Execs(
            engine, handle["container_id"], self._out, self.pause, nursery,
            first=first, user=user, working_dir=working_dir, most_bytes=plan.disk_bytes,
        )  # fmt: skip
        self.contain(plan, engine, read_mark)
        self._execs.records.prepare()

    # Processes

    async def launch(self, launch: Launch) -> int:
        """See `Instance.launch`. The pid is 0 when it had ended before anybody could see that."""
        return await self._execs.launch(launch)

    async def find(self, process_id: str) -> int | None:
        """See `Instance.find`."""
        return await self._execs.find(process_id)

    async def wait(self, process_id: str) -> Exit:
        """See `Instance.wait`."""
        if process_id not in self._execs.processes:
            await self._execs.find(process_id)
        process = self._execs.known(process_id)
        await process.ended.wait()
        assert process.exit is not None
        return process.exit

    def exit_of(self, process_id: str) -> Exit | None:
        """See `Instance.exit_of`."""
        process = self._execs.processes.get(process_id)
        return process.exit if process else None

    async def signal(self, process_id: str, signal: int, *, order: int | None = None) -> None:
        """See `Instance.signal`. A daemon that dies as it sends one may send it once more."""
        process = self._execs.known(process_id)
        if process.exit is None:
            await self._execs.signal(process_id, signal)
            if order is not None:
                process.note_order(order)
                self._execs.records.tell(process_id, f"~{order}")
            if signal == Signals.SIGKILL:
                with self.pause.patience(KILL_DEADLINE_S):
                    await process.ended.wait()

    async def was_signalled(self, process_id: str, order: int) -> bool:
        """See `Instance.was_signalled`."""
        process = self._execs.known(process_id)
        return process.exit is not None or order in process.orders

    def forget(self, process_id: str) -> None:
        """See `Instance.forget`."""
        process = self._execs.processes.get(process_id)
        if process and process.exit:
            del self._execs.processes[process_id]
        self._execs.records.forget(process_id)

    # Input and output

    async def write_stdin(
        self, process_id: str, data: bytes, *, eof: bool, done: int = 0, note: InputNote = unnoted
    ) -> int:
        """See `Instance.write_stdin`."""
        async with self._execs.known(process_id).input_lock:
            stream = await self._execs.write(process_id, data, done, note)
            if eof:
                note(len(data) + 1, 0)  # the end counts as one more, and can be told twice
                await stream.end_input()
        return len(data)

    def read(self, process_id: str, stream: str, offset: int, max_bytes: int) -> Chunk:
        """See `Instance.read`."""
        return docker_records.noted(self._out, process_id, self._journals.read(process_id, stream, offset, max_bytes))

    def sizes(self, process_id: str) -> tuple[int, int]:
        """See `Instance.sizes`."""
        return self._journals.sizes(process_id)

    async def wait_output(self, process_id: str, stdout_offset: int, stderr_offset: int) -> None:
        """See `Instance.wait_output`."""
        await self._journals.wait(process_id, self._execs.known(process_id), stdout_offset, stderr_offset)

    def sync(self, process_id: str) -> None:
        """See `Instance.sync`."""
        self._journals.sync(process_id)

    # Helper commands and files

    async def run_command(
        self,
        command: Sequence[str],
        stdin: bytes | None = None,
        *,
        working_dir: str | None = None,
        most_bytes: int = HELPER_OUTPUT_BYTES,
    ) -> tuple[int | None, bytes, bytes]:
        """See `Instance.run_command`."""
        process_id = new_id(HELPER)
        try:
            launch = Launch(process_id=process_id, command=command, stdin=stdin, working_dir=working_dir)
            await self.launch(launch)
            return await outcome(self, process_id, most_bytes)
        finally:
            with trio.CancelScope(shield=True):
                await self._drop(process_id)

    async def _drop(self, process_id: str) -> None:
        process = self._execs.processes.get(process_id)
        if process is not None and process.exit is None:
            await self._execs.signal(process_id, Signals.SIGTERM)
            with trio.move_on_after(GO_S):
                await process.ended.wait()
            await self.signal(process_id, Signals.SIGKILL)
        self.forget(process_id)
        self._execs.records.remove(process_id)

    async def read_piece(self, path: str, offset: int, max_bytes: int) -> FileContent:
        """See `Filing.read_piece`."""
        return await self._in_thread(docker_files.read_piece, self._root, path, offset, max_bytes)

    async def write_whole(self, path: str, data: bytes, *, mode: int | None = None, parents: bool = False) -> None:
        """See `Filing.write_whole`."""
        write = partial(docker_files.write_whole, mode=mode, parents=parents, most_bytes=self.disk_bytes)
        await self._in_thread(write, self._root, path, data)

    async def list_directory(self, path: str, after: bytes, limit: int) -> Directory:
        """See `Filing.list_directory`."""
        return await self._in_thread(docker_files.list_directory, self._root, path, after, limit)

    async def _in_thread(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """A few at a time: its disks may be slow, and others have their own."""
        await self._execs.awake()
        return await trio.to_thread.run_sync(work, *arguments, limiter=self._files)

    async def read_file(self, path: str) -> bytes:
        """See `Instance.read_file`."""
        return await files.read_file(self, path)

    async def write_file(self, path: str, data: bytes) -> None:
        """See `Instance.write_file`."""
        await files.write_file(self, path, data)

    # The sandbox as a whole

    async def is_alive(self) -> bool:
        """See `Instance.is_alive`."""
        try:
            found = await self.engine.call(lambda client: client.inspect_container(self.container_id))
        except SandkeepError:
            return False
        return bool(found["State"]["Running"] and not found["State"]["Paused"]) and not self._execs.gone.is_set()

    async def share_secrets(self, secrets: Mapping[str, str]) -> None:
        """There is no way for secrets that the engine would not keep."""
        refuse_secrets(secrets)
        await trio.lowlevel.checkpoint()

    async def remember_earlier(self) -> None:
        """Take note of what an earlier daemon was told."""
        await self._execs.remember_earlier()

    def sweep(self) -> None:
        """Nobody inside has to be asked: the kernel tells of every end."""

    async def ended(self) -> Ending:
        """See `Instance.ended`."""
        await self._execs.gone.wait()
        return self._end

    async def went(self, ending: Ending) -> None:
        """The sandbox is gone, for the provider to say: what still ran in it has ended with it."""
        if not self._execs.gone.is_set():
            self._end = ending
            self._execs.break_off()
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """See `Instance.aclose`."""
        if not self._closed:
            self._closed = True
            release(self)
            self._execs.close()
        await trio.lowlevel.checkpoint()


def require_means() -> None:
    """Raise `not_supported` where a container without a shell could not be held."""
    if docker_idle.program() is None:
        words = f"the image has no shell, and what stands for it is not written for {os.uname().machine}"
        raise SetupError("not_supported", f"{words}: put a shell into the image")
    if os.geteuid() != 0:
        words = "the image has no shell, and only root's daemon can signal its processes and reach its files"
        raise SetupError("not_supported", f"{words}: put a shell into the image")
