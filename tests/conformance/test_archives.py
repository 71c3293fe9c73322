"""One suite for every store of archives, with the real clients of the buckets.

Rules: a store is made anew for each test, in a bucket or directory of its own; what a test says of one, it says of all.
"""

import fcntl
import hashlib
import io
import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
from tests.support.expect import refused
from tests.support.memory_archives import MemoryArchives
from tests.support.patience import patient
from tests.support.s3 import S3Server

from sandkeep.errors import DataError, StateError
from sandkeep_store.archives.stores import s3_upload
from sandkeep_store.archives.stores.directory import DirectoryArchives
from sandkeep_store.archives.stores.open import open_store
from sandkeep_store.archives.stores.store import ArchiveStore
from sandkeep_store.archives.stores.types import Stored
from sandkeep_store.buckets.config import Root, Storage

T = TypeVar("T")

PART = 8 * 1024**2
S3_PART = 5 * 1024**2
PATH = "filesystem_snapshots/snp_1/snp_1.tar.gz"


class Kind(NamedTuple):
    """A store, how to see what was begun and not finished in it, and how others put things there."""

    store: ArchiveStore
    unfinished: Callable[[], list[str]]
    put: Callable[[str, bytes], None]
    show: Callable[[str], None]
    """Have a listing show an object of that name."""


def in_memory(request: pytest.FixtureRequest) -> Kind:
    store = MemoryArchives()

    def put(path: str, data: bytes = b"x") -> None:
        store.put(path, data, {}, None)

    return Kind(store, list, put, put)


def in_directory(where: Any) -> Callable[[pytest.FixtureRequest], Kind]:
    def make(request: pytest.FixtureRequest) -> Kind:
        base = str(request.getfixturevalue("tmp_path") / "archives")
        if where == "mount":
            os.mkdir(base, 0o777)
        partial = os.path.join(base, ".partial")

        def put(path: str, data: bytes = b"x") -> None:
            os.makedirs(os.path.dirname(os.path.join(base, path)), exist_ok=True)
            with open(os.path.join(base, path), "wb") as file:
                file.write(data)

        return Kind(
            open_store(Root(where, base)), lambda: os.listdir(partial) if os.path.isdir(partial) else [], put, put
        )

    return make


def in_gcs(request: pytest.FixtureRequest) -> Kind:
    bucket, service = request.getfixturevalue("gcs_bucket"), request.getfixturevalue("gcs")
    store = open_store(Root("gcs", bucket), patience_s=1)

    def put(path: str, data: bytes) -> None:
        store._bucket.blob(path).upload_from_string(data)  # type: ignore[attr-defined]

    return Kind(store, lambda: service.unfinished(bucket), put, lambda name: service.list_also(bucket, name))


def in_localstack(request: pytest.FixtureRequest) -> Kind:
    bucket, service = request.getfixturevalue("localstack_bucket"), request.getfixturevalue("localstack_s3")
    storage = Storage({**service.environ, "SANDBOX_S3_BUCKET": bucket})
    store = open_store(Root("s3", bucket), storage, patience_s=1)

    def put(path: str, data: bytes = b"x") -> None:
        service.client().put_object(Bucket=bucket, Key=path, Body=data)

    return Kind(store, lambda: service.unfinished(bucket), put, put)


def in_s3(request: pytest.FixtureRequest) -> Kind:
    bucket, service = request.getfixturevalue("s3_bucket"), request.getfixturevalue("s3")
    storage = Storage({**service.environ, "SANDBOX_S3_BUCKET": bucket})
    store = open_store(Root("s3", bucket), storage, patience_s=1)

    def put(path: str, data: bytes = b"x") -> None:
        service.keep(bucket, path, data)

    return Kind(store, lambda: service.unfinished(bucket), put, put)


KINDS = {
    "memory": in_memory,
    "directory": in_directory("directory"),
    "mount": in_directory("mount"),
    "gcs": in_gcs,
    "s3": in_s3,
    "localstack": in_localstack,
}
ENGINES = ("gcs", "s3", "localstack")


@pytest.fixture(
    params=[pytest.param(name, marks=[pytest.mark.needs(name)] if name in ENGINES else []) for name in KINDS]
)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param](request)


@pytest.fixture
def store(kind: Kind) -> ArchiveStore:
    return kind.store


def bytes_of(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def content(store: ArchiveStore, path: str = PATH, **options: Any) -> bytes:
    with store.read(path, **options) as archive:
        return b"".join(archive)


def unless_conflict(write: Callable[[], T]) -> T | None:
    """What a write answered; None when somebody else was quicker."""
    try:
        return write()
    except StateError as error:
        if error.code != "conflict":
            raise
        return None


# -- writing and reading ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 65537, S3_PART, PART, PART + 1, 2 * S3_PART])
def test_what_was_written_is_read(store: ArchiveStore, size: int) -> None:
    data = bytes_of(size)
    digest = hashlib.sha256(data).hexdigest()
    passed: list[int] = []
    stored = store.write(
        PATH, io.BytesIO(data), size_bytes=size, sha256=digest, metadata={"sha256": digest}, progress=passed.append
    )
    assert (stored.path, stored.size_bytes) == (PATH, size)
    assert passed == sorted(passed)
    assert all(0 < count <= size for count in passed)
    assert content(store) == data
    found = store.stat(PATH)
    assert (found.path, found.size_bytes, found.generation) == (PATH, size, stored.generation)
    if store.root.is_bucket:
        assert found.metadata["sha256"] == digest


def test_every_kind_of_source(store: ArchiveStore) -> None:
    data = bytes_of(PART + 12_345)
    ends = iter(range(0, len(data) + 100_000, 100_000))
    chunks = (data[start : start + 100_000] for start in ends)
    store.write("chunks", chunks)
    assert content(store, "chunks") == data
    reading, writing = os.pipe()

    def feed() -> None:
        with open(writing, "wb") as file:
            file.write(data)

    thread = threading.Thread(target=feed)
    thread.start()
    with open(reading, "rb", buffering=0) as pipe:
        store.write("pipe", pipe)
    thread.join()
    assert content(store, "pipe") == data
    store.write("nothing", iter(()))
    assert content(store, "nothing") == b""


@pytest.mark.parametrize("path", ["a b/ä+%2F?#&=.tar.gz", "~/$HOME/*", "'\"<>|\\:;,", "漢字/🙂", "...", "x" * 254])
def test_every_other_path_means_what_it_says(store: ArchiveStore, path: str) -> None:
    store.write(path, [b"content"])
    store.write(f"{path}-", [b"{}"])
    assert content(store, path) == b"content"
    assert content(store, f"{path}-") == b"{}"
    assert sorted(stored.path for stored in store.objects(path)) == [path, f"{path}-"]
    assert store.delete(path) is True
    assert [stored.path for stored in store.objects(path)] == [f"{path}-"]


def test_an_object_is_written_once(kind: Kind) -> None:
    stored = kind.store.write(PATH, [b"first"])
    error = refused("conflict", kind.store.write, PATH, [b"second"])
    assert error.data["place"] == kind.store.where(PATH)
    assert content(kind.store) == b"first"
    assert kind.store.stat(PATH).generation == stored.generation
    assert kind.unfinished() == []


@pytest.mark.parametrize("size", [5, PART + 5])
def test_of_writers_at_once_one_wins(kind: Kind, size: int) -> None:
    """They all begin before one ends, since each waits in the middle of its source for the others."""
    together = threading.Barrier(4)

    def write(number: int) -> Stored | None:
        def source() -> Iterator[bytes]:
            yield bytes([number]) * (size - 1)
            together.wait(patient(30))
            yield bytes([number])

        return unless_conflict(lambda: kind.store.write(PATH, source()))

    with ThreadPoolExecutor(4) as pool:
        written = list(pool.map(write, range(4)))
    [(winner, stored)] = [(number, stored) for number, stored in enumerate(written) if stored is not None]
    assert content(kind.store) == bytes([winner]) * size
    assert kind.store.stat(PATH).generation == stored.generation
    assert kind.unfinished() == []


def test_of_writers_on_machines_that_lock_no_file_together_one_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network mount flock may hold on each machine by itself: nothing rests on it."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    for turn in range(20):
        stores = [open_store(Root("mount", str(tmp_path))) for _ in range(8)]

        def write(number: int, turn: int = turn, stores: Any = stores) -> Any:
            return unless_conflict(lambda: stores[number].write(f"a/{turn}", [b"%d" % number]))

        with ThreadPoolExecutor(8) as pool:
            made = [number for number, stored in enumerate(pool.map(write, range(8))) if stored is not None]
        assert len(made) == 1
        assert content(stores[0], f"a/{turn}") == b"%d" % made[0]


class GivenUp(Exception):
    pass


@pytest.mark.parametrize("at", [0, 1, PART, 2 * PART])
def test_a_source_that_fails_leaves_nothing(kind: Kind, at: int) -> None:
    def source() -> Iterator[bytes]:
        yield bytes(at)
        raise GivenUp

    with pytest.raises(GivenUp):
        kind.store.write(PATH, source())
    assert nothing_is_left(kind)


def test_progress_can_cancel_a_write(kind: Kind) -> None:
    def progress(passed: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kind.store.write(PATH, io.BytesIO(bytes(2 * PART)), progress=progress)
    assert nothing_is_left(kind)


@pytest.mark.parametrize("known", [{"size_bytes": PART + 8}, {"size_bytes": PART + 10}, {"sha256": "0" * 64}])
def test_a_source_that_is_not_what_it_has_to_be_leaves_nothing(kind: Kind, known: dict[str, Any]) -> None:
    refused("snapshot_corrupt", kind.store.write, PATH, io.BytesIO(bytes(PART + 9)), **known)
    assert nothing_is_left(kind)


def nothing_is_left(kind: Kind) -> bool:
    assert kind.unfinished() == []
    assert list(kind.store.objects()) == []
    refused("snapshot_missing", kind.store.stat, PATH)
    return True


def test_what_is_not_there(store: ArchiveStore) -> None:
    assert list(store.objects()) == []
    for call in (store.stat, store.read):
        assert refused("snapshot_missing", call, PATH).data["place"] == store.where(PATH)
    assert store.delete(PATH) is False
    store.write(PATH, [b"x"])
    refused("snapshot_missing", store.stat, os.path.dirname(PATH)) if store.root.is_bucket else None
    refused("snapshot_missing", store.stat, f"{PATH}/below")


# -- generations ------------------------------------------------------------------------------------------------------


def test_only_the_generation_that_was_meant_is_read_or_deleted(store: ArchiveStore) -> None:
    first = store.write(PATH, [b"first"])
    assert store.delete(PATH, generation=first.generation) is True
    assert store.delete(PATH, generation=first.generation) is False
    second = store.write(PATH, [b"second"])
    assert second.generation != first.generation
    for stale in (first.generation, "nonsense", "0"):
        refused("conflict", store.delete, PATH, generation=stale)
        refused("conflict", store.read, PATH, generation=stale)
    assert content(store, generation=second.generation) == b"second"
    assert store.delete(PATH) is True
    assert list(store.objects()) == []


def test_an_object_of_another_size_is_not_even_read(store: ArchiveStore) -> None:
    store.write(PATH, [b"content"])
    assert content(store, size_bytes=7) == b"content"
    for size in (0, 6, 8):
        refused("snapshot_corrupt", store.read, PATH, size_bytes=size)


def test_a_reader_never_mixes_two_generations(store: ArchiveStore) -> None:
    data = bytes_of(PART)
    store.write(PATH, [data])
    with store.read(PATH) as archive:
        store.delete(PATH)
        store.write(PATH, [bytes_of(PART, seed=1)])
        with pytest.raises((DataError, StateError)) as caught:
            b"".join(archive)
    assert caught.value.code in ("conflict", "snapshot_missing")


# -- listing ----------------------------------------------------------------------------------------------------------


def test_listing_is_by_the_beginning_of_the_path(store: ArchiveStore) -> None:
    paths = ["a/1", "a/2/x", "ab/3", "b", "a-b"]
    for number, path in enumerate(paths):
        store.write(path, [bytes(number)])
    for prefix in ("", "a", "a/", "a/2", "a/2/x", "ab/", "b", "c", "a/2/x/y"):
        found = {stored.path: stored.size_bytes for stored in store.objects(prefix)}
        assert found == {path: number for number, path in enumerate(paths) if path.startswith(prefix)}
    assert {stored.generation for stored in store.objects()} == {store.stat(path).generation for path in paths}


HOSTILE = ["../out", "a/../../out", "/absolute", "a//b", "a/./b", "a/..", "..", ".", "a\nb", "\x1b[31m", ".partial/x"]


@pytest.mark.parametrize("path", [*HOSTILE, "", "a/", "x" * 300, "a\0b"])
def test_a_path_that_leads_out_is_refused_by_every_method(kind: Kind, path: str) -> None:
    store = kind.store
    for call in (store.stat, store.read, store.delete, store.where):
        assert refused("invalid", call, path).data == {"field": "path"}
    refused("invalid", store.write, path, [b"x"])
    assert list(store.objects()) == []
    assert kind.unfinished() == []


def test_names_that_others_put_there_are_left_out(kind: Kind, tmp_path: Any) -> None:
    kind.put("good", b"x")
    if isinstance(kind.store, DirectoryArchives):
        put_what_is_no_plain_file(kind.store.root.base, str(tmp_path))
        names = ["line\nbreak", os.fsdecode(b"not-utf8-\xff")]
    else:
        names = HOSTILE
    for name in names:
        kind.show(name)
    assert [stored.path for stored in kind.store.objects()] == ["good"]


def put_what_is_no_plain_file(base: str, outside: str) -> None:
    with open(f"{outside}/secret", "w") as file:
        file.write("secret")
    os.symlink(f"{outside}/secret", f"{base}/link")
    os.symlink(outside, f"{base}/directory")
    os.mkfifo(f"{base}/fifo")


@pytest.mark.needs("s3")
def test_parts_for_s3_grow_and_have_an_end(s3: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_upload, "PARTS_OF_A_SIZE", 1)
    monkeypatch.setattr(s3_upload, "MOST_PARTS", 2)
    store = open_store(Root("s3", s3_bucket), Storage({**s3.environ, "SANDBOX_S3_BUCKET": s3_bucket}))
    data = bytes_of(3 * S3_PART)
    tag = store.write(PATH, io.BytesIO(data)).generation
    assert tag.endswith("-2"), "the service counts parts: one of five, one of ten"
    assert content(store) == data
    refused("invalid", store.write, "more", io.BytesIO(data + b"x"))
    assert [stored.path for stored in store.objects()] == [PATH]
    assert s3.unfinished(s3_bucket) == []


@pytest.mark.needs("s3")
def test_uploads_to_s3_that_nobody_finishes_are_swept(s3: S3Server, s3_bucket: str) -> None:
    """Those of others, below another prefix, are left alone. The service says of all that they began in 2010."""
    store = open_store(Root("s3", s3_bucket), Storage({**s3.environ, "SANDBOX_S3_BUCKET": s3_bucket}))
    for key in ("filesystem_snapshots/a", "filesystem_snapshots/b", "others"):
        s3.client().create_multipart_upload(Bucket=s3_bucket, Key=key)
    assert store.sweep(1000 * 365 * 86_400, "filesystem_snapshots/") == 0
    assert store.sweep(86_400, "filesystem_snapshots/") == 2
    assert s3.unfinished(s3_bucket) == ["others"]


# -- fences -----------------------------------------------------------------------------------------------------------


class LeaseOf:
    """A fence that is lost at its n-th check."""

    number = 42

    def __init__(self, lasts: int) -> None:
        self.lasts = lasts
        self.checks = 0

    def check(self) -> None:
        self.checks += 1
        if self.checks > self.lasts:
            raise StateError("lock_lost", "The lock was taken over by another daemon.")


def test_a_writer_that_lost_its_lock_writes_nothing(kind: Kind) -> None:
    for lasts, size in ((0, 5), (1, 5), (1, 2 * PART + 1)):
        fence = LeaseOf(lasts)
        refused("lock_lost", kind.store.write, PATH, io.BytesIO(bytes(size)), fence=fence)
        assert fence.checks == lasts + 1
        assert nothing_is_left(kind)
    fence = LeaseOf(2)
    kind.store.write(PATH, [b"x"], fence=fence)
    assert fence.checks == 2, "before the first byte, and before it appears"
    if kind.store.root.is_bucket:
        assert kind.store.stat(PATH).metadata["fence"] == "42"
