"""Reading of processes' output: by byte offset, from journals that lie beside the daemon and not behind it."""

import msgspec
import trio

from sandkeep.errors import DataError
from sandkeep.model import ProcessOutput
from sandkeep.protocol.methods import ProcessRead
from sandkeep.settings.daemon import RETAIN_OUTPUT
from sandkeep_store.views.processes import ProcessState
from sandkeepd.contract.processes import Chunk
from sandkeepd.core.core import Core
from sandkeepd.sandboxes.runtimes import Runtimes


class OutputReader:
    """Reads the journals of processes, whether their sandboxes run or have ended."""

    def __init__(self, core: Core, runtimes: Runtimes) -> None:
        self._core = core
        self._runtimes = runtimes

    async def read(self, process: ProcessState, query: ProcessRead) -> ProcessOutput:
        """Read both streams from byte offsets, waiting a while for more when there is nothing new.

        Raises `compacted` when nothing of it is kept any more.
        """
        deadline = trio.current_time() + query.wait_s
        while True:
            ended = process.ended  # read before the journal: a read after the end is complete
            out = self.read_journal(process, "stdout", query.stdout_offset, query.max_bytes)
            err = self.read_journal(process, "stderr", query.stderr_offset, query.max_bytes)
            if err.missing:  # an existing journal reports that the other is missing
                require_kept(process, out)
            moved = (out.offset, err.offset) != (query.stdout_offset, query.stderr_offset)
            if out.data or err.data or moved or ended or trio.current_time() >= deadline or query.max_bytes == 0:
                return _output(process, out, err, ended=ended)
            with trio.move_on_at(deadline):
                await self.wait_for_more(process, query.stdout_offset, query.stderr_offset)

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
            f"the output of process {process.name!r} is not kept any more: {RETAIN_OUTPUT.name} says how much is, or "
            "the code in the sandbox removed it",
            name=process.name,
        )


def _compared(chunk: Chunk, stream: str, recorded: int | None) -> Chunk:
    """Add a note to a chunk if the journal is shorter than at its process's end. It may be longer: children of the
    process may go on writing.
    """
    if recorded is None or chunk.size >= recorded or chunk.note is not None:
        return chunk
    lost = f"the journal of {stream} holds {chunk.size} of the {recorded} bytes that were recorded: the rest is lost"
    return msgspec.structs.replace(chunk, note=lost)


def _output(process: ProcessState, out: Chunk, err: Chunk, *, ended: bool) -> ProcessOutput:
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
    )
