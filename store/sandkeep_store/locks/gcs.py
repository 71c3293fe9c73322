"""Documents in a bucket of Google Cloud Storage, which writes over a generation, or where there is none, or not at all.

The SDK repeats by itself what failed for a moment. A write that it repeats although the first attempt had succeeded
is answered with "another generation is there", as `DocumentStore.write` says.
"""

from datetime import datetime
from typing import Any, Final

from sandkeep.errors import ProviderError, SandkeepError
from sandkeep_store.gcs_client import connect, retrying, speaking_about
from sandkeep_store.locks.base import MAX_DOCUMENT_BYTES, Stored, Written

ANSWER_S: Final = 5.0
"""How long one request may take."""

PATIENCE_S: Final = 8.0
"""How long what fails is repeated: a lease that is renewed at half has time for two such periods."""

READS_AT_ONCE: Final = 5


class GcsStore:
    """See `DocumentStore`. The service is connected to when it is first used."""

    def __init__(self, bucket: str) -> None:
        self.where = f"gs://{bucket}"
        self._bucket = bucket

    def read(self, path: str, most: int = MAX_DOCUMENT_BYTES) -> Stored | None:
        """See `DocumentStore.read`."""
        for _ in range(READS_AT_ONCE):
            try:
                with speaking_about(f"{self.where}/{path}"):
                    return self._read(path, most)
            except SandkeepError as error:
                if error.code == "snapshot_missing":
                    return None
                if error.code != "conflict":  # it was written over after its generation was asked for
                    raise
        words = f"{self.where}/{path} is written by others all the time: try again"
        raise ProviderError("provider_unavailable", words)

    def _read(self, path: str, most: int) -> Stored:
        blob = self._blob(path)
        blob.reload(timeout=ANSWER_S, retry=retrying(PATIENCE_S))
        generation, content = blob.generation, b""
        if blob.size:
            content = blob.download_as_bytes(
                end=most,
                if_generation_match=generation,
                raw_download=True,
                checksum=None,  # there is none of a part, and a document that is damaged is known by its shape
                timeout=ANSWER_S,
                retry=retrying(PATIENCE_S),
            )
        return Stored(content, str(generation))

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
