"""Archives in a bucket of Google Cloud Storage.

Uploads are resumable sessions, which end in the object or in nothing. The SDK begins them; their parts are sent here,
because it can neither go on after a broken connection with a source that gives its bytes once, nor drop a session.
Each write has an id of its own in the object's metadata: when the answer to the last part is lost, that tells whether
the object that is there now is this one.
"""

import secrets
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from sandkeep.errors import SandkeepError
from sandkeep_store.archives.stores.gcs_upload import GcsUpload
from sandkeep_store.archives.stores.retry import PATIENCE_S
from sandkeep_store.archives.stores.store import ArchiveStore
from sandkeep_store.archives.stores.types import (
    CHUNK_BYTES,
    WRITE_ID,
    Checksum,
    Stored,
    Waiting,
    conflict,
)
from sandkeep_store.buckets.answers import parsing
from sandkeep_store.buckets.config import STORAGE, Root, Storage, is_path
from sandkeep_store.buckets.gcs_client import connect, refusal, retrying, timeouts, translated_errors

_LISTED: Final = "items(name,size,generation,metadata,updated),nextPageToken"


class GcsArchives(ArchiveStore):
    """See `base`. `root.base` is the bucket."""

    def __init__(self, root: Root, storage: Storage = STORAGE, patience_s: float = PATIENCE_S) -> None:
        super().__init__(root, patience_s)
        self._gcs = connect(storage)
        self._bucket = self._gcs.client.bucket(root.base)
        self._options: dict[str, Any] = {"retry": retrying(patience_s), "timeout": timeouts(patience_s)}

    def objects(self, prefix: str = "") -> Iterator[Stored]:
        with translated_errors(f"gs://{self.root.base}/{prefix}"):
            for blob in self._bucket.list_blobs(prefix=prefix, fields=_LISTED, **self._options):
                if is_path(blob.name):
                    yield self._stored(blob)

    def _begin(self, path: str, metadata: dict[str, str], waiting: Waiting) -> GcsUpload:
        if self._found(path) is not None:
            raise conflict(self.where(path))
        blob = self._bucket.blob(path)
        blob.metadata = {**metadata, WRITE_ID: secrets.token_hex(16)}
        with translated_errors(self.where(path)):
            url = blob.create_resumable_upload_session(
                "application/octet-stream", if_generation_match=0, **self._options
            )
        landed = partial(self._landed, path, blob.metadata[WRITE_ID])
        return GcsUpload(self._gcs.http, url, self.where(path), self.patience_s, waiting, landed)

    def _stat(self, path: str) -> Stored:
        blob = self._bucket.blob(path)
        with translated_errors(self.where(path)):
            blob.reload(**self._options)
        return self._stored(blob)

    def _checksum_of(self, stored: Stored) -> Checksum | None:
        """The checksum that the service keeps with each object: that of all its bytes, however they were uploaded."""
        from google_crc32c import Checksum as Crc32c

        return Checksum(Crc32c(), _in_base64, stored.crc32c) if stored.crc32c else None

    def _fetch(self, stored: Stored, offset: int) -> Iterator[bytes]:
        where = self.where(stored.path)
        url = f"{self._gcs.endpoint}/download/storage/v1/b/{self.root.base}/o/{quote(stored.path, safe='')}"
        headers = {"Accept-Encoding": "gzip"}  # as it is stored, without being unpacked on the way
        if offset:
            headers["Range"] = f"bytes={offset}-"
        with (
            translated_errors(where),
            self._gcs.http.get(
                url,
                params={"alt": "media", "generation": stored.generation},
                headers=headers,
                stream=True,
                timeout=timeouts(self.patience_s),
                allow_redirects=False,
            ) as answer,
        ):
            if answer.status_code == 404:
                raise conflict(where) if self._found(stored.path) else refusal(where, 404, answer.text)
            if answer.status_code != (206 if offset else 200):
                raise refusal(where, answer.status_code, answer.text)
            yield from answer.raw.stream(CHUNK_BYTES, decode_content=False)

    def _delete(self, path: str, generation: str | None) -> bool:
        where = self.where(path)
        match = {} if generation is None else {"if_generation_match": _number(generation, where)}
        try:
            with translated_errors(where):
                self._bucket.blob(path).delete(**match, **self._options)
        except SandkeepError as error:
            if error.code != "snapshot_missing":
                raise
            return False
        return True

    def _stored(self, blob: Any) -> Stored:
        with parsing(self.where(blob.name)):
            metadata = {str(key): str(value) for key, value in (blob.metadata or {}).items()}
            changed_at = blob.updated.timestamp() if blob.updated is not None else 0.0
            return Stored(blob.name, int(blob.size), str(int(blob.generation)), metadata, changed_at, blob.crc32c or "")


def _in_base64(digest: bytes) -> str:
    return b64encode(digest).decode()


def _number(generation: str, where: str) -> int:
    """Return the generation as an integer. Raises `conflict` for a generation that is not a GCS one."""
    if not generation.isdecimal():
        raise conflict(where)
    return int(generation)
