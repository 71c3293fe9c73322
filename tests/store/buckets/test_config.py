"""The storage settings, row by row: set, unset, malformed; bucket, mount, both; shared sandboxes and others.

Rule: every test gives an environment of its own and touches neither the process's nor a disk.
"""

import itertools
import subprocess
import sys
from typing import Any

import pytest

from sandkeep.errors import CallerError, SetupError
from sandkeep.settings import storage as rows
from sandkeep.settings.all import ALL_SETTINGS
from sandkeep.settings.daemon import Setting
from sandkeep_store.buckets.config import STORAGE, Place, Root, S3Settings, Storage, checked_path

STATE = {"SANDKEEP_STATE_DIR": "/state"}
LOCAL = Root("state", "/state/archives")

BAD_BUCKETS = ("gs://b", "B", "ab", "a" * 300, "has space", "with/slash", "a..b", "-dash", "dash-", "nul\0")
BAD_DIRECTORIES = ("relative", "./x", "/", "//", "/..", "nul\0")

# variable, (text, what it means) of good values, bad values, what it is when unset
TABLE: list[tuple[Setting[Any], list[tuple[str, Any]], tuple[str, ...], Any]] = [
    (rows.LOCK_BUCKET, [("locks", "locks"), ("a.b_c-9", "a.b_c-9")], BAD_BUCKETS, None),
    (rows.LOCK_MOUNT_PATH, [("/mnt/locks", "/mnt/locks")], BAD_DIRECTORIES, None),
    (rows.METADATA_BUCKET, [("meta", "meta")], BAD_BUCKETS, None),
    (rows.CHECKPOINT_BUCKET, [("points", "points")], BAD_BUCKETS, None),
    (rows.SNAPSHOT_BUCKET, [("shots", "shots")], BAD_BUCKETS, None),
    (rows.S3_BUCKET, [("s3-shots", "s3-shots")], BAD_BUCKETS, None),
    (rows.METADATA_MOUNT_PATH, [("/mnt/meta", "/mnt/meta"), ("/mnt/./meta/", "/mnt/meta")], BAD_DIRECTORIES, None),
    (rows.CHECKPOINT_MOUNT_PATH, [("/mnt/points", "/mnt/points")], BAD_DIRECTORIES, None),
    (rows.SNAPSHOT_MOUNT_PATH, [("/mnt/shots", "/mnt/shots"), ("//mnt/shots", "/mnt/shots")], BAD_DIRECTORIES, None),
    (
        rows.ARTIFACT_BASE_URL,
        [("https://h/base/", "https://h/base"), ("http://h:1", "http://h:1")],
        ("h/base", "ftp://h", "https://", "https:///base", "https://user:secret@h"),
        None,
    ),
    (rows.SNAPSHOT_DIR, [("/tmp/astraforge-snapshots", "/tmp/astraforge-snapshots")], BAD_DIRECTORIES, None),
    (
        rows.S3_ENDPOINT_URL,
        [("http://127.0.0.1:9000/", "http://127.0.0.1:9000"), ("minio:9000", "minio:9000"), ("https://h", "https://h")],
        ("ftp://host", "http://", "http://host:port", "http://user:secret@host", "http://host?x=1"),
        None,
    ),
    (rows.S3_REGION, [("eu-central-1", "eu-central-1")], ("EU", "eu central", "-", "a" * 70), None),
    (rows.S3_USE_SSL, [("1", True), ("0", False), ("False", False), ("yes", True)], ("2", "maybe"), True),
    (rows.EMULATOR, [("http://127.0.0.1:9123", "http://127.0.0.1:9123")], ("127.0.0.1:9123", "gs://b"), None),
]


def test_the_table_has_every_storage_setting() -> None:
    declared = {name for name, setting in vars(rows).items() if isinstance(setting, Setting)}
    assert {name for name in declared if vars(rows)[name] not in [row[0] for row in TABLE]} == set()
    assert all(ALL_SETTINGS[row[0].name] is row[0] for row in TABLE)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row[0].name)
def test_each_setting(row: tuple[Setting[Any], list[tuple[str, Any]], tuple[str, ...], Any]) -> None:
    setting, good, bad, unset = row
    assert setting({}) == setting({setting.name: ""}) == unset
    for text, meaning in good:
        assert setting({setting.name: text}) == meaning
    for text in bad:
        with pytest.raises(SetupError) as caught:
            setting({setting.name: text})
        assert (caught.value.code, caught.value.data) == ("not_configured", {"setting": setting.name})
        assert setting.name in caught.value.message


# -- where an artifact lies -------------------------------------------------------------------------------------------

NAMES = {
    "snapshot": ("FILESYSTEM_SNAPSHOT_MOUNT_PATH", "FILESYSTEM_SNAPSHOT_BUCKET"),
    "checkpoint": ("SANDBOX_CHECKPOINT_MOUNT_PATH", "SANDBOX_CHECKPOINT_BUCKET"),
    "metadata": ("SANDBOX_METADATA_MOUNT_PATH", "SANDBOX_METADATA_BUCKET"),
}
PATHS = {
    "snapshot": "filesystem_snapshots/snp_1/snp_1.tar.gz",
    "checkpoint": "sandbox_checkpoints/ckp_1/checkpoint.img",
    "metadata": "sandboxes/sbx_1/metadata.json",
}


def environment(artifact: str, *ways: str) -> dict[str, str]:
    mount, bucket = NAMES[artifact]
    known = {
        "mount": {mount: "/mnt/it"},
        "gcs": {bucket: "its-bucket"},
        "s3": {"SANDBOX_S3_BUCKET": "s3-bucket"},
        "directory": {"SANDBOX_SNAPSHOT_DIR": "/archives"},
    }
    return {**STATE, **{name: value for way in ways for name, value in known[way].items()}}


ROOTS = {
    "mount": Root("mount", "/mnt/it"),
    "gcs": Root("gcs", "its-bucket"),
    "s3": Root("s3", "s3-bucket"),
    "directory": Root("directory", "/archives"),
    "state": LOCAL,
}
SHOWN = {"mount": "/mnt/it/", "gcs": "gs://its-bucket/", "s3": "s3://s3-bucket/", "directory": "/archives/"}
SUBSETS = [
    ways for n in range(5) for ways in itertools.combinations(("mount", "gcs", "s3", "directory"), n)
]  # in the order of preference, so the first of each has to win


@pytest.mark.parametrize("artifact", NAMES)
@pytest.mark.parametrize("ways", SUBSETS, ids="+".join)
def test_the_first_that_is_set_wins_and_the_answer_says_where(artifact: Any, ways: tuple[str, ...]) -> None:
    storage = Storage(environment(artifact, *ways))
    meant = [way for way in ways if (artifact, way) != ("metadata", "s3")] + ["state"]
    place = storage.root(artifact).place(PATHS[artifact])
    assert place == Place(ROOTS[meant[0]], PATHS[artifact])
    assert str(place) == SHOWN.get(meant[0], "/state/archives/") + PATHS[artifact]
    local = ROOTS["directory" if "directory" in ways else "state"]
    remote = [ROOTS[way] for way in meant if way not in ("directory", "state")]
    assert storage.roots(artifact) == (*remote, local)
    assert storage.local_root() == local


def test_all_directories_of_archives_are_known_and_a_malformed_setting_names_none() -> None:
    found = {"SANDBOX_SNAPSHOT_DIR": "/archives/", "SANDBOX_CHECKPOINT_MOUNT_PATH": "/mnt/it"}
    assert Storage({}).archive_directories() == []
    assert Storage(found).archive_directories() == ["/archives", "/mnt/it"]
    malformed = {**found, "FILESYSTEM_SNAPSHOT_MOUNT_PATH": "no/path", "FILESYSTEM_SNAPSHOT_BUCKET": "shots"}
    assert Storage(malformed).archive_directories() == ["/archives", "/mnt/it"]


@pytest.mark.parametrize("artifact", NAMES)
@pytest.mark.parametrize("ways", SUBSETS, ids="+".join)
def test_what_is_shared_never_falls_through_to_this_machine(artifact: Any, ways: tuple[str, ...]) -> None:
    storage = Storage(environment(artifact, *ways))
    shared = [way for way in ways if way != "directory" and (artifact, way) != ("metadata", "s3")]
    if shared:
        assert storage.root(artifact, shared=True) == ROOTS[shared[0]]
        return
    with pytest.raises(SetupError, match=" or ".join(NAMES[artifact][::-1]).replace(" or ", ".*")) as caught:
        storage.root(artifact, shared=True)
    assert (caught.value.code, caught.value.data) == ("not_configured", {"setting": NAMES[artifact][1]})


@pytest.mark.parametrize("artifact", NAMES)
def test_a_malformed_variable_is_named_when_it_is_used_and_no_sooner(artifact: Any) -> None:
    mount, bucket = NAMES[artifact]
    broken = Storage({**STATE, mount: "relative"})
    assert broken.local_root() == LOCAL
    with pytest.raises(SetupError, match=mount):
        broken.root(artifact)
    mounted = Storage({**STATE, mount: "/mnt/it", bucket: "NOT A BUCKET"})
    assert mounted.root(artifact) == ROOTS["mount"]


# -- with and without a bucket ----------------------------------------------------------------------------------------


def test_a_sandbox_of_its_own_needs_nothing() -> None:
    assert Storage(STATE).require("snapshot") == LOCAL
    assert Storage({**STATE, "SANDBOX_LOCK_BUCKET": "!!"}).require("snapshot") == LOCAL


SHARED = {
    "SANDBOX_LOCK_BUCKET": "locks",
    "SANDBOX_METADATA_BUCKET": "meta",
    "FILESYSTEM_SNAPSHOT_BUCKET": "shots",
    "SANDBOX_CHECKPOINT_MOUNT_PATH": "/mnt/points",
}


def test_what_has_to_be_in_a_bucket_needs_one_without_being_shared() -> None:
    with pytest.raises(SetupError, match="SANDBOX_CHECKPOINT_BUCKET, SANDBOX_CHECKPOINT_MOUNT_PATH or SANDBOX_S3_BUC"):
        Storage(STATE).require("checkpoint", bucket=True)
    assert Storage({**STATE, **SHARED}).require("checkpoint", bucket=True) == Root("mount", "/mnt/points")


def test_where_metadata_is_written_that_others_read() -> None:
    """Where writers can be told apart: never on a mounted bucket alone."""
    bucket, s3 = {"SANDBOX_METADATA_BUCKET": "meta"}, {"SANDBOX_S3_BUCKET": "both"}
    locks, mount = {"SANDBOX_LOCK_BUCKET": "locks"}, {"SANDBOX_METADATA_MOUNT_PATH": "/mnt/meta"}
    assert Storage({**locks, **bucket, **mount}).metadata_root() == Root("gcs", "meta")
    assert Storage(s3).metadata_root() == Root("s3", "both")
    assert Storage({"SANDBOX_LOCK_MOUNT_PATH": "/nfs", **mount}).metadata_root() == Root("mount", "/mnt/meta")
    for unset in (locks, {**locks, **mount}, {**locks, **s3}):
        with pytest.raises(SetupError, match="set SANDBOX_METADATA_BUCKET") as caught:
            Storage(unset).metadata_root()
        assert ("SANDBOX_METADATA_MOUNT_PATH alone does not do" in caught.value.message) == ("MOUNT" in str(unset))


@pytest.mark.parametrize("missing", [name for name in SHARED if "SNAPSHOT" not in name])
def test_a_shared_sandbox_needs_all_of_its_places(missing: str) -> None:
    Storage({**STATE, **SHARED}).require_sharing(checkpoints=True)
    with pytest.raises(SetupError, match=missing.removesuffix("_MOUNT_PATH").removesuffix("_BUCKET")):
        Storage({**STATE, **{k: v for k, v in SHARED.items() if k != missing}}).require_sharing(checkpoints=True)


# -- how to reach a service -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", ["SANDBOX_S3_USE_SSL", "SANDBOX_S3_ENDPOINT_URL", "SANDBOX_S3_REGION"])
def test_how_to_reach_a_service_is_asked_with_where_something_goes(setting: str) -> None:
    broken = Storage({**STATE, "SANDBOX_S3_BUCKET": "bkt", setting: "ftp://?"})
    for ask in (lambda: broken.require("snapshot"), broken.lock_root):
        with pytest.raises(SetupError, match=setting):
            ask()
    emulated = Storage({**STATE, **SHARED, "STORAGE_EMULATOR_HOST": "localhost"})
    with pytest.raises(SetupError, match="STORAGE_EMULATOR_HOST"):
        emulated.lock_root()


def test_s3() -> None:
    with pytest.raises(SetupError, match="SANDBOX_S3_BUCKET"):
        Storage({}).s3()
    assert Storage({"SANDBOX_S3_BUCKET": "bkt"}).s3() == S3Settings("bkt", None, None, use_ssl=True)
    for address, ssl, url in (
        ("minio:9000", "0", "http://minio:9000"),
        ("minio:9000", "1", "https://minio:9000"),
        ("http://minio:9000", "1", "http://minio:9000"),
    ):
        given = {"SANDBOX_S3_BUCKET": "b-t", "SANDBOX_S3_ENDPOINT_URL": address, "SANDBOX_S3_USE_SSL": ssl}
        assert Storage(given).s3().endpoint_url == url


def test_the_process_has_one_accessor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOX_SNAPSHOT_DIR", "/first")
    assert STORAGE.local_root() == Root("directory", "/first")
    monkeypatch.setenv("SANDBOX_SNAPSHOT_DIR", "/second")
    assert STORAGE.local_root() == Root("directory", "/second"), "settings are read when they are used"


def test_no_sdk_is_imported_by_asking() -> None:
    program = (
        "import sys; from sandkeep_store.buckets.config import STORAGE; STORAGE.root('snapshot'); "
        "print([name for name in ('google.cloud', 'boto3', 'trio', 'requests') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


# -- paths ------------------------------------------------------------------------------------------------------------


def test_paths_stay_inside() -> None:
    for path in ("a", "a/b.tar.gz", "ä/ö", "a b", "a" * 255, "...", ".wh.x", "a\\b"):
        assert checked_path(path) == path
    bad = ("", "/", "/a", "a/", "a//b", "..", "../a", "a/../b", "a/..", ".", "a/./b", "a\0b", "a\nb", "\udc80")
    for path in (*bad, "a" * 256, "a/" * 512 + "a", "ä" * 128):
        with pytest.raises(CallerError) as caught:
            checked_path(path)
        assert (caught.value.code, caught.value.data) == ("invalid", {"field": "path"})
        with pytest.raises(CallerError):
            LOCAL.place(path)


def test_what_is_shared_and_what_is_a_bucket() -> None:
    assert [root.is_shared for root in ROOTS.values()] == [True, True, True, False, False]
    assert [root.is_bucket for root in ROOTS.values()] == [False, True, True, False, False]


def test_locks_are_in_the_directory_that_is_set_or_else_in_a_bucket() -> None:
    bucket, mount = {"SANDBOX_LOCK_BUCKET": "locks"}, {"SANDBOX_LOCK_MOUNT_PATH": "/mnt/locks"}
    assert Storage(bucket).lock_root() == Root("gcs", "locks")
    assert Storage(mount).lock_root() == Root("mount", "/mnt/locks")
    s3 = {"SANDBOX_S3_BUCKET": "s3-locks"}
    assert Storage({**bucket, **mount, **s3}).lock_root() == Root("mount", "/mnt/locks")
    assert Storage({**bucket, **s3}).lock_root() == Root("gcs", "locks")
    assert Storage(s3).lock_root() == Root("s3", "s3-locks")
    with pytest.raises(SetupError) as caught:
        Storage({}).lock_root()
    assert caught.value.code == "not_configured"
    assert "SANDBOX_LOCK_BUCKET" in caught.value.message
    assert "SANDBOX_LOCK_MOUNT_PATH" in caught.value.message
    with pytest.raises(SetupError, match="SANDBOX_LOCK_MOUNT_PATH"):
        Storage({**bucket, "SANDBOX_LOCK_MOUNT_PATH": "locks"}).lock_root()
