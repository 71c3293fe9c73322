"""Documents in a bucket of Google Cloud Storage, which writes over a generation, or where there is none, or not at all.

The SDK repeats by itself what failed for a moment. A write that it repeats although the first attempt had succeeded
is answered with "another generation is there", as `DocumentStore.write` says.
"""

from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from sandkeep.errors import ProviderError, SandkeepError
from sandkeep_store.gcs_client import connect, retrying, speaking_about
from sandkeep_store.locks.base import MAX_DOCUMENT_BYTES, Stored, Written

ANSWER_S: Final = 5.0
"""How long one request may take."""

PATIENCE_S: Final = 8.0
"""How long what fails is repeated: a lease that is renewed at half has time for two such periods."""


class GcsStore:
    """See `DocumentStore`. The service is connected to when it is first used."""

    def __init__(self, bucket: str) -> None:
        self.where = f"gs://{bucket}"
        self._bucket = bucket

    def read(self, path: str, most: int = MAX_DOCUMENT_BYTES) -> Stored | None:
        """See `DocumentStore.read`."""
        with speaking_about(f"{self.where}/{path}"):
            found: Stored | None = retrying(PATIENCE_S)(self._read)(path, most)
        return found

    def _read(self, path: str, most: int) -> Stored | None:
        """Bytes and generation by one request, which the SDK has no call for."""
        from google.api_core.exceptions import from_http_response

        gcs = connect()
        url = f"{gcs.endpoint}/download/storage/v1/b/{self._bucket}/o/{quote(path, safe='')}"
        headers = {"Accept-Encoding": "gzip"}  # as it is stored, without being unpacked on the way
        with gcs.http.get(url, params={"alt": "media"}, headers=headers, stream=True, timeout=ANSWER_S) as answer:
            if answer.status_code == 404 and "bucket does not exist" not in answer.text:
                return None
            if answer.status_code != 200:
                raise from_http_response(answer)
            content = answer.raw.read(most + 1, decode_content=False)
        generation = answer.headers.get("x-goog-generation")
        if generation is None:
            raise ProviderError("provider_unavailable", f"{self.where} does not tell generations: it is not usable")
        return Stored(content, generation)

    def write(self, path: str, content: bytes, over: str | None) -> Written | None:
        """See `DocumentStore.write`."""
        blob = self._blob(path)
        try:
            with speaking_about(f"{self.where}/{path}"):
                blob.upload_from_string(
                    content,
                    content_type="application/json",
                    if_generation_match=int(over or 0),
                    timeout=ANSWER_S,
                    retry=retrying(PATIENCE_S),
                )
        except SandkeepError as error:
            if error.code not in ("conflict", "snapshot_missing"):
                raise
            return None
        changed: datetime = blob.updated
        return Written(str(blob.generation), changed.timestamp())

    def _blob(self, path: str) -> Any:
        return connect().client.bucket(self._bucket).blob(path)
