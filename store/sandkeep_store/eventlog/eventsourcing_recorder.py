"""The `eventsourcing` library's recorder contract over our own `schema`, and the only module that knows the library.

`LogRecorder` is its `ApplicationRecorder` and passes the library's own test cases. The event log stands on
`LogRecorder.insert`, which is the contract's `insert_events` with the columns that the contract has no word for:
positions are given here, gapless and in the order of commits, and never again.

Errors are the library's: `IntegrityError` for a revision that is taken, `PersistenceError` (its base) for all that
SQLite fails at, with SQLite's own as its cause.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final
from uuid import UUID
from zlib import crc32

from eventsourcing import persistence
from eventsourcing.persistence import (
    ApplicationRecorder,
    IntegrityError,
    ListenNotifySubscription,
    Notification,
    PersistenceError,
    StoredEvent,
    Subscription,
)
from msgspec import Struct

from sandkeep.errors import DaemonError
from sandkeep.events import Event
from sandkeep_store.eventlog import schema
from sandkeep_store.eventlog import witness as witness_of
from sandkeep_store.eventlog.database import Database
from sandkeep_store.eventlog.row import Row, checksum, damaged, name_checksum, pack_numbers, verified

__all__ = ["Draft", "IntegrityError", "LogRecorder", "PersistenceError"]

_KEPT_STREAMS: Final = 8192
_CHECKPOINT_PAGES: Final = 1000
"""About how many pages the write-ahead log may hold before they are brought into the file."""
_PAGES_AT_LEAST: Final = 4
"""Minimum number of pages that a commit writes."""


class Draft(Struct, gc=False):
    """An event before its commit: a row without the columns that the commit decides.

    The last two fields are for the writer: the expected revision of the stream, and the event itself.
    """

    stream: str
    revision: int
    sandbox: str | None
    type: str
    version: int
    data: bytes
    meta: bytes
    command_id: str | None = None
    expected_revision: int | None = None
    event: Event | None = None


class _Stream(Struct, gc=False):
    key: int
    revision: int


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        # The library's errors are called as SQLite's, by PEP 249.
        raise getattr(persistence, type(error).__name__, PersistenceError)(str(error)) from error


class LogRecorder(ApplicationRecorder):
    """Events by stream, and in the one order in which they were committed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        # The streams used last, each with its key (0 = it has no row yet) and the revision it is at. Only this process
        # writes, so that it stays true until a commit fails.
        self._streams: dict[str, _Stream] = {}
        self.suspect = False  # whether the file must be written anew before anything else is committed
        self._written = 0
        self._listeners: set[threading.Event] = set()
        with database.reader() as connection:
            self.head = schema.read_head(connection, database.first_position)
            self._last_key = schema.last_number(connection, "streams")
            self.doubts = self._ask_witness(connection)

    def _ask_witness(self, connection: sqlite3.Connection) -> list[str]:
        """Return the witness's objections to the log. Without any, bring the witness up to date."""
        witness = self._database.witness
        try:
            seen = witness_of.read(witness.path)
        except witness_of.UnreadableError as error:
            return [f"{witness.path} cannot be believed ({error}): {witness_of.CURE}"]
        if seen is not None:
            crc = schema.checksum_at(connection, seen.position)
            if crc not in (None, seen.crc) and schema.was_redacted(connection, seen.position):
                crc = seen.crc
            first = witness.first_position
            compacted = schema.is_compacting(connection) or schema.was_compacted_to(connection, first)
            doubts = witness.doubts(seen, self.head, crc, compacted=compacted)
            if doubts:
                return doubts
        witness.note(self.head, schema.checksum_at(connection, self.head) or 0)
        return []

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
        stream = str(originator_id)
        with self._database.reader() as connection:
            rows = schema.events_of(connection, stream, gt, lte, desc=desc, limit=limit)
        return [StoredEvent(stream, row[2], row[4], row[7]) for row in rows]

    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int]:  # noqa: ARG002
        """Record events of any streams, all or none, and answer their positions."""
        drafts = [
            Draft(str(event.originator_id), event.originator_version, None, event.topic, 1, event.state, b"{}")
            for event in stored_events
        ]
        self.know(draft.stream for draft in drafts)
        positions = [row[0] for row in self.insert([drafts], time_us=0)] if drafts else []
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
        after = start - 1 if start is not None and inclusive_of_start else start
        with self._database.reader() as connection:
            found = schema.events_after(connection, after, stop, topics, limit)
        return [Notification(name, row[2], row[4], row[7], row[0]) for name, row in found]

    def max_notification_id(self) -> int | None:
        """The position of the last event, or None before the first."""
        return self.head or None

    def subscribe(self, gt: int | None = None, topics: Sequence[str] = ()) -> Subscription[ApplicationRecorder]:
        """An iterator that blocks for events to come. For the library's own tools: it starts a thread."""
        return _RecorderSubscription(self, gt=gt, topics=topics)

    def listen(self, event: threading.Event) -> None:
        """Register `event` to be set after each `insert_events`."""
        self._listeners.add(event)

    def unlisten(self, event: threading.Event) -> None:
        """Undo `listen`."""
        self._listeners.discard(event)

    # -- interface of the event log -------------------------------------------------------------------------------

    def assume_new(self, name: str) -> None:
        """Take a stream for new unless it is known, unseen. `insert` raises IntegrityError if that was wrong."""
        if name not in self._streams:
            self._streams[name] = _Stream(0, 0)

    def know(self, names: Iterable[str]) -> None:
        """Look up the streams of `names` at once, so that `revision` can answer. For the thread that inserts."""
        unknown = [name for name in names if name not in self._streams]
        if not unknown:
            return
        with _translated():
            found = schema.find_streams(self._database.writer, unknown)
        self._streams.update((name, _Stream(0, 0)) for name in unknown)
        self._streams.update((name, _Stream(key, revision or 0)) for name, key, revision in found)

    def revision(self, stream: str) -> int:
        """The revision of the last event of a stream that is known; 0 when it has none."""
        return self._streams[stream].revision

    def insert(self, appends: Sequence[Sequence[Draft]], *, time_us: int) -> list[Row]:
        """Commit appends in one transaction and answer their rows. All or none; durable when it returns.

        Their streams and sandboxes must be known (`know`), and their revisions be given.
        """
        with self._lock:
            try:
                rows = self._commit(appends, time_us)
            except BaseException:
                # The keys that were given stay given: after a failed fsync their rows may be there all the same.
                self._streams.clear()
                raise
            self.head += len(rows)
            self._database.witness.note(self.head, rows[-1][-1])
            self._forget_oldest()
            return rows

    def _commit(self, appends: Sequence[Sequence[Draft]], time_us: int) -> list[Row]:
        new: list[tuple[int, str, int]] = []
        rows = self._rows(appends, time_us, new)
        with _translated(), self._transaction() as connection:
            schema.insert(connection, new, rows)
        return rows

    def raise_first(self, position: int) -> None:
        """Say that there may be gaps before a position. Durable when it returns, also in the witness.

        Raises `storage_unavailable` when that cannot be written.
        """
        with self._lock, _translated(), self._transaction() as connection:
            schema.raise_first_position(connection, position)
            crc = schema.checksum_at(connection, self.head) or 0
        first = self._database.first_position = max(position, self._database.first_position)
        self._database.witness.first_position = first
        self._database.witness.note_durably(self.head, crc)

    def remove(self, positions: Sequence[int], streams: Mapping[int, str], execs: Mapping[int, int]) -> None:
        """Take events out of the log, and those of `streams` (names by keys) that have no events any more.

        `execs` are the launches among them that are to be counted on, by the keys of their sandboxes.
        """
        with self._lock:
            with _translated(), self._transaction() as connection:
                schema.delete(connection, positions, list(streams), execs)
            for name in streams.values():
                self._streams.pop(name, None)

    def redact(self, position: int, change: Callable[[Row], tuple[bytes, bytes]]) -> bool:
        """Replace the data and the meta of an event, which is not the last one. Return False if it is not in the log.
        The old bytes are gone after `wipe` and `settle`. Raises `storage_unavailable` when the witness cannot be
        written.
        """
        with self._lock, _translated(), self._transaction() as connection:
            # On the disk it may still be at this very event, as that was.
            self._database.witness.note_durably(self.head, schema.checksum_at(connection, self.head) or 0)
            row = schema.row_at(connection, position)
            if row is None:
                return False
            fields = (*row[:7], *change(verified(row)), *row[9:11])
            schema.rewrite(connection, position, *fields[7:9], checksum(*fields))
        return True

    def wipe(self) -> None:
        """Write the whole file anew, so that its pages hold rows and nothing else.

        SQLite's `secure_delete` does not suffice: of rows that it moves between pages it leaves copies in the gaps.
        """
        with self._lock, _translated():
            # The temporary copy is of the whole log: it stays in the log's directory.
            schema.vacuum(self._database.writer, self._database.directory)

    def settle(self) -> bool:
        """Bring the write-ahead log into the file, and empty it; False while a reader still needs it."""
        with self._lock, _translated():
            return schema.empty_wal(self._database.writer)

    def release_pages(self, most: int) -> int:
        """Give up to `most` free pages back to the file system; answer how many are left free."""
        with self._lock, _translated():
            return schema.release_pages(self._database.writer, most)

    def require_in_place(self) -> None:
        """Refuse to write to files that nobody will find again. Raises `storage_unavailable`."""
        displaced = self._database.displaced()
        if displaced is not None:
            raise DaemonError("storage_unavailable", displaced)

    def touch(self) -> None:
        """Commit something that changes nothing. Raises `PersistenceError` when that does not work."""
        with self._lock, _translated(), self._transaction() as connection:
            schema.touch(connection)

    def reopen(self) -> None:
        """Read the log back from the disk after a failure, without writes that were never acknowledged.

        Raises `PersistenceError` while the disk fails, and `storage_unavailable` if acknowledged events are gone.
        """
        with self._lock:
            self._streams.clear()
            with _translated():
                self._database.reopen(self.head)
            self.suspect, self._written = False, 0
            with self._database.reader() as connection:
                last = schema.last_row(connection)
                self._database.witness.note(self.head, schema.checksum_at(connection, self.head) or 0)
        if self.head >= self._database.first_position:
            if last is None or last[0] != self.head:
                raise damaged(self.head, "an acknowledged event is gone")
            verified(last)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._database.writer
        before = connection.total_changes
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            raise
        self._checkpoint_when_due(_PAGES_AT_LEAST + connection.total_changes - before)

    def _checkpoint_when_due(self, pages: int) -> None:
        self._written += pages
        if self._written >= _CHECKPOINT_PAGES and not self.suspect:
            self._written = 0
            try:
                self._database.checkpoint()
            except sqlite3.Error:
                self.suspect = True  # the commit is durable all the same, by the write-ahead log

    def _rows(self, appends: Sequence[Sequence[Draft]], time_us: int, new: list[tuple[int, str, int]]) -> list[Row]:
        """The rows of `appends`; the rows of the streams that are new with them go to `new`."""
        rows: list[Row] = []
        position, streams = self.head, self._streams
        # Every append goes through here, so `checksum` is inlined.
        for drafts in appends:
            more = len(drafts)
            for draft in drafts:
                position += 1
                more -= 1
                revision, version, data, command_id = draft.revision, draft.version, draft.data, draft.command_id
                stream, box = streams[draft.stream], streams[draft.sandbox] if draft.sandbox else None
                key = stream.key or self._give_key(stream, draft.stream, new)
                sandbox = (box.key or self._give_key(box, draft.sandbox, new)) if box is not None else None
                if revision > stream.revision:
                    stream.revision = revision
                numbers = pack_numbers(position, key, revision, sandbox or 0, version, time_us, more, len(data))
                rest = command_id.encode() if command_id else b""
                crc = crc32(b"".join((numbers, draft.type.encode(), data, draft.meta, rest)))
                rows.append(
                    (
                        position, key, revision, sandbox, draft.type, version, time_us, data, draft.meta, command_id,
                        more, crc,
                    )
                )  # fmt: skip
        return rows

    def _give_key(self, stream: _Stream, name: str | None, new: list[tuple[int, str, int]]) -> int:
        assert name is not None
        self._last_key += 1
        stream.key = self._last_key
        new.append((stream.key, name, name_checksum(stream.key, name)))
        return stream.key

    def _forget_oldest(self) -> None:
        for name in list(islice(self._streams, max(0, len(self._streams) - _KEPT_STREAMS))):
            del self._streams[name]


class _RecorderSubscription(ListenNotifySubscription[LogRecorder]):
    def __init__(self, recorder: LogRecorder, gt: int | None, topics: Sequence[str]) -> None:
        super().__init__(recorder=recorder, gt=gt, topics=topics)
        recorder.listen(self._has_been_notified)

    def stop(self) -> None:
        super().stop()
        self._recorder.unlisten(self._has_been_notified)
