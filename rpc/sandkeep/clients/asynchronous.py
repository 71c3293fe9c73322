"""The client of event loops, whichever it is: what the clients on trio and on asyncio share."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sandkeep.clients.binding import Nouns, bind, carrier, check_plain, identified, outcome
from sandkeep.clients.descriptors import Handover
from sandkeep.clients.dial import Daemon
from sandkeep.clients.exchange import Exchange, Pool, Progress
from sandkeep.clients.steps import Socket, dial, run_async
from sandkeep.model import Event, ProcessOutput
from sandkeep.protocol.follow import EventCursor, OutputCursor
from sandkeep.protocol.jsonrpc import Answer
from sandkeep.protocol.methods import Method

if TYPE_CHECKING:
    from sandkeep.typed import AsyncMethods
else:
    AsyncMethods = Nouns

SHIELD_S: Final = 120.0
"""Maximum seconds for which a cancelled block waits until its sandbox has ended."""

C = TypeVar("C", bound="AsyncClient")
Wait = Callable[[str, Any, Any], Awaitable[Any]]


@asynccontextmanager
async def connected(
    kind: type[C], path: str | PathLike[str] | None, client: str, patience_s: float | None
) -> AsyncIterator[C]:
    """Connect a client of that kind; see `sandkeep.connect`."""
    daemon = Daemon(path, client, patience_s)
    made = kind(daemon, await run_async(kind._wait, dial(daemon.path)))  # noqa: SLF001 - a client's own
    try:
        yield made
    finally:
        made.close()


class AsyncClient(AsyncMethods):
    """A client of the daemon, with a method for each of the table: ``await client.sandbox.get(sandbox_id)``.

    Every call takes its parameters by name, or by position in the order of the table, and ``progress=``, a function
    that is called with progress messages of a long call. It returns the typed result or raises `SandkeepError`. Any
    number of tasks may call at the same time: each call in flight has a connection, and the next one uses it again.
    With 256 in flight, more wait until one ends.

    When the daemon goes away, as in a restart, the client waits for it and repeats unanswered calls; changes take
    effect once all the same. Only when it stays away for longer than `patience_s` does the call raise `not_ready`. A
    daemon of another event log is `wrong_log`.

    A call of `sandbox.exec` or `process.launch` that is given up, by cancellation or a timeout of the program's, ends
    the command: it gets INT, and KILL 2 s later. The exception that went through the call has its `process_id`, or None
    if it had not begun. Other changes continue in the daemon.
    """

    def __init__(self, daemon: Daemon, sock: Socket | None = None) -> None:
        self._daemon = daemon
        self._pool = Pool(daemon, sock)

    @property
    def endpoint(self) -> Daemon:
        """The daemon as clients see it, for another client of the same one."""
        return self._daemon

    @staticmethod
    async def _wait(operation: str, sock: Any, argument: Any) -> Any:
        """Carry out a wait: see `steps`."""
        raise NotImplementedError

    async def _shield(self, function: Callable[[], Awaitable[Any]]) -> None:
        """Carry out a function also in a task that was cancelled, but not for longer than `SHIELD_S`."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connections; calls in flight fail. Commands that change something continue in the daemon."""
        self._pool.close()

    async def call(self, method: str, params: dict[str, Any] | None = None, progress: Progress | None = None) -> Any:
        """Call a method by name with parameters as they are, and answer plain objects: also one that is not in the
        table. A method that changes something gets a command_id if it was given none.
        """
        check_plain(method)
        return outcome(await self._exchange(method, identified(method, params or {}), progress), Any)

    @asynccontextmanager
    async def with_descriptors(self, method: str, *args: Any, **kwargs: Any) -> AsyncIterator["Handed"]:
        """Begin a call that is answered with open descriptors, on a connection of its own, to which it belongs:

        async with client.with_descriptors("process.open_output", sandbox_id, name) as handed:
            stdout, stderr = await handed.receive()
            what = await handed.answer()
        """
        handed = Handed(Handover(self._daemon, method, args, kwargs), self._wait)
        try:
            await handed.begin()
            yield handed
        finally:
            handed.close()

    def follow_events(
        self,
        after: str | None = None,
        *,
        sandbox_id: str | None = None,
        type: str | None = None,
        follow: bool = True,
    ) -> "Events":
        """Iterate over events after a token, and wait for more; see `event.list`. `token` is the present position."""
        return Events(carrier(self._call), after, sandbox_id, type, follow)

    async def read_output(
        self,
        sandbox_id: str,
        name: str,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        *,
        follow: bool = True,
        times: bool = False,
        since: str | None = None,
    ) -> AsyncIterator[ProcessOutput]:
        """Iterate over a process's output from byte offsets until its end; without `follow`, the present output.
        `times` and `since` are those of `process.read`.
        """
        cursor = OutputCursor(name, stdout_offset, stderr_offset, follow, times, since)
        while (piece := await run_async(carrier(self._call), cursor.read(sandbox_id))) is not None:
            yield piece

    async def _call(self, row: Method, *args: Any, progress: Progress | None = None, **kwargs: Any) -> Any:
        check_plain(row.name)
        return outcome(await self._exchange(row.name, bind(row, args, kwargs), progress), row.result)

    async def _exchange(self, method: str, params: dict[str, Any], progress: Progress | None) -> Answer:
        exchange = Exchange(self._pool, method, params, progress)
        try:
            return await run_async(self._wait, exchange.steps())
        except BaseException as error:
            if exchange.has_given_up(error):
                end = partial(run_async, self._wait, exchange.give_up(error))
                with suppress(type(error)):  # of a second cancellation: the first has the process_id
                    await self._shield(end)
            raise


class Handed:
    """A call under way at the daemon, which hands over descriptors; see `descriptors`. One task uses it."""

    def __init__(self, handover: Handover, wait: Wait) -> None:
        self._handover = handover
        self._wait = wait

    async def begin(self) -> None:
        """Connect, and send the request, as soon as the daemon is there. `Client.with_descriptors` has done it."""
        await run_async(self._wait, self._handover.begin())

    async def receive(self) -> list[int]:
        """Wait for the descriptors. The caller owns and closes them. Raises the daemon's errors."""
        return await run_async(self._wait, self._handover.receive())

    async def answer(self) -> Any:
        """Wait until the call is through, and answer its typed result. Descriptors not received before may be later."""
        return await run_async(self._wait, self._handover.finish())

    def close(self) -> None:
        """Let go of the connection, and of descriptors that were not received."""
        self._handover.close()


class Events(EventCursor):
    """An asynchronous iterator over events. `token` is where it is."""

    def __init__(self, carry_out: Callable[..., Any], *args: Any) -> None:
        super().__init__(*args)
        self._carry_out = carry_out

    def __aiter__(self) -> "Events":
        return self

    async def __anext__(self) -> Event:
        if (event := await run_async(self._carry_out, self.read())) is None:
            raise StopAsyncIteration
        return event
