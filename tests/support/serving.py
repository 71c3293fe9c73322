"""The API server on a socket, with a handler of the test's own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import trio

from sandkeepd.api.listener import listening
from sandkeepd.api.server import Server

H = TypeVar("H")
S = TypeVar("S", bound="Serving[Any]")


class Serving(Generic[H]):
    """A server, and its handler. Cancelling `scope` stops it."""

    def __init__(self, path: str, handler: H, **limits: Any) -> None:
        self.path = path
        self.handler = handler
        self.server = Server(handler, **limits)  # type: ignore[arg-type]
        self.scope = trio.CancelScope()
        self.stopped = trio.Event()

    async def run(self, *, task_status: Any) -> None:
        with listening(self.path) as listener, self.scope:
            await self.server.serve(listener, task_status=task_status)
        self.stopped.set()


@asynccontextmanager
async def serving(made: S) -> AsyncIterator[S]:
    """Run a server during a block."""
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run)
        yield made
        made.scope.cancel()
        await made.stopped.wait()
