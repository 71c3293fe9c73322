"""Every request to a bucket under every fault, by table: one fault is survived, and faults without end are told as what
they are. `tests/sources/test_storage_testbench.py` has the same with Google's own testbench.
"""

import io
import random
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import NamedTuple

import pytest
from tests.support.faults import Fault, FaultyLine, Request
from tests.support.patience import patient

from sandkeep.errors import DataError, SandkeepError
from sandkeep_store.archives.stores.gcs_upload import GcsUpload
from sandkeep_store.archives.stores.open import open_store
from sandkeep_store.archives.stores.store import ArchiveStore
from sandkeep_store.buckets import gcs_client, s3_client
from sandkeep_store.buckets.config import Root, Storage
from sandkeep_store.locks.gcs import GcsStore
from sandkeep_store.locks.s3 import S3Store
from sandkeep_store.locks.store import DocumentStore

PART = 256 * 1024
DATA = random.Random(38).randbytes(5 * 1024**2 + PART + 12_345)
DIGEST = sha256(DATA).hexdigest()
PATH = "filesystem_snapshots/snp_1/snp_1.tar.gz"
LOCK = "sandboxes/box/lock.json"

FAULTS: tuple[Fault, ...] = (429, 503, "down", "lost", "broken", "short", "corrupt")
MORE_STATUSES: tuple[Fault, ...] = (500, 502, 504)
"""Of which the SDKs think as of 503."""


class Bucket(NamedTuple):
    """A bucket behind a line that fails."""

    line: FaultyLine
    archives: ArchiveStore
    documents: DocumentStore
    unfinished: Callable[[], list[str]]


def settings(where: str, bucket: str, url: str) -> Storage:
    if where == "gcs":
        return Storage({"STORAGE_EMULATOR_HOST": url})
    return Storage({"SANDBOX_S3_BUCKET": bucket, "SANDBOX_S3_ENDPOINT_URL": url})


@pytest.fixture(scope="module")
def lines(request: pytest.FixtureRequest) -> Iterator[dict[str, FaultyLine]]:
    """One line for each service: a client of S3 is made for each address, and takes a while."""
    made: dict[str, FaultyLine] = {}
    yield made
    for line in made.values():
        line.__exit__()


def bucket_at(request: pytest.FixtureRequest, where: str, patience_s: float = patient(60)) -> Bucket:
    name, service = (request.getfixturevalue(fixture) for fixture in (f"{where}_bucket", where))
    lines, patch = (request.getfixturevalue(fixture) for fixture in ("lines", "monkeypatch"))
    line = lines.setdefault(where, FaultyLine(service.port).__enter__() if where not in lines else None)
    line.mend()
    for setting in ("STORAGE_EMULATOR_HOST", "SANDBOX_S3_ENDPOINT_URL"):
        patch.setenv(setting, line.url)
    patch.setenv("SANDBOX_S3_BUCKET", name)
    patch.setattr(GcsUpload, "part_bytes", 20 * PART)
    storage = settings(where, name, line.url)
    documents: DocumentStore = GcsStore(name) if where == "gcs" else S3Store(name, storage)
    return Bucket(line, open_store(Root(where, name), storage, patience_s), documents, lambda: service.unfinished(name))


def downloaded(store: ArchiveStore) -> bytes:
    copy = io.BytesIO()

    def begin() -> Callable[[bytes], object]:
        copy.seek(0)
        copy.truncate()
        return copy.write

    store.download(PATH, begin)
    return copy.getvalue()


# -- the requests -----------------------------------------------------------------------------------------------------


def writes(bucket: Bucket) -> None:
    stored = bucket.archives.write(PATH, io.BytesIO(DATA), sha256=DIGEST)
    assert stored.size_bytes == len(DATA)
    assert stored.generation == bucket.archives.stat(PATH).generation


def writes_little(bucket: Bucket) -> None:
    assert bucket.archives.write("little", [b"x" * 10]).size_bytes == 10


def reads(bucket: Bucket) -> None:
    assert downloaded(bucket.archives) == DATA


def lists(bucket: Bucket) -> None:
    assert [found.path for found in bucket.archives.objects("filesystem")] == [PATH]


def sweeps(bucket: Bucket) -> None:
    """One whose answer was lost is not counted."""
    assert bucket.archives.sweep(0, is_over=lambda path: path == "abandoned") in (0, 1)
    assert bucket.unfinished() == []


def deletes(bucket: Bucket) -> None:
    bucket.archives.delete(PATH, generation=bucket.archives.stat(PATH).generation)
    assert list(bucket.archives.objects()) == []


def reads_document(bucket: Bucket) -> None:
    found = bucket.documents.read(LOCK)
    assert found is not None
    assert found.content == b'{"a":1}'


def writes_document(bucket: Bucket) -> None:
    """Where the answer was lost, the writer is told that another version is there: he finds his own."""
    found = bucket.documents.read(LOCK)
    assert found is not None
    written = bucket.documents.write(LOCK, b'{"b":2}', found.version)
    now = bucket.documents.read(LOCK)
    assert now is not None
    assert now.content == b'{"b":2}'
    assert written is None or written.version == now.version


class Case(NamedTuple):
    """A request of a service, and the call that makes it."""

    where: str
    method: str
    part: str
    call: Callable[[Bucket], None]
    prepare: tuple[Callable[[Bucket], None], ...] = ()

    @property
    def is_beginning(self) -> bool:
        return self in (CASES["gcs begin"], CASES["s3 begin"])

    def matches(self, request: Request) -> bool:
        if self.part.startswith("-"):
            return request.method == self.method and self.part[1:] not in request.target
        return request.method == self.method and self.part in request.target


def has_document(bucket: Bucket) -> None:
    assert bucket.documents.write(LOCK, b'{"a":1}', None) is not None


def has_abandoned(bucket: Bucket) -> None:
    client, name = bucket.archives._client, bucket.archives.root.base  # type: ignore[attr-defined]
    client.create_multipart_upload(Bucket=name, Key="abandoned")


CASES = {
    "gcs begin": Case("gcs", "POST", "uploadType=resumable", writes),
    "gcs part": Case("gcs", "PUT", "upload_id", writes),
    "gcs little": Case("gcs", "PUT", "upload_id", writes_little),
    "gcs stat": Case("gcs", "GET", "/storage/v1/b/", reads, (writes,)),
    "gcs read": Case("gcs", "GET", "/download/", reads, (writes,)),
    "gcs list": Case("gcs", "GET", "prefix=", lists, (writes,)),
    "gcs delete": Case("gcs", "DELETE", "/o/", deletes, (writes,)),
    "gcs document read": Case("gcs", "GET", "/download/", reads_document, (has_document,)),
    "gcs document write": Case("gcs", "POST", "uploadType=multipart", writes_document, (has_document,)),
    "s3 begin": Case("s3", "POST", "uploads", writes),
    "s3 part": Case("s3", "PUT", "partNumber=", writes),
    "s3 complete": Case("s3", "POST", "uploadId=", writes),
    "s3 little": Case("s3", "PUT", "little", writes_little),
    "s3 stat": Case("s3", "HEAD", "", reads, (writes,)),
    "s3 read": Case("s3", "GET", "filesystem", reads, (writes,)),
    "s3 list": Case("s3", "GET", "list-type=2", lists, (writes,)),
    "s3 list uploads": Case("s3", "GET", "uploads", sweeps, (has_abandoned,)),
    "s3 abort": Case("s3", "DELETE", "uploadId=", sweeps, (has_abandoned,)),
    "s3 delete": Case("s3", "DELETE", "-uploadId=", deletes, (writes,)),
    "s3 document read": Case("s3", "GET", "lock.json", reads_document, (has_document,)),
    "s3 document write": Case("s3", "PUT", "lock.json", writes_document, (has_document,)),
}

ONCE = [
    pytest.param(
        case, fault, id=f"{name}, {fault}",
        marks=[pytest.mark.needs(case.where), *([pytest.mark.soak] if fault in MORE_STATUSES else [])],
    )
    for name, case in CASES.items()
    for fault in (*FAULTS, *MORE_STATUSES)
    if not (case.method in ("HEAD", "DELETE") and fault in ("broken", "short", "corrupt"))  # they have no content
]  # fmt: skip
SLOWLY = [
    pytest.param(CASES[name], fault, id=f"{name}, {fault}", marks=pytest.mark.needs(CASES[name].where))
    for name, fault in [
        ("gcs part", "silent"), ("gcs read", "stalled"), ("gcs document read", "stalled"),
        ("s3 part", "silent"), ("s3 read", "stalled"), ("s3 document read", "stalled"),
    ]
]  # fmt: skip


def run(case: Case, bucket: Bucket, fault: Fault, most: int | None) -> None:
    for prepare in case.prepare:
        prepare(bucket)
    bucket.line.fail(fault, matching=case.matches, most=most)
    try:
        case.call(bucket)
    finally:
        assert bucket.line.failed >= 1


@pytest.mark.parametrize(("case", "fault"), ONCE)
def test_one_fault_is_survived(case: Case, fault: Fault, request: pytest.FixtureRequest) -> None:
    bucket = bucket_at(request, case.where)
    run(case, bucket, fault, 1)
    assert bucket.line.failed == 1
    bucket.line.mend()
    if not case.is_beginning:  # of an upload whose beginning nobody heard of, a sweep is the end
        assert [name for name in bucket.unfinished() if name != "abandoned"] == []


@pytest.mark.parametrize(("case", "fault"), SLOWLY)
def test_one_silence_is_survived(
    case: Case, fault: Fault, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for client in (gcs_client, s3_client):
        monkeypatch.setattr(client, "answer_s", lambda patience_s: 1.0)
    for store in ("gcs", "s3"):
        monkeypatch.setattr(f"sandkeep_store.locks.{store}.ANSWER_S", 1.0)
    run(case, bucket_at(request, case.where), fault, 1)


@pytest.mark.parametrize("fault", [pytest.param(503, marks=pytest.mark.soak), "down", "short", "corrupt"])
@pytest.mark.parametrize(
    "case", [pytest.param(case, id=name, marks=pytest.mark.needs(case.where)) for name, case in CASES.items()]
)
def test_faults_without_end_are_told(
    case: Case, fault: Fault, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an error of ours; never as a defect, and never is what is there said not to be."""
    monkeypatch.setattr("sandkeep_store.locks.gcs.PATIENCE_S", 0.2)
    monkeypatch.setattr("sandkeep_store.locks.s3.PATIENCE_S", 0.2)
    bucket = bucket_at(request, case.where, patience_s=0.2)
    damaged = ("snapshot_corrupt",) if fault in ("short", "corrupt") and "read" in case.call.__name__ else ()
    code = None
    try:
        run(case, bucket, fault, None)
    except SandkeepError as error:
        code = error.code
    assert code in (None, "provider_unavailable", *damaged)


@pytest.mark.parametrize("name", ["s3 part", "s3 little", "s3 document write"])
@pytest.mark.needs("s3")
def test_content_that_was_damaged_on_the_way_is_sent_again(name: str, request: pytest.FixtureRequest) -> None:
    case = CASES[name]
    bucket = bucket_at(request, "s3")
    run(case, bucket, "damaged", 1)
    if case.call is writes:
        assert downloaded(bucket.archives) == DATA


@pytest.mark.parametrize("where", [pytest.param(name, marks=pytest.mark.needs(name)) for name in ("gcs", "s3")])
def test_a_download_that_is_damaged_twice_is_called_damaged(where: str, request: pytest.FixtureRequest) -> None:
    bucket = bucket_at(request, where)
    writes(bucket)
    bucket.line.fail("corrupt", matching=CASES[f"{where} read"].matches)
    with pytest.raises(DataError) as caught:
        downloaded(bucket.archives)
    assert (caught.value.code, bucket.line.failed) == ("snapshot_corrupt", 2)
