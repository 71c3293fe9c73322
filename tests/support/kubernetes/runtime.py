"""Containers of a pod: what a runtime is given, and what it gives."""

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tests.support.doubles.processes import ExecProcess, Launcher, Process, start_exec


@dataclass(frozen=True)
class Mount:
    """A directory or file of the node at a path of a container; `empty`: it is that of an emptyDir."""

    source: str
    target: str
    read_only: bool
    empty: bool = False


@dataclass(frozen=True)
class ContainerSpec:
    """A container to start. `directory` is empty and the container's own; `image` is a root file system. `memory` is
    its limit in bytes.
    """

    directory: str
    image: str
    hostname: str
    read_only: bool
    mounts: Sequence[Mount]
    process: dict[str, Any]
    fs_group: int | None = None
    memory: int | None = None


class Container(Protocol):
    """A container that was started."""

    async def wait(self) -> int:
        """Wait until it has ended; return its exit code."""

    async def kill(self, number: int) -> None:
        """Send a signal to its first process; with SIGKILL, all others end with it."""

    async def exec(self, process: dict[str, Any], *, stdin: bool) -> ExecProcess:
        """Start another process in it. Raises StartError."""


class Runtime(Protocol):
    """Starts containers."""

    async def start(self, spec: ContainerSpec, log: int, restore: str | None = None) -> Container:
        """Start a container with stdout and stderr at descriptor `log`, or go on from the checkpoint in directory
        `restore`. Raises StartError.
        """


class NamespaceContainer:
    """A container of `NamespaceRuntime`."""

    def __init__(self, launcher: Launcher, process: Process) -> None:
        self._launcher = launcher
        self._process = process

    async def wait(self) -> int:
        """See `Container`."""
        return await self._process.wait()

    async def kill(self, number: int) -> None:
        """See `Container`."""
        self._process.send_signal(number)

    async def exec(self, process: dict[str, Any], *, stdin: bool) -> ExecProcess:
        """See `Container`."""
        return await start_exec(self._launcher, process, enter=self._process.pid, stdin=stdin)


class NamespaceRuntime:
    """Containers of the kernel's namespaces. Their writes to the image's files are kept in memory."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    async def start(self, spec: ContainerSpec, log: int, restore: str | None = None) -> NamespaceContainer:
        """See `Runtime`."""
        assert restore is None, "only gVisor's containers have checkpoints"
        mounts = [{"source": m.source, "target": m.target, "read_only": m.read_only} for m in spec.mounts]
        container = {
            "directory": spec.directory,
            "image": spec.image,
            "hostname": spec.hostname,
            "read_only": spec.read_only,
            "mounts": mounts,
            "memory": spec.memory,
        }
        process = await start_detached(self._launcher, spec.process, log, container=container)
        return NamespaceContainer(self._launcher, process)


async def start_detached(launcher: Launcher, process: dict[str, Any], log: int, **place: Any) -> Process:
    """Start a process without stdin, its output at `log`. Raises StartError."""
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return await launcher.start(process, [null, log, log], **place)
    finally:
        os.close(null)


async def stop(container: Container, grace_s: float) -> None:
    """End a container: by a signal that it can catch, and after its grace period for good."""
    ended = asyncio.ensure_future(container.wait())
    try:
        if grace_s > 0:
            await container.kill(signal.SIGTERM)
            await asyncio.wait([ended], timeout=grace_s)
        if not ended.done():
            await container.kill(signal.SIGKILL)
        await ended
    finally:
        ended.cancel()
