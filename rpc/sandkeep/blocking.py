"""The client over plain sockets: for scripts, threads and the command line.

    with sandkeep.blocking.connect() as client:
        result = client.sandbox.exec(sandbox_id, ["true"])

It needs neither trio nor an event loop, and little of the standard library: `import sandkeep.blocking` is on the way of
every command that somebody types.
"""

import contextlib
import os
import time
from _socket import (
    socket,
)  # wrapped by the socket module, whose import takes three milliseconds
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from msgspec import DecodeError

from sandkeep.clients import dial as dialing
from sandkeep.clients.binding import Nouns, bind, check_plain, identified, outcome
from sandkeep.clients.dial import Daemon, Retry
from sandkeep.clients.unix_socket import dial
from sandkeep.errors import SandkeepError
from sandkeep.model import Event, ProcessOutput
from sandkeep.protocol import jsonrpc
from sandkeep.protocol.follow import EventCursor, OutputCursor
from sandkeep.protocol.lines import LineBuffer
from sandkeep.protocol.methods import Method

__all__ = [
    "Artifact", "Checkpoint", "Client", "Events", "Image", "Process", "Sandbox", "Snapshot", "connect",
]  # fmt: skip

if TYPE_CHECKING:
    from sandkeep.clients.descriptors import Handed
    from sandkeep.typed import Artifact, BlockingMethods, Checkpoint, Image, Process, Sandbox, Snapshot
else:
    BlockingMethods = Nouns

    def __getattr__(name: str) -> Any:
        """Classes of handles, such as `Sandbox`, are made on first use."""
        from sandkeep.clients import handles

        return handles.named(name)


Progress = Callable[[str], None]
T = TypeVar("T")

_CHUNK_BYTES: Final = 256 * 1024


def connect(
    path: str | os.PathLike[str] | None = None, *, client: str = "python", patience_s: float | None = None
) -> "Client":
    """Connect to the daemon on the socket `path`, by default the one that SANDKEEP_SOCKET names.

    `client` is a name for the record. `patience_s` is the time that a call waits for a daemon that goes away later, by
    default SANDKEEP_PATIENCE; see `Client`. Raises `not_ready` when no daemon listens there, `permission_denied` when
    you may not connect, `not_configured` for an unusable path. Close the client, or use it in a ``with`` statement.
    """
    daemon = Daemon(path, client, patience_s)
    return Client(daemon, dial(daemon.path))


class Client(BlockingMethods):
    """A connection to the daemon, with a method for each of the table: ``client.sandbox.get(sandbox_id)``.

    Every call takes its parameters by name, or by position in the order of the table, and ``progress=``, a function
    that is called with progress messages of a long call. It returns the typed result or raises `SandkeepError`.

    When the daemon goes away, as in a restart, the client waits for it and repeats unanswered calls; changes take
    effect once all the same. Only when it stays away for longer than `patience_s` does the call raise `not_ready`. A
    daemon of another event log is `wrong_log`.

    Threads may share a client; their calls then follow one another. A call that waits, such as ``process.wait``, is
    therefore best made on a client of its own: see `another`. An interrupted call (KeyboardInterrupt) leaves the client
    usable, and its command continues in the daemon.
    """

    def __init__(self, daemon: Daemon, sock: socket | None = None) -> None:
        self._daemon = daemon
        self._lock = allocate_lock()
        self._closed = False
        self._lost = False
        self._last_id = 0
        self._use(sock)

    def _use(self, sock: socket | None) -> None:
        """Use a new connection, or none yet."""
        self._sock = sock
        self._unsent = self._daemon.greeting()
        self._buffer = LineBuffer()
        self._lines: deque[bytes] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Commands that change something continue in the daemon."""
        self._closed = True
        if self._sock is not None:
            self._sock.close()

    def another(self) -> "Client":
        """A client with a connection of its own to the same daemon, which is made, patiently, by its first call."""
        return Client(self._daemon)

    def call(self, method: str, params: dict[str, Any] | None = None, progress: Progress | None = None) -> Any:
        """Call a method by name with parameters as they are, and answer plain objects: also one that is not in the
        table. A method that changes something gets a command_id if it was given none.
        """
        check_plain(method)
        return outcome(self._exchange(method, identified(method, params or {}), progress), Any)

    def with_descriptors(self, method: str, *args: Any, **kwargs: Any) -> "Handed":
        """Begin a call that is answered with open descriptors, on a connection of its own, to which it belongs:

        with client.with_descriptors("process.open_output", sandbox_id, name) as handed:
            stdout, stderr = handed.receive()
            what = handed.answer()
        """
        from sandkeep.clients.descriptors import Handed, Handover

        return Handed(Handover(self._daemon, method, args, kwargs))

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

    def read_output(
        self, sandbox_id: str, name: str, stdout_offset: int = 0, stderr_offset: int = 0, *, follow: bool = True
    ) -> Iterator[ProcessOutput]:
        """Iterate over a process's output from byte offsets until its end; without `follow`, the present output."""
        cursor = OutputCursor(stdout_offset, stderr_offset, follow)
        while query := cursor.next_query():
            piece = self.process.read(sandbox_id, name, **query)
            if cursor.advance(piece):
                yield piece

    def persist(self, work: Callable[[], T]) -> T:
        """Run a repeatable operation of several calls again when the daemon goes away in the middle."""
        retry = Retry(self._daemon, "daemon.ping", {})
        while True:
            try:
                return work()
            except SandkeepError as error:
                if not dialing.is_lost(error) or self._closed:
                    raise
                retry.lost(error)
                time.sleep(retry.pause(error))
                retry.connected()

    def _call(self, row: Method, *args: Any, progress: Progress | None = None, **kwargs: Any) -> Any:
        check_plain(row.name)
        return outcome(self._exchange(row.name, bind(row, args, kwargs), progress), row.result)

    def _exchange(self, method: str, params: dict[str, Any], progress: Progress | None) -> jsonrpc.Answer:
        retry = Retry(self._daemon, method, params)
        with self._lock:
            while True:
                sock = self._connected(retry)
                try:
                    return self._ask(sock, method, retry.params, progress)
                except OSError:
                    reason = self._close_reason(sock)
                except (EOFError, DecodeError):
                    reason = None
                self._lose()
                self._raise_if_final(retry, reason)

    def _raise_if_final(self, retry: Retry, reason: jsonrpc.Answer | None) -> None:
        failure = retry.failure(reason)
        if reason is not None or self._closed:
            raise failure from None
        retry.lost(failure)

    # -- connecting ---------------------------------------------------------------------------------------------------

    def _connected(self, retry: Retry) -> socket:
        """The connection; a new one if the last was lost, once the daemon is there again and is the same."""
        if self._sock is not None and not self._closed:
            return self._sock
        if self._closed or (self._lost and self._daemon.patience_s <= 0):
            raise retry.failure()
        failure = retry.failure()
        while True:
            time.sleep(retry.pause(failure))
            try:
                self._use(dial(self._daemon.path))
                self._greet(retry.remaining_s)
            except (OSError, EOFError, DecodeError):
                self._lose()
            except SandkeepError as error:
                if error.code == "wrong_log":
                    raise
                failure = error
            except BaseException:
                self._lose()
                raise
            else:
                retry.connected()
                assert self._sock is not None
                return self._sock

    def _greet(self, timeout_s: float) -> None:
        """Verify that it is the same daemon, before any change. Raises OSError when it does not answer in time."""
        assert self._sock is not None
        self._sock.settimeout(timeout_s)
        self._send(self._sock, b"")
        while jsonrpc.parse_answer(line := self._read_line(self._sock)).id != dialing.GREETING_ID:
            pass
        self._recognise(jsonrpc.parse_answer(line))
        self._sock.settimeout(None)

    def _recognise(self, answer: jsonrpc.Answer) -> None:
        try:
            self._daemon.recognise(answer)
        except SandkeepError:
            self._lose()
            raise

    def _lose(self) -> None:
        self._lost = True
        if self._sock is not None:
            self._sock.close()
        self._use(None)

    # -- asking -------------------------------------------------------------------------------------------------------

    def _ask(self, sock: socket, method: str, params: dict[str, Any], progress: Progress | None) -> jsonrpc.Answer:
        self._last_id = request_id = self._last_id + 1
        self._send(sock, jsonrpc.request(request_id, method, params))
        return self._receive(sock, request_id, progress)

    def _send(self, sock: socket, line: bytes) -> None:
        try:
            sock.sendall(self._unsent + line)
        except BaseException:
            with contextlib.suppress(OSError):
                sock.shutdown(1)  # half a line may be out: after that no other makes sense
            raise
        self._unsent = b""

    def _receive(self, sock: socket, request_id: int, progress: Progress | None) -> jsonrpc.Answer:
        """Read until the answer; skip those to calls that were interrupted."""
        progress = progress or self._daemon.on_progress
        while True:
            answer = jsonrpc.parse_answer(self._read_line(sock))
            if answer.id == request_id and answer.method is None:
                return answer
            if answer.id == dialing.GREETING_ID:
                self._recognise(answer)
            if answer.id is None and answer.error is not None:
                return answer
            if answer.method == "progress" and progress is not None:
                notification = jsonrpc.parse_progress(answer.params)
                if notification.request == request_id:
                    progress(notification.message)

    def _read_line(self, sock: socket) -> bytes:
        while not self._lines:
            data = sock.recv(_CHUNK_BYTES)
            if not data:
                raise EOFError
            self._lines.extend(self._buffer.feed(data))
            if self._buffer.overflowed:
                raise EOFError
        return self._lines.popleft()

    def _close_reason(self, sock: socket) -> jsonrpc.Answer | None:
        """Return the reason that the daemon sent before it closed the connection, if one is unread."""
        with contextlib.suppress(OSError, EOFError, DecodeError):
            while True:
                answer = jsonrpc.parse_answer(self._read_line(sock))
                if answer.id is None and answer.error is not None:
                    return answer
        return None


class Events(EventCursor):
    """An iterator over events. `token` is where it is."""

    def __init__(
        self, client: Client, after: str | None, sandbox_id: str | None, type: str | None, follow: bool
    ) -> None:
        super().__init__(after, sandbox_id, type, follow)
        self._client = client

    def __iter__(self) -> "Events":
        return self

    def __next__(self) -> Event:
        while (event := self.next_event()) is None:
            query = self.next_query()
            if query is None:
                raise StopIteration
            self.advance(self._client.event.list(**query))
        return event
