"""Containers of sandboxes and of image builds: layers of an image with one above, an init, and processes in it."""

import asyncio
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.doubles.processes import ExecProcess, Launcher, Process, start_exec

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_INIT: Final = """
import os
import signal


def main(argv):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        try:
            os.wait()
        except ChildProcessError:
            signal.sigwait([signal.SIGCHLD])
"""
"""Reaps orphans; the container lives as long as this."""


def process(
    argv: Sequence[str], env: Mapping[str, str], cwd: str, *, tty: bool = False, source: str | None = None
) -> dict[str, Any]:
    """Return a process of root for the launcher: a program of the image, or Python `source` of ours."""
    return {
        "argv": list(argv),
        "env": dict(env),
        "cwd": cwd,
        "uid": 0,
        "gid": 0,
        "groups": [],
        "tty": tty,
        "privileged": False,
        "drop_all": False,
        "no_new_privileges": False,
        "source": source,
    }


class Container:
    """A container with a network of its own. `layer` has what was written to its files."""

    def __init__(self, launcher: Launcher, directory: Path, init: Process) -> None:
        self._launcher = launcher
        self._directory = directory
        self._init = init

    @property
    def layer(self) -> Path:
        """The layer above those of the image."""
        return self._directory / "upper"

    @property
    def pid(self) -> int:
        """The process that has its namespaces."""
        return self._init.pid

    async def start(self, spec: dict[str, Any]) -> ExecProcess:
        """Start a process in it. Raises StartError."""
        return await start_exec(self._launcher, spec, enter=self._init.pid, stdin=True)

    async def stop(self) -> None:
        """Kill everything in it, and wait until it is gone."""
        self._init.send_signal(signal.SIGKILL)
        await self._init.wait()

    async def remove(self) -> None:
        """Remove its files."""
        await asyncio.to_thread(shutil.rmtree, self._directory, ignore_errors=True)


async def start_container(
    launcher: Launcher,
    directory: Path,
    layers: Sequence[Path],
    hostname: str,
    mounts: Sequence[Mapping[str, Any]] = (),
) -> Container:
    """Start a container on layers, the topmost first. Raises StartError."""
    directory.mkdir(parents=True)
    spec = {
        "directory": str(directory),
        "image": ":".join(map(str, layers)),
        "hostname": hostname,
        "read_only": False,
        "mounts": list(mounts),
        "kept": True,
        "network": True,
    }
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        init = process(["init"], {}, "/", source=_INIT)
        return Container(launcher, directory, await launcher.start(init, [null] * 3, container=spec))
    finally:
        os.close(null)
