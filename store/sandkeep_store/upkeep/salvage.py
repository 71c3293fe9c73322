"""Salvage: readable events of a damaged log go into a new one, and the rest is marked as lost.

A lost event leaves ``log.event_lost`` in its position, and in its place in its stream if its row, an index or its
neighbours tell which that was.
"""

import contextlib
import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from sandkeep import failpoints
from sandkeep.errors import DaemonError
from sandkeep.events import LOG_STREAM, OWN_STREAMS, LogEventLost, SandboxFileWritten
from sandkeep_store import metadata_files
from sandkeep_store.eventlog import witness
from sandkeep_store.eventlog.codec import CODEC
from sandkeep_store.eventlog.database import Database
from sandkeep_store.eventlog.log import EventLog
from sandkeep_store.eventlog.row import COLUMNS, Row, checksum, is_sound, name_checksum, number_checksum
from sandkeep_store.eventlog.schema import is_compacting, was_compacted_to, was_redacted
from sandkeep_store.upkeep import offline, segments

CHUNK: Final = 256
MOST_BEYOND: Final = 100_000
"""Maximum distance beyond known positions at which a number without a checksum is believed."""
MOST_ROWS: Final = 50_000_000
"""More rows than any log has; a number that is higher is damaged."""
_ROW: Final = ", ".join(COLUMNS)
_PLACES: Final = "SELECT position, stream, revision FROM events INDEXED BY sqlite_autoindex_events_1"
_LOST: Final = CODEC.encode(LogEventLost())


class _Gap(Struct):
    """A revision that a stream lacks, between two positions."""

    stream: int
    sandbox: int | None
    revision: int
    after: int
    before: int


class Salvage:
    """Reads a damaged database, a copy that nobody else uses, into a new one.

    `source` is where the files were copied from, `state_dir` where the documents are that have seen the log.
    """

    def __init__(self, path: str, new: str, state_dir: str, source: str) -> None:
        self._source = source
        self._path = path
        self._new_path = new
        self._state_dir = state_dir
        self._problems: list[str] = []
        self._names: dict[int, str] = {}
        self._last: dict[int, tuple[int, int]] = {}
        self._sandbox_of: dict[int, int | None] = {}
        self._gaps: list[_Gap] = []
        self._lost: dict[int, Row | None] = {}  # its row, when there is one
        self._places: dict[int, tuple[int, int]] = {}  # by an index: position to stream and revision
        self._kept = 0
        self.log_id = ""

    def run(self) -> tuple[int, list[str]]:
        """Fill the new database; return the number of salvaged events, and the losses and repairs, in sentences."""
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as old:
            self._check(old)
            self._look_beside()
            seen = self._witnessed()
            self._settle_facts(old, seen)
            with contextlib.closing(Database(self._new_path)) as new:
                new.writer.execute("BEGIN IMMEDIATE")
                for key, value in (("log_id", self.log_id), ("first_position", self._first)):
                    new.writer.execute("UPDATE meta SET value = ? WHERE key = ?", (value, key))
                self._copy_names(old, new.writer)
                self._read_places(old)
                self._copy_events(old, new.writer, seen.position if seen is not None else 0)
                self._copy_counts(old, new.writer)
                self._fill(new.writer)
                new.writer.execute("COMMIT")
        failpoints.reach("repair.filled")
        self._prove()
        failpoints.reach("repair.proved")
        return self._kept, self._problems

    def _check(self, old: sqlite3.Connection) -> None:
        try:
            answers = [row[0] for row in old.execute("PRAGMA integrity_check(10)")]
        except sqlite3.Error as error:
            answers = [str(error)]
        if answers != ["ok"]:
            self._problems += [f"SQLite finds: {answer}" for answer in answers]

    def _look_beside(self) -> None:
        path = f"{self._state_dir}/{offline.LOG_NAME}-wal"
        if os.path.lexists(path) and not is_file(path):
            self._problems.append(f"{path} is not a file; what was in it is lost")

    def _witnessed(self) -> witness.Head | None:
        path = witness.path_of(f"{self._source}/{offline.LOG_NAME}")
        try:
            return witness.read(path)
        except witness.UnreadableError as error:
            self._problems.append(f"{os.path.basename(path)} cannot be believed ({error}) and is written anew")
            return None

    def _settle_facts(self, old: sqlite3.Connection, seen: witness.Head | None) -> None:
        """Determine the log's id and first position. The witness has a checksum, and the table has none."""
        meta = self._facts(old)
        if seen is not None and meta.get("log_id") != seen.log_id and not self._is_of(old, seen):
            self._problems.append(f"{witness.path_of(self._path)} is of another log, {seen.log_id}")
            seen = None
        log_id, first = meta.get("log_id"), meta.get("first_position")
        if seen is not None:
            if log_id != seen.log_id:
                self._problems.append(f"the log says that it is {log_id!r}, and is {seen.log_id}")
            log_id = seen.log_id
            if first != seen.first_position and not (isinstance(first, int) and self._was_compacted(old, first, seen)):
                self._problems.append(f"the log says that it has no gaps from {first!r} on, not {seen.first_position}")
                first = seen.first_position
        if not isinstance(log_id, str) or not isinstance(first, int) or not 0 < first < 2**62:
            raise self._hopeless("it does not say which log it is")
        self.log_id, self._first = log_id, first
        if seen is not None and seen.crc and seen.position >= first:
            self._compare(old, seen)

    def _compare(self, old: sqlite3.Connection, seen: witness.Head) -> None:
        """Note if the witness has seen another event at its position. A damaged event is reported anyway."""
        query = f"SELECT {_ROW} FROM events WHERE position = ?"  # noqa: S608
        with contextlib.suppress(sqlite3.Error):
            row = old.execute(query, (seen.position,)).fetchone()
            if row and is_sound(row) and row[-1] != seen.crc and not was_redacted(old, seen.position):
                name = os.path.basename(witness.path_of(offline.LOG_NAME))
                self._problems.append(f"{name} has seen another event at position {seen.position}; it is written anew")

    def _is_of(self, old: sqlite3.Connection, seen: witness.Head) -> bool:
        """Return True if the log has the event that the witness has seen."""
        try:
            row = old.execute("SELECT crc FROM events WHERE position = ?", (seen.position,)).fetchone()
        except sqlite3.Error:
            return True
        return row is not None and row[0] == seen.crc

    def _was_compacted(self, old: sqlite3.Connection, first: int, seen: witness.Head) -> bool:
        """Return True if a compaction explains the gaps up to `first`. The witness may not have recorded it."""
        try:
            return is_compacting(old) or (first > seen.first_position and was_compacted_to(old, first))
        except sqlite3.Error:
            return True

    def _facts(self, old: sqlite3.Connection) -> dict[str, Any]:
        try:
            return dict(old.execute("SELECT key, value FROM meta"))
        except (sqlite3.Error, ValueError) as error:
            raise self._hopeless(str(error)) from None

    def _hopeless(self, why: str) -> DaemonError:
        message = f"nothing can be read of {self._state_dir}/{offline.LOG_NAME} ({why})"
        return DaemonError("storage_unavailable", f"{message}: restore the state directory from a backup")

    def _copy_names(self, old: sqlite3.Connection, new: sqlite3.Connection) -> None:
        lost = set()
        taken = set()
        for key, name, crc in _readable(old, "SELECT id, name, crc FROM streams", "id", _top(old, "streams", "id")):
            if isinstance(name, str) and name_checksum(key, name) == crc:
                if key not in self._names and name not in taken:
                    new.execute("INSERT INTO streams VALUES (?, ?, ?)", (key, name, crc))
                    self._names[key] = name
                    taken.add(name)
            else:
                lost.add(key)
        self._problems += [
            f"the name of stream {key} is lost, and its events with it" for key in sorted(lost - self._names.keys())
        ]

    def _read_places(self, old: sqlite3.Connection) -> None:
        """Read positions and streams from the index, also of events whose rows are unreadable."""
        with contextlib.suppress(sqlite3.Error):
            for position, stream, revision in old.execute(_PLACES):
                if isinstance(revision, int) and stream in self._names:
                    self._places[position] = (stream, revision)

    def _copy_events(self, old: sqlite3.Connection, new: sqlite3.Connection, witnessed: int) -> None:
        known = max(witnessed, metadata_files.newest_seen(f"{self._state_dir}/sandboxes", self.log_id))
        claimed_end = _top(old, "events", "position")
        sound: set[int] = set()
        for row in _all_readable(old, min(claimed_end, known + MOST_BEYOND) if known else claimed_end):
            if row[0] in sound:
                continue
            if self._is_sound(row):
                new.execute(f"INSERT INTO events VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608
                sound.add(row[0])
            else:
                self._lost[row[0]] = row
        self._kept = len(sound)
        end = self._end(max(sound, default=0), known, claimed_end)
        due = {at for at in (*self._lost, *self._places) if 0 < at <= end}.union(range(self._first, end + 1))
        if self._problems or due - sound:
            due.update(range(1, self._first))
            sound = sound | segments.positions(self._state_dir)
        self._lost = {at: self._lost.get(at) for at in sorted(due - sound)}
        for row in new.execute("SELECT position, stream, revision, sandbox, type FROM events ORDER BY position"):
            self._note_gaps(*row)

    def _end(self, last: int, known: int, claimed_end: int) -> int:
        """Return the last position of the log. The log's own number has no checksum, and is believed within limits."""
        if known:
            return max(last, known)
        if last <= claimed_end <= last + MOST_BEYOND:
            return claimed_end
        self._problems.append(f"how far the log had come is not known; the last event that is left is at {last}")
        return last

    def _is_sound(self, row: Row) -> bool:
        return is_sound(row) and row[1] in self._names and (row[3] is None or row[3] in self._names)

    def _note_gaps(self, position: int, stream: int, revision: int, sandbox: int | None, kind: str) -> None:
        before, at = self._last.get(stream, (0, 0))
        endless = self._names[stream] in OWN_STREAMS or kind == SandboxFileWritten.type
        starts_late = before == 0 and self._first > 1 and endless
        if not starts_late:
            for missing in range(before + 1, revision):
                self._gaps.append(_Gap(stream, sandbox, missing, at, position))
        self._last[stream] = (revision, position)
        self._sandbox_of[stream] = sandbox

    def _copy_counts(self, old: sqlite3.Connection, new: sqlite3.Connection) -> None:
        lost = set()
        try:
            rows = old.execute("SELECT sandbox, execs, crc FROM archived").fetchall()
        except sqlite3.Error as error:
            self._problems.append(f"the counts of archived commands are lost ({error})")
            return
        for sandbox, execs, crc in rows:
            if number_checksum(sandbox, execs) == crc and sandbox in self._names:
                new.execute("INSERT OR REPLACE INTO archived VALUES (?, ?, ?)", (sandbox, execs, crc))
            else:
                lost.add(sandbox)
        self._problems += [
            f"the count of archived commands of {self._names.get(sandbox, f'stream {sandbox}')} is lost"
            for sandbox in sorted(lost)
        ]

    def _fill(self, new: sqlite3.Connection) -> None:
        """Put a tombstone in every position that is lost, and tell of each."""
        (top,) = new.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'streams'").fetchone()
        key = top or 0
        gaps = self._match()
        for position in self._lost:
            gap = gaps.get(position)
            if gap is None and position < self._first and self._is_unheard_of(position):
                continue  # nothing tells that it was in the log
            if gap is None:
                key += 1
                name = f"{LOG_STREAM}/lost/{position}"
                new.execute("INSERT INTO streams VALUES (?, ?, ?)", (key, name, name_checksum(key, name)))
                gap = _Gap(key, None, 1, 0, 0)
            self._insert_tombstone(new, position, gap)
        self._tell(gaps)

    def _match(self) -> dict[int, _Gap]:
        """The place in a stream that each lost event had, as far as that can be told: by its row or by the index, else
        by which places are free. Of these the one that ends first is taken, so that none stays open.
        """
        by_row = {position: (row[1], row[2]) for position, row in self._lost.items() if row is not None}
        gaps = {(gap.stream, gap.revision): gap for gap in self._gaps}
        matched: dict[int, _Gap] = {}
        for position in self._lost:
            place = self._places.get(position)
            if place is not None and self._is_next(place, position):
                matched[position] = _Gap(place[0], self._sandbox_of[place[0]], place[1], 0, 0)
                self._last[place[0]] = (place[1], position)
        for position in self._lost:
            for place in (self._places.get(position), by_row.get(position)):
                gap = gaps.get(place) if place is not None else None
                if gap is not None and position not in matched and gap.after < position < gap.before:
                    matched[position] = gaps.pop((gap.stream, gap.revision))
        for position in self._lost:
            fitting = [gap for gap in gaps.values() if gap.after < position < gap.before]
            if position not in matched and fitting:
                gap = min(fitting, key=lambda gap: (gap.before, gap.revision))
                matched[position] = gaps.pop((gap.stream, gap.revision))
        return matched

    def _is_next(self, place: tuple[int, int], position: int) -> bool:
        """Return True if a place directly follows the last remaining event of its stream."""
        stream, revision = place
        return stream in self._last and (revision - 1, True) == (
            self._last[stream][0],
            self._last[stream][1] < position,
        )

    def _tell(self, gaps: dict[int, _Gap]) -> None:
        unknown: list[int] = []
        for position, row in self._lost.items():
            gap, place = gaps.get(position), self._places.get(position)
            if gap is None and self._is_unheard_of(position):
                if unknown and unknown[-1] != position - 1:
                    self._tell_of_range(unknown)
                unknown.append(position)
                continue
            self._tell_of_range(unknown)
            if row is not None:
                of = self._names.get(row[1], "an unknown stream")
                finding = f"is damaged (it reads {row[4]!r} of {of!r})"
            elif place is not None:
                finding = f"is missing (revision {place[1]} of {self._names[place[0]]})"
            else:
                assert gap is not None
                finding = f"is missing (it may be revision {gap.revision} of {self._names[gap.stream]})"
            self._problems.append(f"the event at position {position} {finding}")
        self._tell_of_range(unknown)

    def _is_unheard_of(self, position: int) -> bool:
        return self._lost[position] is None and position not in self._places

    def _tell_of_range(self, positions: list[int]) -> None:
        if len(positions) == 1:
            self._problems.append(f"the event at position {positions[0]} is missing")
        elif positions:
            self._problems.append(f"the events from position {positions[0]} to {positions[-1]} are missing")
        positions.clear()

    def _insert_tombstone(self, new: sqlite3.Connection, position: int, gap: _Gap) -> None:
        before = new.execute("SELECT time, more FROM events WHERE position = ?", (position - 1,)).fetchone()
        time_us, more = (before[0], max(0, before[1] - 1)) if before else (0, 0)
        fields = (position, gap.stream, gap.revision, gap.sandbox, LogEventLost.type, 1, time_us, _LOST, b"{}", None)
        row = (*fields, more, checksum(*fields, more))
        new.execute(f"INSERT INTO events VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608

    def _prove(self) -> None:
        with contextlib.closing(EventLog.open(self._new_path)) as log:
            left = log.verify()
            offline.fold(log)
        if left:
            message = f"the log cannot be mended ({left[0]}): restore the state directory from a backup"
            raise DaemonError("storage_unavailable", message)


def _top(old: sqlite3.Connection, table: str, key: str) -> int:
    """The highest key that a table seems to have had."""
    found = [0]
    for query in (f"SELECT max({key}) FROM {table}", f"SELECT seq FROM sqlite_sequence WHERE name = '{table}'"):  # noqa: S608
        with contextlib.suppress(sqlite3.Error):
            found += [row[0] for row in old.execute(query) if isinstance(row[0], int)]
    return min(max(found), MOST_ROWS)


def _all_readable(old: sqlite3.Connection, top: int) -> Iterator[Any]:
    """The events that can be read, some more than once: those that are not where they should be, too."""
    query = f"SELECT {_ROW} FROM events"  # noqa: S608
    yield from _readable(old, query, "position", top)
    for order in ("ASC", "DESC"):
        with contextlib.suppress(sqlite3.DatabaseError):
            yield from old.execute(f"{query} NOT INDEXED ORDER BY position {order}")


def _readable(old: sqlite3.Connection, query: str, key: str, top: int) -> Iterator[Any]:
    """The rows with keys up to `top` that can be read, in order, around those that cannot."""
    for after in range(0, top, CHUNK):
        yield from _between(old, query, key, after, min(top, after + CHUNK))


def _between(old: sqlite3.Connection, query: str, key: str, after: int, upto: int) -> Sequence[Any]:
    try:
        return old.execute(f"{query} WHERE {key} > ? AND {key} <= ? ORDER BY {key}", (after, upto)).fetchall()
    except sqlite3.DatabaseError:
        if upto - after <= 1:
            return []
        middle = (after + upto) // 2
        return [*_between(old, query, key, after, middle), *_between(old, query, key, middle, upto)]


def is_file(path: str) -> bool:
    """Return True if there is a regular file."""
    try:
        return stat.S_ISREG(os.stat(path, follow_symlinks=os.path.basename(path) == offline.LOG_NAME).st_mode)
    except OSError:
        return False
