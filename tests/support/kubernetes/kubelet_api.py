"""Contracts between the API server, the kubelet and the controllers of the double.

`cluster.py` assembles them through two factories: `kubelet.create(store, directory, images) -> Kubelet`, where
`images` maps image names to root file systems, and `controllers.create(store, kubelet) -> Component`.
"""

from collections.abc import AsyncIterator
from typing import Any, Protocol


class Component(Protocol):
    """A part of the cluster that works in the background, and that tests can script."""

    async def run(self) -> None:
        """Work until cancelled; on cancellation, leave no process, mount or file behind."""

    def script(self, **options: Any) -> None:
        """Change behaviour from now on (POST /double/script). Ignore options that belong to other components."""


class Exec(Protocol):
    """One process started in a container. Its owner calls `kill` when the connection is gone."""

    @property
    def stdout(self) -> AsyncIterator[bytes]:
        """Output until the process closes it; everything the terminal shows, with `tty`."""

    @property
    def stderr(self) -> AsyncIterator[bytes]:
        """Error output; ends at once with `tty`."""

    async def write(self, data: bytes) -> None:
        """Write all of `data` to stdin, and wait as long as the process does not read. Raises BrokenPipeError."""

    async def close_stdin(self) -> None:
        """Close stdin; a second time does nothing."""

    def resize(self, rows: int, cols: int) -> None:
        """Set the size of the terminal; ignored without one."""

    async def wait(self) -> int:
        """Wait for the exit code (128 + N after signal N)."""

    async def kill(self) -> None:
        """Release everything that this exec holds. A process that still runs goes on, as under containerd."""


class Kubelet(Component, Protocol):
    """The node: runs the containers of the pods that the store has."""

    async def exec(
        self, pod: dict[str, Any], container: str | None, command: list[str], *, tty: bool, stdin: bool
    ) -> Exec:
        """Start `command` in a container (the pod's first by default). Raises ApiError if none runs, StartError."""

    def log(
        self, pod: dict[str, Any], container: str | None, *, follow: bool, tail_lines: int | None
    ) -> AsyncIterator[bytes]:
        """Output of a container so far; with `follow`, until it ends. Raises ApiError when first iterated."""
