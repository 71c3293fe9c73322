"""The witness: a small file beside the log that records the log's last position, so that a lost end is noticed.

A write-ahead log that was cut, a log that was exchanged for an older copy, or corrupted facts about the log look sound
to SQLite: only shorter, or different. So after every commit its last position and that row's checksum are noted here,
together with the table `meta`. The file is written in place without fsync: it survives the death of the daemon, and
after a power cut it may be behind the log, never ahead of it. It is fsynced only before events are deleted or changed;
else it would object to a sound log.
"""

import contextlib
import logging
import os
from typing import Final
from zlib import crc32

import msgspec
from msgspec import Struct

from sandkeep.errors import DaemonError
from sandkeep.system.descriptors import closing_fd
from sandkeep_store.eventlog.row import damaged

logger: Final = logging.getLogger("sandkeepd")

SUFFIX: Final = ".head"
SIZE_BYTES: Final = 256
"""Always as many, so that writing it needs no space."""

CURE: Final = "restore the state directory from a backup, or run `sandkeep store repair` without a daemon"


class Head(Struct, frozen=True):
    """The end of a log. `crc` is the checksum of the row at `position`; 0 if unknown."""

    log_id: str
    first_position: int
    position: int
    crc: int


_decode: Final = msgspec.json.Decoder(Head).decode
_encode: Final = msgspec.json.Encoder().encode


class UnreadableError(Exception):
    """There is something else than a witness."""


def path_of(database_path: str) -> str:
    """The witness of the log in that file."""
    return os.path.splitext(database_path)[0] + SUFFIX


def read(path: str) -> Head | None:
    """Return the content of the witness, None when there is none. Raises `UnreadableError`.

    An empty file counts as none: a power cut leaves a new file empty.
    """
    try:
        with closing_fd(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as descriptor:
            content = os.read(descriptor, SIZE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableError(str(error.strerror)) from None
    if not content:
        logger.warning("%s is empty, as after a power cut: it is begun anew", path)
        return None
    text, space, check = content.rstrip().rpartition(b" ")
    if len(content) != SIZE_BYTES or not space or check != b"%08x" % crc32(text):
        raise UnreadableError("its checksum is wrong")
    try:
        return _decode(text)
    except msgspec.MsgspecError as error:
        raise UnreadableError(str(error)) from None


class Witness:
    """Keeps the file for an open log. Failing to write it is no failure of a commit: it is then behind."""

    def __init__(self, path: str, log_id: str, first_position: int) -> None:
        self.path = path
        self.first_position = first_position
        self._log_id = log_id
        self._descriptor: int | None = None

    def doubts(self, seen: Head, head: int, crc: int | None, *, compacted: bool) -> list[str]:
        """Return the contradictions between the opened log and `seen`, in sentences.

        `crc` is the checksum of the row at the position in `seen`; None when there is no such row. `compacted` says
        that the log records a compaction that explains its gaps.
        """
        log = os.path.dirname(self.path)
        if seen.log_id != self._log_id:
            return [f"the event log in {log} is {self._log_id}, but {self.path} is of {seen.log_id}: {CURE}"]
        if seen.position > head:
            ending = f"ends at position {head}, but {self.path} has seen position {seen.position}: events were lost"
            return [f"the event log in {log} {ending}; {CURE}"]
        if seen.first_position > self.first_position or (seen.first_position < self.first_position and not compacted):
            gaps = f"from position {self.first_position} on, not from {seen.first_position} on as {self.path} has seen"
            return [f"the event log in {log} says that it has no gaps {gaps}: {CURE}"]
        if seen.position >= self.first_position and seen.crc and crc != seen.crc:
            return [damaged(seen.position, f"it is not the event that {self.path} has seen there").message]
        return []

    def note(self, position: int, crc: int) -> None:
        """Say that the log has come to a position."""
        with contextlib.suppress(OSError):
            opened = self._descriptor is None
            descriptor = self._write(position, crc)
            if opened:  # once, so that a power cut does not leave a new file empty
                os.fdatasync(descriptor)

    def note_durably(self, position: int, crc: int) -> None:
        """Like `note`, but it is on the disk when this returns. Raises `storage_unavailable`."""
        try:
            os.fdatasync(self._write(position, crc))
        except OSError as error:
            message = f"{self.path} cannot be written ({error.strerror}): repair the disk, and try again"
            raise DaemonError("storage_unavailable", message) from error

    def _write(self, position: int, crc: int) -> int:
        encoded = _encode(Head(self._log_id, self.first_position, position, crc))
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.pwrite(self._descriptor, (encoded + b" %08x" % crc32(encoded)).ljust(SIZE_BYTES - 1) + b"\n", 0)
        return self._descriptor

    def begin_anew(self) -> None:
        """Write the next note to a file of its own: this one is on a disk that failed."""
        self.close()
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def close(self) -> None:
        """Let go of the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
