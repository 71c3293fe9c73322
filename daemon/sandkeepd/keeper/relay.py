"""The daemon's side of the relay: keeps a mirror of the directory of a pod's keeper over a connection that may break.

The mirror is the shared directory of a `KeeperInstance` with `fed`, which need not know of any of this. Each connection
begins with the ends of all files on both sides, and goes on at the byte. Requests are numbered: the relay in the pod
remembers the number of the last one that it gave to the keeper, so one that was sent as the connection broke is
neither lost nor carried out twice.

Requests that a daemon had read when it died are lost, and are in no file, as some hold secrets. They were not confirmed
to anybody: the next daemon asks the keeper what was started and signalled. Only of input nobody asks, so a new `Relay`
has the keeper read on in all files of input.
"""

import os
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import trio

from sandkeep.errors import SandkeepError
from sandkeep_store.threads import in_thread
from sandkeepd.host.hostile_files import HostileTree
from sandkeepd.keeper import relay_frames as frames
from sandkeepd.keeper import requests
from sandkeepd.keeper.allowance import Allowance
from sandkeepd.keeper.failure import no_room
from sandkeepd.keeper.relay_frames import Frame, FrameReader
from sandkeepd.keeper.relay_mirror import Mirror

SWEEP_S: Final = 1.0
"""Seconds after an answer until files that were removed here are removed in the pod."""

STALL_S: Final = 60.0
"""Seconds after which a pod that reads nothing of what is sent is taken for gone."""

REST_S: Final = 0.05
"""Seconds for which a sandbox with excessive output is ignored."""

MAX_UNCONFIRMED_BYTES: Final = 1024 * 1024
"""Bytes of requests that may wait for confirmation; further ones wait in the FIFO."""

_MAX_INPUTS: Final = 65_536
_READ_BYTES: Final = 65_536
_PIECE_BYTES: Final = 256 * 1024
_START_SUFFIXES: Final = ("", ".stdin", ".data", ".control", ".program", ".pane")
_COMPLETE: Final = 0o444
"""The mode of a growing input that is complete: see `SharedDirectory.remove_input`."""

_BREAKS: Final = (trio.BrokenResourceError, trio.ClosedResourceError)


class Relay:
    """The mirror in `directory`, which holds at most about `most_bytes`. Raises OSError; `close` releases it."""

    def __init__(self, directory: HostileTree, *, most_bytes: int) -> None:
        self.connected = trio.Event()
        """Set when all is here that was in the pod as the connection began; a new one after each connection."""
        self._most_bytes = most_bytes
        self._mirror = Mirror(directory, most_bytes)
        self._allowance = Allowance()
        self._next = 1
        self._unconfirmed: deque[tuple[int, bytes]] = deque()
        self._unconfirmed_bytes = 0
        self._confirmed = trio.Event()
        self._rest = b""
        self._is_new = True
        self._dropping: set[str] = set()
        self._punched: dict[str, int] = {}
        self._connection: _Connection | None = None

    def close(self) -> None:
        """Release the files. No connection may be open."""
        trio.lowlevel.notify_closing(self._mirror.control)
        self._mirror.close()

    @property
    def first_unconfirmed(self) -> int | None:
        """The number of the first request that the pod has not confirmed; None if there is none."""
        return self._unconfirmed[0][0] if self._unconfirmed else None

    async def run(self, stream: trio.abc.Stream) -> None:
        """Serve one connection, to `keeper -r`, until it ends or breaks. The caller closes it.

        Raises `provider_unavailable` when the pod breaks the protocol, `storage_unavailable` when the mirror cannot be
        written. A second call while one runs is a defect.
        """
        assert self._connection is None
        connection = self._connection = _Connection(stream)
        failure: SandkeepError | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_all, connection, nursery.cancel_scope)
                nursery.start_soon(self._sweep, connection, nursery.cancel_scope)
                try:
                    await self._receive(connection)
                except SandkeepError as error:
                    failure = error
                nursery.cancel_scope.cancel()
        finally:
            self._connection = None
            if self.connected.is_set():
                self.connected = trio.Event()
        if failure is not None:
            raise failure

    async def trimmed(self) -> None:
        """Free in the pod what `journal_trimming` has dropped here; later, if there is no connection."""
        for name, size in self._mirror.punched():
            self._punched[name] = size
            await trio.lowlevel.checkpoint()
        self._dropping.update(self._mirror.removed())
        self._mirror.measure()
        connection = self._connection
        # What is being sent may wait for a pod that reads nothing: then the sweep frees it, or the next connection.
        if connection is not None and connection.ready.is_set() and not connection.sending.locked():
            with suppress(*_BREAKS):
                async with connection.sending:
                    await self._free(connection)

    # To the pod

    async def _send_all(self, connection: "_Connection", scope: trio.CancelScope) -> None:
        try:
            async with connection.sending:
                await self._begin(connection)
            while True:
                while self._unconfirmed_bytes > MAX_UNCONFIRMED_BYTES:
                    await self._confirmed.wait()
                await trio.lowlevel.wait_readable(self._mirror.control)
                async with connection.sending:
                    # All are numbered before any is sent, so that those are sent again that a break leaves behind.
                    for number, line in [self._number(line) for line in self._read_lines()]:
                        for name in _inputs_of(line):
                            await self._send_input(connection, name)
                        await connection.add(frames.ask(number, line))
                    await connection.flush()
        except _BREAKS:
            scope.cancel()

    async def _begin(self, connection: "_Connection") -> None:
        for name, size in list(self._mirror.sizes.items()):
            await connection.add(frames.have(name, size))
        await connection.add(frames.begin(self._most_bytes))
        await connection.flush()
        await connection.ready.wait()
        await self._free(connection)
        for name in sorted(connection.inputs.keys() - set(self._mirror.inputs())):
            await connection.add(frames.remove(name))
            del connection.inputs[name]
        for name in self._mirror.inputs():
            await self._send_input(connection, name)
        for number, line in list(self._unconfirmed):
            await connection.add(frames.ask(number, line))
        if self._is_new:
            for name in self._mirror.inputs():
                await self._ask_to_read(connection, name)
        self._is_new = False
        await connection.flush()

    def _read_lines(self) -> Iterator[bytes]:
        try:
            data = self._rest + os.read(self._mirror.control, _READ_BYTES)
        except BlockingIOError:
            return
        *lines, self._rest = data.split(b"\n")
        for line in lines:
            yield line + b"\n"

    def _number(self, line: bytes) -> tuple[int, bytes]:
        numbered = self._next, line
        self._next += 1
        self._unconfirmed.append(numbered)
        self._unconfirmed_bytes += len(line)
        return numbered

    async def _send_input(self, connection: "_Connection", name: str) -> None:
        """Send what is new of a file in `in`."""
        found = self._mirror.stat_input(name)
        if found is None:
            return
        sent = connection.inputs.get(name)
        if sent is None:
            await connection.add(frames.put(name, 0, b""))
        while data := self._mirror.read_input(name, connection.inputs.setdefault(name, 0), _PIECE_BYTES):
            offset = connection.inputs[name]
            connection.inputs[name] += len(data)
            await connection.add(frames.put(name, offset, data))

    async def _ask_to_read(self, connection: "_Connection", name: str) -> None:
        process_id, _, what = name.partition(".")
        found = self._mirror.stat_input(name) if what in ("stdin", "data", "control") else None
        if found is not None:
            over = what == "stdin" and stat.S_IMODE(found.st_mode) == _COMPLETE
            await connection.add(frames.ask(*self._number(requests.read_more(process_id, what, over=over))))

    async def _free(self, connection: "_Connection") -> None:
        for name in sorted(self._dropping):
            await connection.add(frames.drop(name))
        punched = list(self._punched.items())
        for name, size in punched:
            await connection.add(frames.punch(name, size))
        await connection.flush()
        for name, size in punched:
            if self._punched[name] == size:
                del self._punched[name]

    async def _sweep(self, connection: "_Connection", scope: trio.CancelScope) -> None:
        """After a while in which something happened, remove in the pod what was removed here, and send again what it
        had no room for.
        """
        await connection.ready.wait()
        while True:
            await connection.stirred.wait()
            await trio.sleep(SWEEP_S)
            connection.stirred = trio.Event()
            self._dropping.update(self._mirror.removed())
            try:
                async with connection.sending:
                    await self._free(connection)
                    await self._sweep_inputs(connection)
                    await connection.flush()
            except _BREAKS:
                scope.cancel()

    async def _sweep_inputs(self, connection: "_Connection") -> None:
        if self._mirror.have_inputs_changed():
            for name in connection.inputs.keys() - set(self._mirror.inputs()):
                await connection.add(frames.remove(name))
                del connection.inputs[name]
        lacking, connection.lacking = connection.lacking, set()
        for name in lacking:
            await self._send_input(connection, name)
            await self._ask_to_read(connection, name)

    # From the pod

    async def _receive(self, connection: "_Connection") -> None:
        reader = FrameReader()
        with suppress(*_BREAKS):
            while data := await connection.stream.receive_some(_READ_BYTES):
                try:
                    received = reader.feed(data)
                    while not self._take_while_there_is_room(connection, received):
                        await in_thread(self._mirror.shrink)
                        await self.trimmed()
                except OSError as error:
                    raise no_room(error) from error
                if self._allowance.is_spent:
                    await trio.sleep(REST_S)

    def _take_while_there_is_room(self, connection: "_Connection", received: Iterator[Frame]) -> bool:
        """Take frames until the mirror is too large; return True if all were taken."""
        with self._allowance.spending():  # of all of them: to look at the clock takes as long as a frame
            for frame in received:
                self._take(connection, frame)
                if self._mirror.is_too_large:
                    return False
        return True

    def _take(self, connection: "_Connection", frame: Frame) -> None:
        verb = frame.verb
        if (verb == "hello") == connection.greeted or (verb in ("in", "ready") and connection.ready.is_set()):
            raise frames.broken(f"sent {verb!r} out of turn")
        if verb == "data":
            self._take_data(connection, frame)
        elif verb == "cut":
            self._mirror.cut_exits()
        elif verb == "name":
            self._mirror.rename(frame.name, frame.new)
        elif verb == "gone":
            self._dropping.discard(frame.name)
        elif verb in ("hello", "took"):
            self._take_number(connection, frame)
        elif verb == "synced":
            self.connected.set()
        else:
            connection.take_input(frame)

    def _take_data(self, connection: "_Connection", frame: Frame) -> None:
        if frame.name not in self._dropping:
            self._mirror.write(frame.name, frame.number, frame.data)
        if frame.name == frames.EXITS:
            connection.stirred.set()

    def _take_number(self, connection: "_Connection", frame: Frame) -> None:
        if frame.verb == "took" and frame.number >= self._next:
            raise frames.broken("confirmed a request that was not sent")
        connection.greeted = True
        self._next = max(self._next, frame.number + 1)  # an earlier daemon has sent those before
        self._confirm(frame.number)

    def _confirm(self, number: int) -> None:
        while self._unconfirmed and self._unconfirmed[0][0] <= number:
            self._unconfirmed_bytes -= len(self._unconfirmed.popleft()[1])
        self._confirmed.set()
        self._confirmed = trio.Event()


class _Connection:
    """One connection, and what is known of the pod's files by it."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.sending = trio.Lock()
        self.greeted = False
        self.ready = trio.Event()
        self.stirred = trio.Event()
        self.inputs: dict[str, int] = {}
        """The bytes of each file in `in` that the pod has, or that are on the way."""
        self.lacking: set[str] = set()
        self._parts: list[bytes] = []
        self._bytes = 0

    def take_input(self, frame: Frame) -> None:
        """Take note of what the pod has of its input: at first of all, then of what it had no room for."""
        if frame.verb == "ready":
            self.ready.set()
        elif frame.verb == "in":
            self.inputs[frame.name] = frame.number
            if len(self.inputs) > _MAX_INPUTS:
                raise frames.broken("has too many files of input")
        elif frame.name in self.inputs:
            self.inputs[frame.name] = min(self.inputs[frame.name], frame.number)
            self.lacking.add(frame.name)
            self.stirred.set()

    async def add(self, frame: bytes) -> None:
        """Send a frame with the next ones, or now if they are large."""
        self._parts.append(frame)
        self._bytes += len(frame)
        if self._bytes >= _PIECE_BYTES:
            await self.flush()

    async def flush(self) -> None:
        """Send what was added."""
        if self._parts:
            data = b"".join(self._parts)
            self._parts.clear()
            self._bytes = 0
            with trio.move_on_after(STALL_S) as scope:
                await self.stream.send_all(data)
            if scope.cancelled_caught:
                raise trio.BrokenResourceError("the pod reads nothing")


def _inputs_of(line: bytes) -> list[str]:
    """Return the files that a request is about."""
    verb, process_id, word, *more = (*line.decode("latin-1").rstrip("\n").split(" ", 4), "", "", "")
    if verb == "run":
        has_record = len(more) > 1 and bool(more[1])
        if word == "none" and has_record:
            return []
        return [process_id + suffix for suffix in _START_SUFFIXES]
    return [f"{process_id}.{word}"] if verb in ("more", "end") else []
