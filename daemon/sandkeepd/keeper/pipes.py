"""Pipes into a sandbox and out of it, for helper commands that move more than fits into a journal.

A pipe is a FIFO in `in/`, which both sides can open by name; the name goes as soon as they have. Neither side may take
the other's being late for an end of file, or wait for one that has died. So each holds the FIFO open in both
directions while it opens its own end: the daemon until the command has reported that it is ready, the keeper, which
gives it to the command, for the moment of opening.
"""

import fcntl
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from sandkeepd.contract.commands import CommandFailedError
from sandkeepd.contract.instance import Instance
from sandkeepd.host.hostile_files import HostileTree, NotAFileError
from sandkeepd.keeper.failure import no_room

HELPER: Final = "hlp"
"""Prefix of the ids of helper commands, by which a later daemon finds leftovers."""

DATA: Final = ".data"
CONTROL: Final = ".control"
SUFFIXES: Final = (DATA, CONTROL)

PIPE_BYTES: Final = 1024 * 1024
MAX_LINE_BYTES: Final = 16 * 1024
MAX_STDERR_BYTES: Final = 64 * 1024
_NO_OFFSET: Final = 2**62

_LEFT: Final = re.compile(rf"({HELPER}_[0-9a-z]+)(\.\w+)?")


class Fifos:
    """The FIFOs of one command, until `close`; descriptors handed on stay open. Raises `storage_unavailable`."""

    def __init__(self, files: HostileTree, process_id: str, owner: tuple[int, int] | None) -> None:
        self._files = files
        self._path = f"in/{process_id}"
        self._held: list[int] = []
        try:
            for end in SUFFIXES:
                files.make_fifo(self._path + end, owner)
                self._held.append(self._open(self._path + end, os.O_RDWR | os.O_NONBLOCK))
        except OSError as error:
            self.close()
            raise no_room(error) from None

    def data(self, *, incoming: bool) -> int:
        """Return the daemon's end of the data, with a large buffer. It is blocking, as its receivers expect."""
        fd = self._open(self._path + DATA, os.O_WRONLY if incoming else os.O_RDONLY)
        with suppress(OSError):  # a user's pages are limited; a smaller pipe works, too
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        return fd

    def control(self) -> int:
        """Return the daemon's end of the control FIFO."""
        return self._open(self._path + CONTROL, os.O_WRONLY | os.O_NONBLOCK)

    def close(self) -> None:
        """Remove the FIFOs: both sides have opened their ends, or never will. Safe to repeat."""
        while self._held:
            os.close(self._held.pop())
        for end in SUFFIXES:
            with suppress(FileNotFoundError):
                self._files.unlink(self._path + end)

    def _open(self, path: str, flags: int) -> int:
        """Open a FIFO of ours, which is there and held open, so that nothing is waited for."""
        try:
            return self._files.open_fifo(path, flags)
        except NotAFileError:
            raise OSError(f"{path} is not a FIFO") from None


class Piped:
    """A helper command that runs. See `providers.base.PipedCommand`."""

    def __init__(self, instance: Instance, process_id: str, data: int, control: int) -> None:
        self._instance = instance
        self._process_id = process_id
        self._data = data
        self._control = control
        self._offset = 0
        self.left_alone = False

    def take_data(self) -> int:
        """See `PipedCommand.take_data`."""
        data, self._data = self._data, -1
        return data

    async def expect(self, word: str) -> str:
        """See `PipedCommand.expect`."""
        line = await self._read_line()
        if line is None:
            await self.end()
        first, _, rest = (line or "").partition(" ")
        if first != word:
            raise self._failure(None, f"the helper command did not say {word!r}")
        return rest

    async def _read_line(self) -> str | None:
        """The command's next line; None when it has ended without."""
        instance, process_id = self._instance, self._process_id
        while True:
            ended = instance.exit_of(process_id)
            output = instance.read(process_id, "stdout", self._offset, MAX_LINE_BYTES).data
            line, newline, _ = output.partition(b"\n")
            if newline:
                self._offset += len(line) + 1
                return line.decode("utf-8", "backslashreplace")
            if ended:
                return None
            if len(output) == MAX_LINE_BYTES:
                return ""
            await instance.wait_output(process_id, self._offset + len(output), _NO_OFFSET)

    def tell(self, word: str) -> None:
        """See `PipedCommand.tell`. A command that is not there any more hears nothing."""
        with suppress(BrokenPipeError, BlockingIOError):  # the code inside can have filled it
            os.write(self._control, word.encode() + b"\n")

    def leave_alone(self) -> None:
        """See `PipedCommand.leave_alone`."""
        self.left_alone = True

    async def end(self) -> str:
        """See `PipedCommand.end`."""
        ended = await self._instance.wait(self._process_id)
        if ended.exit_code != 0:
            raise self._failure(ended.exit_code, ended.message)
        rest = self._instance.read(self._process_id, "stdout", self._offset, MAX_LINE_BYTES).data
        return rest.decode("utf-8", "backslashreplace")

    def _failure(self, exit_code: int | None, message: str | None) -> CommandFailedError:
        output = self._instance.read(self._process_id, "stderr", 0, MAX_STDERR_BYTES).data
        return CommandFailedError(exit_code, output or (message or "").encode() or unwritten_stderr(self._instance))

    def close(self) -> None:
        """Let go of the pipes."""
        for fd in (self._data, self._control):
            if fd >= 0:
                os.close(fd)
        self._data = self._control = -1


def unwritten_stderr(instance: Instance) -> bytes:
    """Return the message that a failed command could not write: its journal lay on a disk that was full then."""
    return b"No space left on device" if instance.has_own_disk else b""


def leftover_helpers(names: Iterable[str]) -> list[str]:
    """The helper commands of which there is something among these names of files in `in`."""
    found = (_LEFT.fullmatch(name) for name in names)
    return sorted({match[1] for match in found if match})
