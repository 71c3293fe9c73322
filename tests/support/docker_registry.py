"""A real registry, Debian's `docker-registry`, on the loopback interface, with a login or without."""

import base64
import json
import os
import socket
import subprocess
import time
from contextlib import suppress
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.support.patience import patient

USER, PASSWORD = "ada", "secret-of-ada"
_HTPASSWD = "ada:$2b$04$cjhQ9NEzkmdCKisj7x2xs.AnpwaJ91eCPcVMnd3hOY.bMo8/enX4u\n"
START_S = patient(60.0)

_CONFIGURATION = """
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage:
  filesystem: {{rootdirectory: {root}/blobs}}
  delete: {{enabled: true}}
http: {{addr: "{address}"}}
"""
_LOGIN = """
auth: {{htpasswd: {{realm: basic, path: {root}/htpasswd}}}}
"""


class DockerRegistry:
    """A registry below `root`. One that is `private` gives nothing without the login of `USER`."""

    def __init__(self, root: str, *, private: bool) -> None:
        self.root = root
        self.private = private
        self.address = f"127.0.0.1:{_free_port()}"
        self.process: subprocess.Popen[bytes] | None = None
        os.makedirs(root)
        text = _CONFIGURATION + (_LOGIN if private else "")
        for name, content in (("htpasswd", _HTPASSWD), ("config.yml", text.format(root=root, address=self.address))):
            with open(f"{root}/{name}", "w", encoding="utf-8") as file:
                file.write(content)

    def start(self) -> None:
        """Start it, and return when it answers."""
        with open(f"{self.root}/log", "ab") as log:
            words = ["docker-registry", "serve", f"{self.root}/config.yml"]
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with suppress(OSError):
                self.ask("GET", "/v2/")
                return
            time.sleep(0.02)
        with open(f"{self.root}/log", encoding="utf-8", errors="replace") as said:
            raise RuntimeError(f"docker-registry did not start:\n{said.read()[-4000:]}")

    def stop(self) -> None:
        """End it, and wait until it has."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(patient(60))
            self.process = None

    @property
    def login(self) -> dict[str, str]:
        """The login that it wants, as an engine takes it; none for one that is not private."""
        return {"username": USER, "password": PASSWORD} if self.private else {}

    def logins(self, password: str = PASSWORD) -> str:
        """The file that ``docker login`` writes, with a login for it."""
        packed = base64.b64encode(f"{USER}:{password}".encode()).decode()
        return json.dumps({"auths": {self.address: {"auth": packed}}})

    def push(self, engine: Any, local: str, name: str) -> str:
        """Move an image from an engine into it; return its reference."""
        reference = f"{self.address}/{name}"
        repository, _, tag = reference.rpartition(":")
        header = base64.urlsafe_b64encode(json.dumps(self.login).encode()).decode()
        status, body = engine.ask("POST", f"/images/{local}/tag?repo={repository}&tag={tag}")
        assert status == 201, body
        status, body = engine.ask("POST", f"/images/{repository}/push?tag={tag}", headers={"X-Registry-Auth": header})
        assert status == 200, body
        assert b"errorDetail" not in body, body
        engine.remove_image(local)
        return reference

    def ask(self, method: str, path: str) -> tuple[int, bytes]:
        """One request with its login."""
        headers = {"Authorization": "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()}
        try:
            with urlopen(
                Request(f"http://{self.address}{path}", method=method, headers=headers), timeout=patient(30)
            ) as answer:
                return answer.status, answer.read()
        except HTTPError as error:
            return error.code, error.read()


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
