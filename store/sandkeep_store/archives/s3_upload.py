"""One upload to S3. The SDK gives each part a checksum, by which the service knows whether it arrived whole."""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from sandkeep.errors import CallerError, SandkeepError
from sandkeep_store.archives.base import Stored
from sandkeep_store.s3_client import speaking_about

PART_BYTES: Final = 8 * 1024**2
MOST_PARTS: Final = 10_000
"""What the service allows."""
PARTS_OF_A_SIZE: Final = 1000
LARGEST_DOUBLING: Final = 3
"""Parts are doubled so often, after each thousand: so 500 GB go into ten thousand of at most 64 MiB."""

_TYPE: Final = "application/octet-stream"


class S3Upload:
    """See `base.Upload`. `landed` tells, given an error, whether the object is there anyway."""

    def __init__(
        self,
        client: Any,
        bucket: str,
        path: str,
        metadata: dict[str, str],
        landed: Callable[[SandkeepError], Stored],
    ) -> None:
        self._client = client
        self._object = {"Bucket": bucket, "Key": path}
        self._where = f"s3://{bucket}/{path}"
        self._metadata = metadata
        self._landed = landed
        self._upload_id: str | None = None
        self._parts: list[dict[str, Any]] = []
        self._sent = 0

    @property
    def part_bytes(self) -> int:
        """See `base.Upload`."""
        return PART_BYTES << min(len(self._parts) // PARTS_OF_A_SIZE, LARGEST_DOUBLING)

    def send(self, part: bytes) -> None:
        """See `base.Upload`."""
        if len(self._parts) == MOST_PARTS:
            raise CallerError("invalid", f"{self._where} would have more than the {self._sent} bytes that S3 takes.")
        with speaking_about(self._where):
            if self._upload_id is None:
                begun = self._client.create_multipart_upload(**self._object, Metadata=self._metadata, ContentType=_TYPE)
                self._upload_id = begun["UploadId"]
            number = len(self._parts) + 1
            sent = self._client.upload_part(**self._object, UploadId=self._upload_id, PartNumber=number, Body=part)
        self._parts.append({"PartNumber": number, **{key: sent[key] for key in _KEPT if key in sent}})
        self._sent += len(part)

    def finish(self, part: bytes) -> Stored:
        """See `base.Upload`."""
        if self._upload_id is not None and part:
            self.send(part)
        size = self._sent if self._upload_id is not None else len(part)
        try:
            with speaking_about(self._where):
                made = self._complete() if self._upload_id is not None else self._put(part)
        except SandkeepError as error:
            return self._landed(error)
        tag = str(made["ETag"]).strip('"')
        return Stored(self._object["Key"], size, tag, self._metadata, datetime.now(UTC).timestamp())

    def abort(self) -> None:
        """See `base.Upload`."""
        if self._upload_id is not None:
            with suppress(SandkeepError), speaking_about(self._where):
                self._client.abort_multipart_upload(**self._object, UploadId=self._upload_id)

    def _complete(self) -> Any:
        return self._client.complete_multipart_upload(
            **self._object, UploadId=self._upload_id, MultipartUpload={"Parts": self._parts}, IfNoneMatch="*"
        )

    def _put(self, content: bytes) -> Any:
        return self._client.put_object(
            **self._object, Body=content, Metadata=self._metadata, ContentType=_TYPE, IfNoneMatch="*"
        )


_KEPT: Final = ("ETag", "ChecksumCRC32", "ChecksumCRC32C", "ChecksumCRC64NVME")
"""What the service answers about a part and wants to hear again."""
