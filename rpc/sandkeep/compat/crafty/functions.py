"""The functions on images, sandboxes and processes."""

import os
import subprocess
import sys
from collections.abc import Generator
from typing import Any, Final

from sandkeep.blocking import Client
from sandkeep.clients.pages import every
from sandkeep.compat.crafty import local_directories
from sandkeep.compat.crafty import ssh as ssh_servers
from sandkeep.compat.crafty.connection import daemon, kill, text_of
from sandkeep.compat.crafty.records import (
    SHELL_NAME,
    ImageRecord,
    ProcessRecord,
    Provider,
    SandboxRecord,
    image_record,
    process_record,
    sandbox_record,
)
from sandkeep.compat.crafty.ssh import SshRecord
from sandkeep.errors import CallerError, SetupError, StateError
from sandkeep.model import Image, Process, Sandbox

_SHELL: Final = 'exec "$(command -v bash || echo sh)" -i'


# -- images -----------------------------------------------------------------------------------------------------------


def create_image(file_path: str, clean: bool, provider: Provider) -> str:
    """Copy a directory, all of it, or build it for Docker or Modal, and return the image's id. The same content gives
    the same id, unless `clean`.

    Raises `not_supported` for a provider that does not work here, `not_configured` for one without its settings.
    """
    with daemon() as client:
        source = os.path.abspath(file_path)
        # All of it also if it has a .dockerignore, for a plain directory; a build of a Dockerfile goes by that.
        made: Image = client.image.create(source, provider=Provider(provider).value, clean=clean, ignore_files=False)
        return made.image_id


def list_images() -> tuple[str, ...]:
    """Return the ids of all images, oldest first."""
    with daemon() as client:
        return tuple(image.image_id for image in every(client.image.list))


def list_images_records() -> tuple[ImageRecord, ...]:
    """Return the records of all images, in the order of `list_images`."""
    with daemon() as client:
        state_dir = client.daemon.status().state_dir
        return tuple(image_record(image, state_dir) for image in every(client.image.list))


def get_image(image_id: str) -> ImageRecord:
    """Return the record of an image."""
    with daemon() as client:
        return image_record(client.image.get(image_id), client.daemon.status().state_dir)


# -- sandboxes --------------------------------------------------------------------------------------------------------


def create_sandbox(image_id: str, provider: Provider, ssh: bool | None = None) -> str:
    """Start a sandbox from an image and return its id. The code of a local one is shown as by `get_sandbox`.

    One at Modal has a network, and an SSH server behind a public address, if its image has openssh-server: see
    `get_ssh`. With ``ssh=True`` the lack of that raises `not_supported`, and no sandbox is left; with ``ssh=False`` it
    has neither.
    """
    at_modal = Provider(provider) is Provider.MODAL
    if ssh and not at_modal:
        raise SetupError("not_supported", "ssh: only sandboxes at Modal have SSH servers: use connect_to_sandbox")
    with_ssh = at_modal if ssh is None else ssh
    options: dict[str, Any] = {"labels": ssh_servers.LABELS, "network": "bridge"} if with_ssh else {}
    with daemon() as client:
        made: Sandbox = client.sandbox.create(image_id, provider=Provider(provider).value, **options)
        if with_ssh:
            _start_ssh(client, made, required=bool(ssh))
        _show(client, made)
        return made.sandbox_id


def get_ssh(sandbox_id: str) -> SshRecord:
    """Return what an SSH client needs for a sandbox at Modal. Raises `not_supported` or `not_found` without one."""
    with daemon() as client:
        return ssh_servers.record(client.sandbox.get(sandbox_id))


def list_sandboxes(list_all: bool = False) -> tuple[str, ...]:
    """Return the ids of the sandboxes that run, oldest first; with `list_all` also of those that are closed."""
    return tuple(record.sandbox_id for record in list_sandboxes_records(list_all))


def list_sandboxes_records(list_all: bool = False) -> tuple[SandboxRecord, ...]:
    """Return the records of the same sandboxes, in the same order."""
    with daemon() as client:
        return tuple(sandbox_record(sandbox) for sandbox in every(client.sandbox.list, all=list_all))


def get_sandbox(sandbox_id: str) -> SandboxRecord:
    """Return the record of a sandbox.

    The directory of a local one that runs is its workspace: a change there is one in the sandbox. For a user of root's
    daemon it is a copy, which the next call replaces. A failure is a warning.
    """
    with daemon() as client:
        found: Sandbox = client.sandbox.get(sandbox_id)
        _show(client, found)
        return sandbox_record(found)


def connect_to_sandbox(sandbox_id: str) -> None:
    """Attach this terminal to the sandbox's own shell, the same one while it runs, until it ends or C-b d."""
    with daemon() as client:
        try:
            shell = _launch(client, SHELL_NAME, sandbox_id, _SHELL)
        except StateError as error:
            if error.code != "conflict":
                raise
            shell = client.process.get(sandbox_id, SHELL_NAME)  # it runs already
    attach_to_process(shell.process_id, sandbox_id)


def terminate_sandbox(sandbox_id: str) -> None:
    """End a sandbox and all that runs in it, and remove its directory. One that has ended already is left as it is."""
    with daemon() as client:
        ended: Sandbox = client.sandbox.terminate(sandbox_id)
    local_directories.remove(ended.sandbox_id)
    ssh_servers.remove(ended.sandbox_id)


# -- processes --------------------------------------------------------------------------------------------------------


def launch_background_process(name: str, sandbox_id: str, command: str) -> None:
    """Start a shell command under a name, in the background. Raises `conflict` for the name of a process that runs."""
    with daemon() as client:
        _launch(client, name, sandbox_id, command)


def launch_and_stream_process(name: str, sandbox_id: str, command: str) -> Generator[str, None, None]:
    """Start a shell command under a name and yield its output, as it comes, until it ends.

    Output is decoded as UTF-8, with U+FFFD for invalid bytes, and lines end in a newline alone. Closing the generator
    leaves the process running. It is started when the first piece is asked for.
    """
    with daemon() as client:
        launched = _launch(client, name, sandbox_id, command)
        yield from text_of(client, sandbox_id, launched.process_id)


def list_processes(list_all: bool = False) -> tuple[str, ...]:
    """Return the names of the named processes that run, in all sandboxes, oldest first; with `list_all` also of those
    that ended. A process's id, which its record has, serves wherever a name does, and stays the process's own.
    """
    return tuple(record.name for record in list_processes_records(list_all))


def list_processes_records(list_all: bool = False) -> tuple[ProcessRecord, ...]:
    """Return the records of the same processes, in the same order."""
    with daemon() as client:
        found = every(client.process.list, all=list_all)
        return tuple(process_record(process) for process in found if process.named)


def get_process(name: str, sandbox_id: str | None = None) -> ProcessRecord:
    """Return the record of a process, the newest of a name. An id needs no sandbox, nor does a name that is in one
    alone. Raises `not_found`, and `invalid` for a name that is in several.
    """
    with daemon() as client:
        if sandbox_id is not None:
            return process_record(client.process.get(sandbox_id, name))
        found = [each for each in every(client.process.list, all=True) if name in (each.process_id, each.name)]
    if not found:
        raise CallerError("not_found", f"there is no process {name!r}", name=name)
    if len({each.sandbox_id for each in found}) > 1:
        message = f"name: several sandboxes have a process {name!r}: give its sandbox too, or its id"
        raise CallerError("invalid", message, field="name")
    return process_record(found[-1])


def attach_to_process(name: str, sandbox_id: str) -> None:
    """Attach this terminal to a process until it ends or C-b d. Without a terminal: show its output until it ends."""
    with daemon() as client:
        process: Process = client.process.get(sandbox_id, name)  # errors are raised here, and not printed there
    subprocess.run(
        [sys.executable, "-m", "sandkeep.cli", "attach", "--", process.sandbox_id, process.process_id], check=False
    )


def kill_process(name: str, sandbox_id: str) -> None:
    """Kill a process with all of its group, and return when that is on record."""
    with daemon() as client:
        kill(client, sandbox_id, name)


# -- common parts -----------------------------------------------------------------------------------------------------


def _show(client: Client, sandbox: Sandbox) -> None:
    if sandbox.provider == Provider.LOCAL.value and sandbox.status == "running":
        local_directories.show(client, sandbox)


def _start_ssh(client: Client, sandbox: Sandbox, *, required: bool) -> None:
    """Start the SSH server of a new sandbox, which is ended if that fails; unless `required`, not for want of one."""
    try:
        ssh_servers.start(client, sandbox)
    except BaseException as error:
        ssh_servers.remove(sandbox.sandbox_id)
        if isinstance(error, SetupError) and not required:
            return
        client.sandbox.terminate(sandbox.sandbox_id)
        raise


def _launch(client: Client, name: str, sandbox_id: str, command: str) -> Process:
    launched: Process = client.process.launch(sandbox_id, command, name=name, tty=_has_tmux(client, sandbox_id))
    return launched


_WITH_TMUX: Final[set[str]] = set()


def _has_tmux(client: Client, sandbox_id: str) -> bool:
    if sandbox_id not in _WITH_TMUX and client.sandbox.exec(sandbox_id, "command -v tmux").exit_code == 0:
        _WITH_TMUX.add(sandbox_id)
    return sandbox_id in _WITH_TMUX
