"""``/v1/logs``: a process's output, from byte offsets, and then its exit.

The two offsets are a reader's whole state: nothing is kept for one that stalls, and one that was cut off returns with
the offsets that it has reached.
"""

from typing import Final

from sandkeep.protocol import frames
from sandkeep.protocol.frames import CaughtUp, Exit, LogsQuery, Note, Time, Times
from sandkeep.protocol.methods import ProcessRead
from sandkeep_store.views.processes import ProcessState
from sandkeepd.contract.processes import Chunk
from sandkeepd.core.core import Core
from sandkeepd.sandboxes.output_reader import is_gone
from sandkeepd.sandboxes.processes import Processes
from sandkeepd.sessions.activity import Activity
from sandkeepd.stream.session import Client, Handler, Session, validated

PIECE_BYTES: Final = 128 * 1024
"""Bytes per frame: a size that a Unix socket with room takes at once, so that nothing is held for a slow reader."""

PIECES_IN_A_ROW: Final = 8
"""Full pieces of one stream before a look at the other."""

_STREAMS: Final = (("stdout", frames.STDOUT), ("stderr", frames.STDERR))


async def logs(core: Core, processes: Processes, activity: Activity, client: Client) -> Handler:
    """The endpoint: find the process."""
    _, _, sandbox_id, name = client.target.parts
    query = client.query(LogsQuery)
    request = client.request(core, "process.read", validated(ProcessRead, sandbox_id=sandbox_id, name=name))
    process = await processes.lookup.find(request.params.sandbox_id, request.params.name)
    reader = JournalReader(processes, process, query.stdout, query.stderr, times=query.times)

    async def send(session: Session) -> None:
        with activity.attached(process.sandbox_id):
            await session.run_send_only(lambda: reader.send(session, follow=query.follow))

    return send


class JournalReader:
    """Sends a journal from two offsets on, with `times` each piece after its times."""

    def __init__(
        self, processes: Processes, process: ProcessState, stdout: int, stderr: int, *, times: bool = False
    ) -> None:
        self._processes = processes
        self._tells_times = times
        self._process = process
        self._offsets = {"stdout": stdout, "stderr": stderr}
        self._sent_notes: set[str] = set()

    async def send(self, session: Session, *, follow: bool) -> None:
        """Send present output, and with `follow` later output, until the process has ended."""
        caught_up, ends = False, self._sizes()  # a process may write more quickly than it is read
        while True:
            ended = self._process.ended  # read before the journal: a read after the end is complete
            is_more = any([await self._send_pieces(session, name, number) for name, number in _STREAMS])
            if is_more and (follow or ended or any(self._offsets[name] < end for name, end in ends.items())):
                continue
            if ended:
                return await session.send(exit_of(self._process))
            if not caught_up:
                caught_up = True
                await session.send(CaughtUp())
            if not follow:
                return None
            await self._processes.outputs.wait_for_more(self._process, self._offsets["stdout"], self._offsets["stderr"])

    async def _send_pieces(self, session: Session, name: str, number: int) -> bool:
        """Send the next pieces; return True if all were full, so that more may follow."""
        for _ in range(PIECES_IN_A_ROW):
            if not await self._send_piece(session, name, number):
                return False
        return True

    def _sizes(self) -> dict[str, int]:
        read = self._processes.outputs.read_journal
        return {name: read(self._process, name, 0, 0).size for name, _ in _STREAMS}

    async def _send_piece(self, session: Session, name: str, number: int) -> bool:
        """Send the next piece, read once there is room for it; return True if it was full, so that more may follow."""
        await session.room()
        chunk = self._processes.outputs.read_journal(self._process, name, self._offsets[name], PIECE_BYTES)
        if chunk.offset > self._offsets[name]:
            await session.send(Note(stream=name, message=chunk.note or "", first=chunk.offset))  # type: ignore[arg-type]
        else:
            await self._send_note(session, name, chunk.note)
        if is_gone(self._process, chunk):
            await self._send_note(session, name, f"the output in {name} is not kept any more")
        size = len(chunk.data)
        if chunk.data:
            if self._tells_times:
                chunk = await self._send_times(session, name, chunk)
            await session.send_bytes(frames.pack_output(number, chunk.offset, chunk.data))
        self._offsets[name] = chunk.offset + len(chunk.data)
        return size == PIECE_BYTES or len(chunk.data) < size

    async def _send_times(self, session: Session, name: str, chunk: Chunk) -> Chunk:
        """Tell the times of a piece; return the piece, or the part of it that they are of."""
        found, chunk = self._processes.outputs.times_of(self._process, name, chunk)
        times = [Time(at=time.at, offset=getattr(time, f"{name}_offset")) for time in found]
        await session.send(Times(stream=name, times=times))  # type: ignore[arg-type]  # it is one of the two
        return chunk

    async def _send_note(self, session: Session, name: str, note: str | None) -> None:
        """Tell of something odd, once: the code inside can make it come and go for as long as it likes."""
        if note is not None and note not in self._sent_notes:
            self._sent_notes.add(note)
            await session.send(Note(stream=name, message=note))  # type: ignore[arg-type]  # it is one of the two


def exit_of(process: ProcessState) -> Exit:
    """Return the message of a process's end."""
    return Exit(
        status=process.status,
        exit_code=process.exit_code,
        timed_out=process.timed_out,
        stdout_bytes=process.stdout_bytes,
        stderr_bytes=process.stderr_bytes,
        error=process.error[1] if process.error else None,
    )
