"""The client on trio.

    async with sandkeep.connect() as client:
        result = await client.sandbox.exec(sandbox_id, ["true"])

Any number of tasks may call at the same time; their calls share the connection and are carried out side by side.
There is no task in the background, and so no nursery around your code: whoever waits for an answer reads, for all who
wait, until its own is there, and then leaves that to another of them.
"""

import errno
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import trio
from msgspec import UNSET, DecodeError

from sandkeep import dialing, jsonrpc
from sandkeep.binding import Nouns, bind, check_plain, outcome
from sandkeep.descriptors import ANCILLARY_BYTES, RECEIVE_FLAGS, Handover
from sandkeep.follow import EventCursor, OutputCursor
from sandkeep.jsonrpc import Answer
from sandkeep.lines import LineBuffer
from sandkeep.methods import Method
from sandkeep.model import Event, ProcessOutput

if TYPE_CHECKING:
    from sandkeep.typed import TrioMethods
else:
    TrioMethods = Nouns

Progress = Callable[[str], None]

_CHUNK_BYTES: Final = 256 * 1024
_CONNECT_S: Final = 10.0


@asynccontextmanager
async def connect(path: str | os.PathLike[str] | None = None, *, client: str = "python") -> AsyncIterator["Client"]:
    """Connect to the daemon on the socket `path`, by default the one that SANDKEEP_SOCKET names.

    `client` is a name for the record. Raises `not_ready` when no daemon listens there, `permission_denied` when you may
    not connect, `not_configured` when the path is of no use.
    """
    where = dialing.socket_path(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.setblocking(False)
        await _connect(sock, where)
        connected = Client(sock, where, client)
        try:
            yield connected
        finally:
            connected.close()


async def _connect(sock: socket.socket, path: str) -> None:
    """Connect, and while the daemon's queue of new clients is full try again: a Unix socket cannot be waited for
    there.
    """
    give_up = trio.current_time() + _CONNECT_S
    while number := sock.connect_ex(path):
        if number != errno.EAGAIN or trio.current_time() >= give_up:
            raise dialing.cannot_connect(path, OSError(number, os.strerror(number)))
        await trio.sleep(0.01)
    await trio.lowlevel.checkpoint()


class _Slot:
    """A call that waits for its answer, and what was told about it meanwhile."""

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.progress: list[str] = []
        self.wake = trio.Event()
        self.sleeps = False


class Client(TrioMethods):
    """A connection to the daemon, with a method for each of the table: ``await client.sandbox.get(sandbox_id)``.

    Every call takes its parameters by name, or by position in the order of the table, and ``progress=``, a function
    that is told in sentences how a long call is getting on. It answers the typed result or raises `SandkeepError`. A
    call that is cancelled leaves the client usable, and what it began at the daemon going on.
    """

    def __init__(self, sock: socket.socket, path: str, name: str) -> None:
        self._sock = sock
        self._path = path
        self._name = name
        self._unsent = jsonrpc.request(UNSET, "rpc.hello", {"client": name})
        self._sending = trio.Lock()
        self._buffer = LineBuffer()
        self._slots: dict[int, _Slot] = {}
        self._someone_reads = False
        self._lost = False
        self._last_words: Answer | None = None
        self._last_id = 0

    def close(self) -> None:
        """Let go of the connection; calls under way fail. What they began and changes something goes on at the
        daemon.
        """
        self._lose()
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()

    async def call(self, method: str, params: dict[str, Any] | None = None, progress: Progress | None = None) -> Any:
        """Call a method by name with parameters as they are, and answer plain objects: also one that is not in the
        table.
        """
        check_plain(method)
        return outcome(await self._exchange(method, params or {}, progress), Any)

    @asynccontextmanager
    async def with_descriptors(self, method: str, *args: Any, **kwargs: Any) -> AsyncIterator["Handed"]:
        """Begin a call that is answered with open descriptors, on a connection of its own, to which it belongs:

        async with client.with_descriptors("process.open_output", sandbox_id, name) as handed:
            stdout, stderr = await handed.receive()
            what = await handed.answer()
        """
        handover = Handover(self._path, self._name, method, args, kwargs)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.setblocking(False)
            await _connect(sock, self._path)
            handed = Handed(sock, handover)
            try:
                await handed.send()
                yield handed
            finally:
                handover.close()

    def follow_events(
        self,
        after: str | None = None,
        *,
        sandbox_id: str | None = None,
        type: str | None = None,
        follow: bool = True,
    ) -> "Events":
        """Iterate over events after a token, and wait for more; see `event.list`. Its `token` is where to go on
        later.
        """
        return Events(self, after, sandbox_id, type, follow)

    async def read_output(
        self, sandbox_id: str, name: str, stdout_offset: int = 0, stderr_offset: int = 0, *, follow: bool = True
    ) -> AsyncIterator[ProcessOutput]:
        """Iterate over what a process wrote, from byte offsets, until it has ended; or, without `follow`, what there
        is.
        """
        cursor = OutputCursor(stdout_offset, stderr_offset, follow)
        while query := cursor.next_query():
            piece = await self.process.read(sandbox_id, name, **query)
            if cursor.take(piece):
                yield piece

    async def _call(self, row: Method, *args: Any, progress: Progress | None = None, **kwargs: Any) -> Any:
        check_plain(row.name)
        return outcome(await self._exchange(row.name, bind(row, args, kwargs), progress), row.result)

    async def _exchange(self, method: str, params: dict[str, Any], progress: Progress | None) -> Answer:
        if self._lost:
            raise dialing.connection_lost(self._path, method, params)
        self._last_id = request_id = self._last_id + 1
        slot = self._slots[request_id] = _Slot()
        try:
            await self._send(jsonrpc.request(request_id, method, params), slot)
            answer = await self._wait_for(slot, progress)
        finally:
            del self._slots[request_id]
            self._hand_over()
        if answer is None:
            raise dialing.connection_lost(self._path, method, params, self._last_words)
        return answer

    # -- sending ------------------------------------------------------------------------------------------------------

    async def _send(self, line: bytes, slot: _Slot) -> None:
        """Send a request whole, and the client's name before the first. A failure shows when its answer does not
        come.
        """
        async with self._sending:
            data = memoryview(self._unsent + line)
            rest = data
            try:
                while rest and not self._lost:
                    rest = rest[await self._push(rest, slot) :]
            except BaseException:
                if len(rest) != len(data):
                    self._lose()  # half a line is out: after that no other makes sense
                raise
            self._unsent = b""

    async def _push(self, data: memoryview, slot: _Slot) -> int:
        try:
            return self._sock.send(data)
        except BlockingIOError:
            await self._wait_for_room(slot)
            return 0
        except OSError:
            return len(data)  # the daemon closed the connection; what it said before is still to be read

    async def _wait_for_room(self, slot: _Slot) -> None:
        """Wait until more can be sent, and read meanwhile: a daemon whose answers nobody takes reads no requests
        either.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_meanwhile, slot)
            with suppress(trio.ClosedResourceError):
                await trio.lowlevel.wait_writable(self._sock)
            nursery.cancel_scope.cancel()

    async def _read_meanwhile(self, slot: _Slot) -> None:
        while not self._lost:
            await self._read_or_sleep(slot)

    # -- receiving ----------------------------------------------------------------------------------------------------

    async def _wait_for(self, slot: _Slot, progress: Progress | None) -> Answer | None:
        """Wait for the answer. None when the connection ended before."""
        while True:
            self._tell(slot, progress)
            if slot.answer is not None or self._lost:
                return slot.answer
            await self._read_or_sleep(slot)

    async def _read_or_sleep(self, slot: _Slot) -> None:
        """Read what arrives, for all; or sleep while another does, until there is something for us or our turn."""
        if not self._someone_reads:
            return await self._read()
        slot.wake = trio.Event()
        slot.sleeps = True
        try:
            await slot.wake.wait()
        finally:
            slot.sleeps = False

    def _tell(self, slot: _Slot, progress: Progress | None) -> None:
        told, slot.progress = slot.progress, []
        if progress is not None:
            for message in told:
                progress(message)

    async def _read(self) -> None:
        self._someone_reads = True
        try:
            await trio.lowlevel.wait_readable(self._sock)
            data = self._receive()
            if data is not None:
                self._distribute(data)
        except trio.ClosedResourceError:
            self._lose()
        finally:
            self._someone_reads = False

    def _receive(self) -> bytes | None:
        try:
            return self._sock.recv(_CHUNK_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def _distribute(self, data: bytes) -> None:
        try:
            for line in self._buffer.feed(data):
                self._deliver(jsonrpc.parse_answer(line))
        except DecodeError:
            self._lose()
        if not data or self._buffer.overflowed:
            self._lose()

    def _deliver(self, answer: Answer) -> None:
        """Give an answer or a notification to the call that it is for, if that still waits."""
        if answer.method is not None:
            self._deliver_progress(answer)
        elif answer.id is None:
            self._last_words = answer
        elif slot := self._slots.get(answer.id):  # type: ignore[arg-type]  # ours are numbers
            slot.answer = answer
            slot.wake.set()

    def _deliver_progress(self, answer: Answer) -> None:
        if answer.method != "progress":
            return
        told = jsonrpc.parse_progress(answer.params)
        if slot := self._slots.get(told.request):  # type: ignore[arg-type]  # ours are numbers
            slot.progress.append(told.message)
            slot.wake.set()

    def _hand_over(self) -> None:
        """Wake one of those who sleep, so that it reads from now on."""
        if not self._someone_reads:
            sleeper = next((slot for slot in self._slots.values() if slot.sleeps), None)
            if sleeper is not None:
                sleeper.wake.set()

    def _lose(self) -> None:
        self._lost = True
        for slot in self._slots.values():
            slot.wake.set()


class Handed:
    """A call under way at the daemon, which hands over descriptors; see `sandkeep.descriptors`. One task uses it."""

    def __init__(self, sock: socket.socket, handover: Handover) -> None:
        self._sock = trio.socket.from_stdlib_socket(sock)
        self._handover = handover

    async def send(self) -> None:
        """Send the request, which `Client.with_descriptors` has done."""
        rest = memoryview(self._handover.request())
        try:
            while rest:
                rest = rest[await self._sock.send(rest) :]
        except OSError:
            raise self._handover.lost() from None

    async def receive(self) -> list[int]:
        """Wait for the descriptors. They are yours, to close too. Raises what the daemon refuses the call with."""
        while (given := self._handover.given()) is None:
            await self._read()
        return given

    async def answer(self) -> Any:
        """Wait until the call is through, and answer its typed result. Descriptors not received before may be later."""
        while (answer := self._handover.answer) is None:
            await self._read()
        return self._handover.result(answer)

    async def _read(self) -> None:
        try:
            data, ancillary, flags, _ = await self._sock.recvmsg(_CHUNK_BYTES, ANCILLARY_BYTES, RECEIVE_FLAGS)
        except OSError:
            raise self._handover.lost() from None
        self._handover.take(data, ancillary, flags)


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
            self.take(await self._client.event.list(**query))
        return event
