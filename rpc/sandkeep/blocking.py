"""The client over plain sockets: for scripts, threads and the command line.

    with sandkeep.blocking.connect() as client:
        result = client.sandbox.exec(sandbox_id, ["true"])

It needs neither trio nor an event loop, and little of the standard library: `import sandkeep.blocking` is on the way of
every command that somebody types.
"""

import contextlib
import os
from _socket import (
    AF_UNIX,
    SOCK_STREAM,
    socket,
)  # what the socket module wraps; that takes three milliseconds to import
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from msgspec import UNSET, DecodeError

from sandkeep import dialing, jsonrpc
from sandkeep.binding import Nouns, bind, check_plain, outcome
from sandkeep.follow import EventCursor, OutputCursor
from sandkeep.lines import LineBuffer
from sandkeep.methods import Method
from sandkeep.model import Event, ProcessOutput

if TYPE_CHECKING:
    from sandkeep.descriptors import Handed
    from sandkeep.typed import BlockingMethods
else:
    BlockingMethods = Nouns

Progress = Callable[[str], None]

_CHUNK_BYTES: Final = 256 * 1024


def connect(path: str | os.PathLike[str] | None = None, *, client: str = "python") -> "Client":
    """Connect to the daemon on the socket `path`, by default the one that SANDKEEP_SOCKET names.

    `client` is a name for the record. Raises `not_ready` when no daemon listens there, `permission_denied` when you may
    not connect, `not_configured` when the path is of no use. Close it, or use it in a ``with`` statement.
    """
    where = dialing.socket_path(path)
    return Client(_dial(where), where, client)


def _dial(path: str) -> socket:
    sock = socket(AF_UNIX, SOCK_STREAM)
    try:
        sock.connect(path)
    except OSError as error:
        sock.close()
        raise dialing.cannot_connect(path, error) from None
    except BaseException:
        sock.close()
        raise
    return sock


class Client(BlockingMethods):
    """A connection to the daemon, with a method for each of the table: ``client.sandbox.get(sandbox_id)``.

    Every call takes its parameters by name, or by position in the order of the table, and ``progress=``, a function
    that is told in sentences how a long call is getting on. It answers the typed result or raises `SandkeepError`.

    Threads may share a client; their calls then follow one another. A call that waits, such as ``process.wait``, is
    therefore best made on a client of its own. An interrupted call (KeyboardInterrupt) leaves the client usable, and
    what it began at the daemon going on.
    """

    def __init__(self, sock: socket, path: str, name: str) -> None:
        self._sock = sock
        self._path = path
        self._name = name
        self._lock = allocate_lock()
        self._unsent = jsonrpc.request(UNSET, "rpc.hello", {"client": name})
        self._buffer = LineBuffer()
        self._lines: deque[bytes] = deque()
        self._last_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection. What was begun and changes something goes on at the daemon."""
        self._sock.close()

    def call(self, method: str, params: dict[str, Any] | None = None, progress: Progress | None = None) -> Any:
        """Call a method by name with parameters as they are, and answer plain objects: also one that is not in the
        table.
        """
        check_plain(method)
        return outcome(self._exchange(method, params or {}, progress), Any)

    def with_descriptors(self, method: str, *args: Any, **kwargs: Any) -> "Handed":
        """Begin a call that is answered with open descriptors, on a connection of its own, to which it belongs:

        with client.with_descriptors("process.open_output", sandbox_id, name) as handed:
            stdout, stderr = handed.receive()
            what = handed.answer()
        """
        from sandkeep.descriptors import Handed, Handover

        handover = Handover(self._path, self._name, method, args, kwargs)
        return Handed(_dial(self._path), handover)

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

    def read_output(
        self, sandbox_id: str, name: str, stdout_offset: int = 0, stderr_offset: int = 0, *, follow: bool = True
    ) -> Iterator[ProcessOutput]:
        """Iterate over what a process wrote, from byte offsets, until it has ended; or, without `follow`, what there
        is.
        """
        cursor = OutputCursor(stdout_offset, stderr_offset, follow)
        while query := cursor.next_query():
            piece = self.process.read(sandbox_id, name, **query)
            if cursor.take(piece):
                yield piece

    def _call(self, row: Method, *args: Any, progress: Progress | None = None, **kwargs: Any) -> Any:
        check_plain(row.name)
        return outcome(self._exchange(row.name, bind(row, args, kwargs), progress), row.result)

    def _exchange(self, method: str, params: dict[str, Any], progress: Progress | None) -> jsonrpc.Answer:
        with self._lock:
            self._last_id = request_id = self._last_id + 1
            try:
                self._send(jsonrpc.request(request_id, method, params))
                return self._receive(request_id, progress)
            except OSError:
                raise dialing.connection_lost(self._path, method, params, self._last_words()) from None
            except (EOFError, DecodeError):
                self.close()
                raise dialing.connection_lost(self._path, method, params) from None

    def _send(self, line: bytes) -> None:
        try:
            self._sock.sendall(self._unsent + line)
        except BaseException:
            with contextlib.suppress(OSError):
                self._sock.shutdown(1)  # half a line may be out: after that no other makes sense
            raise
        self._unsent = b""

    def _receive(self, request_id: int, progress: Progress | None) -> jsonrpc.Answer:
        """Read until the answer; skip those to calls that were interrupted."""
        while True:
            answer = jsonrpc.parse_answer(self._read_line())
            if answer.id == request_id and answer.method is None:
                return answer
            if answer.id is None and answer.error is not None:
                return answer
            if answer.method == "progress" and progress is not None:
                told = jsonrpc.parse_progress(answer.params)
                if told.request == request_id:
                    progress(told.message)

    def _read_line(self) -> bytes:
        while not self._lines:
            data = self._sock.recv(_CHUNK_BYTES)
            if not data:
                raise EOFError
            self._lines.extend(self._buffer.feed(data))
            if self._buffer.overflowed:
                raise EOFError
        return self._lines.popleft()

    def _last_words(self) -> jsonrpc.Answer | None:
        """What the daemon said before it closed the connection, if it sent a reason that was not read yet."""
        with contextlib.suppress(OSError, EOFError, DecodeError):
            while True:
                answer = jsonrpc.parse_answer(self._read_line())
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
            self.take(self._client.event.list(**query))
        return event
