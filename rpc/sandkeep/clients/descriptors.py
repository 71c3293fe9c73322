"""Calls that are answered with open descriptors, each on a connection of its own.

The daemon sends copies of its descriptors (SCM_RIGHTS) attached to a ``descriptors`` notification, ahead of the answer.
`Handover` is such a call for all clients, as `exchange` is of others; `Handed` is the blocking client's. Received
descriptors belong to the receiver and are close-on-exec; others are closed here.
"""

import os
from _socket import CMSG_SPACE, MSG_CMSG_CLOEXEC, MSG_CTRUNC, SCM_RIGHTS, SOL_SOCKET
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, Self

from msgspec import DecodeError

from sandkeep.clients.binding import bind, outcome
from sandkeep.clients.dial import GREETING_ID, Daemon, Retry, is_refusal
from sandkeep.clients.steps import PAUSE, READABLE, Socket, Steps, dial, run, send
from sandkeep.clients.threads import wait
from sandkeep.errors import DaemonError, SandkeepError, SetupError, StateError
from sandkeep.protocol import jsonrpc
from sandkeep.protocol.jsonrpc import Answer
from sandkeep.protocol.lines import LineBuffer
from sandkeep.protocol.methods import METHODS, Method

CHUNK_BYTES: Final = 64 * 1024
ANCILLARY_BYTES: Final = CMSG_SPACE(253 * 4)
"""Room for as many as one message can carry: those that nobody asked for are seen, and closed."""

FLAGS: Final = MSG_CMSG_CLOEXEC
_REQUEST_ID: Final = 1
_STREAMS: Final = frozenset({"sandbox.copy_in", "sandbox.copy_out", "snapshot.import"})
"""Methods whose descriptors end with the call; those of others stay valid without it."""


class Handover:
    """One call that is answered with descriptors: its request, and the answer so far.

    Raises TypeError for a method that gives none, or for arguments that do not fit, as `binding.bind` does.
    """

    def __init__(self, daemon: Daemon, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.row = _row_of(method)
        self.answer: Answer | None = None
        self._daemon = daemon
        self._progress: Callable[[str], None] | None = kwargs.pop("progress", None) or daemon.on_progress
        self.retry = Retry(daemon, self.row.name, bind(self.row, args, kwargs))
        self._lines = LineBuffer()
        self._arrived: list[int] = []
        self._received: list[int] | None = None
        self._handed_over = False
        self._refusal: Answer | None = None
        self.sock: Socket | None = None
        """The present connection, from `begin` on. It changes when the call is made again."""

    def begin(self, failure: SandkeepError | None = None) -> Steps[None]:
        """Connect, and send the request, as soon as the daemon is there; `failure` is the last attempt's."""
        failure = failure or self.retry.failure()
        while True:
            yield PAUSE, None, self.retry.pause(failure)
            try:
                self.sock = yield from dial(self._daemon.path)
                with suppress(OSError):  # the daemon closed the connection: its reason may still be there to be read
                    yield from send(self.sock, self._request())
            except SandkeepError as error:
                failure = error
            else:
                return self.retry.connected()

    def _request(self) -> bytes:
        return self._daemon.greeting() + jsonrpc.request(_REQUEST_ID, self.row.name, self.retry.params)

    def receive(self) -> Steps[list[int]]:
        """Wait for the descriptors, which then belong to the caller. Raises the daemon's errors."""
        while (given := self.received()) is None:
            yield from self.read_message()
        return given

    def finish(self) -> Steps[Any]:
        """Wait until the call is through, and return its typed result."""
        while (answer := self.answer) is None:
            yield from self.read_message()
        return outcome(answer, self.row.result)

    def read_message(self) -> Steps[None]:
        """Wait for a message, and handle it. Raises when the connection is lost and the call is not repeatable."""
        sock: Any = self.sock
        yield READABLE, sock, None
        try:
            data, ancillary, flags, _ = sock.recvmsg(CHUNK_BYTES, ANCILLARY_BYTES, FLAGS)
        except BlockingIOError:
            return
        except OSError:
            data, ancillary, flags = b"", [], 0
        try:
            self.feed(data, ancillary, flags)
        except EOFError:
            yield from self.begin(self._restart())

    def feed(self, data: bytes, ancillary: Iterable[tuple[int, int, bytes]], flags: int) -> None:
        """Take the result of one ``recvmsg``. Raises `SandkeepError` when it contradicts the method's row, and EOFError
        when the connection ended; then all received descriptors are closed.
        """
        try:
            self._arrived += _descriptors_in(ancillary)
            if flags & MSG_CTRUNC:
                message = "not all descriptors of the daemon could be received: raise the limit of open files"
                raise SetupError("not_configured", message)
            for line in self._lines.feed(data):
                self._handle(jsonrpc.parse_answer(line))
            if not data or self._lines.overflowed:
                raise EOFError
        except DecodeError:
            self._close_descriptors()
            raise self._not_understood() from None
        except BaseException:
            self._close_descriptors()
            raise

    def _handle(self, answer: Answer) -> None:
        if answer.method == "descriptors":
            self._accept(jsonrpc.parse_descriptors(answer.params))
        elif answer.method == "progress":
            if self._progress is not None:
                self._progress(jsonrpc.parse_progress(answer.params).message)
        elif answer.method is None and answer.id == GREETING_ID:
            self._daemon.recognise(answer)
        elif answer.method is None and is_refusal(answer):
            self._refusal = answer
        elif answer.method is None:
            self.answer = answer
            if self._arrived or (answer.error is None and self._received is None):
                raise self._not_understood()

    def _accept(self, announced: jsonrpc.Descriptors) -> None:
        if self._received is not None or not announced.count == self.row.descriptors == len(self._arrived):
            raise self._not_understood()
        self._received, self._arrived = self._arrived, []
        if self._handed_over:  # the caller has those of the connection before
            self._close_descriptors()

    def received(self) -> list[int] | None:
        """Hand over the descriptors; None before they or an answer have come. Raises the call's error."""
        if self._received is None:
            if self.answer is not None:
                outcome(self.answer, self.row.result)  # raises: only an error comes without descriptors
            return None
        given, self._received = self._received, []
        self._handed_over = True
        return given

    def _restart(self) -> SandkeepError:
        """Prepare to repeat the call after its connection was lost. Returns that error, or raises it when a stream was
        begun, which cannot be resumed, or when the call must not be repeated.
        """
        if self._handed_over and self.row.name in _STREAMS:
            message = "the daemon went away during the copy, which may be incomplete: start it again"
            raise StateError("not_ready", message, socket=self._daemon.path)
        failure = self.retry.failure(self.answer or self._refusal)
        self.retry.lost(failure)
        self.close()
        self._received = self._refusal = None
        self._lines = LineBuffer()
        return failure

    def _let_go(self) -> None:
        if self.sock is not None:
            self.sock.close()

    def _not_understood(self) -> DaemonError:
        message = (
            f"the daemon did not answer {self.row.name} with {self.row.descriptors} descriptors: is it of this version?"
        )
        return DaemonError("internal", message)

    def close(self) -> None:
        """Close the connection, and the descriptors that were not handed to the caller."""
        self._let_go()
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        for descriptor in (*self._arrived, *(self._received or ())):
            os.close(descriptor)
        self._arrived = []
        self._received = self._received and []


class Handed:
    """A call in flight at the daemon, which hands over descriptors. Close it, or use it in a ``with`` statement; that
    cancels a running call, if it changes nothing.

    It is repeated when the daemon goes away and comes back, unless the received descriptor is a stream's end: then the
    stream is over. Descriptors of files and terminals stay valid.
    """

    def __init__(self, handover: Handover) -> None:
        self._handover = handover
        run(wait, handover.begin())

    def receive(self) -> list[int]:
        """Wait for the descriptors. The caller owns and closes them. Raises the daemon's errors."""
        return run(wait, self._handover.receive())

    def answer(self) -> Any:
        """Wait until the call is through, and answer its typed result. Descriptors not received before may be later."""
        return run(wait, self._handover.finish())

    @property
    def answered(self) -> bool:
        """True if `answer` would not block."""
        return self._handover.answer is not None

    def fileno(self) -> int:
        """Descriptor for a selector while there is no answer. It changes when the call is made again."""
        return self._handover.sock.fileno() if self._handover.sock is not None else -1

    def read_message(self) -> None:
        """Wait for a message, and handle it. Raises when the connection is lost and the call is not repeatable."""
        run(wait, self._handover.read_message())

    def close(self) -> None:
        """Let go of the connection, and of descriptors that were not received."""
        self._handover.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _row_of(method: str) -> Method:
    row = METHODS.get(method)
    if row is None or not row.descriptors:
        raise TypeError(
            f"{method} hands over no descriptors: {'call it without' if row else 'there is no such method'}"
        )
    return row


def _descriptors_in(ancillary: Iterable[tuple[int, int, bytes]]) -> Iterator[int]:
    for level, kind, data in ancillary:
        if level == SOL_SOCKET and kind == SCM_RIGHTS:
            yield from memoryview(data[: len(data) // 4 * 4]).cast("i")
