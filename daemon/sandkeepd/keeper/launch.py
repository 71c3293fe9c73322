"""Start of a process: its files in `in`, the request to the keeper, and the meaning of the answer."""

import posixpath
from collections.abc import Mapping, Sequence
from contextlib import suppress
from signal import Signals

from sandkeep import failpoints
from sandkeep.errors import ProviderError, SandkeepError, StateError
from sandkeepd.contract.processes import Launch, Terminal
from sandkeepd.host.fairness import yield_to_loop
from sandkeepd.keeper import journal, pipes, program, requests, terminal
from sandkeepd.keeper.channel import Channel
from sandkeepd.keeper.processes import KnownProcess
from sandkeepd.keeper.shared_directory import SharedDirectory


class Launcher:
    """Starts the processes of one sandbox. `env` and `working_dir` are for all that have no others; at `working_dir`
    relative ones begin, too.
    """

    def __init__(self, channel: Channel, shared: SharedDirectory, *, env: Mapping[str, str], working_dir: str) -> None:
        self._channel = channel
        self._shared = shared
        self._env = dict(env)
        self._working_dir = working_dir

    async def launch(self, launch: Launch, mode: str | None = None) -> int:
        """See `Instance.launch`. `mode` is the kind of its input, if that is not for `launch` to say."""
        process_id = requests.check_process_id(launch.process_id)
        self._channel.check_present()
        if process_id in self._channel.processes or self._shared.was_started(process_id):
            raise _started_before(process_id)
        secrets = list(requests.secret_requests(process_id, launch.secrets))
        self._shared.free_inodes()
        request, has_files = await self._write(process_id, launch, mode or _mode(launch, fed=self._shared.fed))
        failpoints.reach("launch.written")
        await yield_to_loop()
        await self._shared.reserve_output(process_id)
        process = self._channel.processes[process_id] = KnownProcess()
        process.has_files = has_files
        await self._channel.send(*secrets, request)
        failpoints.reach("launch.sent")
        try:
            await self._channel.wait_until(process, lambda: process.pid is not None or process.answer == "none")
        except ProviderError:
            await self.withdraw(process_id)
            raise
        if process.pid is None:
            raise self._not_started(process_id, launch)
        return process.pid

    async def withdraw(self, process_id: str) -> None:
        """End a process of which nobody knows whether it began. The keeper reads that after the request to start it."""
        if self._channel.processes.pop(process_id, None) is not None:
            self._shared.reserve.end(process_id)
            with suppress(SandkeepError):
                await self._channel.send(requests.request("kill", process_id, str(int(Signals.SIGKILL))))

    def _not_started(self, process_id: str, launch: Launch) -> SandkeepError:
        del self._channel.processes[process_id]
        self._shared.reserve.end(process_id)
        self._shared.remove_start(process_id)
        if launch.terminal:
            return terminal.not_started(journal.read_journal(self._shared.out, process_id, "stderr", 0, 500).data)
        message = "the sandbox could not start another process: it is out of processes, memory or disk"
        return ProviderError("provider_unavailable", message, process_id=process_id)

    async def _write(self, process_id: str, launch: Launch, mode: str) -> tuple[bytes, bool]:
        """Write the process's files; return the request for the keeper, and whether there are files."""
        env = {name: value for name, value in {**self._env, **launch.env}.items() if name not in launch.secrets}
        where = posixpath.join(self._working_dir, launch.working_dir) if launch.working_dir else self._working_dir
        quick = (program.FED_QUICK_MS if self._shared.fed else program.QUICK_MS) if launch.quick else 0
        try:
            if launch.terminal:
                await self._write_terminal(process_id, launch.terminal, launch.command, env, where)
                return requests.run(process_id, mode, 0), True
            record = requests.record(launch.command, {"PWD": posixpath.normpath(where), **env}, where)
            line = None if _leaves_traces(process_id) else requests.run_record(record, process_id, mode, quick)
            if launch.stdin is True:
                await self._shared.make_input(process_id)
            elif isinstance(launch.stdin, bytes):
                await self._shared.write(f"{process_id}.stdin", launch.stdin)
            if line is not None:
                return line, launch.stdin is not None
            await self._shared.write(process_id, record)
            return requests.run(process_id, mode, quick), True
        except FileExistsError:
            raise _started_before(process_id) from None
        except OSError as error:
            self._shared.remove_start(process_id)
            raise self._shared.no_room(error) from None

    async def _write_terminal(
        self, process_id: str, wanted: Terminal, command: Sequence[str], env: Mapping[str, str], working_dir: str
    ) -> None:
        """Write the files that start a process in a terminal, in a session of its own."""
        leader = program.reset_signals_argv(f"{self._shared.inside}/in")
        begin = requests.script(leader, command, env, working_dir, terminal.BEGIN)
        if not self._shared.fed:
            await self._shared.make_fifo(f"{process_id}.told")
        await self._shared.write(f"{process_id}.program", begin)
        await self._shared.write(f"{process_id}.pane", terminal.PANE)
        await self._shared.write(
            process_id, terminal.script(self._shared.inside, self._shared.hidden, process_id, wanted)
        )


def _leaves_traces(process_id: str) -> bool:
    """Return True if it must have files by which a later daemon finds it: helper commands, viewers."""
    return process_id.startswith((f"{pipes.HELPER}_", f"{terminal.VIEWER}_"))


def _started_before(process_id: str) -> SandkeepError:
    return StateError("conflict", f"process {process_id} was started before: use another id", process_id=process_id)


def _mode(launch: Launch, *, fed: bool) -> str:
    """Return the keeper's name for the kind of input of a process."""
    if launch.terminal:
        return "tty"
    pipe = "fed" if fed else "pipe"
    return {None: "none", False: "none", True: pipe}.get(launch.stdin, "file")  # type: ignore[arg-type]
