"""The client on asyncio, which is public as `sandkeep.aio`: see there."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from sandkeep.clients.asynchronous import SHIELD_S, AsyncClient, Events, Handed
from sandkeep.clients.dial import Daemon, cannot_connect
from sandkeep.clients.exchange import CHUNK_BYTES, DIAL, PAUSE, RECEIVE, SEND, Step
from sandkeep.clients.unix_socket import Socket, dial_at_once

__all__ = ["Client", "Events", "Handed", "connect"]

_CONNECT_S: Final = 10.0
_QUEUE_PAUSE_S: Final = 0.01


@asynccontextmanager
async def connect(
    path: str | os.PathLike[str] | None = None, *, client: str = "python", patience_s: float | None = None
) -> AsyncIterator["Client"]:
    """Connect to the daemon on the socket `path`, by default the one that SANDKEEP_SOCKET names; see
    `sandkeep.connect`.
    """
    daemon = Daemon(path, client, patience_s)
    connected = Client(daemon, await dial(daemon.path))
    try:
        yield connected
    finally:
        connected.close()


async def dial(path: str) -> Socket:
    """Connect, and while the daemon's queue of new clients is full try again. Raises `not_ready`, `permission_denied`,
    `not_configured`.
    """
    loop = asyncio.get_running_loop()
    give_up = loop.time() + _CONNECT_S
    while (sock := dial_at_once(path)) is None:
        if loop.time() >= give_up:
            raise cannot_connect(path, BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)))
        await asyncio.sleep(_QUEUE_PAUSE_S)
    return sock


async def _carry_out(step: Step) -> Any:
    """Carry out a step of a call: see `exchange`."""
    operation, sock, argument = step
    if operation is SEND:
        return await _send(sock, argument)
    if operation is RECEIVE:
        if argument is None:
            return await _when_readable(sock, sock.recv, CHUNK_BYTES)
        async with asyncio.timeout(argument):
            return await _when_readable(sock, sock.recv, CHUNK_BYTES)
    if operation is DIAL:
        return await dial(argument)
    if operation is PAUSE:
        return await asyncio.sleep(argument)
    return await _when_readable(sock, sock.recvmsg, *argument)


async def _send(sock: Socket, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[sock.send(rest) :]
        except BlockingIOError:
            loop = asyncio.get_running_loop()
            await _until_ready(sock.fileno(), loop.add_writer, loop.remove_writer)


async def _when_readable(sock: Socket, receive: Callable[..., Any], *args: Any) -> Any:
    loop = asyncio.get_running_loop()
    while True:
        await _until_ready(sock.fileno(), loop.add_reader, loop.remove_reader)
        try:
            return receive(*args)
        except BlockingIOError:
            pass


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

    async def _carry_out(self, step: Step) -> Any:
        return await _carry_out(step)

    async def _shield(self, function: Callable[[], Awaitable[Any]]) -> None:
        task = asyncio.ensure_future(_at_most(SHIELD_S, function))
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as again:
                cancelled = again
        if cancelled is not None:
            raise cancelled from task.exception()
        task.result()


async def _at_most(seconds: float, function: Callable[[], Awaitable[Any]]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await function()
