"""The functions of *crafty*: images, sandboxes and processes by eleven plain functions, over the blocking client.

    image_id = create_image("project", clean=False, provider=Provider.LOCAL)
    sandbox_id = create_sandbox(image_id, Provider.LOCAL)
    launch_background_process("server", sandbox_id, "python3 -m http.server")
    for text in launch_and_stream_process("tests", sandbox_id, "make test"):
        print(text, end="")
    attach_to_process("server", sandbox_id)  # on this terminal; C-b d leaves it
    kill_process("server", sandbox_id)
    terminate_sandbox(sandbox_id)

Every process has a tmux session of its own wherever the sandbox has tmux. Where it has none the process has no
terminal: all functions work alike, and its output and errors stay apart in the journal. What the originals left open is
decided here as Sandkeep has it: names are unique in a sandbox for as long as the process is on record, ended things are
hidden unless `list_all`, an exit code is kept, and everything outlives both the caller and the daemon.

Each call connects to the daemon that ``SANDKEEP_SOCKET`` names and raises `sandkeep.errors.SandkeepError`.
"""

import codecs
import enum
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator
from typing import Final, TypeAlias

from msgspec import Struct

from sandkeep.blocking import Client, connect
from sandkeep.clients.pages import every
from sandkeep.errors import CallerError, SandkeepError, StateError
from sandkeep.model import Image, Process, Sandbox
from sandkeep.protocol.methods import MAX_WRITE_BYTES
from sandkeep.transfer import copy_in

__all__ = [
    "CommandProcess",
    "Executor",
    "ImageRecord",
    "ProcessRecord",
    "Provider",
    "SandboxExecutor",
    "SandboxRecord",
    "attach_to_process",
    "connect_to_sandbox",
    "create_image",
    "create_sandbox",
    "get_executor",
    "get_image",
    "get_process",
    "get_sandbox",
    "kill_process",
    "launch_and_stream_process",
    "launch_background_process",
    "list_images",
    "list_processes",
    "list_sandboxes",
    "terminate_sandbox",
]

SHELL_NAME: Final = "shell"
"""The process, and so the tmux session, that `connect_to_sandbox` is with."""

_SHELL: Final = 'exec "$(command -v bash || echo sh)" -i'


class Provider(enum.Enum):
    """The provider of a sandbox."""

    LOCAL = "local"
    DOCKER = "docker"
    MODAL = "modal"
    GVISOR = "gvisor"
    KUBERNETES = "kubernetes"


class ImageRecord(Struct, frozen=True, kw_only=True):
    """An image. `image_path` is where a local one lies on the daemon's machine, and empty for others; Docker's have an
    id and a tag in the engine.
    """

    image_id: str
    provider: Provider
    image_path: str = ""
    docker_image_id: str | None = None
    docker_image_tag: str | None = None


class SandboxRecord(Struct, frozen=True, kw_only=True):
    """A sandbox. `sandbox_path` is where a local one keeps its own files on the daemon's machine.

    `tmux_session_name` is the session that `connect_to_sandbox` is with.
    """

    sandbox_id: str
    image_id: str
    provider: Provider
    sandbox_path: str
    tmux_session_name: str
    is_closed: bool = False


class ProcessRecord(Struct, frozen=True, kw_only=True):
    """A process. `tmux_session_name` is None where the sandbox has no tmux; `exit_code` is there once it is known."""

    name: str
    sandbox_id: str
    tmux_session_name: str | None
    is_terminated: bool = False
    exit_code: int | None = None


# -- images -----------------------------------------------------------------------------------------------------------


def create_image(file_path: str, clean: bool, provider: Provider) -> str:
    """Copy a directory, all of it, or build it for Docker, and answer the image's id. The same content gives the same
    id, unless `clean`.

    Raises `not_supported` for a provider that does not work here.
    """
    with _daemon() as client:
        source = os.path.abspath(file_path)
        made: Image = client.image.create(source, provider=_provider(provider), clean=clean)
        return made.image_id


def list_images() -> tuple[str, ...]:
    """The ids of all images, oldest first."""
    with _daemon() as client:
        return tuple(image.image_id for image in every(client.image.list))


def get_image(image_id: str) -> ImageRecord:
    """Return the record of an image."""
    with _daemon() as client:
        return _image_record(client, client.image.get(image_id))


# -- sandboxes --------------------------------------------------------------------------------------------------------


def create_sandbox(image_id: str, provider: Provider) -> str:
    """Start a sandbox from an image and answer its id."""
    with _daemon() as client:
        made: Sandbox = client.sandbox.create(image_id, provider=_provider(provider))
        return made.sandbox_id


def list_sandboxes(list_all: bool = False) -> tuple[SandboxRecord, ...]:
    """The sandboxes that run, oldest first; with `list_all` also those that are closed."""
    with _daemon() as client:
        state_dir = client.daemon.status().state_dir
        found = every(client.sandbox.list, all=list_all)
        return tuple(_sandbox_record(state_dir, sandbox) for sandbox in found)


def get_sandbox(sandbox_id: str) -> SandboxRecord:
    """Return the record of a sandbox."""
    with _daemon() as client:
        return _sandbox_record(client.daemon.status().state_dir, client.sandbox.get(sandbox_id))


def connect_to_sandbox(sandbox_id: str) -> None:
    """Attach this terminal to the sandbox's own shell, always the same one, until it ends or C-b d."""
    with _daemon() as client:
        name = _living_shell(client, sandbox_id)
    attach_to_process(name, sandbox_id)


def terminate_sandbox(sandbox_id: str) -> None:
    """End a sandbox and all that runs in it. One that has ended already is left as it is."""
    with _daemon() as client:
        client.sandbox.terminate(sandbox_id)


# -- processes --------------------------------------------------------------------------------------------------------


def launch_background_process(name: str, sandbox_id: str, command: str) -> None:
    """Start a shell command under a name, in the background. Raises `conflict` for a name that is taken."""
    with _daemon() as client:
        _launch(client, name, sandbox_id, command)


def launch_and_stream_process(name: str, sandbox_id: str, command: str) -> Generator[str, None, None]:
    """Start a shell command under a name and yield its output, as it comes, until it ends.

    Output is decoded as UTF-8, with U+FFFD for invalid bytes, and lines end in a newline alone. Closing the generator
    leaves the process running. It is started when the first piece is asked for.
    """
    with _daemon() as client:
        _launch(client, name, sandbox_id, command)
        yield from _text_of(client, sandbox_id, name)


def list_processes(list_all: bool = False) -> tuple[ProcessRecord, ...]:
    """The named processes that run, in all sandboxes, oldest first; with `list_all` also those that ended."""
    with _daemon() as client:
        found = every(client.process.list, all=list_all)
        return tuple(_process_record(process) for process in found if process.named)


def get_process(name: str, sandbox_id: str) -> ProcessRecord:
    """Return the record of a process."""
    with _daemon() as client:
        return _process_record(client.process.get(sandbox_id, name))


def attach_to_process(name: str, sandbox_id: str) -> None:
    """Be with a process on this terminal until it ends or is left by C-b d. Without a terminal: until it ends."""
    with _daemon() as client:
        client.process.get(sandbox_id, name)  # errors are raised here, and not printed there
    subprocess.run([sys.executable, "-m", "sandkeep.cli", "attach", "--", sandbox_id, name], check=False)


def kill_process(name: str, sandbox_id: str) -> None:
    """Kill a process with all of its group, and return when that is on record."""
    with _daemon() as client:
        client.process.signal(sandbox_id, name, signal="KILL")
        client.process.wait(sandbox_id, name)


# -- executors --------------------------------------------------------------------------------------------------------


class CommandProcess:
    """A command that an `Executor` started. Its output is kept, and can be read late."""

    def __init__(self, sandbox_id: str, process_id: str) -> None:
        self.sandbox_id = sandbox_id
        self.process_id = process_id

    def stream(self) -> Generator[str, None, None]:
        """Yield its output, stdout and stderr together, as it comes, until it ends."""
        with _daemon() as client:
            yield from _text_of(client, self.sandbox_id, self.process_id)

    def wait(self) -> int:
        """Wait until it has ended, and return its exit code. Raises `not_ready` when that is unknown."""
        with _daemon() as client:
            ended: Process = client.process.wait(self.sandbox_id, self.process_id)
        if ended.exit_code is None:
            message = f"process {self.process_id} is {ended.status}: {ended.error}"
            raise StateError("not_ready", message, process_id=self.process_id)
        return ended.exit_code

    def kill(self) -> None:
        """Kill it with all of its group."""
        kill_process(self.process_id, self.sandbox_id)

    @property
    def stdout(self) -> str:
        """Return its stdout so far."""
        return self._whole("stdout")

    @property
    def stderr(self) -> str:
        """Return its stderr so far."""
        return self._whole("stderr")

    def _whole(self, stream: str) -> str:
        with _daemon() as client:
            pieces = client.read_output(self.sandbox_id, self.process_id, follow=False)
            return b"".join(getattr(piece, stream) for piece in pieces).decode(errors="replace")


class Executor:
    """The operations on a sandbox, of any provider."""

    def __init__(self, sandbox_id: str) -> None:
        self.sandbox_id = sandbox_id

    def run_command(self, command: str) -> CommandProcess:
        """Start a shell command and return it while it runs."""
        with _daemon() as client:
            started: Process = client.process.launch(self.sandbox_id, command)
            return CommandProcess(self.sandbox_id, started.process_id)

    def is_alive(self) -> bool:
        """Return True if commands can be run."""
        try:
            with _daemon() as client:
                found: Sandbox = client.sandbox.get(self.sandbox_id)
        except SandkeepError:
            return False
        return found.status == "running"

    def read_file(self, path: str) -> str:
        """Return the text of a file. Raises `not_found`, and `invalid` for content that is not UTF-8."""
        content = bytearray()
        with _daemon() as client:
            while True:
                piece = client.sandbox.read_file(self.sandbox_id, path=path, offset=len(content))
                content += piece.data
                if piece.eof or not piece.data:
                    return _text(bytes(content), path)

    def write_file(self, path: str, content: str) -> None:
        """Make `content` the whole text of a file, atomically."""
        data = content.encode()
        with _daemon() as client:
            if len(data) <= MAX_WRITE_BYTES:
                client.sandbox.write_file(self.sandbox_id, path=path, data=data, parents=True)
            else:
                _write_large(client, self.sandbox_id, path, data)


SandboxExecutor: TypeAlias = Executor


def get_executor(sandbox_id: str) -> Executor:
    """Return the executor of a sandbox."""
    return Executor(sandbox_id)


# -- common parts -----------------------------------------------------------------------------------------------------


def _daemon() -> Client:
    return connect(client="crafty")


def _provider(provider: Provider) -> str:
    return Provider(provider).value


def _launch(client: Client, name: str, sandbox_id: str, command: str) -> Process:
    launched: Process = client.process.launch(sandbox_id, command, name=name, tty=_has_tmux(client, sandbox_id))
    return launched


_WITH_TMUX: Final[set[str]] = set()


def _has_tmux(client: Client, sandbox_id: str) -> bool:
    if sandbox_id not in _WITH_TMUX and client.sandbox.exec(sandbox_id, "command -v tmux").exit_code == 0:
        _WITH_TMUX.add(sandbox_id)
    return sandbox_id in _WITH_TMUX


def _living_shell(client: Client, sandbox_id: str) -> str:
    """The name of the sandbox's shell, which is started unless it runs."""
    number = 1
    while True:
        name = SHELL_NAME if number == 1 else f"{SHELL_NAME}-{number}"
        try:
            shell: Process = client.process.get(sandbox_id, name)
        except SandkeepError as error:
            if error.code != "not_found" or error.data.get("name") != name:
                raise
            _launch(client, name, sandbox_id, _SHELL)
            return name
        if shell.status in ("starting", "running"):
            return name
        number += 1


def _text_of(client: Client, sandbox_id: str, name: str) -> Generator[str, None, None]:
    """Both streams of a process as text. A character that is written in two pieces is one character."""
    utf8 = codecs.getincrementaldecoder("utf-8")
    out, err = (io.IncrementalNewlineDecoder(utf8(errors="replace"), translate=True) for _ in range(2))
    for piece in client.read_output(sandbox_id, name):
        text = out.decode(piece.stdout, final=piece.ended) + err.decode(piece.stderr, final=piece.ended)
        if text:
            yield text


def _write_large(client: Client, sandbox_id: str, path: str, data: bytes) -> None:
    """Write more than one message holds, by an atomic copy."""
    client.sandbox.exec(sandbox_id, ["mkdir", "-p", "--", os.path.dirname(path) or "."])
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        copy_in(client, file.name, sandbox_id, path)


def _text(content: bytes, path: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise CallerError("invalid", f"path: {path!r} is not UTF-8 text: read it as bytes", field="path") from None


def _image_record(client: Client, image: Image) -> ImageRecord:
    local = image.provider == Provider.LOCAL.value
    return ImageRecord(
        image_id=image.image_id,
        provider=Provider(image.provider),
        image_path=f"{client.daemon.status().state_dir}/images/{image.image_id}/root" if local else "",
        docker_image_id=image.docker_image_id,
        docker_image_tag=image.docker_image_tag,
    )


def _sandbox_record(state_dir: str, sandbox: Sandbox) -> SandboxRecord:
    return SandboxRecord(
        sandbox_id=sandbox.sandbox_id,
        image_id=sandbox.image_id,
        provider=Provider(sandbox.provider),
        sandbox_path=f"{state_dir}/sandboxes/{sandbox.sandbox_id}",
        tmux_session_name=SHELL_NAME,
        is_closed=sandbox.status in ("stopping", "stopped", "failed", "lost"),
    )


def _process_record(process: Process) -> ProcessRecord:
    return ProcessRecord(
        name=process.name,
        sandbox_id=process.sandbox_id,
        tmux_session_name=process.tmux_session,
        is_terminated=process.status not in ("starting", "running"),
        exit_code=process.exit_code,
    )
