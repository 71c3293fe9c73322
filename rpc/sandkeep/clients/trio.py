"""The client on trio.

    async with sandkeep.connect() as client:
        result = await client.sandbox.exec(sandbox_id, ["true"])

Any number of tasks may call at the same time; their calls share the connection and are carried out side by side.
There is no task in the background, and so no nursery around your code: see `link`. When the daemon went away, the first
that notices connects anew, for all.
"""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import trio

from sandkeep.clients.binding import Nouns, bind, check_plain, identified, outcome
from sandkeep.clients.descriptors import ANCILLARY_BYTES, CHUNK_BYTES, RECEIVE_FLAGS, Handover
from sandkeep.clients.dial import Daemon, Retry
from sandkeep.clients.link import Link, Progress, dial
from sandkeep.errors import SandkeepError
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
    connected = Client(daemon, Link(await dial(daemon.path), daemon))
    try:
        yield connected
    finally:
        connected.close()


class Client(AsyncMethods):
    """A connection to the daemon, with a method for each of the table: ``await client.sandbox.get(sandbox_id)``.

    Every call takes its parameters by name, or by position in the order of the table, and ``progress=``, a function
    that is called with progress messages of a long call. It returns the typed result or raises `SandkeepError`. A
    cancelled call leaves the client usable, and its command continues in the daemon.

    When the daemon goes away, as in a restart, the client waits for it and repeats unanswered calls; changes take
    effect once all the same. Only when it stays away for longer than `patience_s` does the call raise `not_ready`. A
    daemon of another event log is `wrong_log`.
    """

    def __init__(self, daemon: Daemon, link: Link) -> None:
        self._daemon = daemon
        self._link = link
        self._connecting = trio.Lock()
        self._closed = trio.Event()

    def close(self) -> None:
        """Close the connection; calls in flight fail. Commands that change something continue in the daemon."""
        self._closed.set()
        self._link.close()

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
        handed = Handed(Handover(self._daemon, method, args, kwargs))
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
        return Events(self, after, sandbox_id, type, follow)

    async def read_output(
        self, sandbox_id: str, name: str, stdout_offset: int = 0, stderr_offset: int = 0, *, follow: bool = True
    ) -> AsyncIterator[ProcessOutput]:
        """Iterate over a process's output from byte offsets until its end; without `follow`, the present output."""
        cursor = OutputCursor(stdout_offset, stderr_offset, follow)
        while query := cursor.next_query():
            piece = await self.process.read(sandbox_id, name, **query)
            if cursor.advance(piece):
                yield piece

    async def _call(self, row: Method, *args: Any, progress: Progress | None = None, **kwargs: Any) -> Any:
        check_plain(row.name)
        return outcome(await self._exchange(row.name, bind(row, args, kwargs), progress), row.result)

    async def _shield(self, function: Callable[[], Awaitable[Any]]) -> None:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + SHIELD_S):
            await function()

    async def _exchange(self, method: str, params: dict[str, Any], progress: Progress | None) -> Answer:
        retry = Retry(self._daemon, method, params)
        while True:
            link = await self._connected(retry)
            answer = await link.exchange(method, retry.params, progress)
            if answer is not None:
                return answer
            if link.refusal is not None:
                raise link.refusal
            failure = retry.failure(link.close_reason)
            if link.close_reason is not None or self._closed.is_set():
                raise failure
            retry.lost(failure)

    async def _connected(self, retry: Retry) -> Link:
        """The connection; a new one if the last was lost, once the daemon is there again and is the same."""
        link = self._link
        if not link.is_lost:
            return link
        failure = retry.failure()
        if self._daemon.patience_s <= 0:
            raise failure
        async with self._connecting:
            while (link := self._link).is_lost:
                if self._closed.is_set():
                    raise retry.failure()
                with trio.move_on_after(retry.pause(failure)):
                    await self._closed.wait()
                try:
                    await self._connect(retry.remaining_s)
                except SandkeepError as error:
                    if error.code == "wrong_log":
                        raise
                    failure = error
        retry.connected()
        return link

    async def _connect(self, timeout_s: float) -> None:
        """Try once to connect again. Raises when no daemon listens, or another one."""
        link = Link(await dial(self._daemon.path), self._daemon)
        greeted = False
        try:
            with trio.move_on_after(timeout_s):
                greeted = await link.greet()
        except BaseException:
            link.close()
            raise
        if self._closed.is_set() or not greeted:
            link.close()
        else:
            self._link.close()
            self._link = link


class Handed:
    """A call under way at the daemon, which hands over descriptors; see `descriptors`. One task uses it."""

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        self._sock: trio.socket.SocketType | None = None

    async def begin(self) -> None:
        """Connect, and send the request, as soon as the daemon is there. `Client.with_descriptors` has done it."""
        retry = self._handover.retry
        failure = retry.failure()
        while True:
            await trio.sleep(retry.pause(failure))
            try:
                self._sock = trio.socket.from_stdlib_socket(await dial(self._handover.path))
                rest = memoryview(self._handover.request())
                while rest:
                    rest = rest[await self._sock.send(rest) :]
            except SandkeepError as error:
                failure = error
            except OSError:
                self._let_go()
            else:
                return retry.connected()

    async def receive(self) -> list[int]:
        """Wait for the descriptors. The caller owns and closes them. Raises the daemon's errors."""
        while (given := self._handover.received()) is None:
            await self._read()
        return given

    async def answer(self) -> Any:
        """Wait until the call is through, and answer its typed result. Descriptors not received before may be later."""
        while (answer := self._handover.answer) is None:
            await self._read()
        return self._handover.result(answer)

    async def _read(self) -> None:
        assert self._sock is not None
        try:
            data, ancillary, flags, _ = await self._sock.recvmsg(CHUNK_BYTES, ANCILLARY_BYTES, RECEIVE_FLAGS)
        except OSError:
            data, ancillary, flags = b"", [], 0
        try:
            self._handover.feed(data, ancillary, flags)
        except EOFError:
            self._handover.restart()
            self._let_go()
            await self.begin()

    def _let_go(self) -> None:
        if self._sock is not None:
            self._sock.close()

    def close(self) -> None:
        """Let go of the connection, and of descriptors that were not received."""
        self._let_go()
        self._handover.close()


class Events(EventCursor):
    """An asynchronous iterator over events. `token` is where it is."""

    def __init__(
        self, client: Client, after: str | None, sandbox_id: str | None, type: str | None, follow: bool
    ) -> None:
        super().__init__(after, sandbox_id, type, follow)
        self._client = client

    def __aiter__(self) -> "Events":
        return self

    async def __anext__(self) -> Event:
        while (event := self.next_event()) is None:
            query = self.next_query()
            if query is None:
                raise StopAsyncIteration
            self.advance(await self._client.event.list(**query))
        return event
