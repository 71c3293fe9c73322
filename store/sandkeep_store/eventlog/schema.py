"""The event log's tables, and every statement that the recorder makes of them.

All of these block, and raise `sqlite3.Error`. Transactions are the caller's.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypeVar

import msgspec

from sandkeep.events import LOG_STREAM, OLD_LOG_STREAM, LogCompacted, LogCompactRequested, LogRedactRequested
from sandkeep_store.eventlog.row import COLUMNS, Row, damaged, is_sound, number_checksum, verified

VERSION: Final = 2

_TABLES: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE streams (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, crc INTEGER NOT NULL);
CREATE TABLE events (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    stream INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    sandbox INTEGER,
    type TEXT NOT NULL,
    version INTEGER NOT NULL,
    time INTEGER NOT NULL,
    data BLOB NOT NULL,
    meta BLOB NOT NULL,
    command_id TEXT,
    more INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    UNIQUE (stream, revision)
);
CREATE INDEX events_of_sandbox ON events (sandbox) WHERE sandbox IS NOT NULL;
CREATE INDEX events_of_command ON events (command_id) WHERE command_id IS NOT NULL;
"""
_ARCHIVED: Final = """
CREATE TABLE archived (sandbox INTEGER PRIMARY KEY, execs INTEGER NOT NULL, crc INTEGER NOT NULL);
"""
"""Of sandboxes that are still here: how many of their unnamed processes went into the archive."""

_TO_VERSION_2: Final = "UPDATE meta SET value = 2 WHERE key = 'schema';"
CREATE: Final = _TABLES + _ARCHIVED
UPGRADE: Final = _ARCHIVED + _TO_VERSION_2
"""Statements that bring a log of version 1 to `VERSION`."""

_ROW: Final = ", ".join(f"e.{column}" for column in COLUMNS)
_MARKS: Final = f"({', '.join('?' * len(COLUMNS))})"
# One statement for many rows: each of them costs less, and SQLite works on all without giving up its thread in between.
_INSERTS: Final = {rows: f"INSERT INTO events VALUES {', '.join([_MARKS] * rows)}" for rows in (64, 16, 4, 1)}  # noqa: S608
_INSERT_STREAM: Final = "INSERT INTO streams VALUES (?, ?, ?)"
_SELECT_STREAMS: Final = (
    "SELECT s.name, s.id, (SELECT max(revision) FROM events WHERE stream = s.id) "
    "FROM json_each(?) j JOIN streams s ON s.name = j.value"
)
_SELECT_AT: Final = f"SELECT {_ROW} FROM events e WHERE position = ?"  # noqa: S608
_SELECT_LAST: Final = f"SELECT {_ROW} FROM events e ORDER BY position DESC LIMIT 1"  # noqa: S608
_SELECT_NAMED: Final = f"SELECT s.name, {_ROW} FROM events e LEFT JOIN streams s ON s.id = e.stream"  # noqa: S608
_DELETE: Final = "DELETE FROM events WHERE position IN (SELECT value FROM json_each(?))"
_DELETE_STREAMS: Final = (
    "DELETE FROM streams WHERE id IN (SELECT value FROM json_each(?)) "
    "AND NOT EXISTS (SELECT 1 FROM events WHERE stream = streams.id) "
    "AND NOT EXISTS (SELECT 1 FROM events WHERE sandbox = streams.id)"
)
_DELETE_ARCHIVED: Final = (
    "DELETE FROM archived WHERE sandbox IN (SELECT value FROM json_each(?)) "
    "AND NOT EXISTS (SELECT 1 FROM streams WHERE id = archived.sandbox)"
)
_LOG_STREAMS: Final = (LOG_STREAM, OLD_LOG_STREAM)
_OF_THE_LOG: Final = "stream IN (SELECT id FROM streams WHERE name IN (?, ?))"


def _json(values: Sequence[str] | Sequence[int]) -> str:
    """One parameter that stands for any number of values, by `json_each`."""
    return msgspec.json.encode(values).decode()


def find_streams(connection: sqlite3.Connection, names: Sequence[str]) -> list[tuple[str, int, int | None]]:
    """Look up streams: name, key, and the revision of the last event, if there is one. Unknown ones are left out."""
    return connection.execute(_SELECT_STREAMS, (_json(names),)).fetchall()


def events_of(
    connection: sqlite3.Connection, stream: str, after: int | None, upto: int | None, *, desc: bool, limit: int | None
) -> list[Row]:
    """The events of a stream, by revision. Raises `storage_unavailable` for one that is damaged."""
    bounds = [("s.name = ?", stream), ("e.revision > ?", after), ("e.revision <= ?", upto)]
    return [row for _, row in _select(connection, bounds, f"e.revision {'DESC' if desc else 'ASC'}", limit)]


def events_after(
    connection: sqlite3.Connection, position: int | None, upto: int | None, types: Sequence[str], limit: int
) -> list[tuple[str, Row]]:
    """Events of any stream, with its name, by position; `types` leaves out others. Raises as `events_of` does."""
    bounds: list[tuple[str, Any]] = [("e.position > ?", position), ("e.position <= ?", upto)]
    if types:
        bounds.append(("e.type IN (SELECT value FROM json_each(?))", _json(types)))
    return _select(connection, bounds, "e.position", limit)


def _select(
    connection: sqlite3.Connection, bounds: Sequence[tuple[str, Any]], order: str, limit: int | None
) -> list[tuple[str, Row]]:
    given = [(condition, value) for condition, value in bounds if value is not None]
    where = "WHERE " + " AND ".join(condition for condition, _ in given) if given else ""
    values = [*(value for _, value in given), -1 if limit is None else limit]
    rows = connection.execute(f"{_SELECT_NAMED} {where} ORDER BY {order} LIMIT ?", values)
    return [(row[0], verified(row[1:])) for row in rows]


def row_at(connection: sqlite3.Connection, position: int) -> Row | None:
    """The event at a position, sound or not."""
    row: Row | None = connection.execute(_SELECT_AT, (position,)).fetchone()
    return row


def last_row(connection: sqlite3.Connection) -> Row | None:
    """The last event, sound or not."""
    row: Row | None = connection.execute(_SELECT_LAST).fetchone()
    return row


def insert(connection: sqlite3.Connection, streams: Sequence[tuple[int, str, int]], rows: Sequence[Row]) -> None:
    """Add events, and the streams that are new with them: key, name and checksum."""
    if streams:
        connection.executemany(_INSERT_STREAM, streams)
    at = 0
    for size, statement in _INSERTS.items():
        while len(rows) - at >= size:
            connection.execute(statement, list(chain.from_iterable(rows[at : at + size])))
            at += size


def rewrite(connection: sqlite3.Connection, position: int, data: bytes, meta: bytes, crc: int) -> None:
    """Replace the data, the meta and the checksum of an event."""
    connection.execute("UPDATE events SET data = ?, meta = ?, crc = ? WHERE position = ?", (data, meta, crc, position))


def delete(
    connection: sqlite3.Connection, positions: Sequence[int], streams: Sequence[int], execs: Mapping[int, int]
) -> None:
    """Take events out, and those of `streams` that have no events any more. `execs`: see `LogRecorder.remove`."""
    connection.execute(_DELETE, (_json(positions),))
    _count_archived(connection, execs)
    connection.execute(_DELETE_STREAMS, (_json(streams),))
    connection.execute(_DELETE_ARCHIVED, (_json(streams),))


def _count_archived(connection: sqlite3.Connection, execs: Mapping[int, int]) -> None:
    for sandbox, count in execs.items():
        row = connection.execute("SELECT execs FROM archived WHERE sandbox = ?", (sandbox,)).fetchone()
        total = count + (row[0] if row else 0)
        values = (sandbox, total, number_checksum(sandbox, total))
        connection.execute("INSERT OR REPLACE INTO archived VALUES (?, ?, ?)", values)


def last_number(connection: sqlite3.Connection, table: str) -> int:
    """The highest key that a table ever gave, also to rows that are gone."""
    return int(connection.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = ?", (table,)).fetchone()[0] or 0)


def read_head(connection: sqlite3.Connection, first_position: int) -> int:
    """The position of the last event. The sequence remembers it apart from the rows, so a lost tail shows."""
    sequence = last_number(connection, "events")
    last = connection.execute("SELECT max(position) FROM events").fetchone()[0] or first_position - 1
    if last != sequence:
        raise damaged(min(last, sequence) + 1, f"its last event is {last}, but it had reached {sequence}")
    return int(last)


def checksum_at(connection: sqlite3.Connection, position: int) -> int | None:
    """The checksum that is on record of the event at a position."""
    row = connection.execute("SELECT crc FROM events WHERE position = ?", (position,)).fetchone()
    return row[0] if row else None


def raise_first_position(connection: sqlite3.Connection, position: int) -> None:
    """Note that there may be gaps before a position."""
    connection.execute("UPDATE meta SET value = max(value, ?) WHERE key = 'first_position'", (position,))


def touch(connection: sqlite3.Connection) -> None:
    """Write something that changes nothing."""
    connection.execute("UPDATE meta SET value = value WHERE key = 'schema'")


def vacuum(connection: sqlite3.Connection, directory: str) -> None:
    """Write the whole file anew; SQLite's copy of it is in `directory` meanwhile."""
    place = directory.replace("'", "''")
    connection.execute(f"PRAGMA temp_store_directory = '{place}'")
    connection.execute("VACUUM")


def empty_wal(connection: sqlite3.Connection) -> bool:
    """Bring the write-ahead log into the file, and empty it; False while a reader still needs it."""
    return not connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]


def release_pages(connection: sqlite3.Connection, most: int) -> int:
    """Give up to `most` free pages back to the file system; answer how many are left free."""
    connection.executescript(f"PRAGMA incremental_vacuum({most:d})")  # `execute` would release one
    return int(connection.execute("PRAGMA freelist_count").fetchone()[0])


def is_compacting(connection: sqlite3.Connection) -> bool:
    """Return True if a compaction was begun and not finished."""
    where = f"{_OF_THE_LOG} AND type IN (?, ?) ORDER BY position DESC LIMIT 1"
    values = (*_LOG_STREAMS, LogCompactRequested.type, LogCompacted.type)
    row = connection.execute(f"SELECT type FROM events WHERE {where}", values).fetchone()  # noqa: S608
    return row is not None and row[0] == LogCompactRequested.type


def was_compacted_to(connection: sqlite3.Connection, first: int) -> bool:
    """Return True if a finished compaction made this the first position without gaps."""
    return any(event.first_position == first for event in _told(connection, LogCompacted))


def was_redacted(connection: sqlite3.Connection, position: int) -> bool:
    """Return True if a redaction of the event at a position was begun."""
    return any(event.position == position for event in _told(connection, LogRedactRequested))


_Told = TypeVar("_Told", LogCompacted, LogRedactRequested)


def _told(connection: sqlite3.Connection, kind: type[_Told]) -> Iterator[_Told]:
    """Yield the events of one type on the log's own stream. Damaged rows are skipped."""
    query = f"SELECT {_ROW} FROM events e WHERE {_OF_THE_LOG} AND e.type = ? ORDER BY e.position"  # noqa: S608
    for row in connection.execute(query, (*_LOG_STREAMS, kind.type)):
        if is_sound(row) and row[5] == kind.version:
            yield msgspec.json.decode(row[7], type=kind)
