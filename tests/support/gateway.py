"""Parts that tests of the HTTP gateway share: a daemon that serves it, a key with an image, and requests."""

import http.client
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
from tests.conftest import RunningDaemon, daemon_in
from tests.support.patience import patient

SESSIONS = "/api/sandbox/sessions/"


class Answer(NamedTuple):
    """An answer: its status, its headers in lower case, its body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        """The body, which is JSON."""
        return msgspec.json.decode(self.body)

    @property
    def problem(self) -> tuple[int, str]:
        """Status and code of a problem document, which says its status, too."""
        assert self.headers["content-type"] == "application/problem+json", self
        found = self.value
        assert (found["status"], found["type"]) == (self.status, "about:blank")
        assert found["title"]
        assert found["detail"]
        return self.status, found["code"]


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=patient(60))
        self._path = path

    def connect(self) -> None:
        self.sock = plain(self._path)


def plain(path: str) -> socket.socket:
    """A socket to a Unix socket, for what no client of HTTP would send."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(patient(60))
    sock.connect(path)
    return sock


class Gateway:
    """A daemon with a gateway on a Unix socket and on TCP, a key `ci`, and an image of that key."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self.daemon = daemon
        os.makedirs(f"{daemon.root}/image", exist_ok=True)
        with daemon.connect() as client:
            self.key = client.key.create("ci").key
            self.image_id = client.image.create(f"{daemon.root}/image", owner="key:ci").image_id
            self.unix, self.tcp = client.daemon.status().http

    @property
    def path(self) -> str:
        """The path of the Unix socket."""
        return self.unix.removeprefix("unix:")

    @property
    def port(self) -> int:
        """The port on the loopback interface."""
        return int(self.tcp.rpartition(":")[2])

    def connection(self, *, tcp: bool = False) -> http.client.HTTPConnection:
        """A connection, over which requests can follow each other."""
        return (
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=patient(60))
            if tcp
            else _UnixConnection(self.path)
        )

    def ask(
        self,
        verb: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = "",
        headers: dict[str, str] | None = None,
        tcp: bool = False,
    ) -> Answer:
        """Send one request, with a body of JSON unless it is bytes, and return the answer."""
        sent = dict(headers or {})
        if key is not None:
            sent["X-Api-Key"] = key or self.key
        data = body if body is None or isinstance(body, bytes) else msgspec.json.encode(body)
        connection = self.connection(tcp=tcp)
        try:
            connection.request(verb, path, data, sent)
            return read(connection.getresponse())
        finally:
            connection.close()

    def make(self, session_id: str, **more: Any) -> Any:
        """Make a session, and return it."""
        answer = self.ask("POST", SESSIONS, {"id": session_id, "image": self.image_id, **more})
        assert answer.status == 201, answer
        return answer.value


def read(response: http.client.HTTPResponse) -> Answer:
    """Read an answer to its end."""
    headers = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, headers, response.read())


@contextmanager
def gateway_in(places: str, **environment: str) -> Iterator[Gateway]:
    """Run a daemon with a gateway during a block."""
    with daemon_in(places) as daemon:
        daemon.env |= {"SANDKEEP_HTTP": f"unix:{daemon.root}/http.sock, tcp://127.0.0.1:0", **environment}
        daemon.start()
        yield Gateway(daemon)
