"""The fold over a whole log, for a start without a cached fold.

The result equals applying every event in order, but events without effect are skipped: nearly all events are of
processes that ended and have left the view since, and of those only the count matters. So every row is checked, but
only the events of everything else are decoded, and then those of the remaining processes.
"""

import contextlib
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec
from msgspec import Struct

from sandkeep.errors import DaemonError
from sandkeep.events import ProcessLaunchRequested, ProcessRestored, SandboxCreateRequested
from sandkeep_store.eventlog.codec import Codec, UnknownEvent
from sandkeep_store.eventlog.row import (
    COLUMNS,
    NOT_A_ROW,
    Row,
    damaged,
    name_checksum,
    number_checksum,
    pack_numbers,
    verified,
)
from sandkeep_store.fairness import yielding
from sandkeep_store.views.processes import ENDS, RECENT_NAMED, RECENT_UNNAMED, ProcessState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.state import State
from sandkeep_store.views.view import Fact

_ROW: Final = ", ".join(COLUMNS)
_ALL: Final = f"SELECT {_ROW} FROM events WHERE position > ? AND position <= ? ORDER BY position"  # noqa: S608
_OF_SANDBOX: Final = f"SELECT {_ROW} FROM events WHERE sandbox = ? AND position <= ? ORDER BY position"  # noqa: S608
_OF_STREAM: Final = f"SELECT {_ROW} FROM events WHERE stream = ? AND position <= ? ORDER BY revision"  # noqa: S608

_APPLY, _LAUNCH, _BACK, _END, _LATER = range(5)


class Names(dict[int | None, Any]):
    """The names of streams by their keys, looked up when asked for. Raises KeyError for one missing or damaged."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__({None: None})
        self._connection = connection

    def load(self) -> None:
        """Look up all names at once, which is faster than one by one."""
        for key, name, crc in self._connection.execute("SELECT id, name, crc FROM streams"):
            if name_checksum(key, name) == crc:
                self[key] = name

    def __missing__(self, key: int) -> str:
        found = self._connection.execute("SELECT name, crc FROM streams WHERE id = ?", (key,)).fetchone()
        if found is None or name_checksum(key, found[0]) != found[1]:
            raise KeyError(key)
        name: str = found[0]
        self[key] = name
        return name


class _Plan(NamedTuple):
    """The handling of one event type."""

    name: bytes
    newest: int
    decode: Callable[[bytes], Any]
    what: int


class Named(Struct, gc=False):
    """The part of a launch event that the first pass decodes."""

    name: str | None


_LAUNCHED: Final = msgspec.json.Decoder(Named).decode


class Restored(Struct, gc=False):
    """The part of a process-restored event that the first pass decodes."""

    restored_from: str
    requested: Named


_RESTORED: Final = msgspec.json.Decoder(Restored).decode


class _Shown:
    """The processes of one sandbox that its view still shows, and the count of all unnamed ones."""

    __slots__ = ("execs", "named", "unnamed")

    def __init__(self) -> None:
        self.execs = 0
        self.named: deque[_Launch] = deque(maxlen=RECENT_NAMED)
        self.unnamed: deque[_Launch] = deque(maxlen=RECENT_UNNAMED)


_Launch = tuple[int, int, deque[Any]]
"""A launch's position, the key of its stream, and where the process goes when it has ended."""


class Fold:
    """One fold, in one steady view of the log. `run` it once."""

    def __init__(self, connection: sqlite3.Connection, codec: Codec, state: State, first_position: int) -> None:
        self._connection = connection
        self._codec = codec
        self._state = state
        self._first = first_position
        self._names = Names(connection)
        self._plans: dict[str, _Plan] = {}
        self._shown: dict[int | None, _Shown] = {}
        self._active: dict[int, _Launch] = {}

    def run(self, head: int) -> None:
        """Bring a new state to the event at `head`.

        Raises `UnknownEvent` for an event that cannot be decoded and `storage_unavailable` for one that is damaged; the
        state then stands at the event before it.
        """
        try:
            self._walk(self._connection.execute(_ALL, (0, self._first - 1)), sparse=True)
            self._state.position = self._first - 1
            self._walk(self._connection.execute(_ALL, (self._first - 1, head)), sparse=False)
            if self._state.position < head:
                raise damaged(self._state.position + 1, f"the log ends before its last event, {head}")
        except (UnknownEvent, DaemonError, sqlite3.Error):
            with contextlib.suppress(UnknownEvent, DaemonError, sqlite3.Error):
                self._apply_processes()
            raise
        self._apply_processes()

    def run_of(self, sandbox_id: str, upto: int) -> None:
        """Bring a new state to where it was after the event at `upto`, as far as one sandbox is concerned: by the
        events that are filed under it. Of processes in the archive it only knows how many there were.

        Raises as `run` does.
        """
        found = self._connection.execute("SELECT id FROM streams WHERE name = ?", (sandbox_id,)).fetchone()
        key = found[0] if found is not None else None
        self._walk(yielding(self._connection.execute(_OF_SANDBOX, (key, upto))), sparse=True)
        self._apply_processes()

    def _walk(self, rows: Iterable[Sequence[Any]], *, sparse: bool) -> None:
        """Check every row, apply those that are not about a process, and see which processes stay in the view."""
        state, plans, shown, active = self._state, self._plans, self._shown, self._active
        position = state.position
        # This loop dominates a start: calls are inlined, and nothing is looked up twice.
        for (
            at, stream, revision, sandbox, type, version, time_us, data, meta, command_id, more, crc,
        ) in rows:  # fmt: skip
            position = at if sparse else position + 1
            name, newest, decode, what = plans.get(type) or self._plan(type)
            # With the position that is due: a gap shows as a wrong checksum.
            try:
                numbers = pack_numbers(position, stream, revision, sandbox or 0, version, time_us, more, len(data))
                rest = command_id.encode() if command_id else b""
                found: int | None = crc32(b"".join((numbers, name, data, meta, rest)))
            except NOT_A_ROW:
                found = None
            if found != crc:
                raise damaged(position, "its checksum is wrong" if at == position else "this event is missing")
            if version != newest or what < _END:
                try:
                    event: Any = decode(data) if version == newest else self._codec.decode(at, type, version, data)
                except ValueError as error:
                    raise UnknownEvent(at, type, version, str(error)) from None
                if what == _LAUNCH:
                    of = shown.get(sandbox) or shown.setdefault(sandbox, _Shown())
                    of.execs += event.name is None
                    active[stream] = (at, stream, of.unnamed if event.name is None else of.named)
                elif what == _BACK:
                    self._bring_back(at, stream, sandbox, event)
                elif what == _APPLY:
                    state.apply(event, self._place(at, time_us, stream, revision, sandbox))
                    if event.__class__ is SandboxCreateRequested:  # its id may have been another's, long ago
                        shown.pop(stream, None)
            if what == _END:
                launch = active.pop(stream, None)
                if launch is not None:
                    launch[2].append(launch)
            state.position = position

    def _bring_back(self, at: int, stream: int, sandbox: int | None, event: Restored) -> None:
        """A process runs again, or in another sandbox than before, as if it had been launched now."""
        of = self._shown.get(sandbox) or self._shown.setdefault(sandbox, _Shown())
        ended = of.unnamed if event.requested.name is None else of.named
        for launch in [launch for launch in ended if launch[1] == stream]:
            ended.remove(launch)
        if event.requested.name is None and event.restored_from != self._names[stream]:
            of.execs += 1
        self._active[stream] = (at, stream, ended)

    def _plan(self, type: str) -> _Plan:
        shape = self._codec.shape(type)
        if shape is None:  # reading such an event by the codec says so
            return _Plan(str(type).encode(), 0, _LAUNCHED, _APPLY)
        what = _END if type in ENDS else _LATER if type.startswith("process.") else _APPLY
        plan = _Plan(shape.name, shape.version, shape.decode, what)
        if type == ProcessLaunchRequested.type:
            plan = _Plan(shape.name, shape.version, _LAUNCHED, _LAUNCH)
        if type == ProcessRestored.type:
            plan = _Plan(shape.name, shape.version, _RESTORED, _BACK)
        self._plans[type] = plan
        return plan

    def _apply_processes(self) -> None:
        """Apply the events of the processes that are still shown, each process's by themselves."""
        state, upto = self._state, self._state.position
        ended = [launch for of in self._shown.values() for launch in (*of.named, *of.unnamed)]
        for _, stream, _ in sorted([*self._active.values(), *ended], key=lambda launch: launch[0]):
            for row in self._connection.execute(_OF_STREAM, (stream, upto)):
                self._apply(verified(row))
        state.position = upto
        for sandbox, of in self._shown.items():
            view = self._view(sandbox)
            if view is not None:
                view.exec_count = of.execs
                view.recent_named = self._in_order(of.named)
                view.recent_unnamed = self._in_order(of.unnamed)
            of.named.clear()  # they refer to themselves
            of.unnamed.clear()
        for sandbox, execs, crc in self._connection.execute("SELECT sandbox, execs, crc FROM archived"):
            if number_checksum(sandbox, execs) != crc:
                raise damaged(upto, f"the count of archived processes of the sandbox with key {sandbox} is wrong")
            view = self._view(sandbox)
            if view is not None:
                view.exec_count += execs

    def _view(self, sandbox: int | None) -> SandboxState | None:
        """The state of the sandbox of that key; None for one that went into the archive."""
        if sandbox is None:
            return None
        return self._state.sandboxes.get(self._place(self._state.position, 0, sandbox, 0, sandbox).stream)

    def _apply(self, row: Row) -> None:
        """Apply an event of a process; one whose sandbox went into the archive is in no view."""
        at, stream, revision, sandbox, type, version, time_us, data, *_ = row
        place = self._place(at, time_us, stream, revision, sandbox)
        if place.sandbox_id in self._state.sandboxes:
            self._state.apply(self._codec.decode(at, type, version, data), place)

    def _place(self, at: int, time_us: int, stream: int, revision: int, sandbox: int | None) -> Fact:
        try:
            return Fact(at, time_us, self._names[stream], revision, self._names[sandbox])
        except KeyError:
            raise damaged(at, "the name of its stream is missing or wrong") from None

    def _in_order(self, launches: Iterable[_Launch]) -> list[ProcessState]:
        """The processes in the order in which they ended."""
        return [self._state.processes[self._names[stream]] for _, stream, _ in launches]
