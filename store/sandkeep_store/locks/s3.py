"""Documents in a bucket of S3, or of a service that speaks it, which writes over an ETag, or where there is none.

Amazon's own service does that. Others may take a condition that they do not know for nothing, and write: there a lock
would be none, and nobody would notice. So a service is tried before the first write; see `_require_conditions`.
"""

import secrets
from contextlib import closing
from email.utils import parsedate_to_datetime
from functools import partial
from hashlib import md5
from typing import Any, Final

from sandkeep.errors import SandkeepError, SetupError
from sandkeep_store.buckets.answers import ask_again, unreadable
from sandkeep_store.buckets.config import STORAGE, Storage
from sandkeep_store.buckets.s3_client import connect, digest_of, translated_errors
from sandkeep_store.locks.store import MAX_DOCUMENT_BYTES, Stored, Written

ANSWER_S: Final = 5.0
PATIENCE_S: Final = 8.0
"""As for GCS: a lease that is renewed at half has time for two such periods."""

PROBE: Final = "sandboxes/.conditions-"
"""Prefix of the objects by which a service is tried. One that a killed daemon left is removed by `snapshot.gc`."""

_NOT_WRITTEN: Final = ("conflict", "snapshot_missing")


class S3Store:
    """See `DocumentStore`. A version is an ETag, so that two documents of the same content are the same version."""

    def __init__(self, bucket: str, storage: Storage = STORAGE) -> None:
        self.where = f"s3://{bucket}"
        self._bucket = bucket
        self._storage = storage
        self._keeps_conditions = False
        self._tags_are_digests = False
        """By the last write: those of encrypted objects are none."""

    def read(self, path: str, most: int = MAX_DOCUMENT_BYTES) -> Stored | None:
        """See `DocumentStore.read`."""
        try:
            return ask_again(partial(self._read, path, most))
        except SandkeepError as error:
            if error.code != "snapshot_missing":
                raise
            return None

    def _read(self, path: str, most: int) -> Stored:
        """Raises `UnreadableAnswerError` for an answer that breaks off, or bytes that were damaged on the way: the SDK
        retries none of that.
        """
        from botocore.exceptions import BotoCoreError

        where = f"{self.where}/{path}"
        with translated_errors(where):
            answer = self._client().get_object(Bucket=self._bucket, Key=path)
            try:
                with closing(answer["Body"]) as body:
                    found = Stored(body.read(most + 1), answer["ETag"])
            except BotoCoreError as error:
                raise unreadable(where, error) from error
        is_whole = len(found.content) <= most
        if self._tags_are_digests and is_whole and not _is_digest(found.version, found.content):
            raise unreadable(where, ValueError(found.version))
        return found

    def write(self, path: str, content: bytes, over: str | None) -> Written | None:
        """See `DocumentStore.write`. Raises `not_supported` where conditions are not kept."""
        self._require_conditions()
        return self._write(path, content, over)

    def _write(self, path: str, content: bytes, over: str | None) -> Written | None:
        condition = {"IfNoneMatch": "*"} if over is None else {"IfMatch": over}
        what = {"Body": content, "ContentType": "application/json", "ContentMD5": digest_of(content), **condition}
        try:
            with translated_errors(f"{self.where}/{path}"):
                answer = self._client().put_object(Bucket=self._bucket, Key=path, **what)
        except SandkeepError as error:
            if error.code not in _NOT_WRITTEN:
                raise
            return None
        self._tags_are_digests = _is_digest(answer["ETag"], content)
        date = answer["ResponseMetadata"]["HTTPHeaders"]["date"]
        return Written(answer["ETag"], parsedate_to_datetime(date).timestamp())

    def _require_conditions(self) -> None:
        """Check once that the service honours preconditions: on an existing object, and on a missing one."""
        if self._keeps_conditions:
            return
        path = f"{PROBE}{secrets.token_hex(8)}"
        self._write(path, b"1", None)
        try:
            if self._write(path, b"2", None) or self._write(path, b"3", '"00000000000000000000000000000000"'):
                message = (
                    f"{self.where} ignores the conditions of writes, so no lock is safe there: use another service"
                )
                raise SetupError("not_supported", message)
        finally:
            with translated_errors(f"{self.where}/{path}"):
                self._client().delete_object(Bucket=self._bucket, Key=path)
        self._keeps_conditions = True

    def _client(self) -> Any:
        return connect(self._storage, PATIENCE_S, ANSWER_S)


def _is_digest(tag: str, content: bytes) -> bool:
    return tag.strip('"') == md5(content, usedforsecurity=False).hexdigest()
