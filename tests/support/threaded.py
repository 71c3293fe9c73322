"""Services in threads of the test's own process."""

import http.server
import socketserver
import threading
from typing import Any, Self


class QuietServer(http.server.ThreadingHTTPServer):
    """A server of HTTP that says nothing of clients that break off: they are what tests are about."""

    request_queue_size = 128
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


class InThread:
    """A service that is there for the length of a block."""

    _server: socketserver.BaseServer

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
