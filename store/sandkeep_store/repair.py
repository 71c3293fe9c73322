"""Repair of a damaged log, without a daemon: all that can be read goes into a new file, and what cannot is told.

Nothing is thrown away: the damaged files are copied into quarantine first. An event that is lost leaves
``log.event_lost`` in its position, so that no position is used twice, and in its place in its stream where its
neighbours tell which that was. Positions that only `metadata.json` has seen, beyond the end of what is left, count as
lost too.
"""

import contextlib
import fcntl
import os
import shutil
import sqlite3
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from sandkeep.errors import DaemonError, SetupError, StateError
from sandkeep.events import DAEMON_STREAM, LOG_STREAM, LogEventLost, SandboxFileWritten
from sandkeep.model import RepairReport
from sandkeep_store import folded, metadata_files, offline
from sandkeep_store.codec import CODEC
from sandkeep_store.database import Database, repairing
from sandkeep_store.log import EventLog
from sandkeep_store.record import COLUMNS, Row, checksum, name_checksum, number_checksum

CHUNK: Final = 256
QUARANTINE: Final = "quarantine"
WORK: Final = "repair.work"
_ROW: Final = ", ".join(COLUMNS)
_LOCK_BYTES: Final = (0x40000000, 512)  # where SQLite locks a database file
_LOST: Final = CODEC.encode(LogEventLost())


class _Gap(Struct):
    """A revision that a stream lacks, between two positions."""

    stream: int
    sandbox: int | None
    revision: int
    after: int
    before: int


def repair(state_dir: str, *, yes: bool) -> RepairReport:
    """Say what is lost of a damaged log; with `yes` also mend it. Blocks.

    Raises `conflict` while a daemon uses it, and `storage_unavailable` when nothing can be read of it at all.
    """
    path = f"{state_dir}/{offline.LOG_NAME}"
    if not os.path.isfile(path) and not os.path.exists(repairing(path)):
        raise SetupError("not_configured", f"{state_dir} holds no event log: name the directory of a daemon's state")
    work = f"{state_dir}/{WORK}"
    with _locked(path):
        shutil.rmtree(work, ignore_errors=True)
        os.mkdir(work, 0o700)
        try:
            _copy(_source(path), work)
            _pad(f"{work}/{offline.LOG_NAME}")
            salvage = Salvage(f"{work}/{offline.LOG_NAME}", f"{work}/new.db", state_dir)
            kept, problems = salvage.run()
            quarantine = _replace(path, f"{work}/new.db") if problems and yes else None
        finally:
            shutil.rmtree(work, ignore_errors=True)
    if quarantine:
        offline.rebuild(state_dir)
    return RepairReport(kept=kept, problems=problems, quarantine=quarantine, mended=bool(quarantine))


class Salvage:
    """Reads a damaged database, a copy that nobody else uses, into a new one."""

    def __init__(self, path: str, new: str, state_dir: str) -> None:
        self._path = path
        self._new_path = new
        self._state_dir = state_dir
        self._problems: list[str] = []
        self._names: dict[int, str] = {}
        self._last: dict[int, tuple[int, int]] = {}
        self._gaps: list[_Gap] = []
        self._lost: dict[int, tuple[int, int] | None] = {}  # position: where its row says it belongs
        self._kept = 0

    def run(self) -> tuple[int, list[str]]:
        """Fill the new database; answer how many events it took over, and what is lost or mended, in sentences."""
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as old:
            self._check(old)
            meta = self._facts(old)
            new = Database(self._new_path)
            try:
                self._first = int(meta.get("first_position", 1))
                new.writer.execute("BEGIN IMMEDIATE")
                for key in ("log_id", "first_position"):
                    if key in meta:
                        new.writer.execute("UPDATE meta SET value = ? WHERE key = ?", (meta[key], key))
                self._copy_names(old, new.writer)
                self._copy_events(old, new.writer, str(meta.get("log_id", "")))
                self._copy_counts(old, new.writer)
                self._fill(new.writer)
                new.writer.execute("COMMIT")
            finally:
                new.close()
        self._prove()
        return self._kept, self._problems

    def _check(self, old: sqlite3.Connection) -> None:
        try:
            answers = [row[0] for row in old.execute("PRAGMA integrity_check(10)")]
        except sqlite3.Error as error:
            answers = [str(error)]
        if answers != ["ok"]:
            self._problems += [f"SQLite finds: {answer}" for answer in answers]

    def _facts(self, old: sqlite3.Connection) -> dict[str, Any]:
        try:
            return dict(old.execute("SELECT key, value FROM meta"))
        except sqlite3.Error as error:
            message = f"nothing can be read of {self._state_dir}/{offline.LOG_NAME} ({error})"
            raise DaemonError("storage_unavailable", f"{message}: restore the state directory from a backup") from None

    def _copy_names(self, old: sqlite3.Connection, new: sqlite3.Connection) -> None:
        for key, name, crc in _readable(old, "SELECT id, name, crc FROM streams", "id", _top(old, "streams", "id")):
            if isinstance(name, str) and name_checksum(key, name) == crc:
                self._names[key] = name
                new.execute("INSERT INTO streams VALUES (?, ?, ?)", (key, name, crc))
            else:
                self._problems.append(f"the name of stream {key} is lost, and its events with it")

    def _copy_events(self, old: sqlite3.Connection, new: sqlite3.Connection, log_id: str) -> None:
        top = max(_top(old, "events", "position"), metadata_files.newest_seen(f"{self._state_dir}/sandboxes", log_id))
        due = self._first
        for row in _readable(old, f"SELECT {_ROW} FROM events", "position", top):  # noqa: S608
            position = row[0]
            for missing in range(due, position):
                self._lose(missing, None)
            due = max(due, position + 1)
            if self._is_sound(row):
                new.execute(f"INSERT INTO events VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608
                self._kept += 1
                self._note_gaps(row)
            else:
                self._lose(position, row)
        for missing in range(due, top + 1):
            self._lose(missing, None)

    def _is_sound(self, row: Row) -> bool:
        try:
            return checksum(*row[:-1]) == row[-1] and row[1] in self._names and row[3] in (None, *self._names)
        except (struct.error, TypeError, AttributeError):
            return False

    def _lose(self, position: int, row: Row | None) -> None:
        where = None
        told = "is missing"
        if row is not None:
            told = f"is damaged (it reads {row[4]!r} of {self._names.get(row[1], 'an unknown stream')!r})"
            where = (row[1], row[2])
        self._lost[position] = where
        self._problems.append(f"the event at position {position} {told}")

    def _note_gaps(self, row: Row) -> None:
        position, stream, revision, sandbox = row[:4]
        before, at = self._last.get(stream, (0, 0))
        endless = self._names[stream] in (DAEMON_STREAM, LOG_STREAM) or row[4] == SandboxFileWritten.type
        starts_late = before == 0 and self._first > 1 and endless
        if not starts_late:
            for missing in range(before + 1, revision):
                self._gaps.append(_Gap(stream, sandbox, missing, at, position))
        self._last[stream] = (revision, position)

    def _copy_counts(self, old: sqlite3.Connection, new: sqlite3.Connection) -> None:
        top = max(self._names, default=0)
        for sandbox, execs, crc in _readable(old, "SELECT sandbox, execs, crc FROM archived", "sandbox", top):
            if number_checksum(sandbox, execs) == crc:
                new.execute("INSERT INTO archived VALUES (?, ?, ?)", (sandbox, execs, crc))
            else:
                self._problems.append(f"the count of archived commands of {self._names.get(sandbox)} is lost")

    def _fill(self, new: sqlite3.Connection) -> None:
        """Put a tombstone in every position that is lost."""
        (top,) = new.execute("SELECT max(seq) FROM sqlite_sequence WHERE name = 'streams'").fetchone()
        key = top or 0
        for position, where in self._lost.items():
            gap = self._gap_for(position, where)
            if gap is None:
                key += 1
                name = f"{LOG_STREAM}/lost/{position}"
                new.execute("INSERT INTO streams VALUES (?, ?, ?)", (key, name, name_checksum(key, name)))
                gap = _Gap(key, None, 1, 0, 0)
            self._insert_tombstone(new, position, gap)

    def _gap_for(self, position: int, where: tuple[int, int] | None) -> _Gap | None:
        """The place in a stream that a lost event had, as far as that can be told."""
        fitting = [gap for gap in self._gaps if gap.after < position < gap.before]
        chosen = next((gap for gap in fitting if (gap.stream, gap.revision) == where), fitting[0] if fitting else None)
        if chosen is not None:
            self._gaps.remove(chosen)
        return chosen

    def _insert_tombstone(self, new: sqlite3.Connection, position: int, gap: _Gap) -> None:
        before = new.execute("SELECT time, more FROM events WHERE position = ?", (position - 1,)).fetchone()
        time_us, more = (before[0], max(0, before[1] - 1)) if before else (0, 0)
        fields = (position, gap.stream, gap.revision, gap.sandbox, LogEventLost.type, 1, time_us, _LOST, b"{}", None)
        row = (*fields, more, checksum(*fields, more))
        new.execute(f"INSERT INTO events VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608

    def _prove(self) -> None:
        log = EventLog.open(self._new_path)
        try:
            left = log.verify()
            offline.fold(log)
        finally:
            log.close()
        if left:
            message = f"the log cannot be mended ({left[0]}): restore the state directory from a backup"
            raise DaemonError("storage_unavailable", message)


def _top(old: sqlite3.Connection, table: str, key: str) -> int:
    """The highest key that a table seems to have had."""
    found = [0]
    for query in (f"SELECT max({key}) FROM {table}", f"SELECT seq FROM sqlite_sequence WHERE name = '{table}'"):  # noqa: S608
        with contextlib.suppress(sqlite3.Error):
            found += [row[0] for row in old.execute(query) if isinstance(row[0], int)]
    return max(found)


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


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold the file as SQLite would. Nothing else in this process may open and close it meanwhile."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCK_BYTES[1], _LOCK_BYTES[0])
        except OSError:
            message = f"a daemon uses this state directory ({os.path.dirname(path)}): stop it first"
            raise StateError("conflict", message) from None
        yield
    finally:
        os.close(descriptor)


def _source(path: str) -> str:
    """The directory with the damaged files: in quarantine already, when an earlier repair was interrupted."""
    with contextlib.suppress(FileNotFoundError), open(repairing(path), encoding="utf-8") as file:
        return file.read()
    return os.path.dirname(path)


def _copy(source: str, target: str) -> None:
    """Not by Python: closing a file that SQLite has locked in this process would drop the lock."""
    for name in (offline.LOG_NAME, f"{offline.LOG_NAME}-wal"):
        if os.path.exists(f"{source}/{name}"):
            command = ["cp", "--", f"{source}/{name}", f"{target}/{name}"]
            done = subprocess.run(command, capture_output=True, check=False)
            if done.returncode:
                said = done.stderr.decode(errors="replace").strip()
                raise DaemonError("storage_unavailable", f"the damaged log cannot be copied: {said}")


def _pad(path: str) -> None:
    """Make a file that was cut as long as its header says: SQLite reads nothing of one that is shorter."""
    with open(path, "rb") as file:
        head = file.read(32)
    if len(head) == 32:
        page, pages = struct.unpack(">H", head[16:18])[0], struct.unpack(">I", head[28:32])[0]
        if page * pages > os.path.getsize(path) and pages < 2**24:
            os.truncate(path, page * pages)


def _replace(path: str, new: str) -> str:
    """Put the new file in the place of the old ones, which are in quarantine then; answer where. A crash in between
    leaves a mark, with which no daemon starts, and the next repair goes on from what is in quarantine.
    """
    state_dir, mark = os.path.dirname(path), repairing(path)
    quarantine = _source(path)
    if quarantine == state_dir:
        quarantine = f"{state_dir}/{QUARANTINE}/{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}"
        os.makedirs(quarantine, mode=0o700)
        _copy(state_dir, quarantine)
        os.sync()
        with open(f"{mark}.new", "w", encoding="utf-8") as file:
            file.write(quarantine)
            file.flush()
            os.fsync(file.fileno())
        os.rename(f"{mark}.new", mark)
        _sync(state_dir)
    for name in (f"{path}-wal", f"{state_dir}/{folded.FILE_NAME}"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
    os.rename(new, path)
    _sync(state_dir)
    os.unlink(mark)
    _sync(state_dir)
    return quarantine


def _sync(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
