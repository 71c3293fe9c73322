"""One connection of the client on trio: calls out, answers in, until it is lost.

There is no background task: one of the waiting callers reads, for all, until its own answer is there, and then wakes
another to read.
"""

import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import trio
from msgspec import DecodeError

from sandkeep.clients import dial as dialing
from sandkeep.clients.dial import GREETING_ID, Daemon
from sandkeep.errors import SandkeepError
from sandkeep.protocol import jsonrpc
from sandkeep.protocol.jsonrpc import Answer
from sandkeep.protocol.lines import LineBuffer

Progress = Callable[[str], None]

_CHUNK_BYTES: Final = 256 * 1024
_CONNECT_S: Final = 10.0


async def dial(path: str) -> socket.socket:
    """Connect, and while the daemon's queue of new clients is full try again: a Unix socket cannot be waited for
    there. Raises `not_ready`, `permission_denied`, `not_configured`.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        give_up = trio.current_time() + _CONNECT_S
        while number := sock.connect_ex(path):
            if number != errno.EAGAIN or trio.current_time() >= give_up:
                raise dialing.cannot_connect(path, OSError(number, os.strerror(number)))
            await trio.sleep(0.01)
        await trio.lowlevel.checkpoint()
    except BaseException:
        sock.close()
        raise
    return sock


class _Slot:
    """A call that waits for its answer, and its progress messages so far."""

    def __init__(self) -> None:
        self.answer: Answer | None = None
        self.progress: list[str] = []
        self.wake = trio.Event()
        self.sleeps = False


class Link:
    """A connection, which may be lost: `is_lost`. `close_reason` is the daemon's reason; `refusal` is raised if another
    daemon is found after reconnecting.
    """

    def __init__(self, sock: socket.socket, daemon: Daemon) -> None:
        self.is_lost = False
        self.close_reason: Answer | None = None
        self.refusal: SandkeepError | None = None
        self._sock = sock
        self._daemon = daemon
        self._unsent = daemon.greeting()
        self._sending = trio.Lock()
        self._buffer = LineBuffer()
        self._slots: dict[int, _Slot] = {}
        self._someone_reads = False
        self._last_id = GREETING_ID

    def close(self) -> None:
        """Let go of the connection; calls under way are lost."""
        self._lose()
        if self._sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()

    async def greet(self) -> bool:
        """Verify that it is the same daemon, before any change; False when it is lost. Raises `wrong_log`."""
        answer = await self._exchange(GREETING_ID, b"", None)
        if self.refusal is not None:
            raise self.refusal
        return answer is not None

    async def exchange(self, method: str, params: dict[str, Any], progress: Progress | None) -> Answer | None:
        """Make a call, and wait for its answer. None when the connection is lost before."""
        self._last_id = request_id = self._last_id + 1
        return await self._exchange(request_id, jsonrpc.request(request_id, method, params), progress)

    async def _exchange(self, request_id: int, line: bytes, progress: Progress | None) -> Answer | None:
        slot = self._slots[request_id] = _Slot()
        try:
            await self._send(line, slot)
            return await self._wait_for(slot, progress)
        finally:
            del self._slots[request_id]
            self._hand_over()

    # -- sending ------------------------------------------------------------------------------------------------------

    async def _send(self, line: bytes, slot: _Slot) -> None:
        """Send a request whole, after the greeting. A failure shows when its answer does not come."""
        async with self._sending:
            data = memoryview(self._unsent + line)
            rest = data
            try:
                while rest and not self.is_lost:
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
            return len(data)  # the daemon closed the connection; earlier data is still to be read

    async def _wait_for_room(self, slot: _Slot) -> None:
        """Wait until more can be sent, and read meanwhile: a daemon whose answers pile up reads no requests."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_meanwhile, slot)
            with suppress(trio.ClosedResourceError):
                await trio.lowlevel.wait_writable(self._sock)
            nursery.cancel_scope.cancel()

    async def _read_meanwhile(self, slot: _Slot) -> None:
        while not self.is_lost:
            await self._read_or_sleep(slot)

    # -- receiving ----------------------------------------------------------------------------------------------------

    async def _wait_for(self, slot: _Slot, progress: Progress | None) -> Answer | None:
        """Wait for the answer. None when the connection ended before."""
        while True:
            self._report_progress(slot, progress)
            if slot.answer is not None or self.is_lost:
                return slot.answer
            await self._read_or_sleep(slot)

    async def _read_or_sleep(self, slot: _Slot) -> None:
        """Read arriving messages, for all callers; or sleep while another caller reads, until woken."""
        if not self._someone_reads:
            return await self._read()
        slot.wake = trio.Event()
        slot.sleeps = True
        try:
            await slot.wake.wait()
        finally:
            slot.sleeps = False

    def _report_progress(self, slot: _Slot, progress: Progress | None) -> None:
        messages, slot.progress = slot.progress, []
        if progress is not None:
            for message in messages:
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
            self.close_reason = answer
        elif answer.id == GREETING_ID:
            self._recognise(answer)
        elif slot := self._slots.get(answer.id):  # type: ignore[arg-type]  # ours are numbers
            slot.answer = answer
            slot.wake.set()

    def _recognise(self, answer: Answer) -> None:
        try:
            self._daemon.recognise(answer)
        except SandkeepError as error:
            self.refusal = error
            self._lose()
        if slot := self._slots.get(GREETING_ID):
            slot.answer = answer
            slot.wake.set()

    def _deliver_progress(self, answer: Answer) -> None:
        if answer.method != "progress":
            return
        notification = jsonrpc.parse_progress(answer.params)
        if slot := self._slots.get(notification.request):  # type: ignore[arg-type]  # ours are numbers
            slot.progress.append(notification.message)
            slot.wake.set()

    def _hand_over(self) -> None:
        """Wake a sleeping caller to read from now on."""
        if not self._someone_reads:
            sleeper = next((slot for slot in self._slots.values() if slot.sleeps), None)
            if sleeper is not None:
                sleeper.wake.set()

    def _lose(self) -> None:
        self.is_lost = True
        for slot in self._slots.values():
            slot.wake.set()
