"""A process in a sandbox, as the service keeps it: its output from any offset, its stdin at offsets, its exit code."""

import asyncio
import signal
from contextlib import AbstractContextManager
from typing import Any

from tests.support.doubles.processes import ExecProcess
from tests.support.modal.containers import Container
from tests.support.modal.streams import Input, Output


class Exec:
    """A process that was started in a container; `close` ends what follows it."""

    def __init__(
        self, started: ExecProcess, busy: AbstractContextManager[None], *, discard: frozenset[int] = frozenset()
    ) -> None:
        self._started = started
        self.outputs = {number: Output(discarded=number in discard) for number in (1, 2)}
        self.stdin = Input(started.write, started.close_stdin)
        self.code: int | None = None
        self._pumps = [
            asyncio.create_task(self.outputs[1].fill(started.stdout)),
            asyncio.create_task(self.outputs[2].fill(started.stderr)),
        ]
        self._busy = busy
        self._waiter = asyncio.create_task(self._wait())

    async def _wait(self) -> int:
        with self._busy:
            self.code = await self._started.wait()
        return self.code

    async def wait(self) -> int:
        """Wait until it has ended; return its exit code, 128 + N after signal N."""
        return await asyncio.shield(self._waiter)

    def kill(self) -> None:
        """Kill it."""
        self._started.process.send_signal(signal.SIGKILL)

    async def close(self) -> None:
        """Wait until its output is complete, once its container has ended."""
        await asyncio.gather(self._waiter, *self._pumps)
        await self._started.kill()


async def start_exec(
    container: Container,
    spec: dict[str, Any],
    busy: AbstractContextManager[None],
    *,
    discard: frozenset[int] = frozenset(),
    size: tuple[int, int] = (0, 0),
) -> Exec:
    """Start a process, for which `busy` is entered. `size` is that of its terminal, in rows and columns. Raises
    StartError.
    """
    return Exec(await container.start({**spec, "size": size}), busy, discard=discard)
