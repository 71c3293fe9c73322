"""Viewers of terminals in gVisor sandboxes, whose own terminals only their kernel knows.

A viewer is the sandbox's own tmux client, as everywhere, but on a terminal of the host: `runsc exec` makes one, starts
the client on it and hands over the controlling side. The process of `runsc exec` that waits for a viewer lives as long
as the viewer does, which is how a viewer's end is seen; files in the bundle identify these processes, also for a later
daemon::

    vwr_....pid       the process of the host that waits for the viewer
    vwr_....inside    the viewer, by its pid inside

Processes of `runsc exec` must not be saved with a sandbox, so before that all viewers are asked to go, or are killed.
"""

import fcntl
import functools
import os
import select
import signal
import socket
import stat
import struct
import tempfile
import termios
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import trio
from msgspec import Struct

from sandkeep.errors import ProviderError, SandkeepError, StateError
from sandkeep.ids import new_id
from sandkeep.system.descriptors import closing_fd
from sandkeep_store.threads import in_thread
from sandkeepd.host.processes import has_ended, kill_and_wait, open_process, run_tool, spawn
from sandkeepd.keeper import requests, terminal
from sandkeepd.keeper.shared_directory import CONTROL
from sandkeepd.keeper.viewers import Viewers
from sandkeepd.providers.gvisor import runsc as gvisor_runsc

START_DEADLINE_S: Final = 20.0
"""Seconds that `runsc` may take to start a viewer."""

DETACH_S: Final = 3.0
"""Seconds that the tmux servers may take to detach their viewers before a sandbox is saved."""

GOING_S: Final = 3.0
"""Seconds that a viewer may take to end then, before it is killed."""

SAVED: Final = "[detached: the sandbox is being saved]"
"""The last line that a viewer sees then. It begins like tmux's own line on a detach, by which clients recognise that.
"""

_TERMINALS: Final = range(136, 144)
"""The major numbers of the kernel's driver of pseudo-terminals, as seen on their slave side."""

_LOOK_S: Final = 0.02
_RECEIVED_BYTES: Final = 64
_MOST_SAID: Final = 65536
_ASK_TO_GO: Final = """
for socket in "$0"/*.tmux; do
    tmux -S "$socket" detach-client -s '$0' -E "echo '$1'" &
done
wait
"""

Run = Callable[..., Awaitable[Any]]


class Runsc(Struct, frozen=True, kw_only=True):
    """The parameters of `runsc` for a sandbox: the argv before a subcommand; a viewer's user inside, and its file size
    limit.
    """

    bundle: str
    argv: list[str]
    user: str
    file_blocks: int


class GvisorViewers(Viewers):
    """See `Viewers`. `instance` is a `GvisorInstance`."""

    _instance: Any

    async def attach(self, process_id: str, *, rows: int, cols: int, term: str, read_only: bool) -> int:
        async with self._instance.delaying_saves():  # it is not saved meanwhile
            if self._channel.get_process(process_id).exit:
                raise StateError("not_ready", f"process {process_id} has ended", process_id=process_id)
            if self._instance.pidfd < 0:
                message = f"sandbox {self._instance.sandbox_id} is suspended: resume it"
                raise StateError("not_ready", message, sandbox_id=self._instance.sandbox_id)
            viewer = new_id(terminal.VIEWER)
            try:
                await self._shared.write(viewer, self._script(viewer, process_id, term, read_only=read_only))
                return await self._show(viewer, rows, cols)
            finally:
                self._shared.remove_helper(viewer)

    def _script(self, viewer: str, process_id: str, term: str, *, read_only: bool) -> bytes:
        """Return the script of a viewer: it is a file, as `runsc exec` drops all arguments that contain "detach".
        Errors go to stderr, away from the terminal.
        """
        argv = terminal.viewer_argv(self._shared.sockets, process_id, None, term, read_only=read_only)
        command = b" ".join(requests.quote(os.fsencode(word)) for word in argv)
        opening = f"ulimit -f {self._instance.runsc.file_blocks}\ncd {self._shared.journals} && exec 2>{viewer}.stderr"
        return opening.encode() + b" || exit\nexec " + command + b"\n"

    async def _show(self, viewer: str, rows: int, cols: int) -> int:
        """Start a viewer, and wait until it shows the terminal."""
        script, runsc = f"{self._shared.inside}/in/{viewer}", self._instance.runsc
        work = functools.partial(open_viewer, runsc, self._instance.container, viewer, script, rows, cols)
        with trio.CancelScope(shield=True):
            fd, pidfd = await in_thread(work)
        try:
            if not await _shown(fd, pidfd):
                raise terminal.not_attached(self._instance.read(viewer, "stderr", 0, 500).data)
        except BaseException:
            trio.lowlevel.notify_closing(fd)
            os.close(fd)  # which ends the viewer
            raise
        finally:
            trio.lowlevel.notify_closing(pidfd)
            os.close(pidfd)
        return fd

    def kill_stuck_tmux(self, process_id: str) -> None:
        """See `Viewers.kill_stuck_tmux`. Only the keeper can tell that to a terminal's script."""
        self._tell(CONTROL, requests.request("stuck", process_id))

    async def end_all(self, run: Run) -> None:
        """End all viewers. `run` runs a command inside. Raises `conflict` when a process inside keeps the terminal of
        one: a state saved with that could not be restored.
        """
        runsc = self._instance.runsc
        if await in_thread(_viewers, runsc.bundle):
            with trio.move_on_after(DETACH_S), suppress(SandkeepError):
                await run(["sh", "-c", _ASK_TO_GO, self._shared.sockets, SAVED])
            with trio.CancelScope(shield=True):
                await in_thread(await_gone, runsc, self._instance.container)
        if await in_thread(has_host_terminal, runsc.bundle):
            message = "a process still holds a viewer's terminal, perhaps a tmux that hangs: end it, then try again"
            raise StateError("conflict", message, sandbox_id=self._instance.sandbox_id)


async def _shown(fd: int, pidfd: int) -> bool:
    ended = trio.Event()

    async def await_end() -> None:
        await trio.lowlevel.wait_readable(pidfd)
        ended.set()

    failure = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(await_end)
        try:
            shown = await terminal.wait_shown(fd, ended)
        except SandkeepError as error:
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return shown


# Blocking parts


def open_viewer(runsc: Runsc, container: str, viewer: str, script: str, rows: int, cols: int) -> tuple[int, int]:
    """Run a script inside by `runsc` on a new terminal of that size. Returns its controlling side, which does not
    block, and a pidfd of the process that waits for its end. Blocks. Raises `provider_unavailable`.
    """
    _viewers(runsc.bundle)  # removes the files of viewers that have ended
    bundle = os.open(runsc.bundle, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{bundle}/{viewer}.socket")  # its own path may be too long for a socket
            listener.listen(1)
            fd, output = _start(_argv(runsc, container, viewer, script), bundle, listener, (rows, cols))
        waiting = _waiting(runsc.bundle, viewer)
        if fd >= 0 and waiting is not None:
            return fd, waiting
        _close(fd, waiting)
        message = f"no viewer could be started in the sandbox: {gvisor_runsc.error_in(output)}"
        raise ProviderError("provider_unavailable", message)
    except OSError as error:
        message = f"no terminal could be made for the viewer: {error.strerror}"
        raise ProviderError("provider_unavailable", message) from None
    finally:
        os.close(bundle)
        _unlink(f"{runsc.bundle}/{viewer}.socket")


def _start(argv: Sequence[str], bundle: int, listener: socket.socket, size: tuple[int, int]) -> tuple[int, bytes]:
    """Run `runsc exec` to its end. Returns the terminal that it handed over, or -1, and its output."""
    with tempfile.TemporaryFile() as log, open(os.devnull, "rb") as null:
        pid = spawn(argv, stdin=null.fileno(), output=log.fileno(), more=[bundle])
        child, fd, code = os.pidfd_open(pid), -1, -1
        try:
            fd = _receive(listener, child, size)
            if not has_ended(child, START_DEADLINE_S):
                kill_and_wait(child)
        finally:
            os.close(child)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code != 0:
            _close(fd, None)
        log.seek(0)
        return fd if code == 0 else -1, log.read(_MOST_SAID)


def _close(*opened: int | None) -> None:
    for fd in opened:
        if fd is not None and fd >= 0:
            os.close(fd)


def _argv(runsc: Runsc, container: str, viewer: str, script: str) -> list[str]:
    files = [f"--pid-file={runsc.bundle}/{viewer}.pid", f"--internal-pid-file={runsc.bundle}/{viewer}.inside"]
    where = [f"--console-socket=/proc/self/fd/3/{viewer}.socket", "--detach", f"--user={runsc.user}", "--cwd=/"]
    return [*runsc.argv, "exec", *where, *files, container, "sh", script]


def _receive(listener: socket.socket, child: int, size: tuple[int, int]) -> int:
    """Return the terminal that a child hands over before it starts anything there; -1 when it ends without."""
    poll = select.poll()
    for fd in (listener.fileno(), child):
        poll.register(fd, select.POLLIN)
    found = [fd for fd, _ in poll.poll(START_DEADLINE_S * 1000)]
    if listener.fileno() not in found:
        return -1
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(START_DEADLINE_S)
        _, received, _, _ = socket.recv_fds(connection, _RECEIVED_BYTES, 1)
    for fd in received:
        os.set_blocking(fd, False)
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    return received[0] if received else -1


def _viewers(bundle: str) -> list[str]:
    """Return the present viewers of a sandbox. The files of ended ones are removed. Blocks."""
    found = []
    for name in os.listdir(bundle):
        viewer, dot, end = name.partition(".")
        if terminal.is_viewer(name) and f"{dot}{end}" == ".pid":
            if (pidfd := _waiting(bundle, viewer)) is None:
                for left in (".pid", ".inside"):
                    _unlink(f"{bundle}/{viewer}{left}")
            else:
                os.close(pidfd)
                found.append(viewer)
    return found


def _waiting(bundle: str, viewer: str) -> int | None:
    """Return a pidfd of the process that waits for a viewer; None when that has ended."""
    pid_file = f"{bundle}/{viewer}.pid"
    found = gvisor_runsc.process_of(pid_file, f"--pid-file={pid_file}")
    return open_process(found) if found is not None else None


def await_gone(runsc: Runsc, container: str) -> None:
    """Wait until all viewers have ended; kill those that do not. Blocks."""
    for viewer in _viewers(runsc.bundle):
        pidfd = _waiting(runsc.bundle, viewer)
        if pidfd is None:
            continue
        with closing_fd(pidfd):
            if not has_ended(pidfd, GOING_S):
                _kill(runsc, container, viewer)
                if not has_ended(pidfd, GOING_S):
                    kill_and_wait(pidfd)
    _viewers(runsc.bundle)


def has_host_terminal(bundle: str) -> bool:
    """Return True if the sandbox's kernel still has a terminal of the host, some seconds after its viewer has ended.
    Blocks.
    """
    found = gvisor_runsc.running(bundle)
    deadline = time.monotonic() + GOING_S
    while found is not None and _has_terminals(found[1].pid):
        if time.monotonic() > deadline:
            return True
        time.sleep(_LOOK_S)
    return False


def _has_terminals(pid: int) -> bool:
    """Return True if a kernel has terminals of the host open. If its descriptors cannot be seen, assume none."""
    with suppress(OSError):
        return any(_is_terminal(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd"))
    return False


def _is_terminal(path: str) -> bool:
    with suppress(OSError):  # it was just closed
        found = os.stat(path)
        return stat.S_ISCHR(found.st_mode) and os.major(found.st_rdev) in _TERMINALS
    return False


def _kill(runsc: Runsc, container: str, viewer: str) -> None:
    with suppress(OSError, ValueError, SandkeepError):
        with open(f"{runsc.bundle}/{viewer}.inside", encoding="ascii") as file:
            pid = int(file.read(32))
        run_tool([*runsc.argv, "kill", f"--pid={pid}", container, str(int(signal.SIGKILL))])


def _unlink(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
