"""The services that tests of archives and locks stand on keep what the real ones promise."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
from tests.support.gcs import GcsEmulator
from tests.support.s3 import S3Server

pytestmark = [pytest.mark.needs("gcs"), pytest.mark.needs("s3")]

PART = bytes(5 * 1024**2)
MD5_OF_NOTHING = "1B2M2Y8AsgTpgAmY7PhCfg=="


def gcs_client() -> Any:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage

    return storage.Client(project="test", credentials=AnonymousCredentials())


def test_of_sixteen_who_create_an_object_in_gcs_one_wins(gcs_bucket: str) -> None:
    from google.api_core.exceptions import NotFound, PreconditionFailed

    bucket = gcs_client().bucket(gcs_bucket)

    def write(number: int, generation: int) -> bool:
        try:
            bucket.blob("lock.json").upload_from_string(str(number), if_generation_match=generation)
        except PreconditionFailed:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        for _ in range(5):
            found = bucket.get_blob("lock.json")
            generation = found.generation if found else 0
            assert sum(pool.map(write, range(16), [generation] * 16)) == 1
    with pytest.raises(PreconditionFailed):
        bucket.blob("lock.json").delete(if_generation_match=generation)
    with pytest.raises(NotFound):
        bucket.blob("lock.json", generation=generation).download_as_bytes()
    latest = bucket.get_blob("lock.json")
    assert latest.generation > generation
    assert latest.metageneration == 1
    latest.delete(if_generation_match=latest.generation)


def test_gcs_lists_in_pages(gcs_bucket: str) -> None:
    bucket = gcs_client().bucket(gcs_bucket)
    for number in range(5):
        bucket.blob(f"a/{number}").upload_from_string(b"x")
    pages = [[blob.name for blob in page] for page in bucket.list_blobs(prefix="a/", page_size=2).pages]
    assert pages == [["a/0", "a/1"], ["a/2", "a/3"], ["a/4"]]


def test_a_gcs_upload_that_was_dropped_leaves_nothing(gcs: GcsEmulator, gcs_bucket: str) -> None:
    import requests

    url = gcs_client().bucket(gcs_bucket).blob("big").create_resumable_upload_session(if_generation_match=0)
    part = requests.put(url, data=b"x" * 262144, headers={"Content-Range": "bytes 0-262143/*"}, timeout=60)
    assert (part.status_code, part.headers["Range"]) == (308, "bytes=0-262143")
    assert gcs.unfinished(gcs_bucket) == ["big"]
    assert requests.delete(url, timeout=60).status_code == 499
    assert gcs.unfinished(gcs_bucket) == []
    assert list(gcs_client().list_blobs(gcs_bucket)) == []


def test_of_sixteen_who_create_an_object_in_s3_one_wins(s3: S3Server, s3_bucket: str) -> None:
    from botocore.exceptions import ClientError

    client = s3.client()

    def write(number: int) -> bool:
        try:
            client.put_object(Bucket=s3_bucket, Key="lock.json", Body=str(number).encode(), IfNoneMatch="*")
        except ClientError:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(write, range(16))) == 1


# -- what S3 refuses, by its double and by LocalStack, whose tests are recorded from Amazon ---------------------------


class Bucket(NamedTuple):
    client: Any
    name: str

    def begin(self, **options: Any) -> dict[str, Any]:
        made = self.client.create_multipart_upload(Bucket=self.name, Key="key", **options)
        return {"Bucket": self.name, "Key": "key", "UploadId": made["UploadId"]}

    def part(self, upload: dict[str, Any], number: int, content: bytes = PART, **options: Any) -> dict[str, Any]:
        sent = self.client.upload_part(**upload, PartNumber=number, Body=content, **options)
        checksums = {key: value for key, value in sent.items() if key == "ChecksumCRC32"}
        return {"PartNumber": number, "ETag": sent["ETag"], **checksums}

    def complete(self, upload: dict[str, Any], *parts: dict[str, Any], **options: Any) -> None:
        self.client.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts}, **options)

    def put(self, key: str = "key", content: bytes = b"x", **options: Any) -> None:
        self.client.put_object(Bucket=self.name, Key=key, Body=content, **options)


@pytest.fixture(params=["s3", pytest.param("localstack", marks=pytest.mark.needs("localstack"))])
def s3_like(request: pytest.FixtureRequest) -> Bucket:
    service = request.getfixturevalue("s3" if request.param == "s3" else "localstack_s3")
    return Bucket(service.client(), request.getfixturevalue(f"{request.param}_bucket"))


def checksums_that_were_not_announced(bucket: Bucket) -> None:
    upload = bucket.begin()
    bucket.complete(upload, bucket.part(upload, 1))


def checksums_that_were_announced_and_are_missing(bucket: Bucket) -> None:
    upload = bucket.begin(ChecksumAlgorithm="CRC32")
    part = bucket.part(upload, 1, ChecksumAlgorithm="CRC32")
    del part["ChecksumCRC32"]
    bucket.complete(upload, part)


def a_small_part(bucket: Bucket) -> None:
    upload = bucket.begin()
    parts = [bucket.part(upload, number, b"x") for number in (1, 2)]
    bucket.complete(upload, *({"PartNumber": part["PartNumber"], "ETag": part["ETag"]} for part in parts))


def parts_in_another_order(bucket: Bucket) -> None:
    upload = bucket.begin()
    parts = [bucket.part(upload, number) for number in (2, 1)]
    bucket.complete(upload, *({"PartNumber": part["PartNumber"], "ETag": part["ETag"]} for part in parts))


def an_object_that_is_there(bucket: Bucket) -> None:
    upload = bucket.begin()
    part = bucket.part(upload, 1)
    bucket.put()
    bucket.complete(upload, {"PartNumber": 1, "ETag": part["ETag"]}, IfNoneMatch="*")


def an_upload_that_has_ended(bucket: Bucket) -> None:
    upload = bucket.begin()
    bucket.client.abort_multipart_upload(**upload)
    bucket.part(upload, 1)


def another_part(bucket: Bucket) -> None:
    upload = bucket.begin()
    bucket.part(upload, 1)
    bucket.complete(upload, {"PartNumber": 1, "ETag": '"00000000000000000000000000000000"'})


REFUSED: list[tuple[Callable[[Bucket], None], str]] = [
    (checksums_that_were_not_announced, "InvalidPart"),
    (checksums_that_were_announced_and_are_missing, "InvalidRequest"),
    (a_small_part, "EntityTooSmall"),
    (parts_in_another_order, "InvalidPartOrder"),
    (an_object_that_is_there, "PreconditionFailed"),
    (an_upload_that_has_ended, "NoSuchUpload"),
    (another_part, "InvalidPart"),
    (lambda bucket: bucket.put(ContentMD5=MD5_OF_NOTHING), "BadDigest"),
    (lambda bucket: bucket.put(ContentMD5="no digest"), "InvalidDigest"),
    (lambda bucket: bucket.put(ChecksumCRC32="AAAAAA=="), "BadDigest|InvalidRequest"),
    (lambda bucket: bucket.part(bucket.begin(), 1, b"x", ContentMD5=MD5_OF_NOTHING), "BadDigest"),
    (lambda bucket: bucket.put("k" * 1025), "KeyTooLongError"),
    (lambda bucket: bucket.put(IfMatch='"00000000000000000000000000000000"'), "NoSuchKey"),
    (lambda bucket: (bucket.put(), bucket.put(IfNoneMatch="*")), "PreconditionFailed"),  # type: ignore[func-returns-value]
    (lambda bucket: (bucket.put(), bucket.put(IfMatch='"0"')), "PreconditionFailed"),  # type: ignore[func-returns-value]
]


@pytest.mark.parametrize(("call", "code"), REFUSED, ids=[f"{call.__name__} {code}" for call, code in REFUSED])
def test_what_amazon_refuses(s3_like: Bucket, call: Callable[[Bucket], None], code: str) -> None:
    from botocore.exceptions import ClientError

    with pytest.raises(ClientError) as caught:
        call(s3_like)
    assert caught.value.response["Error"]["Code"] in code.split("|")
