"""Reading of the event log: pages, the fold over everything at start, and the full check.

All of it blocks; the log calls it in threads of its own. Every row's checksum is verified.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from sandkeep.events import OWN_STREAMS, ProcessLaunchRequested, SandboxFileWritten
from sandkeep_store.eventlog.codec import Codec, UnknownEvent
from sandkeep_store.eventlog.database import Database, damaged_file, first_position
from sandkeep_store.eventlog.fold import Fold, Named, Names
from sandkeep_store.eventlog.row import (
    COLUMNS,
    Recorded,
    Row,
    compacted,
    damaged,
    due,
    is_sound,
    name_checksum,
    number_checksum,
    verified,
)
from sandkeep_store.fairness import yielding
from sandkeep_store.views.state import State

_COLUMNS: Final = ", ".join(f"e.{column}" for column in COLUMNS)
_PAGE: Final = (
    f"SELECT s.name, s.crc, b.name, b.crc, {_COLUMNS} FROM events e "  # noqa: S608
    "LEFT JOIN streams s ON s.id = e.stream LEFT JOIN streams b ON b.id = e.sandbox "
)
_ALL: Final = f"SELECT {_COLUMNS} FROM events e WHERE e.position > ? AND e.position <= ? ORDER BY e.position"  # noqa: S608
_OLD: Final = "SELECT position, stream, sandbox, type FROM events WHERE position < ? ORDER BY position"
_OF_COMMAND: Final = (
    "WHERE e.command_id = ? AND json_extract(CAST(e.meta AS TEXT), '$.owner') = ? ORDER BY e.position DESC LIMIT 1"
)
_BETWEEN: Final = (
    "SELECT count(*) FROM events WHERE sandbox = (SELECT id FROM streams WHERE name = ?) "
    "AND position > ? AND position <= ? AND (? IS NULL OR time <= ?)"
)
_MAX_PROBLEMS: Final = 100
_STEPS_BETWEEN_LOOKS: Final = 100_000


class Filter(Struct, frozen=True):
    """A selection of events. `type` is a whole type, or its first word."""

    stream: str | None = None
    sandbox_id: str | None = None
    type: str | None = None

    def admits(self, event: Recorded) -> bool:
        """Return True if `event` is selected."""
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


class LiveObjects(NamedTuple):
    """The ids of objects in the views, whose events are still needed."""

    sandboxes: AbstractSet[str]
    processes: AbstractSet[str]
    images: AbstractSet[str]
    """And artifacts, and orders of volumes."""
    snapshots: AbstractSet[str] = frozenset()
    """And checkpoints, forks, merges and commits."""
    locks: AbstractSet[str] = frozenset()
    last: AbstractSet[int] = frozenset()
    """The positions at which these sandboxes' documents stand."""


class Removal(Struct, frozen=True, gc=False):
    """The data needed to delete an event: its position, the keys and names of streams that may become empty, and the
    key of the sandbox for which it is still counted, if any.
    """

    position: int
    streams: tuple[tuple[int, str], ...]
    counted: int | None


def _is_gone(type: str, stream: str, kept: LiveObjects) -> bool:
    """Return True if an event's object was in the views and has left them."""
    noun, _, verb = type.partition(".")
    if noun == "sandbox" and verb.startswith("fork"):
        return stream not in kept.snapshots
    held = {
        "image": kept.images, "artifact": kept.images, "volume": kept.images, "process": kept.processes,
        "snapshot": kept.snapshots, "checkpoint": kept.snapshots, "branch": kept.snapshots, "lock": kept.locks,
    }.get(noun)  # fmt: skip
    return held is not None and stream not in held


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
            return _of_command(connection, command_id, owner)

    def of_command_at_once(self, command_id: str, owner: str) -> tuple[bool, Recorded | None]:
        """Look up a command's event if a connection is idle: False if it would have to wait, and the event."""
        with self._database.idle_reader() as connection:
            if connection is None:
                return False, None
            return True, _of_command(connection, command_id, owner)

    def scan(self, visit: Callable[[Recorded], None], after: int, head: int) -> int:
        """Show every event after `after` and up to `head` to `visit`, decoded, in order; answer the last position.

        Raises `UnknownEvent` for one that cannot be decoded and `storage_unavailable` for one that is damaged.
        """
        position = after
        with self._database.reader() as connection:
            names = Names(connection)
            if not after:
                names.load()
            for row in _sound(connection, connection.execute(_ALL, (after, head)), after):
                position, stream, revision, sandbox, type, version, time_us, data, meta, _, more, _ = row
                event = self._codec.decode(position, type, version, data)
                try:
                    stream_name, sandbox_id = names[stream], names[sandbox]
                except KeyError:
                    raise damaged(position, "the name of its stream is missing") from None
                visit(
                    Recorded(
                        position, time_us, stream_name, revision, sandbox_id, event, type, version, data, meta, more
                    )
                )
        if position < head:
            raise damaged(position + 1, f"the log ends before its last event, {head}")
        return position

    def fold(self, state: State, head: int) -> None:
        """Bring a new state to the event at `head`: equivalent to `scan` with `State.apply`, and several times as fast.

        Raises as `scan` does; the state then stands at the event before.
        """
        with self._database.reader() as connection:
            Fold(connection, self._codec, state, first_position(connection)).run(head)

    def state_at(self, sandbox_id: str, position: int) -> State:
        """Return the state of one sandbox as of the event at a position.

        Raises `compacted`, and else as `scan` does.
        """
        state = State()
        with self._database.reader() as connection:
            first = first_position(connection)
            if position < first:
                raise compacted(position, first)
            Fold(connection, self._codec, state, first).run_of(sandbox_id, position)
        return state

    def count_between(self, sandbox_id: str, after: int, upto: int, until_us: int | None) -> int:
        """Count the events of a sandbox after one position and up to another, and up to `until_us` if given."""
        with self._database.reader() as connection:
            return int(connection.execute(_BETWEEN, (sandbox_id, after, upto, until_us, until_us)).fetchone()[0])

    def check(self, after: int, upto: int, limit: int) -> int:
        """Check up to `limit` rows after a position; answer the last position checked, `upto` when that was all.

        Raises `storage_unavailable` for one that is damaged or missing.
        """
        with self._database.reader() as connection:
            rows = connection.execute(f"{_ALL} LIMIT ?", (after, upto, limit))
            positions = [row[0] for row in _sound(connection, rows, after)]
        return positions[-1] if len(positions) == limit else upto

    def count(self) -> int:
        """Return the number of events."""
        with self._database.reader() as connection:
            return int(connection.execute("SELECT count(*) FROM events").fetchone()[0])

    def row_checksum(self, position: int) -> int | None:
        """The checksum that the row at a position has, if there is such a row."""
        with self._database.reader() as connection:
            row = connection.execute("SELECT crc FROM events WHERE position = ?", (position,)).fetchone()
            return int(row[0]) if row else None

    def first_since(self, time_us: int) -> int:
        """The position of the first event that is not older than a moment; that of the next one if all are."""
        with self._database.reader() as connection:
            return _first_since(connection, time_us)

    def removable(self, kept: LiveObjects, before_us: int, most: int) -> list[int]:
        """The positions of up to `most` events that no view needs, in streams whose every event is older than a moment;
        of streams that do not end (the daemon's, the log's, of files written into a sandbox here) all but the last.
        """
        found: list[int] = []
        with self._database.reader() as connection:
            names, last = Names(connection), _LastPositions(connection)
            until = _first_since(connection, before_us)
            for position, stream, sandbox, type in yielding(connection.execute(_OLD, (until,))):
                name = names[stream]
                if sandbox is None and name in OWN_STREAMS:
                    goes = last[stream] > position
                elif sandbox is None or type.startswith("lock."):  # which may outlive its sandbox
                    goes = _is_gone(type, name, kept) and last[stream] < until
                elif names[sandbox] in kept.sandboxes:
                    goes = _is_gone(type, name, kept) and last[stream] < until
                    goes = goes or (type == SandboxFileWritten.type and last[stream] > position)
                    goes = goes and position not in kept.last
                else:
                    goes = last[stream] < until
                if goes:
                    found.append(position)
                    if len(found) == most:
                        break
        return found

    def removals(self, positions: Sequence[int], kept: LiveObjects) -> tuple[list[Recorded], list[Removal]]:
        """Return the events at these positions, and the data needed to delete each."""
        events, leaving = [], []
        where = "WHERE e.position IN (SELECT value FROM json_each(?)) ORDER BY e.position"
        with self._database.reader() as connection:
            for row in yielding(connection.execute(_PAGE + where, (msgspec.json.encode(positions).decode(),))):
                event = _recorded(*row)
                events.append(event)
                leaving.append(self._leaving(event, row[5], row[7], kept))
        return events, leaving

    def _leaving(self, event: Recorded, stream: int, sandbox: int | None, kept: LiveObjects) -> Removal:
        own = (stream, event.stream)
        if sandbox is None or event.sandbox_id is None:
            return Removal(event.position, (own,), None)
        if event.sandbox_id not in kept.sandboxes:
            return Removal(event.position, (own, (sandbox, event.sandbox_id)), None)
        launch = event.type == ProcessLaunchRequested.type
        unnamed = launch and msgspec.json.decode(event.data, type=Named).name is None
        return Removal(event.position, (own,), sandbox if unnamed else None)

    def check_structure(self, given_up: Callable[[], bool]) -> list[str]:
        """Check the file's pages and indexes by SQLite; return the problems, in sentences."""
        with self._database.reader() as connection:
            connection.set_progress_handler(given_up, _STEPS_BETWEEN_LOOKS)
            try:
                answers = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
            except sqlite3.Error as error:
                if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
                    return []
                raise
            finally:
                connection.set_progress_handler(None, 0)
        return [damaged_file(self._database.path, answer) for answer in answers if answer != "ok"]

    def verify(self, head: int) -> list[str]:
        """Check the file and all rows; return the problems, a sentence each, at most a hundred."""
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
        first = first_position(connection)
        position, left = 0, 0
        revisions: dict[int, int] = {}
        for row in connection.execute(_ALL, (position, head)):
            at, stream, revision, sandbox, type, version, _, data, _, _, more, _ = row
            expected = due(position, at, first)
            if at != expected:
                problems.add(f"the events from position {expected} to {at - 1} are missing")
            if at != position + 1:
                left = 0
            if not is_sound(row):
                problems.add(f"the event at position {at} is damaged: its checksum is wrong")
                position, left, revisions[stream] = at, 0, revision
                continue
            if stream not in names or (sandbox is not None and sandbox not in names):
                problems.add(f"the event at position {at} belongs to a stream whose name is missing or damaged")
            before = revisions.get(stream)
            if revision != (revision if before is None and first > 1 else (before or 0) + 1):
                problems.add(f"the event at position {at} has revision {revision}, where {(before or 0) + 1} was due")
            if left and more != left - 1:
                problems.add(f"the event at position {at} is not the rest of the append before it")
            self._verify_document(at, type, version, data, problems)
            position, left, revisions[stream] = at, more, revision
        self._verify_archived(connection, problems)
        if position != head or left:
            problems.add(f"the log ends at position {position} within an append or before its last event, {head}")

    def _verify_archived(self, connection: sqlite3.Connection, problems: "_Problems") -> None:
        for sandbox, execs, crc in connection.execute("SELECT sandbox, execs, crc FROM archived"):
            if number_checksum(sandbox, execs) != crc:
                problems.add(f"the count of archived processes of the sandbox with key {sandbox} is damaged")

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


class _LastPositions(dict[int, int]):
    """The position of the last event of each stream, looked up when asked for."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__()
        self._connection = connection

    def __missing__(self, stream: int) -> int:
        query = "SELECT position FROM events WHERE stream = ? ORDER BY revision DESC LIMIT 1"
        self[stream] = found = int(self._connection.execute(query, (stream,)).fetchone()[0])
        return found


def _first_since(connection: sqlite3.Connection, time_us: int) -> int:
    """The position of the first event that is not older than a moment; that of the next one if all are."""
    query = "SELECT position FROM events WHERE time >= ? ORDER BY position LIMIT 1"
    row = connection.execute(query, (time_us,)).fetchone()
    return int((row or connection.execute("SELECT coalesce(max(position), 0) + 1 FROM events").fetchone())[0])


def _of_command(connection: sqlite3.Connection, command_id: str, owner: str) -> Recorded | None:
    row = connection.execute(_PAGE + _OF_COMMAND, (command_id, owner)).fetchone()
    return _recorded(*row) if row else None


def _sound(connection: sqlite3.Connection, rows: Iterable[Any], after: int) -> Iterator[Row]:
    """Yield the rows after a position. Raises `storage_unavailable` where one is damaged or missing."""
    position, first = after, first_position(connection)
    for row in rows:
        if row[0] != position + 1 and row[0] != (expected := due(position, row[0], first)):
            raise damaged(expected, "this event is missing")
        position = row[0]
        yield verified(row)


def _select(connection: sqlite3.Connection, after: int, upto: int, limit: int, wanted: Filter) -> Iterator[Recorded]:
    conditions = [("e.position > ?", after), ("e.position <= ?", upto), *wanted.conditions()]
    where = " AND ".join(condition for condition, _ in conditions)
    # In a stream revisions and positions rise together, and the index of streams is by revision.
    order = "e.position" if wanted.stream is None else "e.revision"
    query = f"{_PAGE} WHERE {where} ORDER BY {order} LIMIT ?"
    return (_recorded(*row) for row in connection.execute(query, [*(value for _, value in conditions), limit]))


def _recorded(stream: str | None, stream_crc: int, sandbox: str | None, sandbox_crc: int, *row: Any) -> Recorded:
    position, stream_key, revision, sandbox_key, type, version, time_us, data, meta, _, more, _ = row
    if not is_sound(row):
        raise damaged(position, "its checksum is wrong")
    if stream is None or name_checksum(stream_key, stream) != stream_crc:
        raise damaged(position, "the name of its stream is missing or wrong")
    if sandbox_key is not None and (sandbox is None or name_checksum(sandbox_key, sandbox) != sandbox_crc):
        raise damaged(position, "the name of its sandbox is missing or wrong")
    return Recorded(position, time_us, stream, revision, sandbox, None, type, version, data, meta, more)
