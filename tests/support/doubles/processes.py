"""Processes in containers, as asyncio has them: pipes with back pressure, terminals, exit codes, signals."""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator, Sequence
from typing import Any

from tests.support.doubles import launcher
from tests.support.doubles.pipes import Reader, Writer, closing

TIOCSPTLCK, TIOCGPTPEER = 0x40045431, 0x5441
SO_SNDBUFFORCE = 32
QUEUE_BYTES = 64 << 20


class StartError(Exception):
    """A program that could not be started, and why."""


class Process:
    """A process that the launcher started; its exit code is 128 + N after signal N."""

    def __init__(self, owner: "Launcher", pid: int, ended: asyncio.Future[int]) -> None:
        self.pid = pid
        self._owner = owner
        self._ended = ended

    async def wait(self) -> int:
        """Wait until it has ended; return its exit code."""
        return await asyncio.shield(self._ended)

    @property
    def has_ended(self) -> bool:
        """True once it is reaped."""
        return self._ended.done()

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if not self.has_ended:
            self._owner.request({"kill": self.pid, "signal": number})


class Launcher:
    """The program `launcher.py`, which ends with everything that it started when this is closed, or dies."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        for end in (self._control, theirs):  # neither may ever wait for the other
            end.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, QUEUE_BYTES)
        with theirs:
            argv = [sys.executable, "-I", "-S", launcher.__file__, str(theirs.fileno())]
            self._program = subprocess.Popen(argv, pass_fds=[theirs.fileno()], start_new_session=True)
        self._starts: dict[int, asyncio.Future[Process | None]] = {}
        self._ends: dict[int, asyncio.Future[int]] = {}
        self._count = 0
        asyncio.get_running_loop().add_reader(self._control, self._receive)

    async def close(self) -> None:
        """Kill everything, and wait until it is gone."""
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        for start in self._starts.values():
            start.cancel()
        for end in self._ends.values():
            end.cancel()
        await asyncio.to_thread(self._program.wait)

    async def start(
        self, process: dict[str, Any], stdio: Sequence[int], *, container: dict[str, Any] | None = None, enter: int = 0
    ) -> Process:
        """Start a process with three descriptors, which stay the caller's: in a new container, or in that of pid
        `enter`. Raises StartError.
        """
        errors, errors_end = os.pipe2(os.O_CLOEXEC)
        place: dict[str, Any] = {"container": container} if container else {"enter": enter}
        self._count += 1
        started: asyncio.Future[Process | None] = asyncio.get_running_loop().create_future()
        self._starts[self._count] = started
        with closing(errors):
            with closing(errors_end):
                self.request({"id": self._count, "process": process, **place}, [errors_end, *stdio])
            try:
                found = await asyncio.shield(started)
                message = await Reader(os.dup(errors)).read_all()
            except asyncio.CancelledError:
                started.add_done_callback(_kill)
                raise
        if message or found is None:
            raise StartError(message.decode(errors="replace"))
        return found

    def request(self, request: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Hand over a request, with descriptors."""
        with open(os.memfd_create("request", os.MFD_CLOEXEC), "wb", buffering=0) as file:
            file.write(json.dumps(request).encode())
            socket.send_fds(self._control, [b"."], [file.fileno(), *fds])

    def _receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while packet := self._control.recv(launcher.LARGEST_PACKET):
                self._note(json.loads(packet))

    def _note(self, answer: dict[str, int]) -> None:
        pid = answer["pid"]
        if "id" in answer:
            process = None
            if pid:
                ended = self._ends[pid] = asyncio.get_running_loop().create_future()
                process = Process(self, pid, ended)
            self._starts.pop(answer["id"]).set_result(process)
            return
        code = os.waitstatus_to_exitcode(answer["status"])
        self._ends.pop(pid).set_result(code if code >= 0 else 128 - code)


def _kill(started: asyncio.Future[Process | None]) -> None:
    """End what nobody waits for any more."""
    process = None if started.cancelled() else started.result()
    if process is not None:
        process.send_signal(signal.SIGKILL)


class ExecProcess:
    """A process with pipes or a terminal; see `kubelet_api.Exec`."""

    def __init__(
        self, process: Process, stdin: Writer | None, stdout: Reader, stderr: Reader | None, *, tty: bool
    ) -> None:
        self.process = process
        self._stdin = stdin
        self._stdout = stdout
        self._stderr = stderr
        self._tty = tty

    @property
    def stdout(self) -> AsyncIterator[bytes]:
        """See `Exec`."""
        return aiter(self._stdout)

    @property
    def stderr(self) -> AsyncIterator[bytes]:
        """See `Exec`."""
        return aiter(self._stderr) if self._stderr is not None else _nothing()

    async def write(self, data: bytes) -> None:
        """See `Exec`."""
        if self._stdin is None:
            raise BrokenPipeError
        await self._stdin.write(data)

    async def close_stdin(self) -> None:
        """See `Exec`. A terminal gets its end-of-file character."""
        if self._stdin is None:
            return
        if self._tty and self._stdin.fd >= 0:
            with contextlib.suppress(BrokenPipeError):
                await self._stdin.write(b"\x04")
        self._stdin.close()

    def resize(self, rows: int, cols: int) -> None:
        """See `Exec`."""
        if self._tty and self._stdout.fd >= 0:
            _set_size(self._stdout.fd, rows, cols)

    async def wait(self) -> int:
        """See `Exec`."""
        return await self.process.wait()

    async def kill(self) -> None:
        """See `Exec`."""
        for end in (self._stdin, self._stdout, self._stderr):
            if end is not None:
                end.close()


async def _nothing() -> AsyncIterator[bytes]:
    for data in list[bytes]():
        yield data


async def start_exec(owner: Launcher, process: dict[str, Any], *, enter: int, stdin: bool) -> ExecProcess:
    """Start a process in a container, with pipes, or with a terminal as `process` says, which has its `size`, in rows
    and columns, before it starts. Raises StartError.
    """
    if process["tty"]:
        ours, theirs = _open_terminal(enter, process["uid"])
        _set_size(ours, *process.get("size", (0, 0)))
        return await _start(owner, process, enter, [theirs] * 3, (os.dup(ours) if stdin else None, ours, None))
    (out, out_end), (error, error_end) = os.pipe(), os.pipe()
    read, write = os.pipe() if stdin else (os.open(os.devnull, os.O_RDONLY), None)
    return await _start(owner, process, enter, [read, out_end, error_end], (write, out, error))


def _open_terminal(pid: int, uid: int) -> tuple[int, int]:
    """Open a new terminal of a container, so that programs find it in their `/dev/pts`."""
    ours = os.open(f"/proc/{pid}/root/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(ours, TIOCSPTLCK, struct.pack("i", 0))
    theirs = fcntl.ioctl(ours, TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    os.fchown(theirs, uid, -1)
    return ours, theirs


def _set_size(terminal: int, rows: int, cols: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


async def _start(
    owner: Launcher,
    process: dict[str, Any],
    enter: int,
    theirs: list[int],
    ours: tuple[int | None, int, int | None],
) -> ExecProcess:
    try:
        started = await owner.start(process, theirs, enter=enter)
    except BaseException:
        for fd in ours:
            if fd is not None:
                os.close(fd)
        raise
    finally:
        for fd in set(theirs):
            os.close(fd)
    stdin, stdout, stderr = ours
    return ExecProcess(
        started,
        Writer(stdin) if stdin is not None else None,
        Reader(stdout),
        Reader(stderr) if stderr is not None else None,
        tty=process["tty"],
    )
