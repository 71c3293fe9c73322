"""One client's connection: lines in, calls carried out side by side, answers out."""

import contextlib
import logging
import select
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import trio
from msgspec import Raw, Struct

from sandkeep.errors import CallerError, SandkeepError, StateError, only_error
from sandkeep.protocol import jsonrpc
from sandkeep.protocol.jsonrpc import Batch, Fault, Request
from sandkeep.protocol.lines import MAX_LINE_BYTES, LineBuffer
from sandkeep.protocol.methods import Hello, Params
from sandkeepd.api.batch import BatchAnswers
from sandkeepd.api.routes import HELLO, Route
from sandkeepd.api.writer import Writer
from sandkeepd.contract.caller import no_progress
from sandkeepd.core.call import Call, Handler, cannot_give
from sandkeepd.core.peer import Peer
from sandkeepd.host.fairness import yield_to_loop
from sandkeepd.serving.deadline import within_deadline
from sandkeepd.serving.defects import report
from sandkeepd.serving.holdings import CALL_BYTES, Holdings
from sandkeepd.serving.limits import MAX_DESCRIPTORS, MAX_DESCRIPTORS_OF_USER, CallLimits

log: Final = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 64 * 1024
_FLUSH_BYTES: Final = 64 * 1024
_FLUSH_LINES: Final = 32
_BATCH_WORKERS: Final = 16
_TOO_LONG: Final = Fault(
    jsonrpc.INVALID_REQUEST, f"a message has at most {MAX_LINE_BYTES} bytes: send longer data in pieces"
)
_TOO_MUCH: Final = "you have too much under way: wait until some of it is done"
_REFUSED_BATCH: Final = Fault(jsonrpc.SERVER_ERROR, _TOO_MUCH)


class Pending(Struct, frozen=True, gc=False):
    """A call that could not be answered at once. It holds `size` bytes, and `weight` with its answer at most."""

    request: Request
    route: Route
    params: Params
    size: int
    weight: int


class Connection:
    """A client. `run` lives as long as it does, and as the calls that must run to their end.

    The connection's own task reads. It answers immediate calls itself; each other call gets a task of its own, of which
    there are at most `limits.MAX_CALLS`: beyond that nothing more is read. The memory that a client takes is thereby
    bounded: an incomplete line, the calls in flight, and their answers. `holdings` counts that of all clients of its
    user. `deadline_s` is the time that a client has to send the rest of a line that it began, or to read an answer.
    """

    def __init__(
        self,
        sock: socket.socket,
        peer: Peer,
        handler: Handler,
        routes: Mapping[str, Route],
        deadline_s: float,
        is_lonely: Callable[[], bool] = lambda: False,
        has_rivals: Callable[[], bool] = lambda: False,
        descriptors_of_user: Callable[[], int] = lambda: 0,
        holdings: Holdings | None = None,
    ) -> None:
        self._sock = sock
        self._fd = sock.fileno()
        self._peer = peer
        self._handler = handler
        self._routes = routes
        self._share = (holdings or Holdings()).share(peer.uid, self._part)
        self._lines = LineBuffer()
        self._line_deadline: float | None = None
        self._writer = Writer(sock, deadline_s, self._share)
        self._deadline_s = deadline_s
        self._is_lonely = is_lonely
        self._has_rivals = has_rivals
        self._descriptors_of_user = descriptors_of_user
        self._descriptors_asked_for = 0
        self._room = CallLimits()
        self._reading = trio.CancelScope()
        self._waiting: set[trio.CancelScope] = set()
        self._stopped = False
        self._gone = False
        self._client: str | None = None
        self.answered = 0

    @property
    def calls_in_flight(self) -> int:
        """Number of calls that have a task now."""
        return self._room.calls

    @property
    def uid(self) -> int:
        """The uid of the peer."""
        return self._peer.uid

    @property
    def descriptors(self) -> int:
        """Number of descriptors that calls in flight may send, or that were sent and not read yet."""
        return self._descriptors_asked_for + self._writer.descriptors_unread

    def stop(self) -> None:
        """Stop reading and cancel read-only calls; `run` returns when the other calls have ended and were answered."""
        self._stopped = True
        self._reading.cancel()
        self._cancel_waiting()

    def lose(self) -> None:
        """The client is gone, or taken for gone: nothing can be sent to it any more."""
        if not self._gone:
            self._gone = True
            self.stop()
            with contextlib.suppress(OSError):
                self._sock.shutdown(
                    socket.SHUT_RDWR
                )  # wakes the tasks that wait for it; its descriptor stays ours until `run` ends
            self._lines = LineBuffer()

    def _part(self) -> None:
        log.warning("dropped client %s of %s: its user's clients hold too much", self._client, self._peer.owner)
        self.lose()

    async def run(self) -> None:
        """Serve the client until it goes away, or `stop` is called.

        Resource handling: the socket is closed at the end.

        Error handling: a client can end at most its own connection. A defect of a handler is logged and answered as
        `internal`.
        """
        try:
            async with trio.open_nursery() as self._tasks:
                with self._reading:
                    await self._read()
                    await self._finish_half_closed()
        finally:
            self._share.close()
            self._sock.close()

    # -- reading ------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Read and begin calls until the client has sent its last, or is gone."""
        while True:
            if self._lines:
                await self._rest_readable()
            elif self._is_lonely():
                # One that waited for this answer alone has its next call here by then: sleeping first, and being woken,
                # would take longer than the call itself.
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.wait_readable(self._fd)
            if self._has_rivals():
                await yield_to_loop(self._peer.owner)  # many connections of one user count as one
            try:
                data = self._sock.recv(_CHUNK_BYTES)
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._fd)
                continue
            except OSError:
                return self.lose()
            if not data:
                return None
            await self._take(self._cut(data))
            if self._lines.overflowed:
                return await self._refuse_overflow()

    async def _rest_readable(self) -> None:
        """Wait until there is more of a line that was begun, but only so long."""
        if self._line_deadline is None:
            self._line_deadline = trio.current_time() + self._deadline_s
        with trio.CancelScope(deadline=self._line_deadline) as scope:
            await trio.lowlevel.wait_readable(self._fd)
        if scope.cancelled_caught:
            log.info("dropped client %s (pid %d): it did not end its line", self._client, self._peer.pid)
            self.lose()

    def _cut(self, data: bytes) -> list[bytes]:
        """Return the complete lines; the incomplete rest is charged to its user."""
        before = len(self._lines)
        lines = self._lines.feed(data)
        if before or self._lines:
            if lines or not before:
                self._line_deadline = None
            self._share.subtract(before)
            self._share.add(len(self._lines))
        return lines

    async def _take(self, lines: list[bytes]) -> None:
        """Begin the calls of these lines, in their order, and send the immediate answers."""
        ready: list[bytes] = []
        size = 0
        for line in lines:
            outcome = self._begin(line)
            if type(outcome) is bytes:
                ready.append(outcome)
                size += len(outcome)
            elif isinstance(outcome, Pending | Batch):
                await self._launch(outcome, len(line))
            if size > _FLUSH_BYTES or len(ready) >= _FLUSH_LINES:
                await self._send(ready)
                await trio.lowlevel.checkpoint()  # one busy client does not keep the others waiting
                ready, size = [], 0
        if ready:
            await self._send(ready)

    def _begin(self, line: bytes) -> "bytes | Pending | Batch | None":
        """Answer a line if that can be done at once; None when it wants no answer."""
        message = jsonrpc.parse(line)
        if type(message) is Request:
            return self._begin_request(message, len(line))
        if type(message) is Fault:
            return message.answer()
        return message  # type: ignore[return-value]  # a Batch, which is all that is left

    def _begin_request(self, request: Request, size: int, *, alone: bool = True) -> bytes | Pending | None:
        route = self._routes.get(request.method)
        if route is None:
            return jsonrpc.unknown_method(request).answer() if request.wants_answer else None
        call: Call | None = None
        try:
            params = route.decode(request.params)
            if route.method.descriptors and not (alone and request.wants_answer):
                message = f"{request.method} hands over descriptors: call it with an id, and not in a batch"
                raise CallerError("invalid", message)
            if route.method.name == HELLO:
                assert isinstance(params, Hello)
                self._client = params.client
            if route.immediate is not None:
                call = Call(route.method, params, self._peer, self._client)
                value = route.immediate(call)
                if value is not NotImplemented:
                    return self._result(request, value)
            elif route.method.name == HELLO:
                return self._result(request, {})
        except Exception as error:  # noqa: BLE001  # a defect, which is reported
            return self._failure(request, error, call)
        return Pending(request, route, params, size + CALL_BYTES, route.weight(size, params))

    async def _launch(self, outcome: "Pending | Batch", size: int) -> None:
        """Give a call, or the calls of a batch, tasks of their own as soon as there is room."""
        if isinstance(outcome, Pending):
            await self._take_room(1, outcome.weight, size)
            await self._launch_call(outcome)
        else:
            workers = min(len(outcome.messages), _BATCH_WORKERS)
            await self._take_room(workers, MAX_LINE_BYTES, size)
            await self._launch_batch(outcome, workers, size + workers * CALL_BYTES)

    async def _take_room(self, calls: int, weight: int, size: int) -> None:
        if self._room.try_acquire(calls, weight):
            return
        self._share.add(size)
        try:
            await self._unless_hung_up(partial(self._room.acquire, calls, weight))
        finally:
            self._share.subtract(size)

    async def _launch_call(self, pending: Pending) -> None:
        """Begin a call that has room. One that ends with its client is that client's; another has to be kept."""
        if not pending.route.lasting:
            self._share.add(pending.size)
            self._tasks.start_soon(self._carry_out, pending, self._share.subtract)
        elif self._share.reserve(pending.size):
            self._tasks.start_soon(self._carry_out, pending, self._share.release)
        else:
            self._room.release(1, pending.weight)
            if pending.request.wants_answer:
                await self._send([jsonrpc.error(pending.request.id, _too_much())])

    async def _launch_batch(self, batch: Batch, workers: int, size: int) -> None:
        if self._share.reserve(size):
            self._tasks.start_soon(self._carry_out_batch, batch, workers, size)
        else:
            self._room.release(workers, MAX_LINE_BYTES)
            await self._send([_REFUSED_BATCH.answer()])

    # -- carrying out -------------------------------------------------------------------------------------------------

    async def _carry_out(self, pending: Pending, let_go: Callable[[int], None]) -> None:
        try:
            answer = await self._answer(pending)
            if answer is not None:
                answers = [answer]
                del answer  # `_send` lets go of it when it has made lines
                await self._send(answers)
        finally:
            let_go(pending.size)
            self._room.release(1, pending.weight)

    async def _answer(self, pending: Pending) -> bytes | None:
        """Carry out one call; None when nobody waits for the answer."""
        request, route = pending.request, pending.route
        progress = partial(self._tell_progress, request.id) if request.wants_answer else no_progress
        give = partial(self._give, request.id, route.method.descriptors) if route.method.descriptors else cannot_give
        call = Call(route.method, pending.params, self._peer, self._client, progress, give)
        answer = None  # if it is cancelled: the client is gone, or the server stops
        with trio.CancelScope() as scope:
            if not route.lasting:
                self._waiting.add(scope)
                if self._stopped:  # one of a batch that goes on
                    scope.cancel()
            try:
                await yield_to_loop(self._peer.owner)
                if route.method.descriptors:
                    value = await self._hand_over(call)
                else:
                    value = await within_deadline(self._handler, call)
                answer = self._result(request, value)
            except Exception as error:  # noqa: BLE001  # a defect, which is reported
                answer = self._failure(request, error, call)
            finally:
                self._waiting.discard(scope)
        return answer

    async def _hand_over(self, call: Call) -> Any:
        """Carry out a call that gives descriptors, unless too many are on the way to the client, or to its user."""
        count = call.method.descriptors
        if self.descriptors + count > MAX_DESCRIPTORS or self._descriptors_of_user() + count > MAX_DESCRIPTORS_OF_USER:
            message = "too many descriptors are on their way to you: read what was given, or close those connections"
            raise StateError("not_ready", message)
        self._descriptors_asked_for += count
        try:
            return await within_deadline(self._handler, call)
        finally:
            self._descriptors_asked_for -= count

    async def _carry_out_batch(self, batch: Batch, workers: int, size: int) -> None:
        """Carry out a batch, a few of its calls at a time, and answer it as one array."""
        answers = BatchAnswers(self._share)
        messages = iter(batch.messages)

        async def work() -> None:
            for message in messages:
                if self._gone:
                    answers.forget()
                answer = await self._settle(message)
                if not self._gone:
                    answers.add(message, answer)
                await trio.lowlevel.checkpoint()

        try:
            async with trio.open_nursery() as nursery:
                for _ in range(workers):
                    nursery.start_soon(work)
            if answers.lines:
                await self._send([answers.joined()])
        finally:
            answers.forget()
            self._share.release(size)
            self._room.release(workers, MAX_LINE_BYTES)

    async def _settle(self, message: Request | Fault) -> bytes | None:
        if isinstance(message, Fault):
            return message.answer()
        route = self._routes.get(message.method)
        if self._gone and not (route is not None and route.lasting):
            return None
        outcome = self._begin_request(message, 0, alone=False)
        return await self._answer(outcome) if isinstance(outcome, Pending) else outcome

    # -- answering ----------------------------------------------------------------------------------------------------

    def _result(self, request: Request, value: Any) -> bytes | None:
        if request.id is jsonrpc.NO_ID:
            return None
        answer = jsonrpc.result(request.id, jsonrpc.encode(value))
        if len(answer) > MAX_LINE_BYTES:
            message = f"the answer of {request.method} is longer than 16 MiB: ask for less, by `limit` or `max_bytes`"
            raise CallerError("invalid", message)
        return answer

    def _failure(self, request: Request, error: Exception, call: Call | None) -> bytes | None:
        """The answer to a call that failed. A defect is put on record also when nobody waits for the answer."""
        failure = only_error(error)
        if not isinstance(failure, SandkeepError):
            failure = report(failure, request.method, call.params if call else None)
        if not request.wants_answer:
            return None
        try:
            return jsonrpc.error(request.id, failure)
        except Exception as unfit:  # noqa: BLE001  # its data cannot be written as JSON
            return jsonrpc.error(request.id, report(unfit, request.method, call.params if call else None))

    async def _tell_progress(self, request_id: Raw, message: str) -> None:
        """Send a call's progress, unless the client has yet to read earlier data."""
        if self._writer.idle:
            await self._send([jsonrpc.progress(request_id, message)])
        await trio.lowlevel.checkpoint()

    async def _give(self, request_id: Raw, count: int, descriptors: Sequence[int]) -> None:
        """Send the client copies of these descriptors. Nobody has them when it is gone."""
        if len(descriptors) != count:
            raise ValueError(f"its row says that it gives {count} descriptors, not {len(descriptors)}")
        await self._deliver(jsonrpc.descriptors(request_id, count) + b"\n", descriptors)

    async def _send(self, answers: list[bytes]) -> None:
        if not self._gone:
            self.answered += len(answers)
            lines = b"\n".join(answers) + b"\n"
            answers.clear()  # or they would be in memory twice while they wait
            await self._deliver(lines)

    async def _deliver(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send lines; a client that is gone, or does not read for too long, is dropped."""
        if self._gone:
            return
        try:
            await self._writer.send(data, descriptors)
        except trio.TooSlowError:
            log.info("dropped client %s (pid %d): it did not read its answers", self._client, self._peer.pid)
            self.lose()
        except (OSError, trio.ClosedResourceError):
            self.lose()

    # -- endings ------------------------------------------------------------------------------------------------------

    async def _refuse_overflow(self) -> None:
        """Send the error, and let the client finish sending: cut off while it sends, it would not see the error."""
        self._cancel_waiting()
        await self._send([_TOO_LONG.answer()])
        with trio.move_on_after(self._deadline_s), contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
            while self._discard():
                await trio.lowlevel.wait_readable(self._fd)
        self.lose()

    def _discard(self) -> bool:
        """Discard received data; return False at its end."""
        try:
            return bool(self._sock.recv(_CHUNK_BYTES))
        except BlockingIOError:
            return True

    async def _finish_half_closed(self) -> None:
        """The client will not ask for more, but may wait for its answers: ``nc -U`` and such do."""
        if self._room.calls:
            await self._unless_hung_up(self._room.wait_empty)

    async def _unless_hung_up(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Wait for something while nothing is read, and so the end of the client not seen, but for its hanging up."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_for_hangup)
            await wait()
            nursery.cancel_scope.cancel()

    async def _watch_for_hangup(self) -> None:
        with select.epoll() as watcher:
            watcher.register(self._sock, 0)  # no events: EPOLLHUP, both directions closed, is always reported
            await trio.lowlevel.wait_readable(watcher.fileno())
        self.lose()

    def _cancel_waiting(self) -> None:
        for scope in self._waiting:
            scope.cancel()


def _too_much() -> StateError:
    return StateError("not_ready", _TOO_MUCH)
