"""Viewers of terminals in sandboxes elsewhere, which no process of this machine can open.

A viewer is the sandbox's own tmux client, as everywhere, on the terminal of a command there. A task connects that to a
pseudo-terminal of this machine, of which the caller gets the controlling side: the viewer goes when the last copy of
that is closed, and the terminal hangs up when the viewer has gone.
"""

import fcntl
import os
import struct
import termios
import tty
from contextlib import suppress
from signal import Signals
from typing import Final

import trio

from sandkeep.errors import ProviderError, SandkeepError, StateError
from sandkeepd.contract.instance import Instance
from sandkeepd.keeper import requests, terminal
from sandkeepd.keeper.channel import Channel
from sandkeepd.keeper.pty import MAX_TERMINALS
from sandkeepd.keeper.shared_directory import CONTROL, SharedDirectory
from sandkeepd.keeper.viewers import Viewers
from sandkeepd.providers.common.remote import BrokenExecError, Remote, RemoteStream
from sandkeepd.providers.common.remote_commands import kill, parse_pid, reporting_argv

SIZE_S: Final = 0.2
"""Seconds between looks at the size that a client gave its terminal. The kernel tells only processes whose controlling
terminal it is.
"""

MOST_KILLS: Final = 5
"""Further attempts to end a viewer in a sandbox that did not answer, unless the daemon stops."""

_PIECE_BYTES: Final = 64 * 1024
_MOST_SAID_BYTES: Final = 4096
_ESCAPE: Final = b"\x1b"
_HUNG_UP: Final = (BrokenExecError, trio.BrokenResourceError, trio.ClosedResourceError)
_ON_GO: Final = ["sh", "-c", 'read -r go; exec "$@"', "sh"]
"""Begins the argv of a viewer. tmux drops what its terminal holds when it begins, so it waits until its pid is read."""
_DETACH_ALL: Final = """for socket in "$0"/*.tmux; do tmux -S "$socket" detach-client -s '$0' & done 2>&-; wait"""


class RemoteViewers(Viewers):
    """See `Viewers`. The tasks of viewers run in `nursery`."""

    def __init__(
        self,
        instance: Instance,
        channel: Channel,
        shared: SharedDirectory,
        remote: Remote,
        nursery: trio.Nursery,
    ) -> None:
        super().__init__(instance, channel, shared, {})
        self._remote = remote
        self._nursery = nursery
        self.shown = 0

    async def attach(self, process_id: str, *, rows: int, cols: int, term: str, read_only: bool) -> int:
        if self._channel.get_process(process_id).exit:
            raise StateError("not_ready", f"process {process_id} has ended", process_id=process_id)
        if self.shown >= MAX_TERMINALS:
            message = f"the sandbox has its maximum of {MAX_TERMINALS} viewers: close some"
            raise ProviderError("provider_unavailable", message)
        argv = terminal.viewer_argv(self._shared.sockets, process_id, None, term, read_only=read_only)
        controlling, ours = _open_pty(rows, cols)
        shown = _Shown()
        self._nursery.start_soon(self._show, argv, ours, (rows, cols), shown)
        try:
            await shown.event.wait()
            if shown.error is not None:
                raise shown.error
        except BaseException:
            os.close(controlling)  # which ends the viewer, also one that is just beginning
            raise
        return controlling

    def kill_stuck_tmux(self, process_id: str) -> None:
        """See `Viewers.kill_stuck_tmux`. Only the keeper can tell that to a terminal's script."""
        self._tell(CONTROL, requests.request("stuck", process_id))

    async def _show(self, argv: list[str], ours: int, size: tuple[int, int], shown: "_Shown") -> None:
        """Run a viewer on a terminal, to its end."""
        pid = None
        self.shown += 1
        try:
            async with (
                trio.lowlevel.FdStream(ours) as side,
                self._remote.exec(reporting_argv([*_ON_GO, *argv], self._shared.journals), size=size) as stream,
            ):
                pid, first = await _wait_shown(stream)
                shown.event.set()
                with suppress(*_HUNG_UP):
                    await side.send_all(first)
                    await _connect(side, size, stream, pid)
        except SandkeepError as error:
            shown.error = error
        finally:
            shown.event.set()
            self.shown -= 1
            with trio.CancelScope(shield=True):
                is_done = await kill(self._remote, pid, Signals.SIGHUP)  # the end of a stream alone ends no command
            for _ in range(MOST_KILLS if not is_done else 0):
                if await kill(self._remote, pid, Signals.SIGHUP):
                    break

    async def end_earlier(self) -> None:
        """End the viewers of an earlier daemon, whose connections ended with it."""
        with suppress(SandkeepError):
            await self._instance.run_command(["sh", "-c", _DETACH_ALL, self._shared.sockets])


class _Shown:
    """Tells when a viewer shows something, or why it does not."""

    def __init__(self) -> None:
        self.event = trio.Event()
        self.error: SandkeepError | None = None


def _open_pty(rows: int, cols: int) -> tuple[int, int]:
    """Make a terminal that changes no byte; return its controlling side, which does not block, and the other."""
    try:
        controlling, ours = os.openpty()
    except OSError as error:
        message = f"cannot open a pseudo-terminal: {error.strerror}: see kernel.pty.max"
        raise ProviderError("provider_unavailable", message) from None
    tty.setraw(ours)
    fcntl.ioctl(controlling, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
    os.set_blocking(controlling, False)
    return controlling, ours


def _size(fd: int) -> tuple[int, int]:
    rows, cols = struct.unpack("HHHH", fcntl.ioctl(fd, termios.TIOCGWINSZ, bytes(8)))[:2]
    return rows, cols


async def _wait_shown(stream: RemoteStream) -> tuple[int | None, bytes]:
    """Let a viewer go once it told its pid, and wait until it shows something; return its pid and that.

    tmux begins with an escape sequence, and nothing else does: it reports errors before, and ends.
    """
    said = b""
    pid = None
    has_told = False
    with trio.move_on_after(terminal.DEADLINE_S):
        while data := await stream.receive_some():
            said += data
            if not has_told and b"\n" in said:
                line, _, said = said.partition(b"\n")
                pid, has_told = parse_pid(line), True
                await stream.send_all(b"\n")
            shown = said.lstrip(b"\r\n")  # which its terminal echoes
            if has_told and shown.startswith(_ESCAPE):
                return pid, shown
            if len(said) > _MOST_SAID_BYTES:
                break
        raise terminal.not_attached(said.lstrip(b"\r\n"))
    raise terminal.no_answer()


async def _connect(side: trio.lowlevel.FdStream, size: tuple[int, int], stream: RemoteStream, pid: int | None) -> None:
    """Pass bytes and sizes on, until either side has gone."""
    async with trio.open_nursery() as nursery:

        async def until_gone(source: trio.abc.ReceiveStream, target: trio.abc.SendStream) -> None:
            with suppress(*_HUNG_UP):
                while data := await source.receive_some(_PIECE_BYTES):
                    await target.send_all(data)
            nursery.cancel_scope.cancel()

        nursery.start_soon(until_gone, stream, side)
        nursery.start_soon(until_gone, side, stream)
        with suppress(*_HUNG_UP, OSError):  # EIO: it hung up, as its reader sees, too
            await _follow_size(side.fileno(), size, stream, pid)


async def _follow_size(fd: int, size: tuple[int, int], stream: RemoteStream, pid: int | None) -> None:
    while True:
        await trio.sleep(SIZE_S)
        if (now := _size(fd)) != size:
            size = now
            await stream.resize(*size, pid)
