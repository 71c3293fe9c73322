"""Services that speak S3 and do not keep conditions: no lock is taken there."""

from collections.abc import Iterable
from typing import Any

import pytest
from tests.support import s3 as s3_service
from tests.support.s3 import S3Server

from sandkeep.errors import SetupError
from sandkeep_store.buckets.config import Storage
from sandkeep_store.locks.s3 import S3Store
from sandkeep_store.locks.store import path_of

pytestmark = pytest.mark.needs("s3")


def _careless(application: Any) -> Any:
    """Requests without their conditions."""

    def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        for condition in ("HTTP_IF_MATCH", "HTTP_IF_NONE_MATCH"):
            environ.pop(condition, None)
        return application(environ, start_response)  # type: ignore[no-any-return]

    return serve


def store(service: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    for name, value in service.environ.items():
        monkeypatch.setenv(name, value)
    return S3Store("locks", Storage({**service.environ, "SANDBOX_S3_BUCKET": "locks"}))


def test_a_service_that_writes_in_any_case_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_service, "_in_turn", _careless)
    with S3Server() as service:
        service.create_bucket("locks")
        locks = store(service, monkeypatch)
        for _ in range(2):
            with pytest.raises(SetupError, match="ignores the conditions of writes"):
                locks.write(path_of("box"), b"{}", None)
        assert "Contents" not in service.client().list_objects_v2(Bucket="locks")


def test_a_service_is_tried_once_and_nothing_of_it_stays(
    s3: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = S3Store(s3_bucket, Storage({**s3.environ, "SANDBOX_S3_BUCKET": s3_bucket}))
    first = locks.write(path_of("box"), b"1", None)
    assert first is not None
    client = locks._client()
    monkeypatch.setattr(client, "delete_object", None)
    assert locks.write(path_of("box"), b"2", first.version) is not None
    assert [found["Key"] for found in s3.client().list_objects_v2(Bucket=s3_bucket)["Contents"]] == [path_of("box")]
