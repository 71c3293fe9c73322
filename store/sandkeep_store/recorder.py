"""The `eventsourcing` library's recorder contract over our own schema, and the only module that knows the library.

`StreamRecorder` is its `AggregateRecorder`, `LogRecorder` its `ApplicationRecorder`; both pass the library's own test
cases. The event log stands on `LogRecorder.insert`, which is the contract's `insert_events` with the columns that the
contract has no word for: positions are given here, gapless and in the order of commits, and never again.

Errors are the library's: `IntegrityError` for a revision that is taken, `PersistenceError` (its base) for all that SQLite
fails at, with SQLite's own as its cause.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final
from uuid import UUID

import msgspec
from eventsourcing import persistence
from eventsourcing.persistence import (
    AggregateRecorder,
    ApplicationRecorder,
    IntegrityError,
    ListenNotifySubscription,
    Notification,
    PersistenceError,
    StoredEvent,
    Subscription,
)
from msgspec import Struct

from sandkeep_store.database import Database
from sandkeep_store.record import COLUMNS, Row, checksum, damaged, name_checksum

__all__ = ["Draft", "IntegrityError", "LogRecorder", "PersistenceError", "StreamRecorder"]

_INSERT: Final = f"INSERT INTO events ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
_SELECT: Final = f"SELECT {', '.join('e.' + column for column in COLUMNS)} FROM events e"
_SELECT_NAMED: Final = f"SELECT s.name, {', '.join('e.' + column for column in COLUMNS)} FROM events e LEFT JOIN streams s ON s.id = e.stream"
_KEPT_STREAMS: Final = 8192
_LIBRARY_ERRORS: Final[dict[type[sqlite3.Error], type[PersistenceError]]] = {
    sqlite3.InterfaceError: persistence.InterfaceError,
    sqlite3.DatabaseError: persistence.DatabaseError,
    sqlite3.DataError: persistence.DataError,
    sqlite3.OperationalError: persistence.OperationalError,
    sqlite3.IntegrityError: IntegrityError,
    sqlite3.InternalError: persistence.InternalError,
    sqlite3.ProgrammingError: persistence.ProgrammingError,
    sqlite3.NotSupportedError: persistence.NotSupportedError,
}


class Draft(Struct, gc=False):
    """An event on its way into the log: a row without what only the commit decides."""

    stream: str
    revision: int
    sandbox: str | None
    type: str
    version: int
    data: bytes
    meta: bytes
    command_id: str | None = None


class _Stream(Struct, gc=False):
    key: int
    revision: int


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise _LIBRARY_ERRORS.get(type(error), PersistenceError)(str(error)) from error


def _new_stream(connection: sqlite3.Connection, name: str) -> int:
    last = connection.execute("SELECT seq FROM sqlite_sequence WHERE name = 'streams'").fetchone()
    key = last[0] + 1 if last else 1
    connection.execute("INSERT INTO streams (id, name, crc) VALUES (?, ?, ?)", (key, name, name_checksum(key, name)))
    return key


def _read_head(connection: sqlite3.Connection, first_position: int) -> int:
    """The position of the last event. The sequence remembers it apart from the rows, so a lost tail shows."""
    sequence = connection.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'events'").fetchone()[0] or 0
    last = connection.execute("SELECT max(position) FROM events").fetchone()[0] or first_position - 1
    if last != sequence:
        raise damaged(min(last, sequence) + 1, f"its last event is {last}, but it had reached {sequence}")
    return int(last)


def verified(row: Row) -> Row:
    """`row`, if its checksum is right; raises `storage_unavailable`, naming the position, if not."""
    if checksum(*row[:-1]) != row[-1]:
        raise damaged(row[0], "its checksum is wrong")
    return row


class StreamRecorder(AggregateRecorder):
    """Events by stream: the contract that needs no order across streams."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        # The streams written last, with the revision each is at. Only this process writes, so that it stays true.
        self._streams: dict[str, _Stream] = {}
        with database.reader() as connection:
            self.head = _read_head(connection, database.first_position)

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int] | None:  # noqa: ARG002
        """Record events of any streams, all or none. Answers None: positions are not part of this contract."""
        self._insert_stored(stored_events)
        return None

    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        """The events of one stream by revision. Ids come back as text."""
        bounds = [("s.name = ?", str(originator_id)), ("e.revision > ?", gt), ("e.revision <= ?", lte)]
        order = "ORDER BY e.revision " + ("DESC" if desc else "ASC")
        return [StoredEvent(name, row[2], row[4], row[7]) for name, row in self._select(bounds, order, limit)]

    def _insert_stored(self, stored: Sequence[StoredEvent]) -> list[int]:
        drafts = [Draft(str(e.originator_id), e.originator_version, None, e.topic, 1, e.state, b"{}") for e in stored]
        return [row[0] for row in self.insert([drafts], time_us=0)] if drafts else []

    def _select(self, bounds: Sequence[tuple[str, Any]], order: str, limit: int | None) -> list[tuple[str, Row]]:
        given = [(condition, value) for condition, value in bounds if value is not None]
        where = "WHERE " + " AND ".join(condition for condition, _ in given) if given else ""
        values = [value for _, value in given]
        query = f"{_SELECT_NAMED} {where} {order} LIMIT ?"  # noqa: S608
        with self._database.reader() as connection:
            return [
                (row[0], verified(row[1:]))
                for row in connection.execute(query, [*values, -1 if limit is None else limit])
            ]

    # -- what the event log uses ----------------------------------------------------------------------------------

    def revision(self, stream: str) -> int:
        """The revision of the last event of `stream`, or 0 for a stream that has none. For the thread that inserts."""
        with _translated():
            found = self._find(stream)
        return found.revision if found else 0

    def insert(self, appends: Sequence[Sequence[Draft]], *, time_us: int) -> list[Row]:
        """Commit appends in one transaction and answer their rows. All or none; durable when it returns."""
        with self._lock:
            try:
                with _translated(), self._transaction() as connection:
                    rows = list(self._rows(connection, appends, time_us))
                    connection.executemany(_INSERT, rows)
            except BaseException:
                self._streams.clear()
                raise
            self._forget_oldest()
            if rows:
                self.head = rows[-1][0]
            return rows

    def reopen(self) -> None:
        """Read the log back from the disk after it failed, without what was written but never acknowledged.

        Raises `PersistenceError` while that does not work, and `storage_unavailable` when what was acknowledged is gone.
        """
        with self._lock:
            self._streams.clear()
            with _translated():
                self._database.reopen(self.head)
            with self._database.reader() as connection:
                last = connection.execute(f"{_SELECT} ORDER BY position DESC LIMIT 1").fetchone()
        if self.head >= self._database.first_position:
            if last is None or last[0] != self.head:
                raise damaged(self.head, "what was committed is gone")
            verified(last)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._database.writer
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            raise

    def _rows(self, connection: sqlite3.Connection, appends: Sequence[Sequence[Draft]], time_us: int) -> Iterator[Row]:
        position = self.head
        for drafts in appends:
            more = len(drafts)
            for draft in drafts:
                position += 1
                more -= 1
                stream = self._enter(connection, draft.stream)
                stream.revision = max(stream.revision, draft.revision)
                sandbox = None if draft.sandbox is None else self._enter(connection, draft.sandbox).key
                fields = (
                    position, stream.key, draft.revision, sandbox, draft.type, draft.version, time_us,
                    draft.data, draft.meta, draft.command_id, more,
                )  # fmt: skip
                yield (*fields, checksum(*fields))

    def _enter(self, connection: sqlite3.Connection, name: str) -> _Stream:
        found = self._find(name)
        if found is None:
            found = self._keep(name, _Stream(_new_stream(connection, name), 0))
        return found

    def _find(self, name: str) -> _Stream | None:
        found = self._streams.get(name)
        if found is None:
            row = self._database.writer.execute(
                "SELECT id, (SELECT max(revision) FROM events WHERE stream = id) FROM streams WHERE name = ?", (name,)
            ).fetchone()
            if row is not None:
                found = self._keep(name, _Stream(row[0], row[1] or 0))
        return found

    def _keep(self, name: str, stream: _Stream) -> _Stream:
        self._streams[name] = stream
        return stream

    def _forget_oldest(self) -> None:
        # Only between transactions: what the cache says of a stream is true before the table shows it.
        for name in list(islice(self._streams, max(0, len(self._streams) - _KEPT_STREAMS))):
            del self._streams[name]


class LogRecorder(StreamRecorder, ApplicationRecorder):
    """Events in the one order in which they were committed, besides by stream."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._listeners: set[threading.Event] = set()

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int]:  # noqa: ARG002
        """Record events of any streams, all or none, and answer their positions."""
        positions = self._insert_stored(stored_events)
        for listener in tuple(self._listeners):
            listener.set()
        return positions

    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        """Events by position."""
        bounds = [("e.position >= ?" if inclusive_of_start else "e.position > ?", start), ("e.position <= ?", stop)]
        order = "ORDER BY e.position"
        if topics:
            # One JSON parameter stands for any number of topics.
            bounds.append(("e.type IN (SELECT value FROM json_each(?))", msgspec.json.encode(topics).decode()))
        return [Notification(name, row[2], row[4], row[7], row[0]) for name, row in self._select(bounds, order, limit)]

    def max_notification_id(self) -> int | None:
        """The position of the last event, or None before the first."""
        return self.head or None

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> Subscription[ApplicationRecorder]:
        """An iterator that blocks for events to come. For the library's own tools: it starts a thread."""
        return _RecorderSubscription(self, gt=gt, topics=topics)

    def listen(self, event: threading.Event) -> None:
        """Have `event` set after each `insert_events`."""
        self._listeners.add(event)

    def unlisten(self, event: threading.Event) -> None:
        """Undo `listen`."""
        self._listeners.discard(event)


class _RecorderSubscription(ListenNotifySubscription[LogRecorder]):
    def __init__(self, recorder: LogRecorder, gt: int | None, topics: Sequence[str]) -> None:
        super().__init__(recorder=recorder, gt=gt, topics=topics)
        recorder.listen(self._has_been_notified)

    def stop(self) -> None:
        super().stop()
        self._recorder.unlisten(self._has_been_notified)
