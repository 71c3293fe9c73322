"""``/v1/attach``: a process's terminal; or, without one, its journal to follow and its input to write."""

import fcntl
import struct
import termios
from typing import Final, NamedTuple

import trio

from sandkeep.errors import CallerError, StateError
from sandkeep.protocol import frames
from sandkeep.protocol.control_sequences import Filter
from sandkeep.protocol.frames import AttachQuery, Detached, Eof, FromClient, Resize, SendSignal
from sandkeep.protocol.methods import ProcessAttach, ProcessSignal, ProcessWriteStdin
from sandkeep_store.views.processes import ProcessState
from sandkeepd.core.core import Core
from sandkeepd.sandboxes.processes import Processes
from sandkeepd.sessions.activity import Activity
from sandkeepd.stream.logs import JournalReader, exit_of
from sandkeepd.stream.session import Client, Handler, Session, validated

PIECE_BYTES: Final = 64 * 1024
ENDING_S: Final = 1.0
"""Seconds from the hangup of a terminal or an input until the process's end must be on record."""


async def attach(core: Core, processes: Processes, activity: Activity, client: Client) -> Handler:
    """The endpoint: find the process, and see which kind it is."""
    _, _, sandbox_id, name = client.target.parts
    query = client.query(AttachQuery)
    request = client.request(core, "process.attach", validated(ProcessAttach, sandbox_id=sandbox_id, name=name))
    process = await processes.lookup.find(request.params.sandbox_id, name)
    attached = Attached(core, processes, process, client, query)
    show = attached.terminal if process.requested.tty else attached.journal

    async def show_attached(session: Session) -> None:
        with activity.attached(process.sandbox_id):
            await show(session)

    return show_attached


class Attached(NamedTuple):
    """One client's view of a process."""

    core: Core
    processes: Processes
    process: ProcessState
    client: Client
    query: AttachQuery

    # -- a process with a terminal ------------------------------------------------------------------------------------

    async def terminal(self, session: Session) -> None:
        """Show the terminal and type into it, until either side lets go."""
        if not self.process.ended:
            await self._view(session)
        await session.send(exit_of(self.process) if await self._ends() else Detached())

    async def _view(self, session: Session) -> None:
        query = self.query
        fd = await self.processes.open_terminal(
            self.process, query.rows, query.cols, query.term, read_only=query.read_only
        )
        async with trio.lowlevel.FdStream(fd) as pty, trio.open_nursery() as nursery:
            nursery.start_soon(self._type, session, pty)
            await _show(session, pty)
            nursery.cancel_scope.cancel()

    async def _type(self, session: Session, pty: trio.lowlevel.FdStream) -> None:
        while True:
            message = await session.receive()
            if isinstance(message, bytes):
                await _type_into(pty, b"" if self.query.read_only else message)
            elif isinstance(message, Resize):
                size = struct.pack("HHHH", message.rows, message.cols, 0, 0)
                fcntl.ioctl(pty.fileno(), termios.TIOCSWINSZ, size)
            else:
                await self._act(message)

    # -- a process without one ----------------------------------------------------------------------------------------

    async def journal(self, session: Session) -> None:
        """Send the process's output, from the requested offsets or from now, and write its input."""
        query, read = self.query, self.processes.outputs.read_journal
        stdout = read(self.process, "stdout", 0, 0).size if query.stdout is None else query.stdout
        stderr = read(self.process, "stderr", 0, 0).size if query.stderr is None else query.stderr
        reader = JournalReader(self.processes, self.process, stdout, stderr)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, session)
            await reader.send(session, follow=True)
            nursery.cancel_scope.cancel()

    async def _write(self, session: Session) -> None:
        while True:
            message = await session.receive()
            try:
                await self._act(message)
            except StateError as error:
                if error.code != "not_ready" or not await self._ends():
                    raise

    async def _act(self, message: bytes | FromClient) -> None:
        """Carry out a client's message as an ordinary call: with the same checks and records."""
        where = {"sandbox_id": self.process.sandbox_id, "name": self.process.process_id}
        if self.query.read_only:
            raise CallerError(
                "permission_denied", "this view is read-only: attach without read_only", field="read_only"
            )
        if isinstance(message, bytes | Eof):
            data = message if isinstance(message, bytes) else b""
            written = validated(ProcessWriteStdin, **where, data=data, eof=isinstance(message, Eof))
            await self.processes.write_stdin(self.client.request(self.core, "process.write_stdin", written))
        elif isinstance(message, SendSignal):
            signalled = validated(ProcessSignal, **where, signal=message.signal)
            await self.processes.signal(self.client.request(self.core, "process.signal", signalled))
        elif not isinstance(message, Resize):
            raise CallerError("invalid", "unexpected message: send bytes, or a resize, eof or signal")

    async def _ends(self) -> bool:
        """Return True if the process has ended, or ends within `ENDING_S`."""
        with trio.move_on_after(ENDING_S):
            await self.core.settled(self.process.process_id, lambda: self.process.ended)
        return self.process.ended


async def _show(session: Session, pty: trio.lowlevel.FdStream) -> None:
    """Send the terminal's output until it hangs up."""
    offset, drawing = 0, Filter()
    while data := await _receive(session, pty):
        if shown := drawing.feed(data):
            await session.send_bytes(frames.pack_output(frames.TERMINAL, offset, shown))
            offset += len(shown)


async def _receive(session: Session, pty: trio.lowlevel.FdStream) -> bytes:
    """The next bytes of the terminal, as soon as there is room for them; none when it is gone."""
    await session.room()
    try:
        return bytes(await pty.receive_some(PIECE_BYTES))
    except trio.BrokenResourceError:  # the terminal's other side was closed
        return b""


async def _type_into(pty: trio.lowlevel.FdStream, data: bytes) -> None:
    try:
        await pty.send_all(data)
    except trio.BrokenResourceError:  # it is gone, as the other task sees, too
        await trio.sleep_forever()
