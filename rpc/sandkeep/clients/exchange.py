"""Calls over as many connections as they take: what all clients do, whether on threads, trio or asyncio.

`Exchange.steps` yields the waits, and a client carries them out: see `steps`. Each connection serves one call at a
time. The daemon limits the calls in flight of one connection, and the memory of their answers, so calls that share one
wait for each other; and that of a call that was given up can be closed.
"""

import os
import time
from _weakref import ref  # the weakref module takes a millisecond to import
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, Final

from msgspec import DecodeError

from sandkeep.clients.binding import outcome
from sandkeep.clients.dial import GREETING_ID, Daemon, Retry, is_refusal
from sandkeep.clients.steps import PAUSE, READABLE, Socket, Steps, dial, send
from sandkeep.errors import SandkeepError, StateError
from sandkeep.ids import new_id
from sandkeep.protocol import jsonrpc
from sandkeep.protocol.jsonrpc import Answer
from sandkeep.protocol.lines import LineBuffer
from sandkeep.protocol.methods import METHODS, CancelledLaunch

Progress = Callable[[str], None]

CHUNK_BYTES: Final = 256 * 1024
MAX_CONNECTIONS: Final = 256
"""Maximum connections of one client; more calls at once wait for a free one. The daemon gives a user 512."""

MAX_IDLE: Final = 32
"""Maximum connections that are kept for later calls; the others of the user have need of some, too."""

IDLE_S: Final = 10.0
"""Seconds after which an unused connection is closed, when another one is put back."""

_GREETING_S: Final = 10.0
_CANCEL_S: Final = 10.0
"""Seconds that a call that was given up waits for the id of its process."""

_LAUNCHES: Final = frozenset(row.name for row in METHODS.values() if row.intent == "process.launch_requested")
_OURS: Final = (SandkeepError, GeneratorExit)
"""Errors that end a call without its being given up by its caller, who may wait for nothing with the second."""

_FIRST_LOOK_S: Final = 0.005
_LONGEST_LOOK_S: Final = 0.05
REDIAL_S: Final = 0.5
"""Seconds between a client's attempts to connect while the daemon, which serves it, gives it no more connections."""


class Channel:
    """A connection, which one call at a time uses: its requests as bytes, and received bytes as answers."""

    def __init__(self, daemon: Daemon) -> None:
        self.sock: Socket | None = None
        """None until the daemon was dialled."""
        self.reason: Answer | None = None
        """The daemon's reason for closing the connection."""
        self.refusal: Answer | None = None
        """The same, if it is that there are too many."""
        self.is_free = True
        """True if no answer is outstanding and the connection is not known to be lost."""
        self.is_greeted = False
        self.idle_since = 0.0
        self.progress: Progress | None = None
        self._daemon = daemon
        self._unsent = daemon.greeting()
        self._lines = LineBuffer()
        self._last_id = GREETING_ID
        self._awaited = GREETING_ID

    def greeting(self) -> bytes:
        """Return the greeting alone, whose answer is awaited before anything else is asked."""
        self.is_free = False
        self._awaited = GREETING_ID
        greeting, self._unsent = self._unsent, b""
        return greeting

    def request(self, method: str, params: dict[str, Any]) -> bytes:
        """Return a request, after the greeting if that was not sent yet. Raises as `jsonrpc.request` does."""
        data = jsonrpc.request(self._last_id + 1, method, params)
        self.is_free = False
        self._last_id += 1
        self._awaited = self._last_id
        if self._unsent:
            data, self._unsent = self._unsent + data, b""
        return data

    def feed(self, data: bytes) -> Answer | None:
        """Take received bytes; return the answer that is awaited once it is there.

        Raises EOFError when the connection has ended or makes no sense, and `wrong_log`.
        """
        found: Answer | None = None
        try:
            for line in self._lines.feed(data):
                found = self._handle(jsonrpc.parse_answer(line)) or found
        except DecodeError:
            raise EOFError from None
        if found is None and (not data or self._lines.overflowed):
            raise EOFError
        return found

    def _handle(self, answer: Answer) -> Answer | None:
        if answer.method is not None:
            if answer.method == "progress" and self.progress is not None:
                notification = jsonrpc.parse_progress(answer.params)
                if notification.request == self._awaited:
                    self.progress(notification.message)
            return None
        if answer.id is None:
            if answer.error is None:
                return None
            if is_refusal(answer):
                self.refusal = answer
                return None
            self.reason = answer
            return answer
        if answer.id == GREETING_ID:
            self._daemon.recognise(answer)
            self.is_greeted = True
        if answer.id != self._awaited:
            return None
        self.is_free = self.reason is None
        return answer


class Pool:
    """The connections of one client: idle ones, and those in use, which belong to their calls.

    Any number of threads may use it: it relies on single operations of lists and dicts being atomic. A process that
    was forked leaves the connections to its parent, and makes its own.
    """

    # Of C are the callbacks of these references, which run anywhere: Python ignores an interrupt in one that is not.
    _all: ClassVar[set["ref[Pool]"]] = set()

    def __init__(self, daemon: Daemon, sock: Socket | None = None) -> None:
        self.daemon = daemon
        self.is_closed = False
        self.is_lost = False
        """True once a connection was lost."""
        self.is_refused = False
        """True if the daemon gave no further connection, when one was last asked for."""
        self._redial_at = 0.0
        self._idle: list[Channel] = []
        self._open: set[ref[Channel]] = set()
        self._all.add(ref(self, self._all.discard))
        if sock is not None:
            channel = self._add()
            channel.sock = sock
            self._idle.append(channel)

    def add(self) -> Channel | None:
        """Return a new connection, to be dialled, which is the caller's until it is put back; None if there are as many
        as there may be, or were a moment ago.
        """
        if self.is_refused and self.is_served:
            now = time.monotonic()
            if now < self._redial_at:
                return None
            self._redial_at = now + REDIAL_S
        channel = self._add()
        if len(self._open) <= MAX_CONNECTIONS:
            return channel
        self._close(channel)
        return None

    def _add(self) -> Channel:
        channel = Channel(self.daemon)
        self._open.add(ref(channel, self._open.discard))  # its call may end without putting it back
        return channel

    @property
    def is_served(self) -> bool:
        """True if the daemon has greeted on a connection that is open."""
        return any(channel.is_greeted for channel in self._channels())

    def take(self) -> Channel | None:
        """Return an idle connection, the last that was used; None if there is none."""
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def put(self, channel: Channel) -> None:
        """Take a connection back. One that is lost, or whose call was given up, is closed."""
        if not channel.is_free:
            return self._close(channel)
        channel.progress = None
        now = channel.idle_since = time.monotonic()
        self._idle.append(channel)
        if self.is_closed:
            self._close_idle(None)
        elif len(self._idle) > 1:
            oldest = next(iter(self._idle), channel)
            if oldest.idle_since < now - IDLE_S or len(self._idle) > MAX_IDLE:
                self._close_idle(1)
        return None

    def lose(self) -> None:
        """A connection was lost: the idle ones are probably, too."""
        self.is_lost = True
        self._close_idle(None)

    def close(self) -> None:
        """Close all connections. Calls in flight get the end of theirs."""
        self.is_closed = True
        self._close_idle(None)
        for channel in self._channels():
            if channel.sock is not None:
                with suppress(OSError):  # its call has just closed it
                    channel.sock.shutdown(2)  # not closed here: its call may be about to use that descriptor

    def _channels(self) -> list[Channel]:
        return [channel for entry in list(self._open) if (channel := entry()) is not None]

    def _close_idle(self, count: int | None) -> None:
        while count != 0:
            try:
                channel = self._idle.pop(0)
            except IndexError:
                return
            self._close(channel)
            count = None if count is None else count - 1

    def _close(self, channel: Channel) -> None:
        channel.is_free = False
        self._open.discard(ref(channel))
        if channel.sock is not None:
            channel.sock.close()

    @classmethod
    def leave_to_parent(cls) -> None:
        """In a forked process, close the connections of all pools: its parent has them."""
        for entry in list(cls._all):
            if (pool := entry()) is not None:
                pool._idle.clear()  # noqa: SLF001  # a pool's own
                for channel in pool._channels():  # noqa: SLF001
                    pool._close(channel)  # noqa: SLF001


os.register_at_fork(after_in_child=Pool.leave_to_parent)


class Exchange:
    """One call: sent, and sent again when the connection is lost, until it is answered."""

    def __init__(self, pool: Pool, method: str, params: dict[str, Any], progress: Progress | None) -> None:
        self._pool = pool
        self._method = method
        self._retry = Retry(pool.daemon, method, params)
        self._progress = progress or pool.daemon.on_progress
        self._launch = params.get("command_id") if method in _LAUNCHES else None
        self._is_under_way = False

    def steps(self) -> Steps[Answer]:
        """Make the call. Raises `not_ready` when the daemon stays away, and `wrong_log`."""
        pool, retry = self._pool, self._retry
        if pool.is_closed:
            raise StateError("not_ready", f"this client is closed, so {self._method} was not sent: connect again")
        failure: SandkeepError | None = None
        while True:
            channel = None
            try:
                channel = pool.take() or (yield from self._connect(failure or retry.failure()))
                answer = yield from self._ask(channel)
            finally:
                if channel is not None:
                    pool.put(channel)
            if answer is not None:
                self._is_under_way = False
                return answer
            if channel.refusal is None:
                pool.lose()
            failure = retry.failure(channel.reason or channel.refusal)
            if channel.reason is not None or pool.is_closed:
                raise failure
            retry.lost(failure)

    def has_given_up(self, error: BaseException) -> bool:
        """Return True if a command was sent that `error` keeps the caller from waiting for: see `give_up`."""
        return self._is_under_way and self._launch is not None and not isinstance(error, _OURS)

    def give_up(self, error: BaseException) -> Steps[None]:
        """End the command, on a connection of its own, and give the error the `process_id`, if there is one.

        The daemon ends it even if nobody waits for these steps after the request was sent. While there is no daemon,
        nothing can be done.
        """
        channel = Channel(self._pool.daemon)
        try:
            channel.sock = yield from dial(self._pool.daemon.path)
            params = {"launch": self._launch, "command_id": new_id("cmd")}
            yield from send(channel.sock, channel.request("process.cancel", params))
            answer = yield from _receive(channel, _CANCEL_S)
            if answer is not None:
                process_id = outcome(answer, CancelledLaunch).process_id
                error.process_id = process_id  # type: ignore[attr-defined]
        except (OSError, SandkeepError):
            pass  # the error is what the caller has to know
        finally:
            if channel.sock is not None:
                channel.sock.close()

    def _ask(self, channel: Channel) -> Steps[Answer | None]:
        """Send the request and wait for its answer; None when the connection is lost before."""
        channel.progress = self._progress
        data = channel.request(self._method, self._retry.params)
        self._is_under_way = True
        with suppress(OSError):  # the daemon closed the connection: its reason may still be there to be read
            yield from send(channel.sock, data)
        return (yield from _receive(channel, None))

    def _connect(self, failure: SandkeepError) -> Steps[Channel]:
        """Connect to the daemon, once it is there, and verify that it is the same as before, before any change.
        `failure` is what to raise if it stays away.
        """
        pool, retry = self._pool, self._retry
        look_s = _FIRST_LOOK_S
        while True:
            if pool.is_closed or (pool.is_lost and pool.daemon.patience_s <= 0):
                raise failure
            if (idle := pool.take()) is not None:
                return idle
            channel = pool.add()
            if channel is None:
                look_s = yield from _look(look_s)
                continue
            channel.is_free = False
            try:
                if pause_s := retry.pause(failure):
                    yield PAUSE, None, pause_s
                channel.sock = yield from dial(pool.daemon.path)
                yield from self._greet(channel)
            except SandkeepError as error:
                if error.code == "wrong_log" or error is failure:
                    raise
                failure = error
            finally:
                if not channel.is_free:
                    pool.put(channel)
            if channel.is_free:
                pool.is_refused = False
                retry.connected()
                return channel
            if channel.refusal is not None:
                failure = retry.failure(channel.refusal)
            if channel.sock is not None and pool.is_served:
                # The daemon has enough connections of this user: other calls will leave theirs.
                pool.is_refused = True
                retry.begin_anew()
                look_s = yield from _look(look_s)

    def _greet(self, channel: Channel) -> Steps[None]:
        """Greet the daemon; the connection is free when it has answered in time. Raises `wrong_log`."""
        timeout_s = self._retry.remaining_s
        if not self._pool.is_lost:
            timeout_s = max(timeout_s, _GREETING_S)
        with suppress(OSError):
            yield from send(channel.sock, channel.greeting())
        yield from _receive(channel, timeout_s)


def _look(pause_s: float) -> Steps[float]:
    """Pause before the next look for a free connection, and return the pause before the one after that."""
    yield PAUSE, None, pause_s
    return min(1.5 * pause_s, _LONGEST_LOOK_S)


def _receive(channel: Channel, timeout_s: float | None) -> Steps[Answer | None]:
    """Wait for the awaited answer; None when the connection is lost or the time is over before."""
    sock: Any = channel.sock
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        rest_s = None if deadline is None else max(0.001, deadline - time.monotonic())
        if (yield READABLE, sock, rest_s) is False:
            return None
        try:
            data = sock.recv(CHUNK_BYTES)
        except BlockingIOError:
            continue
        except OSError:
            data = b""
        try:
            answer = channel.feed(data)
        except EOFError:
            return None
        if answer is not None:
            return answer
