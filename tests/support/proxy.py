"""A line to a service that breaks where a test wants it to: a TCP proxy on loopback."""

import contextlib
import re
import socket
import struct
import threading
from typing import Self

_RESET = struct.pack("ii", 1, 0)  # closing sends no farewell


class BreakingLine:
    """Passes connections on to a port of this machine.

    `cut_up` and `cut_down` are numbers of bytes, counted over all connections to the service and from it: when so many
    passed, that connection breaks; the numbers are used up one by one. `lose_answer` is looked for in what goes to the
    service; the first answer after that is lost, with its connection, and the pattern is used up. While `down` is set
    no connection lasts. When `silent_after` bytes came from the service, no more come, and no connection breaks.
    """

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._server = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._over = threading.Event()
        self.port: int = self._server.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.mend()

    def mend(self) -> None:
        """Pass on everything, and count from nothing."""
        self.up = 0
        self.down_bytes = 0
        self.cut_up: list[int] = []
        self.cut_down: list[int] = []
        self.lose_answer: re.Pattern[bytes] | None = None
        self.down = False
        self.silent_after: int | None = None
        self.broken = 0

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Break everything, and listen no more. Safe to repeat."""
        self._over.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.break_all()

    @property
    def connections(self) -> int:
        """Number of connections that neither side has closed."""
        return len(self._open) // 2

    def break_all(self) -> None:
        """Break every connection that there is."""
        for connection in list(self._open):
            _break(connection)

    def _accept(self) -> None:
        while True:
            try:
                client = self._server.accept()[0]
            except OSError:
                return
            if self.down:
                _break(client)
                continue
            service = socket.create_connection(self._target)
            self._open |= {client, service}
            line = _Line(self, client, service)
            for carry in (line.carry_up, line.carry_down):
                threading.Thread(target=carry, daemon=True).start()


class _Line:
    """One connection."""

    def __init__(self, proxy: BreakingLine, client: socket.socket, service: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._service = service
        self._answer_is_lost = False

    def carry_up(self) -> None:
        for data in _received(self._client):
            with self._proxy._lock:
                pattern = self._proxy.lose_answer
                if pattern is not None and pattern.search(data):
                    self._proxy.lose_answer, self._answer_is_lost = None, True
                allowed = _allowed(self._proxy.cut_up, self._proxy.up, data)
                self._proxy.up += allowed
            if not self._send(self._service, data, allowed):
                return
        self._close()

    def carry_down(self) -> None:
        for data in _received(self._service):
            silent_after = self._proxy.silent_after
            if silent_after is not None and self._proxy.down_bytes + len(data) > silent_after:
                with contextlib.suppress(OSError):
                    self._client.sendall(data[: max(0, silent_after - self._proxy.down_bytes)])
                self._proxy.down_bytes = silent_after
                self._proxy._over.wait()
                return
            with self._proxy._lock:
                allowed = 0 if self._answer_is_lost else _allowed(self._proxy.cut_down, self._proxy.down_bytes, data)
                self._proxy.down_bytes += allowed
            if not self._send(self._client, data, allowed):
                return
        self._close()

    def _send(self, to: socket.socket, data: bytes, allowed: int) -> bool:
        try:
            to.sendall(data[:allowed])
        except OSError:
            self._close()
            return False
        if allowed < len(data):
            self._proxy.broken += 1
            self._close()
            return False
        return True

    def _close(self) -> None:
        self._proxy._open -= {self._client, self._service}
        _break(self._client)
        with contextlib.suppress(OSError):  # the service still hears what was on its way
            self._service.shutdown(socket.SHUT_RDWR)
        self._service.close()


def _allowed(cuts: list[int], passed: int, data: bytes) -> int:
    """How much of the data passes before the line breaks."""
    if cuts and passed + len(data) > cuts[0]:
        return cuts.pop(0) - passed
    return len(data)


def _received(connection: socket.socket):  # type: ignore[no-untyped-def]
    with contextlib.suppress(OSError):
        while data := connection.recv(65536):
            yield data


def _break(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
