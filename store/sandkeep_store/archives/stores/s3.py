"""Archives in a bucket of S3, or of a compatible service with conditional writes.

An object that fits into one part is put with one request; the rest is a multipart upload, which is atomic. As with GCS
each write has an id of its own, for the case that the answer to the last request is lost.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Any

from sandkeep.errors import DataError, SandkeepError, SetupError
from sandkeep_store.archives.stores.retry import PATIENCE_S
from sandkeep_store.archives.stores.s3_upload import COMPLETE_S, S3Upload
from sandkeep_store.archives.stores.store import ArchiveStore
from sandkeep_store.archives.stores.types import (
    CHUNK_BYTES,
    DIGEST,
    WRITE_ID,
    Checksum,
    Stored,
    Waiting,
    conflict,
)
from sandkeep_store.buckets.config import STORAGE, Root, Storage, is_path
from sandkeep_store.buckets.s3_client import connect, pages, refusal, translated_errors


class S3Archives(ArchiveStore):
    """See `base`. `root.base` is the bucket. A generation is an ETag."""

    def __init__(self, root: Root, storage: Storage = STORAGE, patience_s: float = PATIENCE_S) -> None:
        super().__init__(root, patience_s)
        self._client = connect(storage, patience_s)
        self._completing = connect(storage, patience_s, COMPLETE_S)

    def objects(self, prefix: str = "") -> Iterator[Stored]:
        """See `ArchiveStore.objects`. S3 lists no metadata."""
        listing = partial(pages, self._client.list_objects_v2, f"s3://{self.root.base}/{prefix}")
        following = {"ContinuationToken": "NextContinuationToken"}
        for page in listing(following, Bucket=self.root.base, Prefix=prefix):
            for found in page.get("Contents", ()):
                if is_path(found["Key"]):
                    yield Stored(found["Key"], found["Size"], _tag(found), {}, found["LastModified"].timestamp())

    def sweep(
        self,
        older_than_s: float,
        prefix: str = "",
        is_over: Callable[[str], bool] = lambda path: True,  # noqa: ARG005
    ) -> int:
        before = datetime.now(UTC) - timedelta(seconds=older_than_s)
        listing = partial(pages, self._client.list_multipart_uploads, f"s3://{self.root.base}/{prefix}")
        following = {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"}
        found = [page.get("Uploads", ()) for page in listing(following, Bucket=self.root.base, Prefix=prefix)]
        listed = [upload for uploads in found for upload in uploads if upload["Initiated"] < before]
        return sum(self._abort(upload["Key"], upload["UploadId"]) for upload in listed if is_over(upload["Key"]))

    def _abort(self, path: str, upload_id: str) -> bool:
        """Abort an upload; return False if it has ended meanwhile."""
        try:
            with translated_errors(f"s3://{self.root.base}/{path}"):
                self._client.abort_multipart_upload(Bucket=self.root.base, Key=path, UploadId=upload_id)
        except SandkeepError as error:
            if error.code != "snapshot_missing":
                raise
            return False
        return True

    def _begin(self, path: str, metadata: dict[str, str], waiting: Waiting) -> S3Upload:
        if self._found(path) is not None:
            raise conflict(self.where(path))
        metadata = {**metadata, WRITE_ID: secrets.token_hex(16)}
        stat = partial(self._stat, path)
        landed = partial(self._landed, path, metadata[WRITE_ID])
        return S3Upload(
            self._client, self._completing, self.root.base, path, metadata, self.patience_s, waiting, stat, landed
        )

    def _stat(self, path: str) -> Stored:
        try:
            with translated_errors(self.where(path)):
                found = self._client.head_object(Bucket=self.root.base, Key=path)
        except SandkeepError as error:
            if error.code == "snapshot_missing":
                self._check_bucket(path)
            raise
        return Stored(
            path, found["ContentLength"], _tag(found), dict(found["Metadata"]), found["LastModified"].timestamp()
        )

    def _checksum_of(self, stored: Stored) -> Checksum | None:
        """The digest beside the object: an ETag is a digest in some services and buckets only, and what other checksums
        there are differs as much.
        """
        digest = stored.metadata.get(DIGEST)
        return Checksum(sha256(), bytes.hex, digest) if digest is not None else None

    def _check_bucket(self, path: str) -> None:
        """S3 does not say of an object whether it is missing or its bucket. Raises `not_configured` for the latter."""
        with translated_errors(self.where(path)):
            try:
                self._client.head_bucket(Bucket=self.root.base)
            except self._client.exceptions.ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
                    raise
                raise refusal(self.where(path), 404, "NoSuchBucket") from None

    def _fetch(self, stored: Stored, offset: int) -> Iterator[bytes]:
        wanted = {"Range": f"bytes={offset}-"} if offset else {}
        with translated_errors(self.where(stored.path)):
            answer = self._client.get_object(
                Bucket=self.root.base, Key=stored.path, IfMatch=stored.generation, **wanted
            )
            with closing(answer["Body"]) as body:
                while chunk := body.read(CHUNK_BYTES):
                    yield chunk

    def _delete(self, path: str, generation: str | None) -> bool:
        found = self._found(path)
        if found is None:
            return False
        if generation not in (None, found.generation):
            raise conflict(self.where(path))
        condition = {} if generation is None else {"IfMatch": generation}
        try:
            self._remove(path, condition)
        except DataError:
            return True  # it was there: an attempt succeeded, and its answer was lost
        except SetupError as error:
            if error.code != "not_supported" or not condition:
                raise
            self._remove(path, {})  # a service without such a condition: what was found a moment ago has to do
        return True

    def _remove(self, path: str, condition: dict[str, str]) -> None:
        with translated_errors(self.where(path)):
            self._client.delete_object(Bucket=self.root.base, Key=path, **condition)


def _tag(answer: dict[str, Any]) -> str:
    return str(answer["ETag"]).strip('"')
