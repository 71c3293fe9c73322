"""The client on trio.

    async with sandkeep.connect() as client:
        result = await client.sandbox.exec(sandbox_id, ["true"])

Any number of tasks may call at the same time; their calls are carried out side by side, each on a connection: see
`exchange`. There is no task in the background, and so no nursery around your code.
"""

import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import trio

from sandkeep.clients.asynchronous import SHIELD_S, AsyncClient, Events, Handed, connected
from sandkeep.clients.exchange import Progress
from sandkeep.clients.steps import CONNECT, PAUSE, READABLE
from sandkeep.protocol.jsonrpc import Answer

__all__ = ["Client", "Events", "Handed", "connect"]


def connect(
    path: str | os.PathLike[str] | None = None, *, client: str = "python", patience_s: float | None = None
) -> AbstractAsyncContextManager["Client"]:
    """Connect to the daemon on the socket `path`, by default the one that SANDKEEP_SOCKET names.

    `client` is a name for the record. `patience_s` is the time that a call waits for a daemon that goes away later, by
    default SANDKEEP_PATIENCE; see `Client`. Raises `not_ready` when no daemon listens there, `permission_denied` when
    you may not connect, `not_configured` for an unusable path.
    """
    return connected(Client, path, client, patience_s)


class Client(AsyncClient):
    """The client on trio: see `AsyncClient`. Ctrl-C ends a call at a checkpoint, as a cancellation does."""

    @staticmethod
    async def _wait(operation: str, sock: Any, argument: Any) -> Any:
        if operation is PAUSE:
            return await trio.sleep(argument)
        if operation is CONNECT:
            await trio.lowlevel.checkpoint()
            return sock.connect_ex(argument)
        until_ready = trio.lowlevel.wait_readable if operation is READABLE else trio.lowlevel.wait_writable
        if argument is None:
            return await until_ready(sock.fileno())
        with trio.move_on_after(argument) as scope:
            await until_ready(sock.fileno())
        return not scope.cancelled_caught

    @trio.lowlevel.enable_ki_protection
    async def _exchange(self, method: str, params: dict[str, Any], progress: Progress | None) -> Answer:
        return await super()._exchange(method, params, progress)

    async def _shield(self, function: Callable[[], Awaitable[Any]]) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + SHIELD_S):
            await function()
