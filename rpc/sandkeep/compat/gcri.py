"""The sandboxes of *GCRI*: a copy of a project for each branch of an iteration, and commands in it.

    sandbox = get_sandbox(config)
    container_id = sandbox.setup_branch(0, 1, "project")
    print(sandbox.execute_command(container_id, "make test"))
    print(sandbox.execute_python(container_id, "print(6 * 7)"))
    sandbox.clean_up_all()

`config.sandbox` says what they shall be: see `SandboxConfig`. With `enabled` they are containers; where Docker does not
work a warning is logged, the daemon's log has an event of it, and they are local sandboxes, as they are without
`enabled`. Both do the same in the same words. What the originals got wrong is not repeated: a command that takes too
long is ended with all that it started, links are copied as links, exit codes are kept (`Output.exit_code`), and a
branch that cannot be set up leaves nothing behind.

What merges branches, and takes their results back to the host, is not here: `setup_verification_branches` and
`commit_to_host` need branches that know their base, which Sandkeep does not have yet.

Each call connects to the daemon that ``SANDKEEP_SOCKET`` names.
"""

import logging
import os
import secrets
import tempfile
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any, ClassVar, Final, Self

import msgspec
from msgspec import Struct

from sandkeep.blocking import Client, connect
from sandkeep.errors import CallerError, SandkeepError, SetupError
from sandkeep.model import ExecResult, Network, ProviderChoice
from sandkeep.settings.daemon import parse_size
from sandkeep.transfer import copy_in

__all__ = [
    "IGNORED",
    "DockerSandbox",
    "LocalSandbox",
    "Output",
    "SandboxConfig",
    "SandboxStrategy",
    "get_sandbox",
]

logger = logging.getLogger(__name__)

IGNORED: Final = (".git", "__pycache__", "venv", "node_modules", ".gcri")
"""Names that are not copied into a branch, at any depth of the project."""

FALLING_BACK: Final = "Docker unavailable, falling back to LocalSandbox"
SUCCESS: Final = "(Success, no output)"
MOST_BYTES: Final = 16 * 1024 * 1024
"""Maximum output of a command in an answer, in bytes. The rest is in the journal of its process."""

_PYTHON: Final = 'exec "$(command -v python3 || echo python)" "$1"'


class SandboxConfig(Struct, frozen=True, kw_only=True):
    """The values of ``config.sandbox``; any object with these attributes will do, with these defaults.

    `timeout` is in seconds, `cpu_limit` in processors. Local sandboxes take no `image`, and have no bridge: there
    ``bridge`` is ``none``.
    """

    image: str = "python:3.11-slim"
    timeout: float = 60
    memory_limit: str = "512m"
    cpu_limit: float = 1.0
    network_mode: Network = "bridge"
    enabled: bool = True


class Output(str):
    """A command's output, both streams in one text; `exit_code` is None when it was not run to its end."""

    __slots__ = ("exit_code",)
    exit_code: int | None

    def __new__(cls, text: str, exit_code: int | None = None) -> Self:
        """The text, which knows more."""
        made = super().__new__(cls, text)
        made.exit_code = exit_code
        return made


class SandboxStrategy(ABC):
    """The operations on branches, for any isolation."""

    provider: ClassVar[str]
    prefix: ClassVar[str]

    def __init__(self, config: SandboxConfig | None = None) -> None:
        self.config = config or SandboxConfig()
        self._containers: dict[str, str] = {}

    @abstractmethod
    def _image(self, client: Client) -> str:
        """The image that branches start from: one with an empty workspace."""

    @abstractmethod
    def _create(self, client: Client, image_id: str, **about: Any) -> None:
        """Make a sandbox with the limits of the configuration."""

    def setup_branch(self, iteration: int, branch: int, source_dir: str) -> str:
        """Make a sandbox for a branch with a copy of `source_dir`, without `IGNORED`; return its id."""
        container_id = f"{self.prefix}_{iteration}_{branch}_{secrets.token_hex(4)}"
        labels = {"gcri.iteration": str(iteration), "gcri.branch": str(branch)}
        with _daemon() as client:
            self._create(client, self._image(client), name=container_id, provider=self.provider, labels=labels)
            try:
                copy_in(client, f"{os.path.abspath(source_dir)}/.", container_id, ".", exclude=IGNORED)
            except BaseException:
                client.sandbox.terminate(container_id)
                raise
        self._containers[f"{iteration}_{branch}"] = container_id
        return container_id

    def execute_command(self, container_id: str, command: str) -> Output:
        """Run a shell command in the workspace; return its output, or the reason why there is none."""
        with _daemon() as client:
            return self._run(client, container_id, ["sh", "-c", command])

    def execute_python(self, container_id: str, code: str) -> Output:
        """Run a Python program in the workspace; return its output as `execute_command` does."""
        script = f"_script_{secrets.token_hex(4)}.py"
        with _daemon() as client:
            try:
                client.sandbox.write_file(container_id, path=script, data=code.encode())
            except SandkeepError as error:
                return Output(f"Error: {error.message}")
            try:
                return self._run(client, container_id, ["sh", "-c", _PYTHON, "sh", script])
            finally:
                with suppress(SandkeepError):  # the sandbox has ended
                    client.sandbox.exec(container_id, ["rm", "-f", "--", script])

    def _run(self, client: Client, container_id: str, command: list[str]) -> Output:
        timeout = self.config.timeout
        try:
            done: ExecResult = client.sandbox.exec(container_id, command, timeout_s=timeout)
            text = _text(client, done)
        except SandkeepError as error:
            return Output(f"Error: {error.message}")
        if done.timed_out:
            return Output(f"Error: Command timed out after {timeout:g} seconds.", done.exit_code)
        if done.exit_code is None:
            return Output(f"Error: {done.error or 'its exit code is unknown'}")
        return Output(text or (f"Exit Code {done.exit_code}" if done.exit_code else SUCCESS), done.exit_code)

    def get_container(self, iteration: int, branch: int) -> str:
        """Return the name of the sandbox that was set up for a branch. Raises `not_found`."""
        try:
            return self._containers[f"{iteration}_{branch}"]
        except KeyError:
            message = f"iteration {iteration} has no branch {branch}: set it up first"
            raise CallerError("not_found", message) from None

    def clean_up_container(self, container_id: str) -> None:
        """Terminate a sandbox. One that has ended is left as it is."""
        with _daemon() as client:
            client.sandbox.terminate(container_id)
        self._containers = {key: known for key, known in self._containers.items() if known != container_id}

    def clean_up_all(self) -> None:
        """Terminate every sandbox that this object set up, and then raise the first error, if any."""
        failures = []
        for container_id in list(self._containers.values()):
            try:
                self.clean_up_container(container_id)
            except SandkeepError as error:
                failures.append(error)
        if failures:
            raise failures[0]


class DockerSandbox(SandboxStrategy):
    """Branches as containers."""

    provider = "docker"
    prefix = "gcri_branch"

    def _image(self, client: Client) -> str:
        return _create_empty_image(client, self.provider, self.config.image)

    def _create(self, client: Client, image_id: str, **about: Any) -> None:
        client.sandbox.create(
            image_id,
            memory_bytes=parse_size(self.config.memory_limit),
            cpus=self.config.cpu_limit,
            network=self.config.network_mode,
            **about,
        )


class LocalSandbox(SandboxStrategy):
    """Branches on this machine, without containers."""

    provider = "local"
    prefix = "gcri_local"

    def _image(self, client: Client) -> str:
        return _create_empty_image(client, self.provider)

    def _create(self, client: Client, image_id: str, **about: Any) -> None:
        about["memory_bytes"] = parse_size(self.config.memory_limit)
        about["network"] = "none" if self.config.network_mode == "bridge" else self.config.network_mode
        try:
            client.sandbox.create(image_id, cpus=self.config.cpu_limit, **about)
        except SetupError as error:
            if "cpus" not in error.message:
                raise
            logger.info("processors are not limited", extra={"why": error.message})
            client.sandbox.create(image_id, **about)


def get_sandbox(config: Any) -> SandboxStrategy:
    """The strategy for a configuration: Docker if it is enabled and works here, else local sandboxes."""
    wanted = _configuration(config)
    with _daemon() as client:
        chosen: ProviderChoice = client.provider.choose(enabled=wanted.enabled)
    if chosen.fell_back:
        logger.warning(FALLING_BACK, extra={"why": chosen.why})
    return DockerSandbox(wanted) if chosen.provider == DockerSandbox.provider else LocalSandbox(wanted)


def _daemon() -> Client:
    return connect(client="gcri")


def _configuration(config: Any) -> SandboxConfig:
    """Return the values of ``config.sandbox``, with defaults. Raises `invalid`."""
    given = getattr(config, "sandbox", None)
    known = {name: getattr(given, name) for name in SandboxConfig.__struct_fields__ if hasattr(given, name)}
    try:
        return msgspec.convert(known, SandboxConfig)
    except msgspec.ValidationError as error:
        raise CallerError("invalid", f"config.sandbox: {error}", field="config") from None


def _create_empty_image(client: Client, provider: str, base: str | None = None) -> str:
    """An image with nothing in its workspace. It is made once for all branches."""
    with tempfile.TemporaryDirectory() as directory:
        image_id: str = client.image.create(directory, provider=provider, base=base).image_id
        return image_id


def _text(client: Client, done: ExecResult) -> str:
    """Return a command's output, first its stdout, then its stderr; cut at `MOST_BYTES`."""
    if not done.stdout_truncated and not done.stderr_truncated:
        return (done.stdout + done.stderr).decode(errors="replace")
    out, err = bytearray(), bytearray()
    for piece in client.read_output(done.sandbox_id, done.process_id):
        out += piece.stdout
        err += piece.stderr
        if len(out) + len(err) > MOST_BYTES:
            break
    total = done.stdout_bytes + done.stderr_bytes
    text = bytes(out + err)[:MOST_BYTES].decode(errors="replace")
    return text if total <= MOST_BYTES else f"{text}\n({total - MOST_BYTES} bytes more)"
