"""Reading the event log: pages for whoever asks, the fold over everything at start, and the full check.

All of it blocks; the log calls it in threads of its own. Every row's checksum is verified.
"""

import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, Final
from zlib import crc32

from msgspec import Struct

from sandkeep.errors import DaemonError
from sandkeep.events import Event
from sandkeep_store.codec import Codec, UnknownEvent
from sandkeep_store.database import Database
from sandkeep_store.fold import Fold, Names
from sandkeep_store.record import COLUMNS, Recorded, checksum, damaged, name_checksum, pack_numbers, verified
from sandkeep_store.views.state import State

_COLUMNS: Final = ", ".join(f"e.{column}" for column in COLUMNS)
_PAGE: Final = (
    f"SELECT s.name, s.crc, b.name, b.crc, {_COLUMNS} FROM events e "  # noqa: S608
    "LEFT JOIN streams s ON s.id = e.stream LEFT JOIN streams b ON b.id = e.sandbox "
)
_ALL: Final = f"SELECT {_COLUMNS} FROM events e WHERE e.position > ? AND e.position <= ? ORDER BY e.position"  # noqa: S608
_OF_COMMAND: Final = (
    "WHERE e.command_id = ? AND json_extract(CAST(e.meta AS TEXT), '$.owner') = ? ORDER BY e.position DESC LIMIT 1"
)
_MAX_PROBLEMS: Final = 100


class Filter(Struct, frozen=True):
    """Which events a reader wants. `type` is a whole type, or its first word."""

    stream: str | None = None
    sandbox_id: str | None = None
    type: str | None = None

    def admits(self, event: Recorded) -> bool:
        """Whether the reader wants `event`."""
        return (
            (self.stream is None or event.stream == self.stream)
            and (self.sandbox_id is None or event.sandbox_id == self.sandbox_id)
            and (self.type is None or f"{event.type}.".startswith(f"{self.type}."))
        )

    def conditions(self) -> list[tuple[str, Any]]:
        """The same as SQL, each condition with its parameter."""
        found: list[tuple[str, Any]] = []
        if self.stream is not None:
            found.append(("e.stream = (SELECT id FROM streams WHERE name = ?)", self.stream))
        if self.sandbox_id is not None:
            found.append(("e.sandbox = (SELECT id FROM streams WHERE name = ?)", self.sandbox_id))
        if self.type is not None:
            found.append(("instr(e.type || '.', ? || '.') = 1", self.type))
        return found


EVERYTHING: Final = Filter()


class LogReader:
    """Reads one log's rows."""

    def __init__(self, database: Database, codec: Codec) -> None:
        self._database = database
        self._codec = codec

    def page(self, after: int, upto: int, limit: int, wanted: Filter) -> list[Recorded]:
        """About `limit` events of those wanted after one position and up to another: no append is split."""
        with self._database.reader() as connection:
            found = list(_select(connection, after, upto, limit, wanted))
            if len(found) == limit and found[-1].more:
                last = found[-1]
                found += _select(connection, last.position, min(upto, last.position + last.more), last.more, wanted)
            return found

    def of_command(self, command_id: str, owner: str) -> Recorded | None:
        """The first event of the last append that an owner's command of that id made."""
        with self._database.reader() as connection:
            row = connection.execute(_PAGE + _OF_COMMAND, (command_id, owner)).fetchone()
            return _recorded(*row) if row else None

    def scan(self, visit: Callable[[Recorded], None], after: int, head: int) -> int:
        """Show every event after `after` and up to `head` to `visit`, decoded, in order; answer the last position.

        Raises `UnknownEvent` for one that cannot be decoded and `storage_unavailable` for one that is damaged.
        """
        position = max(after, self._database.first_position - 1)
        shapes: dict[str, tuple[bytes, int, Callable[[bytes], Event] | None]] = {}
        with self._database.reader() as connection:
            names = Names(connection) if after else _all_names(connection)
            # This loop is what a start waits for: nothing is called that can be inlined, and nothing looked up twice.
            for (
                at, stream, revision, sandbox, type, version, time_us, data, meta, command_id, more, crc,
            ) in connection.execute(_ALL, (position, head)):  # fmt: skip
                position += 1
                name, newest, decode = shapes.get(type) or shapes.setdefault(type, self._shape(type))
                # With the position that is due: a gap shows as a wrong checksum.
                numbers = pack_numbers(position, stream, revision, sandbox or 0, version, time_us, more, len(data))
                rest = command_id.encode() if command_id else b""
                if crc32(b"".join((numbers, name, data, meta, rest))) != crc:
                    raise damaged(position, "its checksum is wrong" if at == position else "this event is missing")
                try:
                    event = (
                        decode(data) if decode and version == newest else self._codec.decode(at, type, version, data)
                    )
                except ValueError as error:
                    raise UnknownEvent(at, type, version, str(error)) from None
                try:
                    stream_name, sandbox_id = names[stream], names[sandbox]
                except KeyError:
                    raise damaged(at, "the name of its stream is missing") from None
                visit(Recorded(at, time_us, stream_name, revision, sandbox_id, event, type, version, data, meta, more))
        if position < head:
            raise damaged(position + 1, f"the log ends before its last event, {head}")
        return position

    def fold(self, state: State, head: int) -> None:
        """Bring a new state to the event at `head`: what `scan` with `State.apply` would do, and several times as fast.

        Raises as `scan` does; the state then stands at the event before.
        """
        with self._database.reader() as connection:
            Fold(connection, self._codec, state, self._database.first_position).run(head)

    def check(self, after: int, upto: int, limit: int) -> int:
        """Check up to `limit` rows after a position; answer the last position checked, `upto` when that was all.

        Raises `storage_unavailable` for one that is damaged or missing.
        """
        position = max(after, self._database.first_position - 1)
        with self._database.reader() as connection:
            rows = connection.execute(f"{_ALL} LIMIT ?", (position, upto, limit)).fetchall()
        for row in rows:
            position += 1
            if row[0] != position:
                raise damaged(position, "this event is missing")
            verified(row)
        return position if len(rows) == limit else upto

    def row_checksum(self, position: int) -> int | None:
        """The checksum that the row at a position has, if there is such a row."""
        with self._database.reader() as connection:
            row = connection.execute("SELECT crc FROM events WHERE position = ?", (position,)).fetchone()
            return int(row[0]) if row else None

    def _shape(self, type: str) -> tuple[bytes, int, Callable[[bytes], Event] | None]:
        shape = self._codec.shape(type)
        return (shape.name, shape.version, shape.decode) if shape else (type.encode(), 0, None)

    def verify(self, head: int) -> list[str]:
        """Check everything there is to check; answer what is wrong, a sentence each, at most a hundred."""
        problems = _Problems()
        with self._database.reader() as connection:
            for (answer,) in connection.execute("PRAGMA integrity_check(10)"):
                if answer != "ok":
                    problems.add(f"SQLite finds: {answer}")
            try:
                self._verify_rows(connection, head, problems)
            except sqlite3.DatabaseError as error:
                problems.add(f"the events cannot be read to their end: {error}")
        return problems.found

    def _verify_rows(self, connection: sqlite3.Connection, head: int, problems: "_Problems") -> None:
        names = {
            key
            for key, name, crc in connection.execute("SELECT id, name, crc FROM streams")
            if name_checksum(key, name) == crc
        }
        first = self._database.first_position
        position, left = first - 1, 0
        revisions: dict[int, int] = {}
        for row in connection.execute(_ALL, (position, head)):
            at, stream, revision, sandbox, type, version, _, data, _, _, more, crc = row
            if at != position + 1:
                problems.add(f"the events from position {position + 1} to {at - 1} are missing")
                left = 0
            if checksum(*row[:-1]) != crc:
                problems.add(f"the event at position {at} is damaged: its checksum is wrong")
            if stream not in names or (sandbox is not None and sandbox not in names):
                problems.add(f"the event at position {at} belongs to a stream whose name is missing or damaged")
            before = revisions.get(stream)
            if revision != (revision if before is None and first > 1 else (before or 0) + 1):
                problems.add(f"the event at position {at} has revision {revision}, where {(before or 0) + 1} was due")
            if left and more != left - 1:
                problems.add(f"the event at position {at} is not the rest of the append before it")
            self._verify_document(at, type, version, data, problems)
            position, left, revisions[stream] = at, more, revision
        if position != head or left:
            problems.add(f"the log ends at position {position} within an append or before its last event, {head}")

    def _verify_document(self, position: int, type: str, version: int, data: bytes, problems: "_Problems") -> None:
        try:
            self._codec.decode(position, type, version, data)
        except UnknownEvent as error:
            problems.add(str(error))


class _Problems:
    def __init__(self) -> None:
        self.found: list[str] = []

    def add(self, sentence: str) -> None:
        if len(self.found) < _MAX_PROBLEMS:
            self.found.append(sentence)
        elif len(self.found) == _MAX_PROBLEMS:
            self.found.append("there is more that is wrong")


def _all_names(connection: sqlite3.Connection) -> dict[int | None, Any]:
    names: dict[int | None, Any] = {None: None}
    for key, name, crc in connection.execute("SELECT id, name, crc FROM streams"):
        if crc32(name.encode(), key) != crc:
            raise DaemonError(
                "storage_unavailable",
                f"the event log is damaged: the name of stream {key} is not what was written; "
                "stop the daemon and restore the state directory from a backup",
            )
        names[key] = name
    return names


def _select(connection: sqlite3.Connection, after: int, upto: int, limit: int, wanted: Filter) -> Iterator[Recorded]:
    conditions = [("e.position > ?", after), ("e.position <= ?", upto), *wanted.conditions()]
    where = " AND ".join(condition for condition, _ in conditions)
    # In a stream revisions and positions rise together, and the index of streams is by revision.
    order = "e.position" if wanted.stream is None else "e.revision"
    query = f"{_PAGE} WHERE {where} ORDER BY {order} LIMIT ?"
    return (_recorded(*row) for row in connection.execute(query, [*(value for _, value in conditions), limit]))


def _recorded(stream: str | None, stream_crc: int, sandbox: str | None, sandbox_crc: int, *row: Any) -> Recorded:
    position, stream_key, revision, sandbox_key, type, version, time_us, data, meta, _, more, crc = row
    if checksum(*row[:-1]) != crc:
        raise damaged(position, "its checksum is wrong")
    if stream is None or name_checksum(stream_key, stream) != stream_crc:
        raise damaged(position, "the name of its stream is missing or wrong")
    if sandbox_key is not None and (sandbox is None or name_checksum(sandbox_key, sandbox) != sandbox_crc):
        raise damaged(position, "the name of its sandbox is missing or wrong")
    return Recorded(position, time_us, stream, revision, sandbox, None, type, version, data, meta, more)
