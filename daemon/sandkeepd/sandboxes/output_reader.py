"""Reading of processes' output: by byte offset, from journals that lie beside the daemon and not behind it."""

from typing import Final

import msgspec
import trio

from sandkeep.errors import CallerError, DataError
from sandkeep.model import MAX_OUTPUT_TIMES, OutputTime, ProcessOutput
from sandkeep.protocol.clock import now_us, parse_rfc3339, rfc3339
from sandkeep.protocol.methods import ProcessRead
from sandkeep.settings.daemon import RETAIN_OUTPUT
from sandkeep_store.views.processes import ProcessState
from sandkeepd.contract.processes import Chunk
from sandkeepd.core.core import Core
from sandkeepd.sandboxes.output_times import UNKNOWN_US, Mark, OutputTimes
from sandkeepd.sandboxes.runtimes import Runtimes

_NOT_KEPT: Final = (
    f"is not kept any more: {RETAIN_OUTPUT.name} says how much is, or `sandkeep prune` or the code in the sandbox "
    "removed it"
)


class OutputReader:
    """Reads the journals of processes, whether their sandboxes run or have ended."""

    def __init__(self, core: Core, runtimes: Runtimes, times: OutputTimes) -> None:
        self._core = core
        self._runtimes = runtimes
        self._times = times

    async def read(self, process: ProcessState, query: ProcessRead) -> ProcessOutput:
        """Read both streams from byte offsets, or from a time on, waiting a while for more when there is nothing new.

        Raises `compacted` when nothing of it is kept any more.
        """
        if query.since is not None:
            query = self._from_time(process, query, query.since)
        deadline = trio.current_time() + query.wait_s
        while True:
            ended = process.ended  # read before the journal: a read after the end is complete
            out = self.read_journal(process, "stdout", query.stdout_offset, query.max_bytes)
            err = self.read_journal(process, "stderr", query.stderr_offset, query.max_bytes)
            if err.missing:
                require_kept(process, out)
            out, err = (_noted(process, chunk, stream) for chunk, stream in ((out, "stdout"), (err, "stderr")))
            moved = (out.offset, err.offset) != (query.stdout_offset, query.stderr_offset)
            if out.data or err.data or moved or ended or trio.current_time() >= deadline or query.max_bytes == 0:
                times, out, err = self._times_of(process, out, err) if query.times else ([], out, err)
                return _output(process, out, err, times, ended=ended)
            with trio.move_on_at(deadline):
                await self.wait_for_more(process, query.stdout_offset, query.stderr_offset)

    def _from_time(self, process: ProcessState, query: ProcessRead, since: str) -> ProcessRead:
        """Return a query with the offsets that were certainly reached before a time. Raises `invalid`."""
        if query.stdout_offset or query.stderr_offset:
            raise CallerError("invalid", "since: give either a time or offsets to start at, not both", field="since")
        try:
            since_us = parse_rfc3339(since)
        except ValueError as error:
            raise CallerError("invalid", f"since: {since!r} {error}", field="since") from None
        sizes = self._times.load(process.sandbox_id, process.process_id).sizes_before(since_us)
        if process.ended_us is not None and process.ended_us < since_us:
            sizes = process.stdout_bytes or sizes[0], process.stderr_bytes or sizes[1]
        out, err = (
            min(size, self.read_journal(process, stream, 0, 0).size)
            for stream, size in zip(("stdout", "stderr"), sizes, strict=True)
        )
        return msgspec.structs.replace(query, stdout_offset=out, stderr_offset=err, since=None)

    def _times_of(self, process: ProcessState, out: Chunk, err: Chunk) -> tuple[list[OutputTime], Chunk, Chunk]:
        """Return the times of a piece, and the piece, which is cut if it has too many."""
        ends = out.offset + len(out.data), err.offset + len(err.data)
        marks = self._times.load(process.sandbox_id, process.process_id)
        found = marks.of((out.offset, ends[0]), (err.offset, ends[1]), MAX_OUTPUT_TIMES)
        if len(found) == MAX_OUTPUT_TIMES:
            parts = _cut(out, found[-1].stdout), _cut(err, found[-1].stderr)
            out, err = parts if any(part.data for part in parts) else (out, err)  # garbage may go back
        elif (out.data or err.data) and not (found and found[-1].stdout >= ends[0] and found[-1].stderr >= ends[1]):
            is_unknown = not marks and (process.started_us or process.requested_us) < self._times.since_us
            found.append(Mark(UNKNOWN_US if is_unknown else process.ended_us or now_us(), *ends))
        return _shown(found, *ends), out, err

    def times_of(self, process: ProcessState, stream: str, chunk: Chunk) -> tuple[list[OutputTime], Chunk]:
        """Return the times of a piece of one stream, and the piece, which is cut if it has too many."""
        other = Chunk(offset=0, data=b"", size=0)
        if stream == "stdout":
            times, chunk, _ = self._times_of(process, chunk, other)
        else:
            times, _, chunk = self._times_of(process, other, chunk)
        return times, chunk

    async def wait_for_more(self, process: ProcessState, stdout_offset: int, stderr_offset: int) -> None:
        """Return when a journal holds more than that, or the process has ended; it may also return early."""
        if process.ended:
            return
        if process.sandbox_id in self._runtimes.adopting:
            await self._runtimes.adopted(process.sandbox_id)
            return
        runtime = self._runtimes.by_id.get(process.sandbox_id)
        if runtime is None or process.status == "starting" or runtime.instance.exit_of(process.process_id) is not None:
            before = process.status
            await self._core.settled(process.process_id, lambda: process.status != before)
        else:
            await runtime.instance.wait_output(process.process_id, stdout_offset, stderr_offset)

    def beginning(self, process: ProcessState, stream: str, max_bytes: int) -> Chunk:
        """Return the beginning of a stream; empty, with its size, if the journal was dropped."""
        chunk = self.read_journal(process, stream, 0, max_bytes)
        if is_gone(process, chunk):
            size = process.stdout_bytes if stream == "stdout" else process.stderr_bytes
            return Chunk(offset=0, data=b"", size=size or 0)
        return chunk if chunk.offset == 0 else Chunk(offset=0, data=b"", size=chunk.size)

    def read_journal(self, process: ProcessState, stream: str, offset: int, max_bytes: int) -> Chunk:
        """Read a piece of a journal, also when the sandbox has ended. Never blocks."""
        runtime = self._runtimes.by_id.get(process.sandbox_id)
        if runtime is not None:
            chunk = runtime.instance.read(process.process_id, stream, offset, max_bytes)
        else:
            sandbox = self._core.state.sandboxes[process.sandbox_id]
            provider = self._core.provider(sandbox.requested.provider)
            chunk = provider.read_ended(process.sandbox_id, process.process_id, stream, offset, max_bytes)
        return _compared(chunk, stream, process.stdout_bytes if stream == "stdout" else process.stderr_bytes)


def is_gone(process: ProcessState, chunk: Chunk) -> bool:
    """Return True if a chunk is empty because the journals of the process were dropped."""
    return chunk.missing and process.ended and process.started_us is not None


def require_kept(process: ProcessState, chunk: Chunk) -> None:
    """Raise `compacted` for a dropped journal, instead of returning it as empty."""
    if is_gone(process, chunk):
        raise DataError(
            "compacted",
            f"the output of process {process.name!r} {_NOT_KEPT}",
            name=process.name,
        )


def _noted(process: ProcessState, chunk: Chunk, stream: str) -> Chunk:
    """Add a note to a chunk if its journal is gone, of which the other is there."""
    if not is_gone(process, chunk) or chunk.note is not None:
        return chunk
    return msgspec.structs.replace(chunk, note=f"the journal of {stream} {_NOT_KEPT}")


def _compared(chunk: Chunk, stream: str, recorded: int | None) -> Chunk:
    """Add a note to a chunk if the journal is shorter than at its process's end. It may be longer: children of the
    process may go on writing.
    """
    if recorded is None or chunk.size >= recorded or chunk.note is not None:
        return chunk
    lost = f"the journal of {stream} holds {chunk.size} of the {recorded} bytes that were recorded: the rest is lost"
    return msgspec.structs.replace(chunk, note=lost)


def _cut(chunk: Chunk, end: int) -> Chunk:
    """Return the part of a chunk before an offset."""
    return msgspec.structs.replace(chunk, data=chunk.data[: max(0, end - chunk.offset)])


def _shown(marks: list[Mark], stdout_end: int, stderr_end: int) -> list[OutputTime]:
    """Return marks as clients see them, in order, and none of the future: the clock may have been put back, and a file
    may hold garbage.
    """
    shown, now, at_us = [], now_us(), UNKNOWN_US
    for mark in marks:
        at_us = max(at_us, min(mark.at_us, now))
        at = None if at_us == UNKNOWN_US else rfc3339(at_us)
        out, err = min(mark.stdout, stdout_end), min(mark.stderr, stderr_end)
        shown.append(OutputTime(at=at, stdout_offset=out, stderr_offset=err))
    return shown


def _output(process: ProcessState, out: Chunk, err: Chunk, times: list[OutputTime], *, ended: bool) -> ProcessOutput:
    after_out, after_err = out.offset + len(out.data), err.offset + len(err.data)
    return ProcessOutput(
        process_id=process.process_id,
        status=process.status,
        stdout=out.data,
        stderr=err.data,
        stdout_offset=out.offset,
        stderr_offset=err.offset,
        next_stdout_offset=after_out,
        next_stderr_offset=after_err,
        ended=ended and after_out >= out.size and after_err >= err.size,
        exit_code=process.exit_code,
        timed_out=process.timed_out,
        note=out.note or err.note,
        limits_met=list(process.limits_met),
        times=times,
        stdout_bytes=out.size,
        stderr_bytes=err.size,
    )
