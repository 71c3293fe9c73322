"""A row of the event log: its columns, its checksum, and the form in which readers get it."""

import struct
from typing import Final, TypeAlias
from zlib import crc32

from sandkeep.errors import DaemonError, DataError
from sandkeep.events import Event
from sandkeep_store.views.view import Fact

COLUMNS: Final = (
    "position",
    "stream",
    "revision",
    "sandbox",
    "type",
    "version",
    "time",
    "data",
    "meta",
    "command_id",
    "more",
    "crc",
)
Row: TypeAlias = tuple[int, int, int, int | None, str, int, int, bytes, bytes, str | None, int, int]
"""The columns' values. `stream` and `sandbox` are keys of the table of streams; `time` is microseconds since 1970."""

pack_numbers: Final = struct.Struct("<8q").pack
"""The first bytes of a checksum: position, stream, revision, sandbox or 0, version, time, more, length of data."""


def checksum(
    position: int,
    stream: int,
    revision: int,
    sandbox: int | None,
    type: str,
    version: int,
    time: int,
    data: bytes,
    meta: bytes,
    command_id: str | None,
    more: int,
) -> int:
    """The CRC-32 of all other columns of a row. The fold at start-up has the same expression inlined."""
    numbers = pack_numbers(position, stream, revision, sandbox or 0, version, time, more, len(data))
    return crc32(b"".join((numbers, type.encode(), data, meta, (command_id or "").encode())))


def is_sound(row: Row) -> bool:
    """Return True if a row has its checksum. Its values may be of any type."""
    try:
        return checksum(*row[:-1]) == row[-1]
    except NOT_A_ROW:
        return False


NOT_A_ROW: Final = (struct.error, TypeError, AttributeError)
"""Exceptions that a checksum raises when a column has a value of the wrong type."""


def name_checksum(key: int, name: object) -> int:
    """Return the CRC-32 of a row of the table of streams; -1, which never matches, for a value that is no string."""
    if not isinstance(name, str):
        return -1
    return crc32(name.encode(), key)


def number_checksum(key: int, number: object) -> int:
    """Return the CRC-32 of a row of archived counts; -1, which never matches, for a value that is no integer."""
    if not isinstance(number, int):
        return -1
    return crc32(b"%d %d" % (key, number))


class Recorded(Fact, frozen=True, gc=False):
    """An event that is in the log.

    `data` and `meta` are the very bytes of the log, JSON, and go into answers unchanged. `event` is None when the event
    was read without decoding it. `more` is how many events follow in the same append.
    """

    event: Event | None
    type: str
    version: int
    data: bytes
    meta: bytes
    more: int = 0


def damaged(position: int, what: str) -> DaemonError:
    """Return the error for a log that differs from its commits; `what` is half a sentence."""
    return DaemonError(
        "storage_unavailable",
        f"the event log is damaged at position {position}: {what}; restore the state directory from a backup, "
        "or run `sandkeep store repair` without a daemon",
        position=position,
    )


def compacted(position: int, first: int) -> DataError:
    """The error for a position before which, or at which, events may be gone into the archive."""
    message = f"position {position} is among events that were archived: ask for {first} or a later one"
    return DataError("compacted", message, first=first, position=position)


def due(position: int, at: int, first: int) -> int:
    """Return the position that must follow `position` if the next row has `at`; before `first`, any may be missing."""
    return at if at < first else max(position + 1, first)


def verified(row: Row) -> Row:
    """`row`, if its checksum is right; raises `storage_unavailable`, naming the position, if not."""
    if not is_sound(row):
        raise damaged(row[0], "its checksum is wrong")
    return row
