"""Redaction: a caller's data in an event is removed from every file of the state directory, and the event stays.

Its position, stream, revision and type stay too, and so do the fields that other events depend on; see `blanks`. After
a day, the digest of its command is removed as well.

``log.redact_requested`` is durable before. Then the event's row is changed and the log's file rewritten, since moved or
archived rows leave copies in its free space; then the segments that hold it; then data computed from events is deleted
and recomputed. ``log.redacted`` is appended at the end, and makes every view forget the data. An interrupted redaction
is repeated from its beginning, which is idempotent.
"""

import os
import shutil
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
from msgspec import Raw

from sandkeep import failpoints
from sandkeep.errors import CallerError, DaemonError, StateError
from sandkeep.events import (
    ImageCreateRequested,
    LogEventLost,
    LogRedacted,
    LogRedactRequested,
    ProcessLaunchRequested,
    SandboxCreateRequested,
)
from sandkeep.model import RedactReport
from sandkeep.system.durable import sync_directory
from sandkeep_store.eventlog.log import EventLog
from sandkeep_store.threads import in_thread
from sandkeep_store.upkeep import repair, segments
from sandkeep_store.views.blanks import redact_data
from sandkeep_store.views.state import State


class Target(NamedTuple):
    """The event to redact, in the log or in a segment."""

    type: str = ""
    stream: str = ""
    sandbox_id: str | None = None
    time_us: int = 0


Step = Callable[[Target], Awaitable[None]]


class Redaction:
    """Redacts events of one log. `state` must follow the log; `forget` removes data computed from an event, which can
    be recomputed once the outcome is on record.
    """

    def __init__(self, log: EventLog, state: State, forget: Step) -> None:
        self._log = log
        self._state = state
        self._forget = forget

    async def plan(self, position: int) -> LogRedactRequested:
        """Return the intent to remove a caller's data from the event at a position.

        Raises `not_found` when there is no such event, `invalid` for one of the daemon's own, `in_use` for an object
        that still runs by it, and `conflict` while copies of damaged logs are in quarantine.
        """
        target = await in_thread(find, self._log, position)
        if target is None:
            raise CallerError("not_found", f"there is no event at position {position}", position=position)
        if target.type.startswith(("log.", "daemon.")):
            raise CallerError("invalid", f"position: {target.type} has no data of a caller", field="position")
        self._require_ended(target)
        require_no_quarantine(self._log.directory)
        return LogRedactRequested(position=position)

    async def carry_out(self, position: int) -> tuple[LogRedacted, Target, RedactReport]:
        """Carry out a redaction whose intent is on record; return the outcome to record, the redacted event, and the
        report.

        Raises `conflict` as `plan` does, and `storage_unavailable`. To repeat it does no harm.
        """
        log = self._log
        require_no_quarantine(log.directory)
        target = await in_thread(find, log, position) or Target()
        if target.type == LogEventLost.type:  # a repair found it damaged
            target = Target()
        places = ["log"] if target.type and await log.redact(position) else []
        failpoints.reach("redact.changed")
        await log.wipe()
        failpoints.reach("redact.wiped")
        places += await in_thread(redact_segments, log.directory, position)
        await in_thread(_tidy, log.directory)
        await self._forget(target)
        failpoints.reach("redact.forgotten")
        outcome = LogRedacted(position=position, of=target.stream, what=target.type, time_us=target.time_us)
        return outcome, target, RedactReport(position=position, type=target.type, stream=target.stream, places=places)

    def _require_ended(self, target: Target) -> None:
        if self._is_needed(target):
            raise StateError(
                "in_use",
                f"{target.stream} still runs and needs this event: end it first, then redact the event",
                stream=target.stream,
            )

    def _is_needed(self, target: Target) -> bool:
        """Return True if a daemon may need the event to recover an object that still runs."""
        state, stream = self._state, target.stream
        if target.type == ImageCreateRequested.type:
            image = state.images.get(stream)
            return image is not None and image.status == "creating"
        if target.type == SandboxCreateRequested.type:
            sandbox = state.sandboxes.get(stream)
            return sandbox is not None and sandbox.requested_us == target.time_us and sandbox.ended_us is None
        lock = state.locks.get(stream)
        if lock is not None:
            return not lock.ended
        process = state.processes.get(stream)
        return target.type == ProcessLaunchRequested.type and process is not None and not process.ended


def find(log: EventLog, position: int) -> Target | None:
    """The event at a position, in the log or in the archive. Blocks."""
    found = log.at(position)
    if found is not None:
        return Target(found.type, found.stream, found.sandbox_id, found.time_us)
    for name in _segments_with(log.directory, position):
        for line in segments.events(f"{log.directory}/{segments.FOLDER}/{name}"):
            if line.position == position:
                return Target(line.type, line.stream, line.sandbox_id, line.time_us)
    return None


def require_no_quarantine(state_dir: str) -> None:
    """Refuse to say that something is nowhere any more while copies of damaged logs may hold it: `conflict`."""
    folder = f"{state_dir}/{repair.QUARANTINE}"
    if os.path.isdir(folder) and os.listdir(folder):
        raise StateError("conflict", f"{folder} has copies of a damaged log, which are not redacted: remove them")


def redact_segments(state_dir: str, position: int) -> list[str]:
    """Redact an event in every segment that holds it; answer their new names. Blocks. Raises `storage_unavailable`."""
    folder = f"{state_dir}/{segments.FOLDER}"
    written = []
    for name in _segments_with(state_dir, position):
        header, content = segments.read(f"{folder}/{name}")
        lines = [_redacted_line(line, position) for line in content.splitlines(keepends=True)]
        if b"".join(lines) == content:
            continue
        try:
            written.append(segments.store(folder, header.log_id, header.first, header.last, lines))
            os.unlink(f"{folder}/{name}")
            failpoints.reach("redact.segment_removed")
            sync_directory(folder)
        except OSError as error:
            raise DaemonError("storage_unavailable", f"{folder} cannot be written: {error.strerror}") from None
    return written


def _segments_with(state_dir: str, position: int) -> list[str]:
    """The segments in whose range a position is; their names tell."""
    ranges = [(name, *name.split("-")[:2]) for name in segments.names(state_dir)]
    return [name for name, first, last in ranges if int(first) <= position <= int(last)]


def _redacted_line(text: bytes, position: int) -> bytes:
    line = msgspec.json.decode(text, type=segments.Line)
    if line.position != position:
        return text
    left = msgspec.structs.replace(
        line, data=Raw(redact_data(bytes(line.data))), meta=segments.archived_meta(line.meta)
    )
    return msgspec.json.encode(left) + b"\n"


def _tidy(state_dir: str) -> None:
    """Remove the leftovers of killed compactions and repairs: they may hold the event."""
    try:
        segments.tidy(state_dir)
        if os.path.lexists(f"{state_dir}/{repair.WORK}"):
            shutil.rmtree(f"{state_dir}/{repair.WORK}")
    except OSError as error:
        raise DaemonError("storage_unavailable", f"{state_dir} cannot be written: {error.strerror}") from None
