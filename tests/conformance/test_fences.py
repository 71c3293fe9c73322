"""What fences promise, over every store of documents and of archives: who lost a lock overwrites nothing."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.expect import refused
from tests.support.locking import TestClock
from tests.support.memory_archives import MemoryArchives
from tests.support.memory_locks import MemoryStore

from sandkeep.errors import SandkeepError
from sandkeep_store.archives.stores.open import open_store
from sandkeep_store.archives.stores.store import ArchiveStore
from sandkeep_store.buckets.config import Root, Storage
from sandkeep_store.locks.fence import MAX_BYTES, Fence, write_fenced
from sandkeep_store.locks.lease import Lease, Locks
from sandkeep_store.locks.open import open_store as open_documents
from sandkeep_store.locks.store import DocumentStore, Stored, Written

PATH = "sandboxes/box/metadata.json"


def in_bucket(request: pytest.FixtureRequest, kind: Any) -> ArchiveStore:
    bucket, service = request.getfixturevalue(f"{kind}_bucket"), request.getfixturevalue(kind)
    storage = Storage({**service.environ, "SANDBOX_S3_BUCKET": bucket}) if kind == "s3" else Storage()
    return open_store(Root(kind, bucket), storage, patience_s=1)


BUCKETS = (pytest.param("gcs", marks=pytest.mark.needs("gcs")), pytest.param("s3", marks=pytest.mark.needs("s3")))


@pytest.fixture(params=["memory", "directory", *BUCKETS])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DocumentStore:
    if request.param == "memory":
        return MemoryStore()
    if request.param == "directory":
        return open_documents(str(tmp_path))
    bucket = request.getfixturevalue(f"{request.param}_bucket")
    monkeypatch.setenv("SANDBOX_S3_BUCKET", bucket)
    return open_documents(f"{'gs' if request.param == 'gcs' else 's3'}://{bucket}")


@pytest.fixture(params=["memory", "mount", *BUCKETS])
def archives(request: pytest.FixtureRequest, tmp_path: Path) -> ArchiveStore:
    if request.param == "memory":
        return MemoryArchives()
    if request.param == "mount":
        return open_store(Root("mount", str(tmp_path)))
    return in_bucket(request, request.param)


@pytest.fixture
def clock() -> TestClock:
    return TestClock()


@pytest.fixture
def locks(clock: TestClock) -> Locks:
    return Locks(MemoryStore(clock), clock)


def taken_over(locks: Locks, clock: TestClock) -> tuple[Lease, Lease]:
    """A lease that expired, and that of who took the lock over."""
    first = locks.acquire("box")
    clock.sleep(61)
    return first, locks.acquire("box")


def content(fence: Fence, **more: Any) -> bytes:
    return msgspec.json.encode({"sandbox_id": "box", "fence": fence.number, **more})


def number_in(store: DocumentStore) -> int:
    found = store.read(PATH)
    assert found is not None
    number: int = msgspec.json.decode(found.content)["fence"]
    return number


def fooled(lease: Lease) -> Fence:
    """The fence of an owner whose clock stood still: he does not know that he lost the lock."""
    return Fence(lease.name, lease.fence.number, lambda: None)


def test_an_owner_writes_as_often_as_he_wants(store: DocumentStore, locks: Locks) -> None:
    fence = locks.acquire("box").fence
    for turn in range(3):
        write_fenced(store, PATH, content(fence, turn=turn), fence)
    assert number_in(store) == fence.number


def test_a_later_owner_writes_over_and_an_earlier_one_does_not(
    store: DocumentStore, locks: Locks, clock: TestClock
) -> None:
    first, second = taken_over(locks, clock)
    write_fenced(store, PATH, content(fooled(first)), fooled(first))
    write_fenced(store, PATH, content(second.fence), second.fence)
    error = refused("lock_lost", lambda: write_fenced(store, PATH, content(fooled(first), late=1), fooled(first)))
    assert (error.data["fence"], error.data["seen"]) == (first.fence.number, second.fence.number)
    assert number_in(store) == second.fence.number


def test_whose_time_is_over_does_not_even_try(store: DocumentStore, locks: Locks, clock: TestClock) -> None:
    lease = locks.acquire("box")
    clock.sleep(51)
    refused("lock_lost", lambda: write_fenced(store, PATH, content(lease.fence), lease.fence))
    assert store.read(PATH) is None


def test_an_owner_who_was_stopped_in_the_middle_of_a_write(
    store: DocumentStore, locks: Locks, clock: TestClock
) -> None:
    """He had looked, and was about to write; the next owner came, wrote, and then he goes on."""
    first, second = taken_over(locks, clock)
    write_fenced(store, PATH, content(fooled(first)), fooled(first))

    class Stopped:
        where = store.where
        read = store.read

        def write(self, path: str, late: bytes, over: str | None) -> Written | None:
            write_fenced(store, PATH, content(second.fence), second.fence)
            return store.write(path, late, over)

    refused("lock_lost", lambda: write_fenced(Stopped(), PATH, content(fooled(first), late=1), fooled(first)))
    assert number_in(store) == second.fence.number


def test_many_owners_at_once_leave_the_last_ones_document(store: DocumentStore) -> None:
    def write(number: int) -> bool:
        fence = Fence("box", number, lambda: None)
        try:
            write_fenced(store, PATH, content(fence), fence)
        except SandkeepError as error:
            if error.code not in ("lock_lost", "conflict"):
                raise
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        written = list(pool.map(write, range(1, 25)))
    assert number_in(store) == max(number for number, done in enumerate(written, 1) if done)


@pytest.mark.parametrize("there", [b" " * (MAX_BYTES + 1), b"garbage", b"[]", b'{"fence":"7"}', b'{"fence":-1}', b""])
def test_what_does_not_tell_whose_it_is_is_left(store: DocumentStore, locks: Locks, there: bytes) -> None:
    store.write(PATH, there, None)
    fence = locks.acquire("box").fence
    refused("lock_damaged", lambda: write_fenced(store, PATH, content(fence), fence))
    found = store.read(PATH, len(there))
    assert found is not None
    assert found.content == there


def test_a_document_without_a_fence_is_older_than_fences(store: DocumentStore, locks: Locks) -> None:
    store.write(PATH, b'{"sandbox_id":"box","created_timestamp":1.5}', None)
    fence = locks.acquire("box").fence
    write_fenced(store, PATH, content(fence), fence)
    assert number_in(store) == fence.number


def test_a_document_has_to_carry_the_fence_it_is_written_by(store: DocumentStore, locks: Locks) -> None:
    fence = locks.acquire("box").fence
    with pytest.raises(ValueError, match="does not carry"):
        write_fenced(store, PATH, b'{"fence":1}', fence)


def test_a_document_that_others_write_all_the_time_is_a_conflict(store: DocumentStore, locks: Locks) -> None:
    fence = locks.acquire("box").fence
    turns = iter(range(100))

    class Busy:
        where = store.where
        write = store.write

        def read(self, path: str, most: int = MAX_BYTES) -> Stored | None:
            found = store.read(path, most)
            store.write(path, content(fence, turn=next(turns)), None if found is None else found.version)
            return found

    refused("conflict", lambda: write_fenced(Busy(), PATH, content(fence), fence))


def test_an_archive_is_not_finished_by_whoever_lost_the_lock_meanwhile(
    archives: ArchiveStore, locks: Locks, clock: TestClock
) -> None:
    fence = locks.acquire("box").fence
    stored = archives.write("snapshots/a.tar.gz", [b"x"], fence=fence)
    assert stored.metadata.get("fence", str(fence.number)) == str(fence.number)
    late = iter([b"x", b"y"])

    def chunks() -> Any:
        for chunk in late:
            clock.sleep(26)
            yield chunk

    refused("lock_lost", lambda: archives.write("snapshots/b.tar.gz", chunks(), fence=fence))
    refused("snapshot_missing", lambda: archives.stat("snapshots/b.tar.gz"))
