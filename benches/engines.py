"""A Docker engine of the bench's own, its two usual ways in (the CLI, and HTTP on its socket), and SWE-ReX in it."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from benches import fair
from tests.support.engine import PrivateEngine

SETUP = Path(__file__).parents[1] / ".setup" / "swe-rex"
"""Where SWE-ReX is installed for the bench, apart from everything of ours."""

REX = ("swe-rex==1.4.0", "aiohttp")
TOKEN = "bench"
START_S = 60.0


@contextmanager
def engine() -> Iterator[PrivateEngine]:
    """The engine, which daemons that are started meanwhile use."""
    made = PrivateEngine(tempfile.mkdtemp(prefix="skb-engine-", dir=os.environ.get("SANDKEEP_BENCH_DIR")))
    before = os.environ.get("DOCKER_HOST")
    try:
        with fair.ordinary():
            made.start()
        os.environ["DOCKER_HOST"] = made.host
        yield made
    finally:
        os.environ.pop("DOCKER_HOST", None)
        if before is not None:
            os.environ["DOCKER_HOST"] = before
        made.clear()


def ask(engine: PrivateEngine, method: str, path: str, body: Any = None) -> Any:
    """What a request to the engine answers. Raises for one that failed."""
    status, answer = engine.ask(method, path, body)
    assert status < 300, (method, path, status, answer)
    return json.loads(answer) if answer[:1] in (b"{", b"[") else answer


def run_by_http(engine: PrivateEngine, container: str, command: list[str]) -> bytes:
    """`docker exec` as the raw interface has it: made, started and read to its end, and asked for its code."""
    asked = {"AttachStdout": True, "AttachStderr": True, "Cmd": command}
    made = ask(engine, "POST", f"/containers/{container}/exec", asked)["Id"]
    said: bytes = engine.ask("POST", f"/exec/{made}/start", {"Detach": False, "Tty": False})[1]
    assert ask(engine, "GET", f"/exec/{made}/json")["ExitCode"] == 0
    return said


def docker(engine: PrivateEngine, *words: str, **options: Any) -> "subprocess.CompletedProcess[bytes]":
    """The CLI, to its end."""
    return subprocess.run(["docker", "--host", engine.host, *words], check=True, **{"capture_output": True, **options})


class Rex:
    """A server of SWE-ReX, asked over one connection."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection("127.0.0.1", port, timeout=30)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"X-API-Key": TOKEN, "Content-Type": "application/json"}
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = self._connection.getresponse()
        said = answer.read()
        assert answer.status == 200, (answer.status, said)
        return json.loads(said)

    def execute(self) -> None:
        """A command of its own."""
        said = self.ask("POST", "/execute", {"command": ["echo", "hello"], "shell": False, "timeout": 30})
        assert said["stdout"] == "hello\n", said

    def run_in_session(self) -> None:
        """A line in the shell that it keeps."""
        action = {"action_type": "bash", "session": "default", "command": "echo hello", "timeout": 30}
        said = self.ask("POST", "/run_in_session", action)
        assert said["output"].strip() == "hello", said


def _free_port() -> int:
    with socket.socket() as probing:
        probing.bind(("127.0.0.1", 0))
        return int(probing.getsockname()[1])


def _installed() -> Path:
    """SWE-ReX in an environment of its own, by the system's Python, which a container can be shown."""
    if not (SETUP / "bin" / "swerex-remote").exists():
        shutil.rmtree(SETUP, ignore_errors=True)
        subprocess.run(["/usr/bin/python3", "-m", "venv", SETUP], check=True, capture_output=True)
        subprocess.run([SETUP / "bin" / "pip", "install", "--quiet", *REX], check=True, capture_output=True)
    return SETUP


@contextmanager
def rex(engine: PrivateEngine) -> Iterator[Rex]:
    """SWE-ReX's server in a container like ours, which sees this machine's Python and loopback besides."""
    place, port = _installed(), _free_port()
    words = [str(place / "bin" / "python"), str(place / "bin" / "swerex-remote"), "--host", "127.0.0.1"]
    body = {
        "Image": engine.tools(),
        "Cmd": [*words, "--port", str(port), "--auth-token", TOKEN],
        "HostConfig": {
            "NetworkMode": "host",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true"],
            "ReadonlyRootfs": True,
            "Tmpfs": {"/tmp": "rw,exec", "/run": "rw"},
            "Binds": ["/usr:/usr:ro", f"{place}:{place}:ro"],
            "LogConfig": {"Type": "none"},
        },
    }
    container = ask(engine, "POST", "/containers/create", body)["Id"]
    try:
        ask(engine, "POST", f"/containers/{container}/start")
        asked = _when_up(port)
        fair.like_the_daemon(engine.get(f"/containers/{container}/json")["State"]["Pid"])
        asked.ask("POST", "/create_session", {"session_type": "bash", "session": "default", "startup_timeout": 10})
        yield asked
    finally:
        ask(engine, "DELETE", f"/containers/{container}?force=1")


def _when_up(port: int) -> Rex:
    deadline = time.monotonic() + START_S
    while True:
        try:
            asked = Rex(port)
            asked.ask("GET", "/is_alive")
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return asked
