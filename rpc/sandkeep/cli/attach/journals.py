"""Journals as open files, which the daemon hands over: copied to our own output by the kernel where it can do that.

Reading by offset over the socket is for following a process; a gigabyte that is there already is copied as `cat` would.
"""

import errno
import os
from collections.abc import Callable, Collection
from functools import partial
from typing import Final, Self

from sandkeep.blocking import Client
from sandkeep.cli.display.output import note
from sandkeep.model import OpenOutput, Process

STREAMS: Final = ("stdout", "stderr")
PIECE_BYTES: Final = 8 * 1024 * 1024
"""Bytes of one stream copied before the other's turn."""

_BLOCK_BYTES: Final = 1024 * 1024
_CANNOT: Final = frozenset(
    (
        errno.EINVAL,
        errno.EXDEV,
        errno.EBADF,
        errno.ENOSYS,
        errno.EOPNOTSUPP,
        errno.EPERM,
        errno.ETXTBSY,
        errno.EOVERFLOW,
    )
)
"""Errors of the kernel if it cannot copy between such files; any other is a failure of the copy itself."""


class Journals:
    """Both journals of a process. Use it in a ``with`` statement, or close it."""

    def __init__(self, client: Client, sandbox_id: str, name: str) -> None:
        with client.with_descriptors("process.open_output", sandbox_id, name) as handed:
            self._descriptors = handed.receive()
            try:
                self._opened: OpenOutput = handed.answer()
            except BaseException:
                self.close()
                raise
        self._copiers = [Copier(descriptor, stream + 1) for stream, descriptor in enumerate(self._descriptors)]

    @property
    def process(self) -> Process:
        """The process as it was when they were opened."""
        return self._opened.process

    def sizes(self) -> tuple[int, int]:
        """Sizes of both journals: as recorded, if the process had ended when they were opened; else at present."""
        process = self.process
        now = [os.fstat(descriptor).st_size for descriptor in self._descriptors]
        if process.ended_at is not None and process.stdout_bytes is not None and process.stderr_bytes is not None:
            return min(now[0], process.stdout_bytes), min(now[1], process.stderr_bytes)
        return now[0], now[1]

    def last_lines(self, count: int) -> tuple[int, int]:
        """From where on each holds its last `count` lines."""
        out, err = (
            last_lines(partial(_pread, descriptor), first_retained(descriptor), size, count)
            for descriptor, size in zip(self._descriptors, self.sizes(), strict=True)
        )
        return out, err

    def copy(self, stdout_at: int, stderr_at: int, wanted: Collection[str] = STREAMS) -> tuple[int, int]:
        """Copy the journals from these offsets on to our own stdout and stderr; return the offsets after it.

        A stream not in `wanted` counts as copied. Dropped beginnings are skipped and reported; so are parts dropped
        during the copy, for which zeros may have been written.
        """
        ends = self.sizes()
        at = [stdout_at, stderr_at]
        moving = [number for number, stream in enumerate(STREAMS) if stream in wanted]
        while moving:
            for number in list(moving):
                at[number] = self._skip_hole(number, at[number])
                copied = self._copiers[number].copy(at[number], min(PIECE_BYTES, ends[number] - at[number]))
                self._skip_hole(number, at[number])
                at[number] += copied
                if not copied:
                    moving.remove(number)
        out, err = (
            position if stream in wanted else max(position, end)
            for stream, position, end in zip(STREAMS, at, ends, strict=True)
        )
        return out, err

    def _skip_hole(self, number: int, offset: int) -> int:
        """Return the offset, or the first one still kept after it, which is reported."""
        first = first_retained(self._descriptors[number])
        if offset >= first:
            return offset
        note(
            f"sandkeep: the first {first} bytes of {STREAMS[number]} were dropped, beyond the limit of retained output"
        )
        return first

    def close(self) -> None:
        """Let go of the files."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Copier:
    """Copies from a regular file to anything, in the quickest way that these two allow."""

    def __init__(self, source: int, target: int) -> None:
        self._source = source
        self._target = target
        self._ways: list[Callable[[int, int], int]] = [self._within_kernel, self._through_pipe, self._by_hand]

    def copy(self, offset: int, count: int) -> int:
        """Copy up to `count` bytes from `offset`; answer how many, none at the end of the file. Raises OSError."""
        while count > 0:
            try:
                return self._ways[0](offset, count)
            except BlockingIOError:
                wait_writable(self._target)
            except OSError as error:
                if len(self._ways) == 1 or error.errno not in _CANNOT:
                    raise
                del self._ways[0]
        return 0

    def _within_kernel(self, offset: int, count: int) -> int:
        return os.copy_file_range(self._source, self._target, count, offset_src=offset)

    def _through_pipe(self, offset: int, count: int) -> int:
        return os.sendfile(self._target, self._source, offset, count)

    def _by_hand(self, offset: int, count: int) -> int:
        data = os.pread(self._source, min(count, _BLOCK_BYTES), offset)
        write_all(self._target, data)
        return len(data)


def first_retained(descriptor: int) -> int:
    """Return the offset of the first byte that a journal still holds: behind the hole at its beginning, if any."""
    try:
        return os.lseek(descriptor, 0, os.SEEK_DATA)
    except OSError as error:
        return os.fstat(descriptor).st_size if error.errno == errno.ENXIO else 0


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte, past Python's own buffers."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:
            wait_writable(descriptor)


def wait_writable(descriptor: int) -> None:
    """Wait until a descriptor is writable: another process that shares it may have made it non-blocking."""
    import select

    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll()


def _pread(descriptor: int, size: int, offset: int) -> bytes:
    return os.pread(descriptor, size, offset)


def last_lines(read: Callable[[int, int], bytes], first: int, end: int, count: int) -> int:
    """From where on the last `count` lines between two offsets begin. A line without its newline, at the end, is one
    too. `read` answers so many bytes from an offset.
    """
    position = end
    while position > first and count > 0:
        start = max(first, position - _BLOCK_BYTES)
        data = read(position - start, start)
        at = len(data) - (position == end and data.endswith(b"\n"))
        while count > 0 and (at := data.rfind(b"\n", 0, at)) >= 0:
            count -= 1
        if at >= 0:
            return start + at + 1
        position = start
    return position
