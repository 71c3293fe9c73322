"""Lock documents in a bucket of Google Cloud Storage, with generation preconditions.

Transient errors are retried by the SDK's policy. A retried write whose first attempt had succeeded is answered with
"another generation is there", as `DocumentStore.write` says.
"""

import secrets
from base64 import b64encode
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from msgspec import json

from sandkeep.errors import ProviderError, SandkeepError
from sandkeep_store.buckets.answers import parsing, unreadable
from sandkeep_store.buckets.gcs_client import connect, retrying, translated_errors
from sandkeep_store.locks.store import MAX_DOCUMENT_BYTES, Stored, Written

ANSWER_S: Final = 5.0
"""Timeout of one request, in seconds."""

PATIENCE_S: Final = 8.0
"""Seconds of retries: a lease that is renewed at half has time for two such periods."""


class GcsStore:
    """See `DocumentStore`. The service is connected to when it is first used."""

    def __init__(self, bucket: str) -> None:
        self.where = f"gs://{bucket}"
        self._bucket = bucket

    def read(self, path: str, most: int = MAX_DOCUMENT_BYTES) -> Stored | None:
        """See `DocumentStore.read`."""
        with translated_errors(f"{self.where}/{path}"):
            found: Stored | None = retrying(PATIENCE_S)(self._read)(path, most)
        return found

    def _read(self, path: str, most: int) -> Stored | None:
        """Bytes and generation by one request, which the SDK has no call for."""
        from google.api_core.exceptions import from_http_response

        gcs = connect()
        url = f"{gcs.endpoint}/download/storage/v1/b/{self._bucket}/o/{quote(path, safe='')}"
        headers = {"Accept-Encoding": "gzip"}  # as it is stored, without being unpacked on the way
        with gcs.http.get(
            url, params={"alt": "media"}, headers=headers, stream=True, timeout=ANSWER_S, allow_redirects=False
        ) as answer:
            if answer.status_code == 404 and b"bucket does not exist" not in answer.content:
                return None
            if answer.status_code != 200:
                raise from_http_response(answer)
            content = answer.raw.read(most + 1, decode_content=False)
        generation = answer.headers.get("x-goog-generation")
        if generation is None:
            raise ProviderError(
                "provider_unavailable",
                f"{self.where} sends no generation numbers: use another service",
            )
        hashes = answer.headers.get("x-goog-hash", "")  # crc32c=…, md5=…
        if len(content) <= most and "crc32c=" in hashes and f"crc32c={_checksum(content)}" not in hashes:
            raise unreadable(f"{self.where}/{path}", ValueError("its bytes are not those of its checksum"))
        return Stored(content, generation)

    def write(self, path: str, content: bytes, over: str | None) -> Written | None:
        """See `DocumentStore.write`."""
        try:
            with translated_errors(f"{self.where}/{path}"):
                made: Written = retrying(PATIENCE_S)(self._write)(path, content, over)
        except SandkeepError as error:
            if error.code not in ("conflict", "snapshot_missing"):
                raise
            return None
        return made

    def _write(self, path: str, content: bytes, over: str | None) -> Written:
        """Upload bytes, type and checksum by one request. The SDK's call sends the same, but needs as long to prepare
        it as a lock may take in total. Raises `UnreadableAnswerError`: the document may have been written.
        """
        from google.api_core.exceptions import from_http_response

        gcs = connect()
        url = f"{gcs.endpoint}/upload/storage/v1/b/{self._bucket}/o"
        params = {"uploadType": "multipart", "ifGenerationMatch": over or "0"}
        body, headers = _in_parts(path, content)
        with gcs.http.post(
            url, params=params, data=body, headers=headers, timeout=ANSWER_S, allow_redirects=False
        ) as answer:
            if answer.status_code != 200:
                raise from_http_response(answer)
            with parsing(f"{self.where}/{path}"):
                made: dict[str, Any] = answer.json()
                return Written(str(int(made["generation"])), datetime.fromisoformat(made["updated"]).timestamp())


def _in_parts(path: str, content: bytes) -> tuple[bytes, dict[str, str]]:
    """Return the body of a multipart request, metadata and content of an object, and its headers."""
    about = json.encode({"name": path, "contentType": "application/json", "crc32c": _checksum(content)})
    boundary = secrets.token_hex(16)
    parts = (b"--%s\r\nContent-Type: application/json\r\n\r\n%s\r\n" % (boundary.encode(), p) for p in (about, content))
    headers = {"Content-Type": f'multipart/related; boundary="{boundary}"'}
    return b"".join(parts) + b"--%s--" % boundary.encode(), headers


def _checksum(content: bytes) -> str:
    """Return the checksum of the service, CRC32C in base64."""
    import google_crc32c

    return b64encode(google_crc32c.value(content).to_bytes(4, "big")).decode()
