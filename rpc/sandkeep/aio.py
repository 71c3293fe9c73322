"""The client on asyncio, with the same methods as that on trio; copies of files and trees, and terminals.

    async with sandkeep.aio.connect() as client:
        result = await client.sandbox.exec(sandbox_id, ["true"])
        await sandkeep.aio.copy_in(client, "project", sandbox_id, "/workspace")
        async with sandkeep.aio.attach(client, sandbox_id, "shell") as terminal:
            await terminal.send(b"ls\n")
            async for data in terminal:
                ...

Any number of tasks may call at the same time; their calls are carried out side by side. There is no task in the
background. All tasks that use a client belong to one event loop.
"""

import asyncio
import errno
import os
import termios
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sandkeep import blocking
from sandkeep.clients.aio import Client, Events, Handed, connect, ended, set_once
from sandkeep.model import Copied

if TYPE_CHECKING:
    from sandkeep.transfer import Path, Sandbox

__all__ = [
    "Client", "Events", "Handed", "Terminal", "attach", "connect", "copy_across", "copy_in", "copy_out", "timeout",
]  # fmt: skip

Progress = Callable[[int], None]

_READ_BYTES: Final = 64 * 1024


@asynccontextmanager
async def timeout(delay_s: float | None) -> AsyncIterator[asyncio.Timeout]:
    """Do as `asyncio.timeout`; the TimeoutError has the `process_id` of the command that it ended, or None.

    asyncio makes that error anew, of the cancellation that went through the call; with `asyncio.timeout` and
    `asyncio.wait_for` the id is in the error's `__cause__`.
    """
    try:
        async with asyncio.timeout(delay_s) as deadline:
            yield deadline
    except TimeoutError as error:
        error.process_id = getattr(error.__cause__, "process_id", None)  # type: ignore[attr-defined]
        raise


# -- copies -----------------------------------------------------------------------------------------------------------


async def copy_in(
    client: Client,
    source: "Path",
    sandbox_id: "Sandbox",
    path: "Path",
    *,
    progress: Progress | None = None,
    exclude: Sequence[str] = (),
    patterns: Sequence[str] = (),
) -> Copied:
    """Copy a file or tree of this machine to `path` in a sandbox, as `transfer.copy_in` does, in a thread.

    `progress` is called by the event loop. A cancelled copy has ended, and left nothing, before the cancellation goes
    on.
    """
    from sandkeep import transfer

    copy = partial(transfer.copy_in, exclude=exclude, patterns=patterns)
    return await _in_thread(client, progress, copy, source, sandbox_id, path)


async def copy_out(
    client: Client, sandbox_id: "Sandbox", path: "Path", target: "Path", *, progress: Progress | None = None
) -> Copied:
    """Copy a file or tree of a sandbox to `target` on this machine, as `transfer.copy_out` does. See `copy_in`."""
    from sandkeep import transfer

    return await _in_thread(client, progress, transfer.copy_out, sandbox_id, path, target)


async def copy_across(
    client: Client,
    sandbox_id: "Sandbox",
    path: "Path",
    other_id: "Sandbox",
    other: "Path",
    *,
    progress: Progress | None = None,
) -> Copied:
    """Copy a file or tree from one sandbox to another, as `transfer.copy_across` does. See `copy_in`."""
    from sandkeep import transfer

    return await _in_thread(client, progress, transfer.copy_across, sandbox_id, path, other_id, other)


class _GivenUpError(Exception):
    """A copy was cancelled."""


async def _in_thread(client: Client, progress: Progress | None, copy: Callable[..., Copied], *args: Any) -> Copied:
    loop, given_up = asyncio.get_running_loop(), threading.Event()

    def told(count: int) -> None:
        if given_up.is_set():
            raise _GivenUpError
        if progress is not None:
            loop.call_soon_threadsafe(progress, count)

    def work() -> Copied:
        with blocking.Client(client.endpoint) as other:
            return copy(other, *args, progress=told)

    running = asyncio.ensure_future(loop.run_in_executor(None, work))
    cancelled = await ended(running, given_up.set)
    if cancelled is not None:
        running.exception()  # what came of it is of no interest
        raise cancelled
    return running.result()


# -- terminals --------------------------------------------------------------------------------------------------------


class Terminal:
    """A terminal in which a process is shown: an asynchronous iterator over pieces of its output, which is raw: pass it
    through a `control_sequences.Filter` before you show it.

    One task at a time reads, and one sends. When the iteration is over the process has ended, or was detached from:
    `client.process.get` tells which.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._waits: dict[Callable[[int], Any], asyncio.Future[None]] = {}

    def __aiter__(self) -> "Terminal":
        return self

    async def __anext__(self) -> bytes:
        loop = asyncio.get_running_loop()
        while self._descriptor >= 0:
            try:
                data = os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                await self._until_ready(loop.add_reader, loop.remove_reader)
                continue
            except OSError as error:
                if error.errno != errno.EIO:  # the other side is closed
                    raise
                data = b""
            if not data:
                break
            return data
        raise StopAsyncIteration

    async def send(self, data: bytes) -> None:
        """Type these bytes."""
        loop = asyncio.get_running_loop()
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:
                await self._until_ready(loop.add_writer, loop.remove_writer)

    def resize(self, rows: int, cols: int) -> None:
        """Tell the size of one's own terminal."""
        termios.tcsetwinsize(self._descriptor, (rows, cols))

    def close(self) -> None:
        """Detach: the process goes on. A task that reads is at the end of its iteration; one that sends fails."""
        descriptor, self._descriptor = self._descriptor, -1
        while self._waits:  # the next descriptor with that number is not the terminal
            unwatch, ready = self._waits.popitem()
            unwatch(descriptor)
            set_once(ready)
        if descriptor >= 0:
            os.close(descriptor)

    async def _until_ready(self, watch: Callable[..., Any], unwatch: Callable[[int], Any]) -> None:
        """Wait until the descriptor is ready, or closed."""
        ready = self._waits[unwatch] = asyncio.get_running_loop().create_future()
        watch(self._descriptor, set_once, ready)
        try:
            await ready
        finally:
            if self._waits.pop(unwatch, None) is not None:
                unwatch(self._descriptor)


@asynccontextmanager
async def attach(client: Client, sandbox_id: str, name: str, **options: Any) -> AsyncIterator[Terminal]:
    """Attach to the terminal of a process, for the length of a block. `options` are further parameters of
    ``process.attach``, such as `rows`, `cols` and `read_only`.
    """
    async with client.with_descriptors("process.attach", sandbox_id, name, **options) as handed:
        [descriptor] = await handed.receive()
        terminal = Terminal(descriptor)
        try:
            await handed.answer()
            yield terminal
        finally:
            terminal.close()
