"""The client on trio.

    async with sandkeep.connect() as client:
        result = await client.sandbox.exec(sandbox_id, ["true"])

Any number of tasks may call at the same time; their calls are carried out side by side, each on a connection: see
`exchange`. There is no task in the background, and so no nursery around your code.
"""

import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from sandkeep.clients.asynchronous import SHIELD_S, AsyncClient, Events, Handed
from sandkeep.clients.dial import Daemon, cannot_connect
from sandkeep.clients.exchange import CHUNK_BYTES, DIAL, PAUSE, RECEIVE, SEND, Progress, Step
from sandkeep.clients.unix_socket import Socket, dial_at_once
from sandkeep.protocol.jsonrpc import Answer

__all__ = ["Client", "Events", "Handed", "connect"]

_CONNECT_S: Final = 10.0
_QUEUE_PAUSE_S: Final = 0.01


@asynccontextmanager
async def connect(
    path: str | os.PathLike[str] | None = None, *, client: str = "python", patience_s: float | None = None
) -> AsyncIterator["Client"]:
    """Connect to the daemon on the socket `path`, by default the one that SANDKEEP_SOCKET names.

    `client` is a name for the record. `patience_s` is the time that a call waits for a daemon that goes away later, by
    default SANDKEEP_PATIENCE; see `Client`. Raises `not_ready` when no daemon listens there, `permission_denied` when
    you may not connect, `not_configured` for an unusable path.
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
    give_up = trio.current_time() + _CONNECT_S
    await trio.lowlevel.checkpoint()
    while (sock := dial_at_once(path)) is None:
        if trio.current_time() >= give_up:
            raise cannot_connect(path, BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)))
        await trio.sleep(_QUEUE_PAUSE_S)
    return sock


async def _carry_out(step: Step) -> Any:
    """Carry out a step of a call: see `exchange`."""
    operation, sock, argument = step
    if operation is SEND:
        return await _send(sock, argument)
    if operation is RECEIVE:
        if argument is None:
            return await _when_readable(sock, sock.recv, CHUNK_BYTES)
        with trio.move_on_after(argument):
            return await _when_readable(sock, sock.recv, CHUNK_BYTES)
        raise TimeoutError
    if operation is DIAL:
        return await dial(argument)
    if operation is PAUSE:
        return await trio.sleep(argument)
    return await _when_readable(sock, sock.recvmsg, *argument)


async def _send(sock: Socket, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[sock.send(rest) :]
        except BlockingIOError:
            await trio.lowlevel.wait_writable(sock.fileno())


async def _when_readable(sock: Socket, receive: Callable[..., Any], *args: Any) -> Any:
    while True:
        await trio.lowlevel.wait_readable(sock.fileno())
        try:
            return receive(*args)
        except BlockingIOError:
            pass


class Client(AsyncClient):
    """The client on trio: see `AsyncClient`. Ctrl-C ends a call at a checkpoint, as a cancellation does."""

    async def _carry_out(self, step: Step) -> Any:
        return await _carry_out(step)

    @trio.lowlevel.enable_ki_protection
    async def _exchange(self, method: str, params: dict[str, Any], progress: Progress | None) -> Answer:
        return await super()._exchange(method, params, progress)

    async def _shield(self, function: Callable[[], Awaitable[Any]]) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + SHIELD_S):
            await function()
