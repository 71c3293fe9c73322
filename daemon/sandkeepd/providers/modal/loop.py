"""The event loop of Modal's SDK, in the SDK's own thread, as the SDK is asyncio's and the daemon is trio's.

Coroutines of the SDK run there and nowhere else: `Loop.run` starts one, and waits for it from a task of trio. Neither
side waits for the other in its thread, so that a thousand streams take one thread.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

import trio

from sandkeep_store.threads import in_thread

T = TypeVar("T")

CLOSE_S: Final = 10.0
"""Seconds that the tasks of the loop may take to end when it is closed."""


class Loop:
    """The SDK's loop, from the first use until `aclose`, which ends it and its thread if this started them."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._starting = trio.Lock()
        self._tasks = set[asyncio.Task[Any]]()

    @property
    def is_running(self) -> bool:
        """True from the first use to the end."""
        return self._loop is not None

    async def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is not None:
            return self._loop
        async with self._starting:
            if self._is_closed:
                raise trio.ClosedResourceError("the SDK's loop is closed")
            if self._loop is None:  # in a thread: the import takes a third of a second
                self._loop = await in_thread(_thread.enter)
            started = self._loop
        assert started is not None
        return started

    async def run(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the loop, and return its result, or raise its error. Cancellation cancels it.

        Raises `trio.ClosedResourceError` if the loop is closed.
        """
        call = await self.begin(begin)
        try:
            await call.done.wait()
        except BaseException:
            call.cancel()
            raise
        result: T = call.result()
        return result

    async def begin(self, begin: Callable[[], Coroutine[Any, Any, Any]]) -> "Call":
        """Start a coroutine in the loop, whose end its caller waits for by itself, also after a cancellation."""
        return Call(await self._started(), self._tasks, begin)

    def spawn(self, begin: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Run a coroutine in the loop, if that runs, without waiting for it. Its errors are dropped."""
        if self._loop is not None:
            Call(self._loop, self._tasks, begin)

    async def aclose(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Cancel all that runs in the loop, then run `last`. Safe to repeat."""
        loop, self._loop, self._is_closed = self._loop, None, True
        if loop is None:
            return
        with trio.CancelScope(shield=True):
            call = Call(loop, set(), lambda: _shut_down(self._tasks, last))
            await call.done.wait()
            await in_thread(_thread.leave)


class _Thread:
    """The SDK's thread. It ends with the last `Loop` that uses it, unless somebody else had started it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._is_ours = False

    def enter(self) -> asyncio.AbstractEventLoop:
        """Return the SDK's loop, started if need be. Blocks. Raises ImportError."""
        from modal._utils.async_utils import synchronizer

        with self._lock:
            if not self._users:
                self._is_ours = synchronizer._get_loop(start=False) is None  # noqa: SLF001
            self._users += 1
            return synchronizer._get_loop(start=True)  # noqa: SLF001 - streams of the SDK work in no other loop

    def leave(self) -> None:
        """End the loop and the thread, if nobody needs them any more. Blocks."""
        from modal._utils.async_utils import synchronizer

        with self._lock:
            self._users -= 1
            if self._is_ours and not self._users:
                synchronizer._close_loop()  # type: ignore[no-untyped-call]  # noqa: SLF001


_thread: Final = _Thread()


async def _shut_down(tasks: "set[asyncio.Task[Any]]", last: Callable[[], Coroutine[Any, Any, None]] | None) -> None:
    for task in list(tasks):
        task.cancel()
    if tasks:
        await asyncio.wait(list(tasks), timeout=CLOSE_S)
    if last is not None:
        with suppress(Exception):
            await asyncio.wait_for(last(), CLOSE_S)
    await asyncio.sleep(0)  # transports close in the next turn


class Call:
    """A coroutine under way. `done` is set at its end."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        tasks: "set[asyncio.Task[Any]]",
        begin: Callable[[], Coroutine[Any, Any, Any]],
    ) -> None:
        self.done = trio.Event()
        self._loop = loop
        self._tasks = tasks
        self._begin = begin
        self._token = trio.lowlevel.current_trio_token()
        self._task: asyncio.Task[Any] | None = None
        self._is_cancelled = False
        self._schedule(self._start)

    def _schedule(self, what: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:  # it is closed
            self.done.set()

    def _start(self) -> None:
        if not self._is_cancelled:
            self._task = self._loop.create_task(self._begin())
            self._tasks.add(self._task)
            self._task.add_done_callback(self._note_end)

    def _note_end(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # it counts as retrieved, also when nobody waits any more
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self.done.set)

    def cancel(self) -> None:
        """Cancel it, without waiting for its end."""
        self._schedule(self._cancel)

    def _cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    def result(self) -> Any:
        """Return the result, or raise the error."""
        if self._task is None or self._task.cancelled():
            raise trio.ClosedResourceError("the SDK's loop is closed")
        return self._task.result()
