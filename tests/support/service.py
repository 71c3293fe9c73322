"""The test as service manager: it holds notify and listening sockets, and starts daemons as systemd does."""

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from tests.conftest import RunningDaemon
from tests.support.patience import patient

from sandkeepd.app.systemd import Manager

LAUNCHER = Path(__file__).parent / "unit.py"
PATIENCE_S = patient(60.0)


class Notices:
    """A notify socket, and what came to it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind("\0" + address[1:] if address.startswith("@") else address)
        self.sock.settimeout(PATIENCE_S)

    def next(self, line: str | tuple[str, ...]) -> list[str]:
        """The lines of the next message that holds one which begins with `line`, or one of several."""
        while True:
            lines = self.sock.recv(4096).decode().splitlines()
            if any(given.startswith(line) for given in lines):
                return lines

    def pending(self) -> list[str]:
        """All lines that have come."""
        found = []
        self.sock.setblocking(False)
        try:
            while True:
                found += self.sock.recv(4096).decode().splitlines()
        except BlockingIOError:
            return found
        finally:
            self.sock.settimeout(PATIENCE_S)


class Service(RunningDaemon):
    """A daemon that is started as a unit's main process is.

    `prefix` is a command that runs it, `groups` are the unit's control groups, `directives` restrict it: see `unit.py`.
    """

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.prefix: list[str] = []
        self.groups: list[str] = []
        self.directives: dict[str, list[str]] = {}
        self.notices = Notices(f"{root}/notify")
        os.chmod(self.notices.address, 0o666)
        self.sockets: list[socket.socket] = []
        self.names = ""

    def listen(self, names: str, mode: int = 0o666) -> None:
        """Make both sockets, as the socket unit does."""
        self.names = names
        for path in (self.socket, f"{self.root}/stream.sock"):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.bind(path)
            os.chmod(path, mode)
            sock.listen(64)
            self.sockets.append(sock)

    def spawn(self, log: object, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
        descriptors = [sock.fileno() for sock in self.sockets]
        settings = json.dumps({
            "sockets": descriptors, "names": self.names.split(":"),
            "groups": self.groups, "directives": self.directives,
        })  # fmt: skip
        daemon = [sys.executable, "-m", "sandkeepd.main"]
        return subprocess.Popen(
            [*self.prefix, sys.executable, str(LAUNCHER), settings, *daemon], stdin=subprocess.DEVNULL, stdout=log,  # type: ignore[call-overload, no-any-return]
            stderr=log, env={**self.env, **environment}, start_new_session=True, pass_fds=descriptors,
        )  # fmt: skip

    def start(self, **environment: str) -> None:
        """Start it and return when it says that it is ready, since what listens already takes connections anyway."""
        with open(self.log, "ab") as log:
            self.process = self.spawn(log, {"NOTIFY_SOCKET": self.notices.address, **environment})
        threading.Thread(target=self._tell_of_the_end, args=(self.process,), daemon=True).start()
        end = f"EXITED={self.process.pid}"
        if end in self.notices.next(("READY=1", end)):
            raise RuntimeError(f"the daemon did not start:\n{self.said()}")

    def _tell_of_the_end(self, process: "subprocess.Popen[bytes]") -> None:
        process.wait()
        Manager(self.notices.address).tell(f"EXITED={process.pid}")

    def close(self) -> None:
        """End everything, and close what the manager holds."""
        made = f"{self.state_dir}/sandboxes"
        if self.process is not None or (os.path.isdir(made) and os.listdir(made)):
            self.clear()
        for sock in (*self.sockets, self.notices.sock):
            sock.close()
