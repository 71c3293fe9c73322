"""What fences promise, over every store of archives and the documents in it: who lost a lock overwrites nothing."""

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
from sandkeep_store.archives.stores.store import ArchiveStore, Document
from sandkeep_store.buckets.config import Root, Storage
from sandkeep_store.locks.fence import Fence, write_fenced
from sandkeep_store.locks.lease import Lease, Locks

PATH = "sandboxes/box/metadata.json"


def in_bucket(request: pytest.FixtureRequest, kind: Any) -> ArchiveStore:
    bucket, service = request.getfixturevalue(f"{kind}_bucket"), request.getfixturevalue(kind)
    storage = Storage({**service.environ, "SANDBOX_S3_BUCKET": bucket}) if kind == "s3" else Storage()
    return open_store(Root(kind, bucket), storage, patience_s=1)


@pytest.fixture(
    params=[
        "memory",
        "mount",
        pytest.param("gcs", marks=pytest.mark.needs("gcs")),
        pytest.param("s3", marks=pytest.mark.needs("s3")),
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArchiveStore:
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


def number_in(store: ArchiveStore) -> int:
    found = store.read_document(PATH)
    assert found is not None
    number: int = msgspec.json.decode(found.content)["fence"]
    return number


def fooled(lease: Lease) -> Fence:
    """The fence of an owner whose clock stood still: he does not know that he lost the lock."""
    return Fence(lease.name, lease.fence.number, lambda: None)


def test_an_owner_writes_as_often_as_he_wants(store: ArchiveStore, locks: Locks) -> None:
    fence = locks.acquire("box").fence
    for turn in range(3):
        write_fenced(store, PATH, content(fence, turn=turn), fence)
    assert number_in(store) == fence.number


def test_a_later_owner_writes_over_and_an_earlier_one_does_not(
    store: ArchiveStore, locks: Locks, clock: TestClock
) -> None:
    first, second = taken_over(locks, clock)
    write_fenced(store, PATH, content(fooled(first)), fooled(first))
    write_fenced(store, PATH, content(second.fence), second.fence)
    error = refused("lock_lost", lambda: write_fenced(store, PATH, content(fooled(first), late=1), fooled(first)))
    assert (error.data["fence"], error.data["seen"]) == (first.fence.number, second.fence.number)
    assert number_in(store) == second.fence.number


def test_whose_time_is_over_does_not_even_try(store: ArchiveStore, locks: Locks, clock: TestClock) -> None:
    lease = locks.acquire("box")
    clock.sleep(51)
    refused("lock_lost", lambda: write_fenced(store, PATH, content(lease.fence), lease.fence))
    assert store.read_document(PATH) is None


def test_an_owner_who_was_stopped_in_the_middle_of_a_write(store: ArchiveStore, locks: Locks, clock: TestClock) -> None:
    """He had looked, and was about to write; the next owner came, wrote, and then he goes on."""
    first, second = taken_over(locks, clock)
    write_fenced(store, PATH, content(fooled(first)), fooled(first))

    class Stopped:
        where = store.where
        read_document = store.read_document

        def write_document(self, path: str, late: bytes, *, over: str | None) -> str:
            write_fenced(store, PATH, content(second.fence), second.fence)
            return store.write_document(path, late, over=over)

    refused("lock_lost", lambda: write_fenced(Stopped(), PATH, content(fooled(first), late=1), fooled(first)))
    assert number_in(store) == second.fence.number


def test_many_owners_at_once_leave_the_last_ones_document(store: ArchiveStore) -> None:
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


@pytest.mark.parametrize("there", [b"garbage", b"[]", b'{"fence":"7"}', b'{"fence":-1}', b""])
def test_what_does_not_tell_whose_it_is_is_left(store: ArchiveStore, locks: Locks, there: bytes) -> None:
    store.write_document(PATH, there, over=None)
    fence = locks.acquire("box").fence
    refused("lock_damaged", lambda: write_fenced(store, PATH, content(fence), fence))
    found = store.read_document(PATH)
    assert found is not None
    assert found.content == there


def test_a_document_without_a_fence_is_older_than_fences(store: ArchiveStore, locks: Locks) -> None:
    store.write_document(PATH, b'{"sandbox_id":"box","created_timestamp":1.5}', over=None)
    fence = locks.acquire("box").fence
    write_fenced(store, PATH, content(fence), fence)
    assert number_in(store) == fence.number


def test_a_document_has_to_carry_the_fence_it_is_written_by(store: ArchiveStore, locks: Locks) -> None:
    fence = locks.acquire("box").fence
    with pytest.raises(ValueError, match="does not carry"):
        write_fenced(store, PATH, b'{"fence":1}', fence)


def test_a_document_that_others_write_all_the_time_is_a_conflict(store: ArchiveStore, locks: Locks) -> None:
    fence = locks.acquire("box").fence
    turns = iter(range(100))

    class Busy:
        where = store.where
        write_document = store.write_document

        def read_document(self, path: str) -> Document | None:
            found = store.read_document(path)
            over = None if found is None else found.generation
            store.write_document(path, content(fence, turn=next(turns)), over=over)
            return found

    refused("conflict", lambda: write_fenced(Busy(), PATH, content(fence), fence))


def test_an_archive_is_not_finished_by_whoever_lost_the_lock_meanwhile(
    store: ArchiveStore, locks: Locks, clock: TestClock
) -> None:
    fence = locks.acquire("box").fence
    stored = store.write("snapshots/a.tar.gz", [b"x"], fence=fence)
    assert stored.metadata.get("fence", str(fence.number)) == str(fence.number)
    late = iter([b"x", b"y"])

    def chunks() -> Any:
        for chunk in late:
            clock.sleep(26)
            yield chunk

    refused("lock_lost", lambda: store.write("snapshots/b.tar.gz", chunks(), fence=fence))
    refused("snapshot_missing", lambda: store.stat("snapshots/b.tar.gz"))
