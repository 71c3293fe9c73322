"""`Executor`: commands and files of one sandbox, of any provider."""

import os
import tempfile
from collections.abc import Generator
from typing import TypeAlias

from sandkeep.blocking import Client
from sandkeep.compat.crafty.connection import daemon, kill, text_of
from sandkeep.errors import CallerError, SandkeepError, StateError
from sandkeep.model import Process, Sandbox
from sandkeep.protocol.methods import MAX_WRITE_BYTES
from sandkeep.transfer import copy_in


class CommandProcess:
    """A command that an `Executor` started. Its output is kept, and can be read late."""

    def __init__(self, sandbox_id: str, process_id: str) -> None:
        self.sandbox_id = sandbox_id
        self.process_id = process_id

    def stream(self) -> Generator[str, None, None]:
        """Yield its output, stdout and stderr together, as it comes, until it ends."""
        with daemon() as client:
            yield from text_of(client, self.sandbox_id, self.process_id)

    def wait(self) -> int:
        """Wait until it has ended, and return its exit code. Raises `not_ready` when that is unknown."""
        with daemon() as client:
            ended: Process = client.process.wait(self.sandbox_id, self.process_id)
        if ended.exit_code is None:
            message = f"process {self.process_id} is {ended.status}: {ended.error}"
            raise StateError("not_ready", message, process_id=self.process_id)
        return ended.exit_code

    def kill(self) -> None:
        """Kill it with all of its group."""
        with daemon() as client:
            kill(client, self.sandbox_id, self.process_id)

    @property
    def stdout(self) -> str:
        """Return its stdout so far."""
        return self._whole("stdout")

    @property
    def stderr(self) -> str:
        """Return its stderr so far."""
        return self._whole("stderr")

    def _whole(self, stream: str) -> str:
        with daemon() as client:
            pieces = client.read_output(self.sandbox_id, self.process_id, follow=False)
            return b"".join(getattr(piece, stream) for piece in pieces).decode(errors="replace")


class Executor:
    """The operations on a sandbox, of any provider."""

    def __init__(self, sandbox_id: str) -> None:
        self.sandbox_id = sandbox_id

    def run_command(self, command: str) -> CommandProcess:
        """Start a shell command and return it while it runs."""
        with daemon() as client:
            started: Process = client.process.launch(self.sandbox_id, command)
            return CommandProcess(self.sandbox_id, started.process_id)

    def is_alive(self) -> bool:
        """Return True if commands can be run."""
        try:
            with daemon() as client:
                found: Sandbox = client.sandbox.get(self.sandbox_id)
        except SandkeepError:
            return False
        return found.status == "running"

    def read_file(self, path: str) -> str:
        """Return the text of a file. Raises `not_found`, and `invalid` for content that is not UTF-8."""
        content = bytearray()
        with daemon() as client:
            while True:
                piece = client.sandbox.read_file(self.sandbox_id, path=path, offset=len(content))
                content += piece.data
                if piece.eof or not piece.data:
                    return _text(bytes(content), path)

    def write_file(self, path: str, content: str) -> None:
        """Make `content` the whole text of a file, atomically."""
        data = content.encode()
        with daemon() as client:
            if len(data) <= MAX_WRITE_BYTES:
                client.sandbox.write_file(self.sandbox_id, path=path, data=data, parents=True)
            else:
                _write_large(client, self.sandbox_id, path, data)


SandboxExecutor: TypeAlias = Executor


def get_executor(sandbox_id: str) -> Executor:
    """Return the executor of a sandbox."""
    return Executor(sandbox_id)


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
