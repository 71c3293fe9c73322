"""The event log's SQLite file: its connections, and the lock that keeps a second daemon out.

The file is opened through SQLite's ``unix-excl``: the process holds the file's lock from its first statement until its
last connection closes, so that a second daemon is refused at once; and the index of the write-ahead log is in memory,
not in a mapped file that a full disk could pull away. The lock dies with the process; the first connection of the next
daemon recovers the commits of a killed one from the write-ahead log.

The lock is a POSIX record lock: nothing else in this process may open and close the file, or the lock is gone.
"""

import contextlib
import fcntl
import glob
import os
import sqlite3
import threading
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

from sandkeep.errors import DaemonError, SandkeepError, StateError
from sandkeep.ids import new_id
from sandkeep.system import durable
from sandkeep.system.descriptors import closing_fd, identity_of
from sandkeep.system.durable import sync
from sandkeep_store.eventlog import schema, witness

_LOCK_BYTES: Final = (0x40000000, 512)
"""Offset and length of the bytes by which SQLite locks a database file."""
_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class Database:
    """One log's file. `writer` is for one thread at a time; any number of threads may read."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._idle: list[sqlite3.Connection] = []
        self._in_use = 0
        self._changed = threading.Condition()
        if os.path.exists(repairing(self.path)):
            raise DaemonError(
                "storage_unavailable",
                f"a repair of {self.path} was interrupted: run `sandkeep store repair --yes` once more",
            )
        if os.path.exists(_fresh(self.path)):
            _finish_exchange(self.path)
        if not os.path.exists(self.path):
            self._require_beginning("is gone")
        new = _make_file(self.path)
        try:
            self.writer = self._connect()
            try:
                self.log_id, self.first_position = self._open_log(new)
            except BaseException:
                self.writer.close()
                raise
        except sqlite3.Error as error:
            raise _refused(self.path, error) from error
        with contextlib.suppress(OSError):
            _discard_unfinished(self.path)
        self._places = self._look()
        self.witness = witness.Witness(witness.path_of(self.path), self.log_id, self.first_position)

    @property
    def directory(self) -> str:
        """The directory of the file."""
        return os.path.dirname(self.path)

    def displaced(self) -> str | None:
        """Return a message if the open files were removed or replaced: events would be lost with the daemon."""
        for path, opened in self._places.items():
            if identity_of(path) != opened:
                cure = "restore the state directory from a backup, and start it again"
                return f"{path} was removed or replaced while the daemon ran: put it back, or stop the daemon, {cure}"
        return None

    @contextlib.contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
        """A connection for reading, lent for the length of the block, in one transaction: a steady view of the log."""
        try:
            with self._changed:
                connection = self._idle.pop() if self._idle else self._connect()
                self._in_use += 1
        except sqlite3.Error as error:
            raise _unreadable(self.path, error) from error
        with self._transaction(connection):
            yield connection

    @contextlib.contextmanager
    def idle_reader(self) -> Iterator[sqlite3.Connection | None]:
        """The same without ever waiting for another thread: None when that would be needed."""
        connection = self._take_idle()
        if connection is None:
            yield None
            return
        with self._transaction(connection):
            yield connection

    @contextlib.contextmanager
    def _transaction(self, connection: sqlite3.Connection) -> Iterator[None]:
        try:
            connection.execute("BEGIN")
            try:
                yield
            finally:
                connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise _unreadable(self.path, error) from error
        finally:
            self._give_back(connection)

    def reopen(self, head: int) -> None:
        """Continue in a new file, with the commits up to `head` and nothing beyond.

        For a disk that failed. A failed commit may be in the files or not, and was never acknowledged. The files cannot
        be trusted any further: after a failed fsync the kernel drops the dirty flag, and an ext4 may show such pages
        until it is mounted anew, though all later fsyncs succeed. So everything is read once more, through the
        write-ahead log, and written to blocks that never failed.

        Waits for readers to end. Raises sqlite3.Error or OSError while the disk fails; can be called again.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._in_use == 0)
            if not os.path.exists(_fresh(self.path)):
                self._require_same_file()
                self._write_fresh(head)
            self._places = {}
            self._close_all()
            _take_fresh(self.path)
            self.writer = self._connect()
            self.writer.execute("PRAGMA journal_mode = WAL")
            self._read_meta()
            self.witness.begin_anew()
            self._places = self._look()

    def checkpoint(self) -> None:
        """Copy the write-ahead log into the file, as far as readers allow. For the writer's thread.

        Raises sqlite3.Error. Nothing is lost then, but the file cannot be trusted any further: see `reopen`.
        """
        self.writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    def _write_fresh(self, head: int) -> None:
        """Copy all that is committed into a file of its own. When that has its name, it is durable."""
        unfinished = _discard_unfinished(self.path)
        self.writer.execute("VACUUM INTO ?", (unfinished,))
        os.chmod(unfinished, 0o600)
        with contextlib.closing(sqlite3.connect(unfinished, isolation_level=None)) as copy:
            copy.executescript(
                f"BEGIN IMMEDIATE; DELETE FROM events WHERE position > {head:d};"  # noqa: S608
                f"UPDATE sqlite_sequence SET seq = {head:d} WHERE name = 'events'; COMMIT;"
            )
        sync(unfinished)
        durable.rename(unfinished, _fresh(self.path))

    def _look(self) -> dict[str, tuple[int, int] | None]:
        return {path: identity_of(path) for path in (self.path, f"{self.path}-wal")}

    def _require_same_file(self) -> None:
        if identity_of(self.path) != self._places[self.path]:
            raise DaemonError("storage_unavailable", str(self.displaced()))

    def close(self) -> None:
        """Close every connection; the lock is free then. Readers must have ended."""
        self.witness.close()
        with self._changed:
            self._close_all()

    def _close_all(self) -> None:
        while self._idle:
            self._idle.pop().close()
        self.writer.close()

    def _take_idle(self) -> sqlite3.Connection | None:
        if not self._changed.acquire(blocking=False):  # perhaps the file is being replaced, which takes long
            return None
        try:
            if not self._idle:
                return None
            self._in_use += 1
            return self._idle.pop()
        finally:
            self._changed.release()

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._changed:
            self._in_use -= 1
            self._idle.append(connection)
            self._changed.notify_all()

    def _connect(self) -> sqlite3.Connection:
        # Without a timeout: another process holds the lock, and does not release it.
        connection = sqlite3.connect(
            f"file:{quote(self.path)}?vfs=unix-excl", uri=True, timeout=0, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA wal_autocheckpoint = 0")  # of which SQLite would not tell that it failed
        except BaseException:
            connection.close()
            raise
        return connection

    def _open_log(self, new: bool) -> tuple[str, int]:
        if new or self._is_empty():
            self._require_beginning("is empty")
            self._create()
        meta = self._read_meta()
        if meta.get("schema") == 1:
            self.writer.executescript("BEGIN IMMEDIATE;" + schema.UPGRADE + "COMMIT;")
            meta = self._read_meta()
        if meta.get("schema") != schema.VERSION:
            raise DaemonError(
                "storage_unavailable",
                f"{self.path} is not an event log of this version of Sandkeep (its schema is {meta.get('schema')!r}, "
                f"not {schema.VERSION}): run the version that wrote it, or use another state directory",
            )
        self.writer.execute("PRAGMA journal_mode = WAL")  # a fresh file that was just put in place has another
        log_id, first = meta.get("log_id"), meta.get("first_position")
        if not isinstance(log_id, str) or not isinstance(first, int):
            raise DaemonError(
                "storage_unavailable",
                f"the event log {self.path} is damaged (its id is {log_id!r}, its first position {first!r}): "
                f"{witness.CURE}",
            )
        return log_id, first

    def _require_beginning(self, what: str) -> None:
        """Refuse to begin a log where there was one."""
        path, seen = witness.path_of(self.path), "some"
        try:
            head = witness.read(path)
        except witness.UnreadableError:
            pass
        else:
            if head is None:
                path = _trace_of_a_log(self.directory)
            if not path or (head is not None and not head.position):
                return
            seen = str(head.position) if head is not None else "some"
        raise DaemonError(
            "storage_unavailable",
            f"the event log {self.path} {what}, but {path} has seen {seen} events in it: "
            "restore the state directory from a backup, or use another one",
        )

    def _is_empty(self) -> bool:
        return self.writer.execute("SELECT 1 FROM sqlite_master").fetchone() is None

    def _read_meta(self) -> dict[str, object]:
        if self.writer.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone() is None:
            return {}
        return dict(self.writer.execute("SELECT key, value FROM meta"))

    def _create(self) -> None:
        # Only a file without pages takes auto_vacuum, and going over to the write-ahead log writes the first page.
        self.writer.execute("PRAGMA auto_vacuum = INCREMENTAL")
        self.writer.execute("PRAGMA journal_mode = WAL")
        facts = {"schema": schema.VERSION, "log_id": new_id("log"), "first_position": 1}
        self.writer.executescript("BEGIN IMMEDIATE;" + schema.CREATE)
        self.writer.executemany("INSERT INTO meta VALUES (?, ?)", facts.items())
        self.writer.execute("COMMIT")


def damaged_file(path: str, found: str) -> str:
    """Return the message for structural damage that SQLite reports."""
    return f"the event log {path} is damaged (SQLite finds: {' '.join(found.split())}): {witness.CURE}"


def repairing(path: str) -> str:
    """The file that marks a log whose repair is under way."""
    return f"{path}.repairing"


def first_position(connection: sqlite3.Connection) -> int:
    """Return the position from which there are no gaps; before it, only events of live objects remain."""
    return int(connection.execute("SELECT value FROM meta WHERE key = 'first_position'").fetchone()[0])


def _fresh(path: str) -> str:
    """Return the path of the copy that will replace a log whose disk failed."""
    return f"{path}.fresh"


def _discard_unfinished(path: str) -> str:
    """Remove an unfinished copy that a crash left; return the path for a new one."""
    unfinished = f"{path}.copy"
    for name in (unfinished, f"{unfinished}-journal"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
    return unfinished


def _take_fresh(path: str) -> None:
    """Put the fresh file in the log's place. Nobody has the log open. Safe to repeat."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{path}-wal")
    with contextlib.suppress(FileNotFoundError):
        os.rename(_fresh(path), path)
    sync(os.path.dirname(path))


def _finish_exchange(path: str) -> None:
    """Finish the exchange of files that a crash interrupted. Raises `conflict` if the other daemon still runs."""
    try:
        with exclusive_lock(path):
            _take_fresh(path)
    except OSError as error:
        raise DaemonError(
            "storage_unavailable", f"{_fresh(path)} cannot take the place of {path} ({error.strerror}): repair the disk"
        ) from error


@contextlib.contextmanager
def exclusive_lock(path: str) -> Iterator[None]:
    """Hold a log's file as SQLite would. Nothing else in this process may open and close it meanwhile."""
    with closing_fd(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)) as descriptor:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, _LOCK_BYTES[1], _LOCK_BYTES[0])
        except OSError:
            message = f"a daemon uses this state directory ({os.path.dirname(path)}): stop it first"
            raise StateError("conflict", message) from None
        yield


def _trace_of_a_log(directory: str) -> str:
    """Something that comes of a log in a state directory; nothing where there never was one."""
    for pattern in ("sandboxes/*/metadata.json", "archive/*.zst", "folded-state"):
        found = glob.glob(f"{glob.escape(directory)}/{pattern}")
        if found:
            return found[0]
    return ""


def _make_file(path: str) -> bool:
    """Make an empty file that only its owner may read, unless there is one. The directory must be there."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    except OSError as error:
        raise DaemonError(
            "storage_unavailable",
            f"the event log {path} cannot be made ({error.strerror}): use a directory that this user can write to",
        ) from error
    sync(os.path.dirname(path))
    return True


def _refused(path: str, error: sqlite3.Error) -> SandkeepError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _BUSY:
        return StateError(
            "conflict",
            f"another daemon uses this state directory ({os.path.dirname(path)}): stop it or use another one",
        )
    if code == sqlite3.SQLITE_FULL:
        return DaemonError("storage_unavailable", f"the disk is full: free space on {os.path.dirname(path)}")
    if code == sqlite3.SQLITE_NOTADB:
        return DaemonError(
            "storage_unavailable", f"{path} is not an event log: move it away or use another state directory"
        )
    if code == sqlite3.SQLITE_CORRUPT:
        return _unreadable(path, error)
    return DaemonError(
        "storage_unavailable",
        f"the event log {path} cannot be opened ({error}): repair the disk or the directory's permissions",
    )


def _unreadable(path: str, error: sqlite3.Error) -> DaemonError:
    return DaemonError(
        "storage_unavailable",
        f"the event log {path} cannot be read ({error}): check the disk; if the log is damaged, restore the state "
        "directory from a backup, or run `sandkeep store repair` without a daemon",
    )
