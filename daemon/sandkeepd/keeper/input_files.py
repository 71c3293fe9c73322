"""Input of processes where the code inside cannot open our FIFOs: files in `in` that grow.

The keeper copies new data in them into pipes of its own when it is notified, and reports its offset. So input waits for
room as it does with a FIFO, the consumed part is known, and the data is still there when the sandbox is restored from a
checkpoint. Output of such a process goes into a file, too, and from there into a pipe.
"""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final

import trio

from sandkeep.errors import SandkeepError, StateError
from sandkeep.system.descriptors import closing_fd, write_all
from sandkeepd.contract.instance import Instance
from sandkeepd.contract.processes import InputNote, unnoted
from sandkeepd.host.hostile_files import NotAFileError
from sandkeepd.keeper import fifo, journal, requests
from sandkeepd.keeper.channel import Channel
from sandkeepd.keeper.pipes import Piped
from sandkeepd.keeper.processes import KnownProcess
from sandkeepd.keeper.shared_directory import SharedDirectory
from sandkeepd.keeper.watcher import Watcher

AHEAD_BYTES: Final = 65536
"""Bytes that a process's file may be ahead of its reading, as much as a FIFO."""

DATA_AHEAD_BYTES: Final = 4 * 1024 * 1024
_PIECE_BYTES: Final = 256 * 1024


def no_input(process_id: str) -> StateError:
    """The error for a process that reads no input, or no more."""
    message = f"the stdin of process {process_id} is closed: launch with stdin, and write before eof"
    return StateError("not_ready", message, process_id=process_id)


async def feed(
    channel: Channel, shared: SharedDirectory, process_id: str, data: bytes, taken: int = 0, note: InputNote = unnoted
) -> int:
    """Append to a growing input as it is read; return how much was taken. See `fifo.write_all`. Raises `not_ready`."""
    process = channel.get_process(process_id)
    fd = None if process.exit is not None else shared.open_fed(process_id)
    if fd is None:
        raise no_input(process_id)
    with closing_fd(fd):
        while taken < len(data):
            room = await _wait_for_room(channel, process_id, process, fd, "stdin", AHEAD_BYTES)
            if not room:
                break
            piece = data[taken : taken + room]
            note(taken, len(piece))
            taken += os.write(fd, piece)
            note(taken, 0)
            await channel.send(requests.read_more(process_id, "stdin"))
    return taken


async def _wait_for_room(
    channel: Channel, process_id: str, process: KnownProcess, fd: int, part: str, ahead: int
) -> int:
    """Wait until a file may hold more; answer how much. 0: the process has ended."""
    size = os.fstat(fd).st_size
    if process.exit is None and size - process.fed_bytes >= ahead:
        await channel.send(requests.read_more(process_id, part))  # it is not known of an earlier daemon's time
    while process.exit is None and size - process.fed_bytes >= ahead:
        await process.changed.wait()
    return 0 if process.exit is not None else ahead - (size - process.fed_bytes)


class FedPiped(Piped):
    """A helper command that is fed by files. See `providers.base.PipedCommand`. `passed_on` is set once all that it
    wrote is in the pipe.
    """

    def __init__(
        self,
        instance: Instance,
        channel: Channel,
        shared: SharedDirectory,
        process_id: str,
        data: int,
        nursery: trio.Nursery,
    ) -> None:
        super().__init__(instance, process_id, data, -1)
        self._channel = channel
        self._shared = shared
        self._nursery = nursery
        self.passed_on = trio.Event()

    async def end(self) -> str:
        """See `PipedCommand.end`. A command ends before its data is read, as it does not write into the pipe itself."""
        said = await super().end()
        await self.passed_on.wait()
        return said

    def tell(self, word: str) -> None:
        name = f"{self._process_id}.control"
        with suppress(OSError, NotAFileError), open(self._shared.open_growing(name), "ab", buffering=0) as file:
            file.write(word.encode() + b"\n")
        self._nursery.start_soon(_send_quietly, self._channel, requests.read_more(self._process_id, "control"))


async def _send_quietly(channel: Channel, line: bytes) -> None:
    with suppress(SandkeepError):  # it has ended
        await channel.send(line)


@asynccontextmanager
async def piped(
    instance: Instance, channel: Channel, shared: SharedDirectory, watcher: Watcher, process_id: str, *, incoming: bool
) -> AsyncIterator[FedPiped]:
    """The pipes of a helper command that was started, for the length of a block."""
    reading, writing = os.pipe()
    ours, theirs = (reading, writing) if incoming else (writing, reading)
    os.set_blocking(ours, False)
    async with trio.open_nursery() as nursery:
        made = FedPiped(instance, channel, shared, process_id, theirs, nursery)
        if incoming:
            made.passed_on.set()
            nursery.start_soon(_pump_in, channel, shared, process_id, ours)
        else:
            nursery.start_soon(_pump_out, channel, shared, watcher, process_id, ours, made.passed_on)
        try:
            yield made
        finally:
            made.close()
            if not made.left_alone:
                nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await _send_quietly(channel, requests.read_more(process_id, "control", over=True))


async def _pump_in(channel: Channel, shared: SharedDirectory, process_id: str, source: int) -> None:
    """Copy a pipe into the file from which a command is fed its data."""
    process = channel.get_process(process_id)
    with closing_fd(shared.open_growing(f"{process_id}.data")) as fd, _closing_pipe(source):
        while room := await _wait_for_room(channel, process_id, process, fd, "data", DATA_AHEAD_BYTES):
            await trio.lowlevel.wait_readable(source)
            data = os.read(source, min(room, _PIECE_BYTES))
            if not data:
                break
            write_all(fd, data)
            await _send_quietly(channel, requests.read_more(process_id, "data"))
        await _send_quietly(channel, requests.read_more(process_id, "data", over=True))


async def _pump_out(
    channel: Channel, shared: SharedDirectory, watcher: Watcher, process_id: str, target: int, over: trio.Event
) -> None:
    """Copy a command's data file into a pipe, until the command has ended and all is copied; then set `over`."""
    process = channel.get_process(process_id)
    try:
        fd = journal.open_journal(shared.out, process_id, "data")
    except (OSError, NotAFileError):
        fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    with closing_fd(fd), _closing_pipe(target), suppress(BrokenPipeError):  # the reader has closed it
        await _follow(process, watcher, fd, target)
    over.set()


@contextmanager
def _closing_pipe(fd: int) -> Iterator[None]:
    try:
        yield
    finally:
        trio.lowlevel.notify_closing(fd)
        os.close(fd)


async def _follow(process: KnownProcess, watcher: Watcher, fd: int, target: int) -> None:
    grown = trio.Event()

    def wake() -> None:
        grown.set()

    with process.followed_by(wake), watcher.watching(fd, wake):
        while True:
            grown = trio.Event()
            over = process.exit is not None
            while data := os.read(fd, _PIECE_BYTES):
                await fifo.write_all(lambda: target, data)
            if over:
                return
            await grown.wait()
