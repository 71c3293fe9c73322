"""Redaction: what a caller put into an event is taken out of the log and of the archive, and the event stays.

Its position, stream, revision, type and cause stay too, and so do the fields that other events depend on; see `blanks`.
``log.redact_requested`` is durable before, ``log.redacted`` follows, and makes every view forget the same. A redaction
that was interrupted is done again.
"""

import contextlib
import os

import msgspec
import trio
from msgspec import Raw

from sandkeep.errors import CallerError, DaemonError
from sandkeep.events import LOG_STREAM, LogRedacted, LogRedactRequested, Meta
from sandkeep.model import RedactReport
from sandkeep_store import folded, segments
from sandkeep_store.blanks import redact_data
from sandkeep_store.log import EventLog, NewEvent


class Redaction:
    """Redacts events of one log."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    async def run(self, position: int, meta: Meta) -> RedactReport:
        """Take out what a caller put into the event at a position.

        Raises `not_found` when there is no such event, `invalid` for one of the daemon's own, and
        `storage_unavailable`; then the next start finishes it.
        """
        type, stream = await trio.to_thread.run_sync(self._find, position)
        if type.startswith(("log.", "daemon.")):
            raise CallerError("invalid", f"position: {type} holds nothing of a caller's", field="position")
        await self._log.append([NewEvent(LOG_STREAM, LogRedactRequested(position=position))], meta)
        return await self.finish(position, meta, type, stream)

    async def finish(self, position: int, meta: Meta, type: str = "", stream: str = "") -> RedactReport:
        """Do what is on record as requested."""
        log = self._log
        if not type:
            type, stream = await trio.to_thread.run_sync(self._find, position)
        places = ["log"] if await log.redact(position) else []
        places += await trio.to_thread.run_sync(redact_segments, log.directory, position)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{log.directory}/{folded.FILE_NAME}")
        await log.append([NewEvent(LOG_STREAM, LogRedacted(position=position, of=stream, what=type))], meta)
        return RedactReport(position=position, type=type, stream=stream, places=places)

    def _find(self, position: int) -> tuple[str, str]:
        """The type and the stream of the event at a position."""
        found = self._log.at(position)
        if found is not None:
            return found.type, found.stream
        for name in _segments_with(self._log.directory, position):
            for line in segments.events(f"{self._log.directory}/{segments.FOLDER}/{name}"):
                if line.position == position:
                    return line.type, line.stream
        raise CallerError("not_found", f"there is no event at position {position}", position=position)


def _segments_with(state_dir: str, position: int) -> list[str]:
    """The segments in whose range a position is; their names tell."""
    ranges = [(name, *name.split("-")[:2]) for name in segments.names(state_dir)]
    return [name for name, first, last in ranges if int(first) <= position <= int(last)]


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
        except OSError as error:
            raise DaemonError("storage_unavailable", f"{folder} cannot be written: {error.strerror}") from None
    return written


def _redacted_line(text: bytes, position: int) -> bytes:
    line = msgspec.json.decode(text, type=segments.Line)
    if line.position != position:
        return text
    return msgspec.json.encode(msgspec.structs.replace(line, data=Raw(redact_data(bytes(line.data))))) + b"\n"
