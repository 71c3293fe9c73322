"""An S3 service for tests: moto's server, with conditional writes carried out in one step, as the real ones are."""

import logging
import os
import threading
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from tests.support.gcs import Fault
from tests.support.threaded import InThread

_BEGUN: Final = "2010-11-10T20:48:33.000Z"


class S3Server(InThread):
    """The service on a port of its own, in this process; `environ` is what a client of it needs."""

    def __init__(self) -> None:
        from moto.moto_server.werkzeug_app import create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        class KeepingAlive(WSGIRequestHandler):
            protocol_version = "HTTP/1.1"

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.faults: list[Fault] = []
        self.begun: dict[str, datetime] = {}
        """Times at which the uploads to some keys were begun; all others in 2010."""
        # the application for S3 alone: moto's dispatcher looks for services on the disk at each request
        application = _failing(_dated(_in_turn(create_backend_app("s3")), self.begun), self.faults)
        self._server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=KeepingAlive)
        self._client: Any = None
        self.port: int = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self.environ = {
            "SANDBOX_S3_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def client(self) -> Any:
        """The SDK's own client."""
        import boto3
        from botocore.config import Config

        if self._client is None:
            self._client = boto3.client(
                "s3",
                endpoint_url=self.url,
                aws_access_key_id="test",
                aws_secret_access_key="test",
                region_name="us-east-1",
                config=Config(s3={"addressing_style": "path"}),
            )
        return self._client

    def create_bucket(self, name: str) -> str:
        """A new bucket; answers its name."""
        self.client().create_bucket(Bucket=name)
        return name

    def keep(self, bucket: str, name: str, data: bytes) -> None:
        """Put an object there that no client could, however odd its name is."""
        from moto.core import DEFAULT_ACCOUNT_ID
        from moto.s3.models import s3_backends

        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object(bucket, name, data)

    def unfinished(self, bucket: str) -> list[str]:
        """The names of objects whose upload was begun and neither finished nor aborted."""
        return [upload["Key"] for upload in self.client().list_multipart_uploads(Bucket=bucket).get("Uploads", [])]


def _failing(application: Any, faults: list[Fault]) -> Any:
    """Writes that fail as a test wants them to."""

    def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "PUT" or not faults:
            return application(environ, start_response)  # type: ignore[no-any-return]
        fault = faults.pop(0)
        if fault.applied:
            list(application(environ, lambda *_: None))
        if fault.status is None:
            raise ConnectionAbortedError("no answer, as a test wants it")
        start_response(f"{fault.status} As a test wants it", [("Content-Length", "0")])
        return [b""]

    return serve


def _dated(application: Any, begun: dict[str, datetime]) -> Any:
    """Lists of uploads with the times when they were begun, which moto does not know."""

    def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        answer = application(environ, start_response)
        if environ["REQUEST_METHOD"] != "GET" or "uploads" not in environ["QUERY_STRING"]:
            return answer  # type: ignore[no-any-return]
        uploads = b"".join(answer).decode().split("</Upload>")
        for at, upload in enumerate(uploads):
            for key, time in begun.items():
                if f"<Key>{key}</Key>" in upload:  # as long as moto's own
                    uploads[at] = upload.replace(_BEGUN, f"{time:%Y-%m-%dT%H:%M:%S}.000Z")
        return ["</Upload>".join(uploads).encode()]

    return serve


def _in_turn(application: Any) -> Any:
    """Requests that change something only if a condition holds, one after the other."""
    turn = threading.Lock()

    def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "GET" or not {"HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"} & environ.keys():
            return application(environ, start_response)  # type: ignore[no-any-return]
        with turn:
            return application(environ, start_response)  # type: ignore[no-any-return]

    return serve
