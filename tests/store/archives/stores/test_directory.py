"""What is true of archives in a directory, besides what `tests/conformance/test_archives.py` says of all stores."""

import errno
import os
import subprocess
import sys
from typing import Any

import pytest

from sandkeep.errors import DaemonError, DataError, ProviderError, SetupError, StateError
from sandkeep_store.archives.stores.directory import DirectoryArchives
from sandkeep_store.buckets.config import Root

PATH = "ses_1/snp_1.tar.gz"


@pytest.fixture
def base(tmp_path: Any) -> str:
    return str(tmp_path / "archives")


@pytest.fixture
def store(base: str) -> DirectoryArchives:
    return DirectoryArchives(Root("directory", base))


def mount(base: str) -> DirectoryArchives:
    return DirectoryArchives(Root("mount", base))


def test_what_it_makes_is_the_daemons_alone(store: DirectoryArchives, base: str) -> None:
    store.write(PATH, [b"x"])
    modes = {path: os.stat(os.path.join(base, path)).st_mode & 0o777 for path in ("", ".partial", "ses_1", PATH)}
    assert modes == {"": 0o700, ".partial": 0o700, "ses_1": 0o700, PATH: 0o600}


def test_reading_and_listing_make_nothing(store: DirectoryArchives, base: str) -> None:
    assert list(store.objects()) == []
    assert store.sweep(0) == 0
    with pytest.raises(DataError):
        store.stat(PATH)
    assert not os.path.exists(base)


def test_an_archive_can_be_made_where_it_will_stay(store: DirectoryArchives) -> None:
    with store.create(PATH) as upload:
        os.write(upload.descriptor, b"made in place")
        assert list(store.objects()) == []
        stored = upload.finish()
    assert stored == store.stat(PATH)
    with store.read(PATH) as archive:
        assert b"".join(archive) == b"made in place"
    with pytest.raises(StateError, match="is there already"):
        store.create(PATH)
    with pytest.raises(ZeroDivisionError), store.create("given/up") as upload:
        os.write(upload.descriptor, b"x" * (1 // 0))
    assert [stored.path for stored in store.objects()] == [PATH]
    assert os.listdir(os.path.join(store.root.base, ".partial")) == []


def test_an_archive_is_read_in_place(store: DirectoryArchives) -> None:
    store.write(PATH, [b"content"])
    with open(store.open_file(PATH), "rb") as file:
        assert file.read() == b"content"


def test_directories_go_with_the_last_that_was_in_them(store: DirectoryArchives, base: str) -> None:
    store.write("a/b/c", [b"x"])
    store.write("a/d", [b"x"])
    store.delete("a/b/c")
    assert sorted(os.listdir(base)) == [".partial", "a"]
    assert os.listdir(f"{base}/a") == ["d"]
    store.delete("a/d")
    assert os.listdir(base) == [".partial"]


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777, 0o722])
def test_a_directory_that_others_can_write_to_is_not_used(store: DirectoryArchives, base: str, mode: int) -> None:
    os.mkdir(base)
    os.chmod(base, mode)
    for call in (lambda: store.write(PATH, [b"x"]), lambda: store.stat(PATH), lambda: list(store.objects())):
        with pytest.raises(SetupError, match="SANDBOX_SNAPSHOT_DIR") as caught:
            call()
        assert caught.value.code == "not_configured"
    assert os.listdir(base) == []
    mount(base).write(PATH, [b"on a mount the modes are made up"])


@pytest.mark.needs("root")
def test_a_directory_of_somebody_else_is_not_used(store: DirectoryArchives, base: str) -> None:
    os.mkdir(base, 0o755)
    os.chown(base, 4711, 4711)
    with pytest.raises(SetupError, match="can be written by others"):
        store.write(PATH, [b"x"])


def test_links_lead_nowhere(store: DirectoryArchives, base: str, tmp_path: Any) -> None:
    """Not as the object, not on the way to it, not where it shall be written, and not from a listing."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    store.write("inside", [b"x"])
    os.symlink(outside, f"{base}/way")
    os.symlink(outside / "secret", f"{base}/object")
    os.symlink(outside / "new", f"{base}/dangling")
    for path, code in (("way/secret", "snapshot_missing"), ("object", "snapshot_corrupt")):
        for call in (store.stat, store.open_file, store.read):
            with pytest.raises(DataError) as caught:
                call(path)
            assert caught.value.code == code
    assert store.delete("way/secret") is False
    for path, code in (("way/new", "conflict"), ("way/secret", "conflict"), ("object", "snapshot_corrupt")):
        with pytest.raises((DataError, StateError)) as caught_too:
            store.write(path, [b"overwritten"])
        assert caught_too.value.code == code
    with pytest.raises(DataError):
        store.write("dangling", [b"overwritten"])
    assert [stored.path for stored in store.objects()] == ["inside"]
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("secret", "secret")]


def test_only_plain_files_are_archives(store: DirectoryArchives, base: str) -> None:
    store.write("inside", [b"x"])
    os.mkfifo(f"{base}/fifo")
    os.mkdir(f"{base}/directory")
    for path in ("fifo", "directory"):
        with pytest.raises(DataError, match="not a regular file"):
            store.stat(path)
    with pytest.raises(DataError, match="snapshot_missing"):
        store.stat("inside/below")
    with pytest.raises((DataError, StateError)):
        store.write("inside/below", [b"x"])


def test_what_a_writer_that_died_left_is_swept(store: DirectoryArchives, base: str) -> None:
    program = """
import os, signal, sys
from sandkeep_store.archives.stores.directory import DirectoryArchives
from sandkeep_store.buckets.config import Root
def source():
    yield bytes(3_000_000)
    os.kill(os.getpid(), signal.SIGKILL)
DirectoryArchives(Root("directory", sys.argv[1])).write("a/b", source())
"""
    died = subprocess.run([sys.executable, "-c", program, base], check=False)
    assert died.returncode == -9
    assert list(store.objects()) == []
    [name] = os.listdir(f"{base}/.partial")
    assert store.sweep(3600) == 0
    os.utime(f"{base}/.partial/{name}", (0, 0))
    assert store.sweep(3600) == 1
    assert os.listdir(f"{base}/.partial") == []


def test_a_mount_that_is_not_there_is_not_made(base: str) -> None:
    absent = mount(base)
    for call in (
        lambda: absent.write(PATH, [b"x"]),
        lambda: absent.stat(PATH),
    ):
        with pytest.raises(ProviderError, match="mount it") as caught:
            call()
        assert caught.value.code == "provider_unavailable"
    assert not os.path.exists(base)


def test_a_mount_without_hard_links(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*args: Any, **options: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    os.mkdir(base)
    store = mount(base)
    monkeypatch.setattr(os, "link", link)
    store.write(PATH, [b"first"])
    with pytest.raises(StateError, match="is there already"):
        store.write(PATH, [b"second"])
    upload = store.create("late")
    store.write("late", [b"quicker"])
    with pytest.raises(StateError, match="is there already"), upload:
        upload.finish()
    assert [(stored.path, stored.size_bytes) for stored in store.objects()] == [("late", 7), (PATH, 5)]
    with open(f"{base}/taken", "xb"):
        pass  # by a writer that ended before it was there
    store.write("taken", [b"at last"])
    assert store.stat("taken").size_bytes == 7
    store.delete("taken")
    assert os.listdir(f"{base}/.partial") == []


@pytest.mark.needs("root")
def test_a_full_disk_says_so_and_leaves_nothing(base: str) -> None:
    os.mkdir(base)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", base], check=True)
    try:
        store = DirectoryArchives(Root("directory", base))
        with pytest.raises(DaemonError, match="free space") as caught:
            store.write(PATH, (bytes(100_000) for _ in range(100)))
        assert caught.value.code == "storage_unavailable"
        with pytest.raises(ProviderError, match="No space left"):
            mount(base).write(PATH, (bytes(100_000) for _ in range(100)))
        assert list(store.objects()) == []
        assert os.listdir(f"{base}/.partial") == []
        store.write(PATH, [bytes(1_000_000)])
    finally:
        subprocess.run(["umount", base], check=True)


def test_bytes_that_went_missing_meanwhile(store: DirectoryArchives, base: str) -> None:
    """A file that was cut is another generation, and a reader that had begun does not take it for whole."""
    stored = store.write(PATH, [bytes(5_000_000)])
    with store.read(PATH) as archive:
        chunks = iter(archive)
        next(chunks)
        os.truncate(f"{base}/{PATH}", 3_000_000)
        with pytest.raises(DataError, match="3000000 bytes are there of the 5000000") as caught:
            list(chunks)
    assert caught.value.code == "snapshot_corrupt"
    with pytest.raises(StateError, match="changed"):
        store.read(PATH, generation=stored.generation)
