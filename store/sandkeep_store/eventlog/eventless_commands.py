"""Outcomes of commands that make no event, such as a write to a process's input, for idempotent retries.

A file of its own beside the log, written without fsync: it survives the death of the daemon. A power cut also ends the
processes on which such commands acted.
"""

import contextlib
import logging
import os
import sqlite3
from dataclasses import dataclass
from typing import Final

from sandkeep.errors import DaemonError
from sandkeep.protocol.clock import now_us

REMEMBERED_US: Final = 24 * 3600 * 1_000_000
"""Period in which a repeated command gets its first answer, in microseconds."""

FILE_NAME: Final = "commands.db"
_UPDATE: Final = "UPDATE commands SET taken = ?, trying = ?, done = ? WHERE owner = ? AND command_id = ?"
_PRUNE_EVERY: Final = 1000
_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS commands (
    owner TEXT NOT NULL,
    command_id TEXT NOT NULL,
    command TEXT NOT NULL,
    time INTEGER NOT NULL,
    taken INTEGER NOT NULL DEFAULT 0,
    trying INTEGER NOT NULL DEFAULT 0,
    done INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (owner, command_id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS commands_by_time ON commands (time);
"""

logger: Final = logging.getLogger("sandkeepd")


@dataclass
class CommandProgress:
    """The progress of one command. `earlier` says that it is a repetition. Without a `store`, it is not remembered.

    `taken` counts the units that are surely done; `trying` those of the last attempt, which may be done, too.
    """

    store: "Commands | None" = None
    key: tuple[str, str] = ("", "")
    command: str = ""
    taken: int = 0
    trying: int = 0
    done: bool = False
    earlier: bool = False

    def note(self, taken: int, trying: int) -> None:
        """Put down how far it is, before the next step. Raises `storage_unavailable`."""
        if (taken, trying) != (self.taken, self.trying):
            self._write(taken, trying, done=False)

    def finish(self) -> None:
        """Put down that all of it is done. Raises `storage_unavailable`."""
        self._write(self.taken, 0, done=True)

    def _write(self, taken: int, trying: int, *, done: bool) -> None:
        self.taken, self.trying, self.done = taken, trying, done
        if self.store is not None:
            self.store.execute(_UPDATE, (taken, trying, done, *self.key))


class Commands:
    """The commands of a day, by owner and id. For one thread. The file is opened, or made, when it is first used."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._opened: sqlite3.Connection | None = None
        self._begun = 0

    def find(self, owner: str, command_id: str) -> CommandProgress | None:
        """Return the record of a command given within a day, or None. Raises `storage_unavailable`."""
        row = self.execute(
            "SELECT command, taken, trying, done FROM commands WHERE owner = ? AND command_id = ? AND time > ?",
            (owner, command_id, now_us() - REMEMBERED_US),
        ).fetchone()
        if row is None:
            return None
        command, taken, trying, done = row
        key = (owner, command_id)
        return CommandProgress(self, key, command, taken=taken, trying=trying, done=bool(done), earlier=True)

    def begin(self, owner: str, command_id: str, command: str) -> CommandProgress:
        """Put down that a command is about to be carried out. Raises `storage_unavailable`."""
        if self._begun % _PRUNE_EVERY == 0:
            self.execute("DELETE FROM commands WHERE time <= ?", (now_us() - REMEMBERED_US,))
        self._begun += 1
        self.execute(
            "INSERT OR REPLACE INTO commands (owner, command_id, command, time) VALUES (?, ?, ?, ?)",
            (owner, command_id, command, now_us()),
        )
        return CommandProgress(self, (owner, command_id), command)

    def execute(self, statement: str, values: tuple[object, ...]) -> sqlite3.Cursor:
        """Carry out one statement. Raises `storage_unavailable`. A file that is damaged is begun anew."""
        try:
            try:
                return self._connection().execute(statement, values)
            except sqlite3.DatabaseError as error:
                if getattr(error, "sqlite_errorcode", 0) not in _DAMAGED:
                    raise
                logger.warning("damaged, and begun anew: commands given again are new", extra={"path": self._path})
                self._remove()
                return self._connection().execute(statement, values)
        except (sqlite3.Error, OSError) as error:
            raise DaemonError(
                "storage_unavailable", f"{self._path} cannot be used ({error}): free space or repair the disk"
            ) from None

    def _connection(self) -> sqlite3.Connection:
        if self._opened is None:
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            connection = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
            try:
                connection.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; {_SCHEMA}")
            except BaseException:
                connection.close()
                raise
            self._opened = connection
        return self._opened

    def _remove(self) -> None:
        self.close()
        for end in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path + end)

    def close(self) -> None:
        """Let go of the file."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None
