"""LocalStack's S3, a service that nobody here wrote: a process with a venv of its own, as its dependencies are pinned.

Its tests are recorded from Amazon's service. It lacks that a condition is checked and the request carried out in one
step: of two completions of uploads to one key both succeeded (4.9.2), so they are taken in turn. `scripts/setup` makes
the venv, whose interpreter is `PYTHON`.
"""

import os
import subprocess
import threading
from pathlib import Path
from typing import Any, Final, Self

from tests.support.patience import patient

PYTHON: Final = Path(__file__).parents[2] / ".setup" / "localstack" / "bin" / "python"
START_S: Final = patient(300.0)

_PROGRAM: Final = """
import threading

from localstack.aws.app import LocalstackAwsGateway
from localstack.aws.serving.werkzeug import CustomWSGIRequestHandler
from localstack.services.plugins import SERVICE_PLUGINS
from rolo.gateway.wsgi import WsgiGateway
from werkzeug.serving import make_server

CustomWSGIRequestHandler.protocol_version = "HTTP/1.1"
CustomWSGIRequestHandler.log_message = lambda *args: None
application = WsgiGateway(LocalstackAwsGateway(SERVICE_PLUGINS))
turn = threading.Lock()

def serve(environ, start_response):
    if environ["REQUEST_METHOD"] == "GET" or not {"HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"} & environ.keys():
        return application(environ, start_response)
    with turn:
        return application(environ, start_response)

server = make_server("127.0.0.1", 0, serve, threaded=True, request_handler=CustomWSGIRequestHandler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def why_absent() -> str | None:
    """Return why LocalStack cannot be had; None if it can."""
    return None if PYTHON.exists() else f"LocalStack is not installed in {PYTHON.parents[1]}: run make setup"


class LocalStack:
    """The service on a port of its own, for the length of a block; `environ` is what a client of it needs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[str]
        self._client: Any = None
        self.port = 0
        self.url = ""
        self.environ: dict[str, str] = {}

    def __enter__(self) -> Self:
        settings = {
            "SERVICES": "s3", "EAGER_SERVICE_LOADING": "0", "DISABLE_EVENTS": "1", "SKIP_SSL_CERT_DOWNLOAD": "1",
            "TMPDIR": str(self._directory), "HOME": str(self._directory), "LS_LOG": "error",
        }  # fmt: skip
        with open(self._directory / "log", "wb") as log:
            self._process = subprocess.Popen(
                [PYTHON, "-c", _PROGRAM], env={"PATH": os.environ["PATH"], **settings}, cwd=self._directory,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        late = threading.Timer(START_S, self._process.kill)
        late.start()
        assert self._process.stdout is not None
        port = self._process.stdout.readline()
        late.cancel()
        assert port, f"LocalStack did not start:\n{(self._directory / 'log').read_text(errors='replace')[-4000:]}"
        self.port = int(port)
        from tests.support.s3 import environ_of

        self.url = f"http://127.0.0.1:{self.port}"
        self.environ = environ_of(self.url)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def client(self) -> Any:
        """The SDK's own client."""
        from tests.support.s3 import client_of

        if self._client is None:
            self._client = client_of(self.url)
        return self._client

    def create_bucket(self, name: str) -> str:
        """A new bucket; answers its name."""
        self.client().create_bucket(Bucket=name)
        return name

    def unfinished(self, bucket: str) -> list[str]:
        """The names of objects whose upload was begun and neither finished nor aborted."""
        return [upload["Key"] for upload in self.client().list_multipart_uploads(Bucket=bucket).get("Uploads", [])]
