"""A service that fails as a test wants it to: an HTTP proxy on loopback, one for each daemon, so that one may have a
fault that another has not.
"""

import http.client
import http.server
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from tests.support.patience import patient
from tests.support.threaded import InThread, QuietServer

Fault: TypeAlias = int | Literal["silent", "down", "slow", "lost", "broken", "stalled", "short", "corrupt", "damaged"]
"""What becomes of a request. A number: it is not carried out, and that is the status of the answer. `silent`, `down`:
neither, and the connection stays open, or breaks. `slow`: its answer is late by `SLOW_S`.

Of the others the service carries out what it got. `lost`: there is no answer. `broken`, `stalled`: the connection
breaks in the middle of the answer, or nothing more comes. `short`: the answer is `SHORT_BYTES` long, and says so.
`corrupt`: its first byte is another one. `damaged`: the last byte of the request was another one on the way.

They are the instructions of googleapis/storage-testbench, where these concern HTTP, and more.
"""

SHORT_BYTES: Final = 4

SLOW_S: Final = 0.3
_PATIENCE_S: Final = patient(60.0)
_ABOUT: Final = 250
"""Bytes of a request that name the object of an upload to GCS, before its content."""
_RESET: Final = struct.pack("ii", 1, 0)  # closing sends no farewell
_HOP: Final = {"connection", "transfer-encoding", "content-length", "keep-alive"}


class Request(NamedTuple):
    """A request, and the status of its answer; None while there is none."""

    method: str
    target: str
    body: bytes
    status: int | None = None

    @property
    def writes(self) -> bool:
        """True if it may change something."""
        return self.method not in ("GET", "HEAD")

    def is_about(self, name: str) -> bool:
        """Return True if the URL, or what is sent, names an object of that name."""
        return name in self.target or name.encode() in self.body[:_ABOUT]


Matching: TypeAlias = Callable[[Request], bool]


class Held:
    """Requests that are on their way until they are let go. `arrived` is set by the first."""

    def __init__(self, matching: Matching) -> None:
        self.matching = matching
        self.arrived = threading.Event()
        self._gone = threading.Event()

    def wait(self) -> None:
        """Be on the way."""
        self.arrived.set()
        assert self._gone.wait(_PATIENCE_S)

    def let_go(self) -> None:
        """Let them arrive, from now on."""
        self._gone.set()


class FaultyLine(InThread):
    """Passes requests on to a port of this machine. `answered` are those of which it had an answer."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._lock = threading.Lock()
        self.answered: list[Request] = []
        self.mend()
        self._server: QuietServer = QuietServer(("127.0.0.1", 0), lambda *args: _Handler(self, *args))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __exit__(self, *_: object) -> None:
        self.mend()
        super().__exit__()

    def mend(self) -> None:
        """Answer everything from now on, at once."""
        self._faults: tuple[Fault, ...] = ()
        self._every = 1
        self._most: int | None = None
        self._matching: Matching = lambda request: True
        self._held: Held | None = None
        self._failed_last: set[tuple[str, str]] = set()
        self.seen = 0
        self.failed = 0

    def fail(
        self, *faults: Fault, every: int = 1, matching: Matching = lambda request: True, most: int | None = None
    ) -> None:
        """Fail each so-manieth request that matches, from now on, by one fault after the other; none twice in a row,
        unless it is each. `most` is the number of requests after which nothing fails any more.
        """
        self.seen = self.failed = 0
        self._most = most
        self._faults, self._every, self._matching = faults, every, matching

    def hold(self, matching: Matching) -> Held:
        """Keep requests that match on the way."""
        self._held = Held(matching)
        return self._held

    def fault_of(self, request: Request) -> Fault | None:
        """Return what is to become of a request; None if it is passed on."""
        with self._lock:
            if not self._faults or not self._matching(request):
                return None
            if self.failed == self._most:
                return None
            self.seen += 1
            again = (request.method, request.target)
            if self.seen % self._every or (self._every > 1 and again in self._failed_last):
                self._failed_last.discard(again)
                return None
            self._failed_last.add(again)
            self.failed += 1
            return self._faults[self.failed % len(self._faults)]

    def pass_on(self, request: Request, headers: Any) -> tuple[http.client.HTTPResponse, bytes]:
        """Pass a request to the service, and its answer back."""
        if (held := self._held) is not None and held.matching(request):
            held.wait()
        connection = http.client.HTTPConnection("127.0.0.1", self._target, timeout=_PATIENCE_S)
        try:
            connection.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                if name.lower() not in (*_HOP, "expect"):
                    connection.putheader(name, value)
            if request.writes:
                connection.putheader("Content-Length", str(len(request.body)))
            connection.endheaders(request.body or None)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        with self._lock:
            self.answered.append(request._replace(status=answer.status, body=request.body[:_ABOUT]))
        return answer, content


def _changed(content: bytes, at: int) -> bytes:
    """Return the content with another byte at a place."""
    if not content:
        return content
    changed = bytearray(content)
    changed[at] ^= 1
    return bytes(changed)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, line: FaultyLine, *args: Any) -> None:
        self._line = line
        super().__init__(*args)

    def log_message(self, *args: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._handle
        raise AttributeError(name)

    def _handle(self) -> None:
        request = Request(self.command, self.path, self._body())
        fault = self._line.fault_of(request)
        if fault == "slow":
            threading.Event().wait(SLOW_S)
            fault = None
        if fault == "silent":
            self._wait_for_the_end()
        if fault in ("silent", "down"):
            self._break_off()
            return
        if isinstance(fault, int):
            self.send_response(fault, "As a test wants it")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if fault == "damaged":
            request = request._replace(body=_changed(request.body, -1))
        answer, content = self._line.pass_on(request, self.headers)
        if fault == "lost":
            self._break_off()
            return
        if fault == "short":
            content = content[:SHORT_BYTES]
        if fault == "corrupt":
            content = _changed(content, 0)
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP:
                self.send_header(name, value)
        size = answer.getheader("Content-Length", "0") if request.method == "HEAD" else str(len(content))
        if answer.status not in (204, 304):
            self.send_header("Content-Length", size)
        self.end_headers()
        if fault in ("broken", "stalled"):
            self.wfile.write(content[: len(content) // 2])
            if fault == "stalled":
                self._wait_for_the_end()
            self._break_off()
            return
        self.wfile.write(content)

    def _wait_for_the_end(self) -> None:
        """Wait until the client has had enough."""
        with suppress(OSError):
            self.connection.settimeout(_PATIENCE_S)
            self.connection.recv(1)

    def _break_off(self) -> None:
        with suppress(OSError):
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.close_connection = True

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body
