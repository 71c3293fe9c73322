"""A daemon of the demo's own, in a temporary state directory, and the certainty that nothing of it stays behind."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from sandkeep.blocking import Client, connect
from sandkeep.demo import traces
from sandkeep.errors import SandkeepError
from sandkeep.system.trees import remove_tree

LIMIT_S: Final = 120.0
"""Limit of any wait, in seconds. It ends a demo that hangs; a busy machine does not come near it."""


class StartError(Exception):
    """The daemon ended, or did not answer in time; the message is its output."""


class DemoDaemon:
    """A state directory, its socket, and the daemon that may run there."""

    def __init__(self) -> None:
        self.root = tempfile.mkdtemp(prefix="sandkeep-demo-")
        self.state_dir = os.path.join(self.root, "state")
        self.socket = os.path.join(self.root, "sock")
        self.environment = {**os.environ, "SANDKEEP_STATE_DIR": self.state_dir, "SANDKEEP_SOCKET": self.socket}
        self.in_use = False
        """True if there may be sandboxes to end."""
        self._daemon: subprocess.Popen[bytes] | None = None
        self._stopping = False

    def start(self) -> int:
        """Start the daemon unless it runs, wait until it answers, and return its pid."""
        self.in_use = True
        if self._stopping:
            self.stop()  # that was interrupted, and there can be one daemon at a time
        if self._daemon is None or self._daemon.poll() is not None:
            with uninterrupted():
                self._daemon = self._launch()
        return self._wait_until_it_answers(self._daemon)

    def _launch(self) -> subprocess.Popen[bytes]:
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "sandkeepd.main"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,  # Ctrl-C is for the demo, which then stops the daemon itself
            )

    def _wait_until_it_answers(self, daemon: subprocess.Popen[bytes]) -> int:
        deadline = time.monotonic() + LIMIT_S
        while daemon.poll() is None and time.monotonic() < deadline:
            with suppress(SandkeepError), self.connect() as client:
                client.daemon.ping()
                return daemon.pid
            time.sleep(0.02)
        raise StartError(self.log_tail())

    @property
    def log(self) -> str:
        """Path of the daemon's own log."""
        return os.path.join(self.root, "daemon.log")

    def log_tail(self) -> str:
        """The last lines of the daemon's log."""
        try:
            with open(self.log, errors="replace") as log:
                return "\n".join(log.read().splitlines()[-5:])
        except OSError:
            return "it said nothing"

    def connect(self, *, patience_s: float | None = None) -> Client:
        """A connection to the daemon. `patience_s` is how long its calls wait for one that goes away."""
        return connect(self.socket, client="demo", patience_s=patience_s)

    def stop(self) -> int | None:
        """Ask the daemon to stop, wait for it, and return its exit code, None when none ran. Sandboxes keep running."""
        if self._daemon is None:
            return None
        self._stopping = True
        self._daemon.terminate()
        try:
            code = self._daemon.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self._daemon.kill()
            code = self._daemon.wait()
        self._daemon, self._stopping = None, False
        return code

    def clear(self, *, keep: bool) -> list[str]:
        """End everything, remove the directory, and return the list of forced cleanups: empty, if all is well."""
        with suppress(SandkeepError, StartError):
            if self.in_use:
                self._terminate_all()
        self.stop()
        left = traces.remaining(self.root)
        for pid in traces.processes(self.root):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not keep:
            remove_tree(self.root)
        return left

    def _terminate_all(self) -> None:
        self.start()
        with self.connect() as client:
            for sandbox in client.sandbox.list().sandboxes:
                with suppress(SandkeepError):
                    client.sandbox.terminate(sandbox.sandbox_id)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold back Ctrl-C and SIGTERM until the end of the block: a program that was started is known by then."""
    arrived: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: arrived.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])


@contextmanager
def house(*, keep: bool, left: list[str]) -> Iterator[DemoDaemon]:
    """Yield a DemoDaemon for the length of a block. Forced cleanups are added to `left`.

    SIGTERM ends the block as Ctrl-C does, so that it is cleared then too.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    demo_daemon = DemoDaemon()
    try:
        yield demo_daemon
    finally:
        handlers = [(number, signal.signal(number, signal.SIG_IGN)) for number in (signal.SIGINT, signal.SIGTERM)]
        left += demo_daemon.clear(keep=keep)
        for number, handler in handlers:
            signal.signal(number, handler)
        signal.signal(signal.SIGTERM, before)
