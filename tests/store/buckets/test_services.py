"""The services that tests of archives and locks stand on keep what the real ones promise."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.support.gcs import GcsEmulator
from tests.support.s3 import S3Server

pytestmark = [pytest.mark.needs("gcs"), pytest.mark.needs("s3")]


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
