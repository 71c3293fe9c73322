"""Copies of an archive: which one a restore takes, and that the one on disk stays until there is another."""

import hashlib
import itertools
import os
from typing import Any

import pytest
from tests.support.memory_archives import MemoryArchives

from sandkeep.errors import CallerError, DataError, ProviderError, SandkeepError, SetupError
from sandkeep_store.archives.stores.choice import most_specific_error, restore_order
from sandkeep_store.archives.stores.copy import release, send
from sandkeep_store.archives.stores.directory import DirectoryArchives
from sandkeep_store.buckets.config import Root

MOUNT, GCS, S3 = Root("mount", "/mnt/shots"), Root("gcs", "shots"), Root("s3", "s3-shots")
DISK, STATE, OTHER = Root("directory", "/archives"), Root("state", "/state/archives"), Root("gcs", "other")
PATH = "filesystem_snapshots/snp_1/snp_1.tar.gz"


def chosen(recorded: list[Root], configured: list[Root]) -> list[Root]:
    places = restore_order([root.place(PATH) for root in recorded], configured)
    assert {place.path for place in places} <= {PATH}
    return [place.root for place in places]


@pytest.mark.parametrize(
    ("recorded", "configured", "order"),
    [
        ([DISK], [DISK], [DISK]),
        ([S3, DISK], [S3, DISK], [S3, DISK]),
        ([DISK, S3], [S3, DISK], [S3, DISK]),
        ([GCS, DISK], [GCS, DISK], [GCS, DISK]),
        ([DISK], [S3, DISK], [DISK]),  # it was never sent there
        ([S3, DISK], [DISK], [DISK, S3]),  # it is not set any more
        ([S3], [DISK], [S3]),
        ([GCS, S3, DISK], [S3, DISK], [S3, DISK, GCS]),
        ([DISK], [STATE], [DISK]),
        ([OTHER, DISK], [GCS, DISK], [DISK, OTHER]),
        ([GCS], [MOUNT, GCS, DISK], [MOUNT, GCS]),  # the bucket was mounted since
        ([MOUNT, STATE], [GCS, STATE], [GCS, STATE, MOUNT]),  # another machine has it as a bucket
        ([], [GCS, DISK], []),
    ],
)
def test_a_restore_prefers_what_is_set_and_falls_back_to_the_disk(
    recorded: list[Root], configured: list[Root], order: list[Root]
) -> None:
    assert chosen(recorded, configured) == order


def test_every_copy_on_record_is_tried_once() -> None:
    every = [MOUNT, GCS, S3, DISK, OTHER]
    for count in range(len(every) + 1):
        for recorded in itertools.permutations(every, count):
            order = chosen(list(recorded), [GCS, S3, DISK])
            assert set(recorded) <= set(order)
            assert len(order) == len(set(order))


def test_the_most_telling_failure_is_told() -> None:
    missing, corrupt = DataError("snapshot_missing", "a"), DataError("snapshot_corrupt", "b")
    unset, away = SetupError("not_configured", "c"), ProviderError("provider_unavailable", "d")
    told: list[tuple[list[SandkeepError], SandkeepError]] = [
        ([missing, corrupt], corrupt),
        ([missing, away], away),
        ([away, corrupt, missing], corrupt),
        ([unset, missing], unset),
        ([missing], missing),
    ]
    for failures, expected in told:
        assert most_specific_error(failures) is expected


# -- sending ----------------------------------------------------------------------------------------------------------

CONTENT = os.urandom(3_000_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def local(tmp_path: Any) -> DirectoryArchives:
    store = DirectoryArchives(Root("directory", str(tmp_path / "archives")))
    store.write("ses_1/snp_1.tar.gz", [CONTENT])
    return store


def content(store: Any, path: str) -> bytes:
    with store.read(path) as archive:
        return b"".join(archive)


def test_what_was_sent_is_taken_off_the_disk(local: DirectoryArchives) -> None:
    target = MemoryArchives()
    sent = send(local, "ses_1/snp_1.tar.gz", target, PATH, sha256=DIGEST)
    assert sent.metadata == {"sha256": DIGEST}
    assert content(local, "ses_1/snp_1.tar.gz") == content(target, PATH) == CONTENT
    assert release(local, "ses_1/snp_1.tar.gz", target, sent) is True
    assert release(local, "ses_1/snp_1.tar.gz", target, sent) is False
    assert list(local.objects()) == []


def test_the_copy_on_disk_stays_when_the_other_is_not_what_was_sent(local: DirectoryArchives) -> None:
    target = MemoryArchives()
    sent = send(local, "ses_1/snp_1.tar.gz", target, PATH, sha256=DIGEST)
    target.delete(PATH)
    with pytest.raises(DataError, match="snapshot_missing"):
        release(local, "ses_1/snp_1.tar.gz", target, sent)
    target.write(PATH, [b"something else"])
    with pytest.raises(DataError, match="not what was sent"):
        release(local, "ses_1/snp_1.tar.gz", target, sent)
    assert content(local, "ses_1/snp_1.tar.gz") == CONTENT


def test_a_damaged_archive_is_not_sent(local: DirectoryArchives) -> None:
    target = MemoryArchives()
    with pytest.raises(DataError, match="snapshot_corrupt"):
        send(local, "ses_1/snp_1.tar.gz", target, PATH, sha256="0" * 64)
    with pytest.raises(CallerError):
        send(local, "ses_1/snp_1.tar.gz", target, "../out", sha256=DIGEST)
    assert list(target.objects()) == []


@pytest.mark.needs("gcs")
def test_a_bucket_that_fails_leaves_the_copy_on_disk(
    local: DirectoryArchives, gcs_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.proxy import BreakingLine

    from sandkeep_store.archives.stores.open import open_store

    with BreakingLine(1) as line:
        line.down = True
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", line.url)
        with pytest.raises(ProviderError, match="try again"):
            send(local, "ses_1/snp_1.tar.gz", open_store(Root("gcs", gcs_bucket), patience_s=0.2), PATH, sha256=DIGEST)
    assert content(local, "ses_1/snp_1.tar.gz") == CONTENT
