"""A Docker engine of the tests' own: a private `dockerd`, on a socket and in directories of its own."""

import copy
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.client import HTTPConnection
from socket import AF_UNIX, socket
from typing import Any

from tests.support import rootfs
from tests.support.patience import patient

START_S = patient(60.0)


class _Connection(HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("engine", timeout=patient(120))
        self._path = path

    def connect(self) -> None:
        self.sock = socket(AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class PrivateEngine:
    """A `dockerd` below `root`, which may be stopped, killed, and started again."""

    def __init__(self, root: str, *, live_restore: bool = True) -> None:
        self.root = root
        self.live_restore = live_restore
        self.socket = f"{root}/docker.sock"
        self.host = f"unix://{self.socket}"
        self.process: subprocess.Popen[bytes] | None = None
        self._images: set[str] = set()
        self._making = threading.RLock()
        """Held while an image is made: of two of one name the first would lose it, and go with what is built on it."""
        self._left: tuple[str, str, dict[str, Any]] | None = None

    def start(self) -> None:
        """Start it, and return when it answers."""
        os.makedirs(self.root, exist_ok=True)
        words = [
            "dockerd", "--host", self.host, "--data-root", f"{self.root}/data", "--exec-root", f"{self.root}/exec",
            "--pidfile", f"{self.root}/pid", "--bridge", "none", "--iptables=false", "--ip-forward=false",
            "--ip-masq=false", f"--live-restore={str(self.live_restore).lower()}",
        ]  # fmt: skip
        path = os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin"
        for _ in range(3):  # one that was killed can leave a containerd behind that the next one waits for in vain
            with open(f"{self.root}/log", "ab") as log:
                self.process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "PATH": path}
                )
            if self._answers(self.process):
                return
        with open(f"{self.root}/log", errors="replace") as log:
            raise RuntimeError(f"dockerd did not start:\n{log.read()[-4000:]}")

    def _answers(self, process: "subprocess.Popen[bytes]") -> bool:
        deadline = time.monotonic() + START_S
        while process.poll() is None and time.monotonic() < deadline:
            with suppress(OSError):
                self.ask("GET", "/_ping")
                return True
            time.sleep(0.02)
        return False

    def ask(
        self, method: str, path: str, body: Any = None, *, raw: bytes | None = None, headers: Mapping[str, str] = {}
    ) -> tuple[int, bytes]:
        """One request, as plain as can be: the status and the body of the answer."""
        connection = _Connection(self.socket)
        try:
            data = raw if raw is not None else json.dumps(body).encode() if body is not None else None
            kind = "application/x-tar" if raw is not None else "application/json"
            connection.request(method, path, data, {"Content-Type": kind, **headers})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        """What a request that succeeds answers."""
        status, body = self.ask("GET", path)
        assert status == 200, (status, body)
        return json.loads(body)

    def containers(self, *labels: str) -> list[dict[str, Any]]:
        """All containers with these labels, running or not."""
        from urllib.parse import quote

        filters = quote(json.dumps({"label": list(labels)}))
        found: list[dict[str, Any]] = self.get(f"/containers/json?all=1&filters={filters}")
        return found

    def container_of(self, sandbox_id: str) -> dict[str, Any]:
        """What `docker inspect` shows of a sandbox's container."""
        found: dict[str, Any] = self.get(f"/containers/sandbox-{sandbox_id}/json")
        return found

    # -- what one test leaves for the next ----------------------------------------------------------------------------

    def leave_image(self, image_id: str, log_id: str, details: dict[str, Any]) -> None:
        """Leave an image of Sandkeep's, which that log owns, for later tests."""
        self._left = (image_id, log_id, copy.deepcopy(details))

    def left_image(self) -> tuple[str, str, dict[str, Any]] | None:
        """The image that was left, if nobody has removed it, and its log has no containers."""
        if self._left is None or self.ask("GET", f"/images/sandkeep:{self._left[0]}/json")[0] != 200:
            return None
        return None if self.containers(f"sandkeep.log={self._left[1]}") else copy.deepcopy(self._left)

    def has_left(self, image_id: str) -> bool:
        """Whether that is the image that was left."""
        return self._left is not None and self._left[0] == image_id

    # -- images -------------------------------------------------------------------------------------------------------

    def image(self, name: str, archive: Callable[[], bytes], *changes: str) -> str:
        """An image of that name, imported once; `changes` are lines of a Dockerfile."""
        from urllib.parse import urlencode

        with self._making:
            if name in self._images:
                return name
            repository, _, tag = name.partition(":")
            query = urlencode(
                [("fromSrc", "-"), ("repo", repository), ("tag", tag)] + [("changes", c) for c in changes]
            )
            status, body = self.ask("POST", f"/images/create?{query}", raw=archive())
            assert status == 200, body
            assert b"errorDetail" not in body, body
            self._images.add(name)
        return name

    def busybox(self) -> str:
        """An image with busybox alone."""
        return self.image("test/busybox:1", rootfs.busybox, "ENV PATH=/bin", 'CMD ["/bin/sh"]')

    def tools(self) -> str:
        """An image that stands for a Debian: dash, coreutils, tmux."""
        return self.image("test/tools:1", rootfs.tools, "ENV PATH=/usr/bin:/bin:/usr/sbin:/sbin", 'CMD ["/bin/sh"]')

    def python(self) -> str:
        """The same with Python."""
        return self.image("test/python:1", rootfs.python, "ENV PATH=/usr/bin:/bin:/usr/sbin:/sbin", 'CMD ["/bin/sh"]')

    def hostile(self) -> str:
        """An image with what hostile programs take, and a user of its own."""
        tools = "ENV PATH=/usr/bin:/bin:/usr/sbin:/sbin"
        return self.image("test/hostile:1", rootfs.hostile, tools, "USER 1234:1234", 'CMD ["/bin/sh"]')

    def shell(self) -> str:
        """An image with a shell, and nothing else."""
        return self.image("test/shell:1", rootfs.shell, "ENV PATH=/bin")

    def bare(self) -> str:
        """An image without a shell."""
        return self.image("test/bare:1", rootfs.bare, "ENV PATH=/bin", 'CMD ["/bin/sleep","1000"]')

    def guest(self) -> str:
        """That of `tools`, with a user of its own."""
        return self.derived("test/guest:1", f"FROM {self.tools()}\nUSER 1234:1234\n")

    def derived(self, name: str, dockerfile: str) -> str:
        """An image of that name, built once by a Dockerfile that needs no files."""
        import io
        import tarfile

        with self._making:
            if name in self._images:
                return name
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w") as archive:
                entry = tarfile.TarInfo("Dockerfile")
                entry.size = len(dockerfile)
                archive.addfile(entry, io.BytesIO(dockerfile.encode()))
            status, body = self.ask("POST", f"/build?t={name}&rm=1&forcerm=1&networkmode=none", raw=packed.getvalue())
            assert status == 200, body
            assert b"errorDetail" not in body, body
            self._images.add(name)
        return name

    def remove_image(self, name: str) -> None:
        """Remove an image with all its names."""
        with self._making:
            image_id = self.get(f"/images/{name}/json")["Id"]
            status, body = self.ask("DELETE", f"/images/{image_id}?force=1")
            assert status == 200, body
            self._images.discard(name)

    # -- its life -----------------------------------------------------------------------------------------------------

    def send(self, number: int) -> None:
        """Send it a signal, such as SIGSTOP."""
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it, and wait until it has. With `live_restore` what it runs goes on."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(number)
            self.process.wait(patient(60))
            self.process = None
            if number == signal.SIGKILL:  # its containerd dies with it, and is taken for one that runs
                with suppress(FileNotFoundError):
                    os.unlink(f"{self.root}/exec/containerd/containerd.pid")

    def remove_containers(self) -> None:
        """Remove every container and volume."""
        for container in self.get("/containers/json?all=1"):
            self.ask("DELETE", f"/containers/{container['Id']}?force=1&v=1")
        for volume in self.get("/volumes")["Volumes"] or ():
            self.ask("DELETE", f"/volumes/{volume['Name']}?force=1")

    def clear(self) -> None:
        """End it and all that it runs, and remove its directories."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            with suppress(OSError):
                self.remove_containers()
            self.stop()
        for pid in _below(self.root):  # a containerd, or shims, that outlived it
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for path in sorted(_mounts_below(self.root), key=len, reverse=True):
            subprocess.run(["umount", "--lazy", path], check=False)
        shutil.rmtree(self.root, ignore_errors=True)


def _below(root: str) -> list[int]:
    """The processes that were started with a path below `root` among their words."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError), open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read()
                if f"{root}/".encode() in words and words.split(b"\0")[0].rpartition(b"/")[2].startswith(
                    (b"dockerd", b"containerd")
                ):
                    found.append(int(name))
    return found


def _mounts_below(root: str) -> list[str]:
    with open("/proc/self/mounts", encoding="utf-8", errors="replace") as file:
        return [line.split()[1] for line in file if line.split()[1].startswith(f"{root}/")]
