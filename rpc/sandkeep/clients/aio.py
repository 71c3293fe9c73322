"""The client on asyncio, which is public as `sandkeep.aio`: see there."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

from sandkeep.clients.asynchronous import SHIELD_S, AsyncClient, Events, Handed, connected
from sandkeep.clients.steps import CONNECT, PAUSE, READABLE

__all__ = ["Client", "Events", "Handed", "connect"]


def connect(
    path: str | os.PathLike[str] | None = None, *, client: str = "python", patience_s: float | None = None
) -> AbstractAsyncContextManager["Client"]:
    """Connect to the daemon on the socket `path`, by default the one that SANDKEEP_SOCKET names; see
    `sandkeep.connect`.
    """
    return connected(Client, path, client, patience_s)


async def _until_ready(descriptor: int, watch: Callable[..., Any], unwatch: Callable[[int], Any]) -> None:
    """Wait until a descriptor is ready, which a method of the event loop watches."""
    ready = asyncio.get_running_loop().create_future()
    watch(descriptor, set_once, ready)
    try:
        await ready
    finally:
        unwatch(descriptor)


def set_once(ready: asyncio.Future[None]) -> None:
    """End a wait: the descriptor may be ready again before its task has run."""
    if not ready.done():
        ready.set_result(None)


class Client(AsyncClient):
    """The client on asyncio: see `AsyncClient`."""

    @staticmethod
    async def _wait(operation: str, sock: Any, argument: Any) -> Any:
        if operation is PAUSE:
            return await asyncio.sleep(argument)
        if operation is CONNECT:
            return sock.connect_ex(argument)
        loop = asyncio.get_running_loop()
        if operation is not READABLE:
            return await _until_ready(sock.fileno(), loop.add_writer, loop.remove_writer)
        if argument is None:
            return await _until_ready(sock.fileno(), loop.add_reader, loop.remove_reader)
        try:
            async with asyncio.timeout(argument):
                await _until_ready(sock.fileno(), loop.add_reader, loop.remove_reader)
        except TimeoutError:
            return False
        return True

    async def _shield(self, function: Callable[[], Awaitable[Any]]) -> None:
        task = asyncio.ensure_future(_at_most(SHIELD_S, function))
        cancelled = await ended(task)
        if cancelled is not None:
            raise cancelled from task.exception()
        task.result()


async def ended(task: asyncio.Future[Any], on_cancel: Callable[[], object] | None = None) -> BaseException | None:
    """Wait for the end of a task, also when cancelled meanwhile; return the last cancellation. `on_cancel` is called at
    each.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as again:
            cancelled = again
            if on_cancel is not None:
                on_cancel()
    return cancelled


async def _at_most(seconds: float, function: Callable[[], Awaitable[Any]]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await function()
