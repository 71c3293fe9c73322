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

START_S: Final = 30.0
STOP_S: Final = 20.0


class StartError(Exception):
    """The daemon ended, or did not answer in time; the message is what it said."""


class House:
    """A state directory, its socket, and the daemon that may run there."""

    def __init__(self) -> None:
        self.root = tempfile.mkdtemp(prefix="sandkeep-demo-")
        self.state_dir = os.path.join(self.root, "state")
        self.socket = os.path.join(self.root, "sock")
        self.environment = {**os.environ, "SANDKEEP_STATE_DIR": self.state_dir, "SANDKEEP_SOCKET": self.socket}
        self.in_use = False
        """Whether there may be sandboxes to end."""
        self._daemon: subprocess.Popen[bytes] | None = None

    def start(self) -> int:
        """Start the daemon, wait until it answers, and tell its pid."""
        self.in_use = True
        with open(self.log, "ab") as log:
            self._daemon = subprocess.Popen(
                [sys.executable, "-m", "sandkeepd.main"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment,
                start_new_session=True,  # Ctrl-C is for the demo, which then stops the daemon itself
            )
        return self._wait_until_it_answers(self._daemon)

    def _wait_until_it_answers(self, daemon: subprocess.Popen[bytes]) -> int:
        deadline = time.monotonic() + START_S
        while daemon.poll() is None and time.monotonic() < deadline:
            with suppress(SandkeepError), self.connect() as client:
                client.daemon.ping()
                return daemon.pid
            time.sleep(0.02)
        raise StartError(self.last_words())

    @property
    def log(self) -> str:
        """Where the daemon's own log goes."""
        return os.path.join(self.root, "daemon.log")

    def last_words(self) -> str:
        """The last lines of the daemon's log."""
        try:
            with open(self.log, errors="replace") as log:
                return "\n".join(log.read().splitlines()[-5:])
        except OSError:
            return "it said nothing"

    def connect(self) -> Client:
        """A connection to the daemon."""
        return connect(self.socket, client="demo")

    def stop(self) -> int | None:
        """Ask the daemon to stop, wait for it, and answer its exit code; sandboxes go on. None when none ran."""
        daemon, self._daemon = self._daemon, None
        if daemon is None:
            return None
        daemon.terminate()
        try:
            return daemon.wait(STOP_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
            return daemon.wait()

    def clear(self, *, keep: bool) -> list[str]:
        """End everything, remove the directory, and answer what had to be cleaned by force: nothing, if all is well."""
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
        if self._daemon is None or self._daemon.poll() is not None:
            self.start()
        with self.connect() as client:
            for sandbox in client.sandbox.list().sandboxes:
                with suppress(SandkeepError):
                    client.sandbox.terminate(sandbox.sandbox_id)


def remove_tree(path: str) -> None:
    """Remove a tree, however deep, also the directories that an overlay leaves without permissions."""
    for words in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
        subprocess.run([*words, "--", path], check=False, stderr=subprocess.DEVNULL)


@contextmanager
def house(*, keep: bool, left: list[str]) -> Iterator[House]:
    """A House for the length of a block. What had to be cleaned by force is added to `left`.

    SIGTERM ends the block as Ctrl-C does, so that it is cleared then too.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    place = House()
    try:
        yield place
    finally:
        handlers = [(number, signal.signal(number, signal.SIG_IGN)) for number in (signal.SIGINT, signal.SIGTERM)]
        left += place.clear(keep=keep)
        for number, handler in handlers:
            signal.signal(number, handler)
        signal.signal(signal.SIGTERM, before)
