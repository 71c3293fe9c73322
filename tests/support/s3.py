"""An S3 service for tests: moto's server, with conditional writes carried out in one step, as the real ones are, and
with the refusals of Amazon's service that moto lacks.
"""

import base64
import binascii
import hashlib
import io
import logging
import os
import re
import threading
import zlib
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, unquote

from tests.support.gcs import Fault
from tests.support.threaded import InThread

_BEGUN: Final = "2010-11-10T20:48:33.000Z"


def environ_of(url: str) -> dict[str, str]:
    """Return the settings of a client of a service."""
    return {
        "SANDBOX_S3_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


def client_of(url: str) -> Any:
    """Return a client of the SDK."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=url,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}),
    )


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
        application = _failing(_dated(_in_turn(_strict(create_backend_app("s3"))), self.begun), self.faults)
        self._server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=KeepingAlive)
        self._client: Any = None
        self.port: int = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self.environ = environ_of(self.url)

    def client(self) -> Any:
        """The SDK's own client."""
        if self._client is None:
            self._client = client_of(self.url)
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


class _Refusal(NamedTuple):
    status: int
    code: str

    def answer(self, start_response: Any) -> Iterable[bytes]:
        body = f"<?xml version='1.0'?><Error><Code>{self.code}</Code><Message>As Amazon has it.</Message></Error>"
        start_response(f"{self.status} {self.code}", [("Content-Type", "application/xml")])
        return [body.encode()]


def _strict(application: Any) -> Any:
    """Requests that Amazon refuses and moto does not. Sources: the API reference of PutObject, UploadPart and
    CompleteMultipartUpload; what LocalStack, whose tests are recorded from Amazon, answers.
    """
    announced: dict[str, str] = {}
    """Checksum algorithms, by the ids of the uploads that were begun with one."""

    def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        query = parse_qs(environ["QUERY_STRING"], keep_blank_values=True)
        upload = query.get("uploadId", [""])[0]
        body = _body(environ)
        if (refusal := _refusal(environ, body, announced.get(upload))) is not None:
            return refusal.answer(start_response)
        answer = application(environ, start_response)
        algorithm = environ.get("HTTP_X_AMZ_CHECKSUM_ALGORITHM")
        if environ["REQUEST_METHOD"] == "POST" and "uploads" in query and algorithm:
            content = b"".join(answer)
            announced[re.findall(rb"<UploadId>(.*?)</UploadId>", content)[0].decode()] = algorithm.upper()
            return [content]
        return answer  # type: ignore[no-any-return]

    return serve


def _body(environ: dict[str, Any]) -> bytes:
    body: bytes = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    return body


def _refusal(environ: dict[str, Any], body: bytes, algorithm: str | None) -> _Refusal | None:
    """Return with what Amazon refuses a request; `algorithm` is that with which its upload began."""
    key = unquote(environ["PATH_INFO"].encode("latin-1").decode("utf-8", "replace")).lstrip("/").partition("/")[2]
    if len(key.encode()) > 1024:
        return _Refusal(400, "KeyTooLongError")
    if environ["REQUEST_METHOD"] == "PUT":
        return _ended_upload(environ) or _refused_content(environ, body)
    if environ["REQUEST_METHOD"] == "POST" and "uploadId=" in environ["QUERY_STRING"]:
        return _refused_completion(body.decode(), algorithm)
    return None


def _ended_upload(environ: dict[str, Any]) -> _Refusal | None:
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    upload = parse_qs(environ["QUERY_STRING"]).get("uploadId", [""])[0]
    bucket = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets.get(environ["PATH_INFO"].split("/")[1])
    return _Refusal(404, "NoSuchUpload") if upload and bucket and upload not in bucket.multiparts else None


def _refused_content(environ: dict[str, Any], body: bytes) -> _Refusal | None:
    if (digest := environ.get("HTTP_CONTENT_MD5")) is not None:
        try:
            expected = base64.b64decode(digest, validate=True)
        except binascii.Error:
            return _Refusal(400, "InvalidDigest")
        if len(expected) != 16:
            return _Refusal(400, "InvalidDigest")
        if expected != hashlib.md5(body).digest():
            return _Refusal(400, "BadDigest")
    crc = environ.get("HTTP_X_AMZ_CHECKSUM_CRC32")
    if crc is not None and crc != base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode():
        return _Refusal(400, "BadDigest")
    return None


def _refused_completion(parts: str, algorithm: str | None) -> _Refusal | None:
    """The parts have checksums of the kind that was announced, all of them, and others have none."""
    named = set(re.findall(r"<Checksum([A-Z0-9]+)>", parts))
    if named - {algorithm}:
        return _Refusal(400, "InvalidPart")
    if algorithm is not None and parts.count("<PartNumber>") != parts.count(f"<Checksum{algorithm}>"):
        return _Refusal(400, "InvalidRequest")
    numbers = [int(number) for number in re.findall(r"<PartNumber>(\d+)</PartNumber>", parts)]
    if numbers != sorted(set(numbers)):
        return _Refusal(400, "InvalidPartOrder")
    return None


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
