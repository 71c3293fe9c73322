"""The client over plain sockets: for scripts, threads and the command line.

    with sandkeep.blocking.connect() as client:
        result = client.sandbox.exec(sandbox_id, ["true"])

It needs neither trio nor an event loop, and little of the standard library: `import sandkeep.blocking` is on the way of
every command that somebody types.
"""

import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self, TypeVar

from sandkeep.clients import dial as dialing
from sandkeep.clients.binding import Nouns, bind, carrier, check_plain, identified, outcome
from sandkeep.clients.dial import Daemon, Retry
from sandkeep.clients.exchange import Exchange, Pool, Progress
from sandkeep.clients.steps import Socket, dial, run
from sandkeep.clients.threads import wait
from sandkeep.errors import SandkeepError
from sandkeep.model import Event, ProcessOutput
from sandkeep.protocol import jsonrpc
from sandkeep.protocol.follow import EventCursor, OutputCursor
from sandkeep.protocol.methods import Method

__all__ = [
    "Artifact", "Checkpoint", "Client", "Events", "Image", "Process", "Sandbox", "Session", "Snapshot", "Volume",
    "connect",
]  # fmt: skip

if TYPE_CHECKING:
    from sandkeep.clients.descriptors import Handed
    from sandkeep.typed import Artifact, BlockingMethods, Checkpoint, Image, Process, Sandbox, Session, Snapshot, Volume
else:
    BlockingMethods = Nouns

    def __getattr__(name: str) -> Any:
        """Classes of handles, such as `Sandbox`, are made on first use: not when `from` looks for a `__path__`."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
        from sandkeep.clients import handles

        return handles.named(name)


T = TypeVar("T")


def connect(
    path: str | os.PathLike[str] | None = None, *, client: str = "python", patience_s: float | None = None
) -> "Client":
    """Connect to the daemon on the socket `path`, by default the one that SANDKEEP_SOCKET names.

    `client` is a name for the record. `patience_s` is the time that a call waits for a daemon that goes away later, by
    default SANDKEEP_PATIENCE; see `Client`. Raises `not_ready` when no daemon listens there, `permission_denied` when
    you may not connect, `not_configured` for an unusable path. Close the client, or use it in a ``with`` statement.
    """
    daemon = Daemon(path, client, patience_s)
    return Client(daemon, run(wait, dial(daemon.path)))


class Client(BlockingMethods):
    """A client of the daemon, with a method for each of the table: ``client.sandbox.get(sandbox_id)``.

    Every call takes its parameters by name, or by position in the order of the table, and ``progress=``, a function
    that is called with progress messages of a long call. It returns the typed result or raises `SandkeepError`. Any
    number of threads may call at the same time: each call in flight has a connection, and the next one uses it again.
    With 256 in flight, more wait until one ends. A forked process may go on using the client.

    When the daemon goes away, as in a restart, the client waits for it and repeats unanswered calls; changes take
    effect once all the same. Only when it stays away for longer than `patience_s` does the call raise `not_ready`. A
    daemon of another event log is `wrong_log`.

    A call of `sandbox.exec` or `process.launch` that is given up, by KeyboardInterrupt or whatever else a signal's
    handler raises, ends the command: it gets INT, and KILL 2 s later. The exception has its `process_id`, or None if it
    had not begun. Other changes continue in the daemon.
    """

    def __init__(self, daemon: Daemon, sock: Socket | None = None) -> None:
        self._daemon = daemon
        self._pool = Pool(daemon, sock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; calls in flight fail. Commands that change something continue in the daemon."""
        self._pool.close()

    def another(self) -> "Client":
        """A client with connections of its own to the same daemon, which are made, patiently, by its calls."""
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
        return Events(carrier(self._call), after, sandbox_id, type, follow)

    def read_output(
        self,
        sandbox_id: str,
        name: str,
        stdout_offset: int = 0,
        stderr_offset: int = 0,
        *,
        follow: bool = True,
        times: bool = False,
        since: str | None = None,
    ) -> Iterator[ProcessOutput]:
        """Iterate over a process's output from byte offsets until its end; without `follow`, the present output.
        `times` and `since` are those of `process.read`.
        """
        cursor = OutputCursor(name, stdout_offset, stderr_offset, follow, times, since)
        while (piece := run(carrier(self._call), cursor.read(sandbox_id))) is not None:
            yield piece

    def persist(self, work: Callable[[], T]) -> T:
        """Run a repeatable operation of several calls again when the daemon goes away in the middle."""
        retry = Retry(self._daemon, "daemon.ping", {})
        while True:
            try:
                return work()
            except SandkeepError as error:
                if not dialing.is_lost(error) or self._pool.is_closed:
                    raise
                retry.lost(error)
                time.sleep(retry.pause(error))
                retry.connected()

    def _call(self, row: Method, *args: Any, progress: Progress | None = None, **kwargs: Any) -> Any:
        check_plain(row.name)
        return outcome(self._exchange(row.name, bind(row, args, kwargs), progress), row.result)

    def _exchange(self, method: str, params: dict[str, Any], progress: Progress | None) -> jsonrpc.Answer:
        exchange = Exchange(self._pool, method, params, progress)
        try:
            return run(wait, exchange.steps())
        except BaseException as error:
            if exchange.has_given_up(error):
                run(wait, exchange.give_up(error))
            raise


class Events(EventCursor):
    """An iterator over events. `token` is where it is."""

    def __init__(self, carry_out: Callable[..., Any], *args: Any) -> None:
        super().__init__(*args)
        self._carry_out = carry_out

    def __iter__(self) -> "Events":
        return self

    def __next__(self) -> Event:
        if (event := run(self._carry_out, self.read())) is None:
            raise StopIteration
        return event
