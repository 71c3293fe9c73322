"""Forwarding of our signals and our standard input to an attached process.

They have threads and connections of their own, as a read of output may block the first.
"""

import os
import signal
import threading
from collections.abc import Callable
from typing import Final

from sandkeep.cli.display.output import note, plain
from sandkeep.cli.exit_codes import INTERRUPTED
from sandkeep.cli.options import Frontend
from sandkeep.errors import SandkeepError
from sandkeep.model import Process

STDIN_PIECE: Final = 65536


def detached_message(front: Frontend, process: Process) -> str:
    """Return the message for detaching from a running process."""
    return f"sandkeep: detached from a running process: {front.attach_line(process)}"


class Signals:
    """Signals that we get become the process's. A second INT kills it; a third ends us alone; QUIT leaves it if it may
    keep running. While the daemon is away nothing can be passed on, and INT ends us at once.

    A thread waits for them. A handler would be run by the main thread, which may have begun to wait for output just
    before: that would not be cut short, and the signal would have to wait too.
    """

    def __init__(self, front: Frontend, process: Process) -> None:
        self._front = front
        self._process = process
        self._interrupts = 0
        self._may_detach = True

    def pass_on(self, *, hangup: bool = False) -> None:
        """From now on INT and TERM go to the process, and QUIT leaves it. With `hangup`, HUP and QUIT go to it too, as
        it shall not outlive us; HUP not when `nohup` keeps it from us.
        """
        self._may_detach = not hangup
        hangs_up = hangup and signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
        self._begin({signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, *([signal.SIGHUP] if hangs_up else [])})

    def pass_on_interrupts(self) -> None:
        """Forward SIGINT to the process from now on, and detach on SIGQUIT. Any other end of ours detaches, too."""
        self._begin({signal.SIGINT, signal.SIGQUIT})

    def _begin(self, numbers: set[signal.Signals]) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)  # in all threads, but for the one that waits
        threading.Thread(target=self._wait, args=(numbers,), daemon=True).start()

    def _wait(self, numbers: set[signal.Signals]) -> None:
        while True:
            self._forward(signal.Signals(signal.sigwait(numbers)))

    def _forward(self, number: signal.Signals) -> None:
        if number is signal.SIGQUIT and self._may_detach:
            note(detached_message(self._front, self._process))
            os._exit(0)
        name = number.name.removeprefix("SIG")
        if number is signal.SIGINT and self._front.is_waiting:
            note(detached_message(self._front, self._process))
            os._exit(INTERRUPTED)
        if number is signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 2:
                os._exit(INTERRUPTED)
            name = "INT" if self._interrupts == 1 else "KILL"
        threading.Thread(target=self.send, args=(name,), daemon=True).start()  # the daemon may keep it waiting

    def send(self, name: str) -> None:
        """Send a signal to the process. A failure is only reported."""
        try:
            with self._front.client() as client:
                client.process.signal(self._process.sandbox_id, self._process.process_id, signal=name)
        except SandkeepError as error:
            note(f"sandkeep: the signal {name} was not sent: {plain(error.message)}")


def feed(front: Frontend, process: Process, source: int = 0) -> None:
    """Carry our standard input to the process in the background, up to its end."""
    threading.Thread(target=_pump, args=(front, process, source), daemon=True).start()


def _pump(front: Frontend, process: Process, source: int) -> None:
    try:
        with front.client() as client:

            def write(data: bytes, *, eof: bool = False) -> int:
                taken = client.process.write_stdin(process.sandbox_id, process.process_id, data=data, eof=eof)
                return taken.written_bytes

            while data := os.read(source, STDIN_PIECE):
                write_pieces(write, data)
            write(b"", eof=True)
    except SandkeepError as error:
        if error.code != "not_ready":  # it ended without reading all, which is its right
            note(f"sandkeep: the input was not passed on: {plain(error.message)}")


def write_pieces(write: Callable[..., int], data: bytes) -> None:
    """Write it all, however little is taken at a time."""
    while data:
        data = data[write(data) :]
