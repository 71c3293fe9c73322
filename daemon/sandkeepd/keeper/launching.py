"""How a process is started: what is written for it into `in`, what the keeper is asked, and what its answer means."""

from collections.abc import Mapping, Sequence
from typing import Final

from sandkeep import failpoints
from sandkeep.errors import ProviderError, SandkeepError, StateError
from sandkeepd.keeper import pipes, requests, terminal
from sandkeepd.keeper.following import Journals
from sandkeepd.keeper.leader import Leader
from sandkeepd.keeper.place import Place, no_room
from sandkeepd.keeper.processes import Known
from sandkeepd.keeper.talk import Talk
from sandkeepd.providers.base import Launch, Terminal
from sandkeepd.turns import my_turn

MAX_SECRET_BYTES: Final = 64 * 1024
"""With larger secrets a program may not be startable at all, which a shell tells better."""


class Launcher:
    """Starts the processes of one sandbox by the words of `leader`. `env` and `working_dir` are for all that have no
    others.
    """

    def __init__(
        self,
        talk: Talk,
        place: Place,
        journals: Journals,
        *,
        leader: Leader,
        env: Mapping[str, str],
        working_dir: str,
    ) -> None:
        self._talk = talk
        self._place = place
        self._journals = journals
        self._leader = leader
        self._env = dict(env)
        self._working_dir = working_dir

    async def launch(self, launch: Launch, opening: bytes = b"") -> int:
        """See `Instance.launch`. `opening` are commands of a shell that open more descriptors for the process."""
        process_id = requests.check_process_id(launch.process_id)
        self._talk.check_present()
        if process_id in self._talk.processes or self._place.was_started(process_id):
            raise _started_before(process_id)
        secrets = list(requests.secret_requests(process_id, launch.secrets))
        script = await self._write_script(process_id, launch, opening)
        failpoints.reach("launch.written")
        await my_turn()
        process = self._talk.processes[process_id] = Known()
        process.has_files = script is None or launch.stdin is not None
        verb = "exec" if script else "run"
        await self._talk.send(*secrets, requests.request(verb, process_id, _mode(launch), script))
        failpoints.reach("launch.sent")
        await self._talk.news(process, lambda: process.pid is not None or process.answer == "none")
        if process.pid is None:
            raise self._not_started(process_id, launch)
        return process.pid

    def _not_started(self, process_id: str, launch: Launch) -> SandkeepError:
        said = self._journals.read(process_id, "stderr", 0, 500).data if launch.terminal else b""
        del self._talk.processes[process_id]
        self._place.remove_start(process_id)
        if launch.terminal:
            return terminal.not_started(said)
        message = "the sandbox could not start another process: it is out of processes, memory or disk"
        return ProviderError("provider_unavailable", message, process_id=process_id)

    async def _write_script(self, process_id: str, launch: Launch, opening: bytes) -> bytes | None:
        """Write what the process needs; answer its script, if that is to go with the request."""
        env = {name: value for name, value in {**self._env, **launch.env}.items() if name not in launch.secrets}
        where = launch.working_dir or self._working_dir
        try:
            if launch.terminal:
                await self._write_terminal(process_id, launch.terminal, launch.command, env, where)
                return None
            line = None if opening else self._in_a_line(process_id, launch, env, where)
            commands = [] if line else requests.script(self._leader.apart, launch.command, env, where, opening)
            if launch.stdin is True:
                await self._place.make_fifo(f"{process_id}.stdin")
            elif isinstance(launch.stdin, bytes):
                await self._place.write(f"{process_id}.stdin", launch.stdin)
            if line is None:
                await self._place.write(process_id, requests.in_a_file(commands))
        except FileExistsError:
            raise _started_before(process_id) from None
        except OSError as error:
            self._place.remove_start(process_id)
            raise no_room(error) from None
        return line

    def _in_a_line(self, process_id: str, launch: Launch, env: Mapping[str, str], working_dir: str) -> bytes | None:
        """The script of a process that is to be watched by our program, if that is short.

        Not so of helper commands and viewers: by their files a later daemon sees what was left behind.
        """
        is_helper = process_id.startswith((f"{pipes.HELPER}_", f"{terminal.VIEWER}_"))
        if self._leader.program is None or is_helper or sum(map(len, launch.secrets.values())) > MAX_SECRET_BYTES:
            return None
        leader = self._leader.watching(process_id, quick=launch.quick)
        failing = self._leader.failing
        return requests.in_a_line(requests.script(leader, launch.command, env, working_dir, failing=failing))

    async def _write_terminal(
        self, process_id: str, wanted: Terminal, command: Sequence[str], env: Mapping[str, str], working_dir: str
    ) -> None:
        """Write what starts a process in a terminal, which belongs to a session of its own already."""
        text = terminal.script(self._place.journals, process_id, wanted)
        program = requests.script(self._leader.within, command, env, working_dir, terminal.BEGIN)
        await self._place.make_fifo(f"{process_id}.told")
        await self._place.write(f"{process_id}.program", requests.in_a_file(program))
        await self._place.write(f"{process_id}.pane", terminal.PANE)
        await self._place.write(process_id, text)


def _started_before(process_id: str) -> SandkeepError:
    return StateError("conflict", f"process {process_id} was started before: use another id", process_id=process_id)


def _mode(launch: Launch) -> str:
    """What the keeper calls the kind of input that a process has."""
    if launch.terminal:
        return "tty"
    return {None: "none", False: "none", True: "pipe"}.get(launch.stdin, "file")  # type: ignore[arg-type]
