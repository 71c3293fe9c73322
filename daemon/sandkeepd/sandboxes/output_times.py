"""Times of stored output: notes of how long a process's streams were at a moment.

Processes write their journals themselves, so when output came is known only as closely as the daemon looks at it; see
`output_marker`. These files are never in a directory that a sandbox can write:

output-times/.since             the time from which on the daemon noted times, in microseconds since 1970
            /SANDBOX/PROCESS    records of 24 bytes, oldest first: a `Mark`

Nothing is fsynced: marks outlive the daemon's SIGKILL, and after a power cut some are missing. Bytes without a mark of
their own have the time of the next mark, or of the end. A torn record is ignored; garbage misleads only about times.
"""

import os
import shutil
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from sandkeep import failpoints
from sandkeep.ids import check_name, is_name
from sandkeep.protocol.clock import now_us
from sandkeep.system.descriptors import closing_fd
from sandkeep_store.upkeep.offline import OUTPUT_TIMES
from sandkeepd.contract.processes import Chunk

MAX_MARKS: Final = 32_768
"""Maximum number of marks of a process, 768 KiB: beyond it every second one is dropped."""

UNKNOWN_US: Final = 0
"""The time of output that came before the daemon noted times, or before the checkpoint that was restored."""

TICK_US: Final = 10_000
"""Maximum time by which a file's modification time precedes the write: the kernel takes that of its last tick."""

_BLOCK: Final = 4096
_SINCE: Final = ".since"
_NEW: Final = ".new"
_RECORD: Final = struct.Struct("<QQQ")


class Mark(NamedTuple):
    """By `at_us` the streams were so many bytes long."""

    at_us: int
    stdout: int
    stderr: int


class Marks:
    """The marks of one process, oldest first, as its file has them."""

    def __init__(self, data: bytes = b"") -> None:
        numbers = array("Q", data[: len(data) // _RECORD.size * _RECORD.size])
        if sys.byteorder == "big":
            numbers.byteswap()
        self.times, self.stdout, self.stderr = numbers[0::3], numbers[1::3], numbers[2::3]

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, index: int) -> Mark:
        return Mark(self.times[index], self.stdout[index], self.stderr[index])

    def every_second(self) -> bytes:
        """Return the records of the last mark, and of every second one before it."""
        first = (len(self) + 1) % 2
        columns = [column[first::2] for column in (self.times, self.stdout, self.stderr)]
        return b"".join(map(_RECORD.pack, *columns))

    def count_within(self, stdout_bytes: int, stderr_bytes: int) -> int:
        """Return the number of marks that streams of such lengths may have."""
        return min(bisect_right(self.stdout, stdout_bytes), bisect_right(self.stderr, stderr_bytes))

    def sizes_before(self, time_us: int) -> tuple[int, int]:
        """Return lengths of both streams that had certainly been reached before a time."""
        earlier = bisect_left(self.times, time_us)
        if not earlier or self.times[earlier - 1] == UNKNOWN_US:
            return 0, 0
        return self.stdout[earlier - 1], self.stderr[earlier - 1]

    def of(self, out: tuple[int, int], err: tuple[int, int], most: int) -> list[Mark]:
        """Return up to `most` marks for a piece of output, between two offsets of each stream: from the first one that
        is beyond a beginning to the one that has reached both ends.
        """
        pieces = [(column, at) for column, at in ((self.stdout, out), (self.stderr, err)) if at[0] < at[1]]
        first = min((bisect_right(column, begin) for column, (begin, _) in pieces), default=0)
        last = max((bisect_left(column, end) for column, (_, end) in pieces), default=-1)
        return [self[index] for index in range(first, min(last + 1, first + most, len(self)))]


class OutputTimes:
    """The files of all processes' marks. All methods block, for about as long as small files take; those without a
    note on it raise OSError.
    """

    def __init__(self, state_dir: str, most: int = MAX_MARKS) -> None:
        self._directory = os.path.join(state_dir, OUTPUT_TIMES)
        self._most = most
        self.since_us = 0
        """Output of processes that were started earlier may have come without being noted."""

    @classmethod
    def open(cls, state_dir: str) -> "OutputTimes":
        """Open the directory, and note since when there are times. Never raises: on a full disk the note is made by a
        later daemon.
        """
        times = cls(state_dir)
        path = f"{times._directory}/{_SINCE}"
        try:
            with open(path, encoding="ascii") as file:
                times.since_us = int(file.read())
            if times.since_us > now_us():  # the clock was put back
                raise ValueError
        except (OSError, ValueError):
            times.since_us = now_us()
            with suppress(OSError):
                with suppress(FileExistsError):
                    os.mkdir(times._directory, 0o700)
                with open(f"{path}{_NEW}", "w", encoding="ascii") as file:
                    file.write(str(times.since_us))
                os.rename(f"{path}{_NEW}", path)
        return times

    def _of(self, sandbox_id: str) -> str:
        return f"{self._directory}/{check_name(sandbox_id, 'sandbox_id')}"

    def _file(self, sandbox_id: str, process_id: str) -> str:
        return f"{self._of(sandbox_id)}/{check_name(process_id, 'process_id')}"

    def load(self, sandbox_id: str, process_id: str) -> Marks:
        """Return the marks of a process; none if they cannot be read."""
        try:
            with open(self._file(sandbox_id, process_id), "rb") as file:
                return Marks(file.read(2 * self._most * _RECORD.size))
        except OSError:
            return Marks()

    def append(self, sandbox_id: str, process_id: str, marks: Iterable[Mark]) -> None:
        """Append marks of a process."""
        path, data = self._file(sandbox_id, process_id), b"".join(_RECORD.pack(*mark) for mark in marks)
        try:
            descriptor = _open(path)
        except FileNotFoundError:
            for directory in (self._directory, self._of(sandbox_id)):
                with suppress(FileExistsError):  # nothing above: a state directory that was taken away is not made anew
                    os.mkdir(directory, 0o700)
            descriptor = _open(path)
        with closing_fd(descriptor):
            size = os.fstat(descriptor).st_size
            if size % _RECORD.size:  # a full disk took a part of a record
                os.ftruncate(descriptor, size // _RECORD.size * _RECORD.size)
            os.write(descriptor, data)
        if size + len(data) >= self._most * _RECORD.size:
            self._thin_out(sandbox_id, process_id)

    def _thin_out(self, sandbox_id: str, process_id: str) -> None:
        """Drop every second mark, but not the last. Bytes of a dropped one have the time of the next."""
        path, left = self._file(sandbox_id, process_id), self.load(sandbox_id, process_id).every_second()
        with open(f"{path}{_NEW}", "wb", opener=_private) as file:
            file.write(left)
        failpoints.reach("output.thinned_out")
        os.rename(f"{path}{_NEW}", path)

    def catch_up(self, sandbox_id: str, process_id: str, started_us: int, out: Chunk, err: Chunk) -> Mark:
        """Mark the output that came while nobody looked, by the times at which its journals were modified last, and
        return the last mark. `out` and `err` are the journals as they are now; if they became shorter, marks beyond
        their ends are dropped.

        The code inside can set these times, but not to before the last mark, nor to the future.
        """
        marks = self.load(sandbox_id, process_id)
        fitting = marks.count_within(out.size, err.size)
        if fitting < len(marks):
            os.truncate(self._file(sandbox_id, process_id), fitting * _RECORD.size)
        last, new = marks[fitting - 1] if fitting else Mark(started_us, 0, 0), list[Mark]()
        if not marks and started_us < self.since_us:
            new.append(Mark(UNKNOWN_US, out.size, err.size))
        elif (out.size, err.size) != last[1:]:
            by_time = sorted(((out.modified_us, out.size, 0), (err.modified_us, 0, err.size)))
            for modified_us, stdout_bytes, stderr_bytes in by_time:
                at_us = max(last.at_us, min(modified_us + TICK_US, now_us()))
                mark = Mark(at_us, max(last.stdout, stdout_bytes), max(last.stderr, stderr_bytes))
                if mark[1:] != last[1:]:
                    new.append(last := mark)
        if new:
            self.append(sandbox_id, process_id, new)
        return new[-1] if new else last

    def inherit(self, process: tuple[str, str], source: tuple[str, str], until_us: int) -> None:
        """Give a process, which has none yet, the marks of another up to a time: that of the checkpoint by which it
        goes on from there. Both are given with their sandboxes.
        """
        marks = self.load(*source)
        if earlier := [marks[index] for index in range(bisect_right(marks.times, until_us))]:
            self.append(*process, earlier)

    # -- removal ------------------------------------------------------------------------------------------------------

    def forget(self, sandbox_ids: Iterable[str]) -> None:
        """Remove the marks of sandboxes. Never raises: a later daemon removes the rest."""
        for sandbox_id in sandbox_ids:
            shutil.rmtree(self._of(sandbox_id), ignore_errors=True)

    def forget_processes(self, sandbox_id: str, process_ids: Iterable[str]) -> None:
        """Remove the marks of processes."""
        for process_id in process_ids:
            for name in (process_id, f"{process_id}{_NEW}"):
                with suppress(FileNotFoundError):
                    os.unlink(self._file(sandbox_id, name))

    def sandboxes(self) -> list[str]:
        """Return the sandboxes that have marks. Never raises."""
        with suppress(OSError):
            return list(filter(is_name, os.listdir(self._directory)))  # without what is not ours, such as `.nfs…`
        return []

    def size(self, sandbox_id: str) -> int:
        """Return the bytes that the marks of a sandbox occupy, in whole blocks."""
        with suppress(FileNotFoundError), os.scandir(self._of(sandbox_id)) as entries:
            return sum(-(-entry.stat(follow_symlinks=False).st_size // _BLOCK) * _BLOCK for entry in entries)
        return 0

    def sweep(self, sandbox_id: str, running: Collection[str], is_gone: Callable[[str], bool]) -> None:
        """Remove the marks of processes that are not `running`, and whose journals are gone."""
        with suppress(FileNotFoundError):
            found = {name.removesuffix(_NEW) for name in os.listdir(self._of(sandbox_id))}
            gone = [name for name in found if is_name(name) and name not in running and is_gone(name)]
            self.forget_processes(sandbox_id, gone)


def _open(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
