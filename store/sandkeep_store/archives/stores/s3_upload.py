"""One upload to S3: a single request if the object fits into one part, else a multipart upload with a few parts in
flight. Each request has the digest of its content, with which the service verifies it.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from threading import Event
from typing import Any, Final

from sandkeep.errors import CallerError, SandkeepError
from sandkeep_store.archives.stores.retry import HEARD_EVERY_S, retry_while_unavailable
from sandkeep_store.archives.stores.types import DIGEST, Stored, Waiting
from sandkeep_store.buckets.answers import ask_again
from sandkeep_store.buckets.s3_client import digest_of, translated_errors

PART_BYTES: Final = 5 * 1024**2
"""Minimum part size of the service. Freed memory returns late, so part size determines memory use."""
BYTES_AT_ONCE: Final = 3 * PART_BYTES
"""Bytes in flight, at least one part: the next parts are sent while the service processes one."""
MOST_PARTS: Final = 10_000
"""Maximum number of parts that the service allows."""
PARTS_OF_A_SIZE: Final = 1000
LARGEST_DOUBLING: Final = 3
"""Parts are doubled so often, after each thousand: so 300 GB go into ten thousand of at most 40 MiB."""


class _EndedError(Exception):
    """The upload is over, so no part of it has to be tried again."""


COMPLETE_S: Final = 300.0
"""Seconds until the answer to the completion of an upload, for which the service may copy all of its parts."""


@dataclass
class S3Upload:
    """See `types.Upload`. `stat` looks up the object; `landed`, given an error, tells if the write took effect.
    `completing` is a client that waits `COMPLETE_S` for an answer.
    """

    client: Any
    completing: Any
    bucket: str
    path: str
    metadata: dict[str, str]
    patience_s: float
    waiting: Waiting
    stat: Callable[[], Stored]
    landed: Callable[[SandkeepError], Stored]

    def __post_init__(self) -> None:
        self._object = {"Bucket": self.bucket, "Key": self.path}
        media_type = "application/gzip" if self.path.endswith(".gz") else "application/octet-stream"
        self._described = {**self._object, "Metadata": self.metadata, "ContentType": media_type}
        self._where = f"s3://{self.bucket}/{self.path}"
        self._upload_id: str | None = None
        self._pool = ThreadPoolExecutor(BYTES_AT_ONCE // PART_BYTES)
        self._under_way: deque[Future[dict[str, Any]]] = deque()
        self._parts: list[dict[str, Any]] = []
        self._ended = Event()
        self._begun = 0
        self._sent = 0

    @property
    def part_bytes(self) -> int:
        """See `types.Upload`."""
        return PART_BYTES << min(self._begun // PARTS_OF_A_SIZE, LARGEST_DOUBLING)

    def send(self, part: bytes) -> None:
        """See `types.Upload`."""
        if self._begun == MOST_PARTS:
            raise CallerError("invalid", f"{self._where} would have more than the {self._sent} bytes that S3 takes")
        if self._upload_id is None:
            self._upload_id = ask_again(self._create)
        self._begun += 1
        self._sent += len(part)
        self._under_way.append(self._pool.submit(self._upload, self._begun, part))
        self._settle(max(1, BYTES_AT_ONCE // len(part)) - 1)

    def finish(self, part: bytes) -> Stored:
        """See `types.Upload`."""
        if self._upload_id is not None and part:
            self.send(part)
        self._settle(0)
        self._pool.shutdown()
        try:
            with translated_errors(self._where):
                if self._upload_id is not None:
                    self._complete()
                else:
                    self._put(part)
            return self.stat()
        except SandkeepError as error:
            return self.landed(error)

    def abort(self) -> None:
        """See `types.Upload`. A part that arrives later would stay, so those under way are waited for."""
        self._ended.set()
        self._pool.shutdown(cancel_futures=True)
        if self._upload_id is not None:
            with suppress(SandkeepError), translated_errors(self._where):
                self.client.abort_multipart_upload(**self._object, UploadId=self._upload_id)

    def _settle(self, left: int) -> None:
        """Wait until at most `left` parts are in flight. Raises the error of a failed part."""
        while len(self._under_way) > left:
            while not wait([self._under_way[0]], HEARD_EVERY_S).done:
                self.waiting()
            self._parts.append(self._under_way.popleft().result())

    def _upload(self, number: int, part: bytes) -> dict[str, Any]:
        digest = digest_of(part)

        def attempt() -> Any:
            with translated_errors(self._where):
                return self.client.upload_part(
                    **self._object, UploadId=self._upload_id, PartNumber=number, Body=part, ContentMD5=digest
                )

        sent = retry_while_unavailable(self.patience_s, self._unless_ended, attempt)
        return {"PartNumber": number, "ETag": sent["ETag"]}

    def _unless_ended(self) -> None:
        if self._ended.is_set():
            raise _EndedError

    def _create(self) -> str:
        with translated_errors(self._where):
            begun = self.client.create_multipart_upload(**self._described)
            return str(begun["UploadId"])

    def _complete(self) -> None:
        self.completing.complete_multipart_upload(
            **self._object, UploadId=self._upload_id, MultipartUpload={"Parts": self._parts}, IfNoneMatch="*"
        )

    def _put(self, content: bytes) -> None:
        described = {**self._described, "Metadata": {DIGEST: sha256(content).hexdigest(), **self.metadata}}
        self.client.put_object(**described, Body=content, ContentMD5=digest_of(content), IfNoneMatch="*")
