"""Reading of a sandbox's output: journals of processes, and the keeper's answers. Nothing here is trusted.

The code inside can put anything in the place of a journal, at any moment. So it is opened in a `HostileTree`, never
through a link, without blocking; and the file is checked before it is read. Opening has no side effects on any file
that the code inside can make, as it can make no devices. Reads are bounded and never block. `out` is always the tree of
the directory of that name, which holds `exits` and, in `p`, the journals.
"""

import errno
import os
import re
import stat
from contextlib import suppress
from typing import Final, NamedTuple

from sandkeep.errors import SetupError, StateError
from sandkeep.system.descriptors import closing_fd
from sandkeepd.contract.processes import Chunk
from sandkeepd.host.hostile_files import HostileTree, NotAFileError

MAX_LINE_BYTES: Final = 128
"""Maximum length of a line. The keeper's own lines are shorter by half; a longer one is not from the keeper."""

MAX_WAKE_BYTES: Final = 4 * 1024
"""Bytes of `exits` read at once, so that one sandbox cannot keep the daemon from the others."""

MAX_BACKLOG_BYTES: Final = 4 * 1024 * 1024
"""Maximum unread bytes of `exits`; earlier ones are skipped: a sparse file can be huge at no cost."""

MAX_ROUNDS: Final = MAX_BACKLOG_BYTES // MAX_WAKE_BYTES + 1
"""Number of reads after which all data present at the first has been read."""

_MOST_HOLES: Final = 3

_ANSWER: Final = re.compile(
    rb"^([A-Za-z0-9][A-Za-z0-9_-]{0,63}) "
    rb"(\+[0-9]{1,10}|[~<][0-9]{1,18}|1?[0-9]{1,2}|2[0-4][0-9]|25[0-5]|live|lost|none)$",
    re.MULTILINE,
)


class Answer(NamedTuple):
    """One line of the keeper's: `word` is ``+PID``, an exit code, ``live``, ``lost``, ``none``, ``~N`` for a
    numbered signal that was sent, or ``<N`` for a process that has been fed N bytes.
    """

    process_id: str
    word: str

    @property
    def is_final(self) -> bool:
        """True if it is the last answer about the process."""
        return self.word.isdigit() or self.word in ("lost", "none")


def open_regular(path: str) -> int:
    """Open a regular file of the daemon's for reading, not by a link. Raises OSError, `NotAFileError`."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise NotAFileError(path)


def open_journal(out: HostileTree, process_id: str, part: str) -> int:
    """Open ``stdout`` or ``stderr`` of a process. Raises OSError, `NotAFileError`."""
    return out.open_regular(f"p/{process_id}.{part}")


def sizes(out: HostileTree, process_id: str) -> tuple[int, int]:
    """Return the sizes of a process's journals, ``stdout`` and ``stderr``; 0 for one that is no file."""
    try:
        with out.directory("p") as directory:
            return _size(f"{process_id}.stdout", directory), _size(f"{process_id}.stderr", directory)
    except OSError:
        return 0, 0


def sync(out: HostileTree, process_id: str) -> None:
    """Force a process's journals to the disk. Blocks. Raises OSError."""
    for stream in ("stdout", "stderr"):
        try:
            fd = open_journal(out, process_id, stream)
        except (OSError, NotAFileError):
            continue
        with closing_fd(fd):
            os.fsync(fd)


def _size(name: str, directory: int) -> int:
    with suppress(OSError):
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        return found.st_size if stat.S_ISREG(found.st_mode) else 0
    return 0


def open_for_caller(out: HostileTree, process_id: str, stream: str, uid: int) -> int:
    """See `Provider.open_journal`.

    The receiver of the descriptor can reopen or execute its file through ``/proc/self/fd``, with the rights of the
    file's mode; and the code inside controls the mode. So the descriptor is on a mount that allows only reading.
    Without such a mount, only the file's owner gets one.
    """
    try:
        descriptor = open_journal(out, process_id, stream)
    except FileNotFoundError:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, NotAFileError):
        message = f"the code in the sandbox replaced the journal of {stream}: read the other stream with `process.read`"
        raise StateError("conflict", message, process_id=process_id, stream=stream) from None
    if out.is_confined or uid == os.geteuid() == os.fstat(descriptor).st_uid:
        return descriptor
    os.close(descriptor)
    message = "only root's daemon can pass a journal to a user who does not own it: use `process.read` instead"
    stdout_bytes, stderr_bytes = sizes(out, process_id)
    raise SetupError(
        "not_supported", message, process_id=process_id, stdout_bytes=stdout_bytes, stderr_bytes=stderr_bytes
    )


def read_journal(out: HostileTree, process_id: str, stream: str, offset: int, max_bytes: int) -> Chunk:
    """Read up to `max_bytes` of a journal from `offset`; if it is missing, or no file, nothing and a note."""
    try:
        fd = open_journal(out, process_id, stream)
    except FileNotFoundError:
        note = f"there is no journal of {stream}" if offset else None
        return Chunk(offset=offset, data=b"", size=0, note=note, missing=True)
    except (OSError, NotAFileError):
        return Chunk(offset=offset, data=b"", size=0, note=f"the code in the sandbox replaced the journal of {stream}")
    with closing_fd(fd):
        at, data = _read_kept(fd, offset, max_bytes)
        found = os.fstat(fd)
    size, note = found.st_size, None
    if at > offset:
        note = f"the first {at} bytes of {stream} were dropped: a sandbox wrote more than is kept"
    elif offset > size:
        note = f"the journal of {stream} became shorter: the code in the sandbox cut it"
    return Chunk(offset=at, data=data, size=size, note=note, modified_us=found.st_mtime_ns // 1000)


def _read_kept(fd: int, offset: int, max_bytes: int) -> tuple[int, bytes]:
    """Read from an offset, or what is kept after it. Data that is dropped during the read counts as dropped."""
    at, data = offset, os.pread(fd, max_bytes, offset)
    for _ in range(_MOST_HOLES):
        first = first_kept(fd)
        if at >= first:
            return at, data
        at, data = first, os.pread(fd, max_bytes, first)
    return at, b""  # the code inside makes holes as quickly as we look at them


def first_kept(fd: int) -> int:
    """Return the offset of the first byte that a journal still holds: behind the hole at its beginning, if any."""
    try:
        return os.lseek(fd, 0, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:  # no holes are told of here
            return 0
    return os.fstat(fd).st_size


class ExitsReader:
    """Reads the keeper's answers, among garbage and half lines; `spoilt` if some may be missing for that."""

    spoilt = False

    def __init__(self, out: HostileTree) -> None:
        self._out = out
        self.fd = out.open_regular("exits")
        self._offset = 0
        self._rest = b""
        self._skipping = False

    def reopen(self) -> None:
        """Reopen `exits`, which begins with the data read so far. Raises OSError, `NotAFileError`."""
        fd = self._out.open_regular("exits")
        os.close(self.fd)
        self.fd = fd

    def read(self) -> tuple[list[Answer], bool]:
        """The next answers, and whether there may be more already. Reads `MAX_WAKE_BYTES` at most."""
        size = os.fstat(self.fd).st_size
        if size < self._offset:
            self._start_again(0)
        elif size - self._offset > MAX_BACKLOG_BYTES:
            self._start_again(size - MAX_BACKLOG_BYTES)
        data = os.pread(self.fd, MAX_WAKE_BYTES, self._offset)
        self._offset += len(data)
        return self._split(data), len(data) == MAX_WAKE_BYTES

    def _start_again(self, offset: int) -> None:
        self.spoilt = True
        self._offset = offset
        self._rest = b""
        self._skipping = offset > 0  # in the middle of a line, most likely

    def _split(self, data: bytes) -> list[Answer]:
        lines, newline, self._rest = (self._rest + data).rpartition(b"\n")
        if self._skipping and newline:
            lines = lines.partition(b"\n")[2]
            self._skipping = False
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest = b""
            self._skipping = True
        answers = parse_answers(lines)
        if newline and len(answers) <= lines.count(b"\n"):
            self.spoilt = True
        return answers

    def close(self) -> None:
        """Let go of the file."""
        os.close(self.fd)


def parse_answers(lines: bytes) -> list[Answer]:
    """Return the keeper's answers among untrusted lines."""
    return [Answer(match[1].decode(), match[2].decode()) for match in _ANSWER.finditer(lines)]
