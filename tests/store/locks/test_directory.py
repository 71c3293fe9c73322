"""Documents in a directory: what dead and stopped writers leave, and what is no plain file."""

import errno
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.expect import refused
from tests.support.patience import patient

from sandkeep_store.locks.directory import STALE_S, DirectoryStore
from sandkeep_store.locks.store import path_of

LOCK = path_of("box")


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(str(tmp_path))


def names(tmp_path: Path) -> list[str]:
    return sorted(os.listdir(tmp_path / "sandboxes/box"))


def test_a_write_leaves_nothing_but_the_document(store: DirectoryStore, tmp_path: Path) -> None:
    first = store.write(LOCK, b"1", None)
    assert first is not None
    assert store.write(LOCK, b"2", first.version) is not None
    assert store.write(LOCK, b"3", first.version) is None
    assert names(tmp_path) == ["lock.json"]
    status = (tmp_path / LOCK).stat()
    assert (stat.S_IMODE(status.st_mode), status.st_nlink) == (0o600, 1)


def test_while_somebody_writes_nobody_else_does(store: DirectoryStore, tmp_path: Path) -> None:
    store.write(LOCK, b"1", None)
    found = store.read(LOCK)
    assert found is not None
    following = tmp_path / f"{LOCK}.next"
    following.write_bytes(b"2")
    assert store.write(LOCK, b"3", found.version) is None
    assert following.read_bytes() == b"2"
    assert names(tmp_path) == ["lock.json", "lock.json.next"]


def test_what_a_dead_writer_left_is_moved_out_of_the_way_after_a_minute(store: DirectoryStore, tmp_path: Path) -> None:
    store.write(LOCK, b"1", None)
    found = store.read(LOCK)
    assert found is not None
    following = tmp_path / f"{LOCK}.next"
    following.write_bytes(b"2")
    made = following.stat().st_mtime
    os.utime(following, (made, made - STALE_S + 5))
    assert store.write(LOCK, b"3", found.version) is None
    os.utime(following, (made, made - STALE_S - 5))
    assert store.write(LOCK, b"3", found.version) is not None
    assert names(tmp_path) == ["lock.json"]
    assert (tmp_path / LOCK).read_bytes() == b"3"


def test_a_writer_who_was_stopped_before_the_last_step_changes_nothing_when_he_goes_on(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He looked that nobody was quicker, and was stopped for more than a minute; others went on meanwhile."""
    first = store.write(LOCK, b"1", None)
    assert first is not None
    stopped, go_on, answers = threading.Event(), threading.Event(), []
    rename = os.rename

    def stops(*names: Any, **folders: Any) -> None:
        if threading.current_thread() is writer:
            stopped.set()
            assert go_on.wait(patient(30))
        rename(*names, **folders)

    writer = threading.Thread(target=lambda: answers.append(store.write(LOCK, b"late", first.version)))
    monkeypatch.setattr(os, "rename", stops)
    writer.start()
    assert stopped.wait(patient(30))
    following = tmp_path / f"{LOCK}.next"
    os.utime(following, (0, following.stat().st_mtime - STALE_S - 5))
    assert store.write(LOCK, b"2", first.version) is not None
    go_on.set()
    writer.join(patient(30))
    assert answers == [None]
    assert (tmp_path / LOCK).read_bytes() == b"2"
    assert names(tmp_path) == ["lock.json"]


def test_a_link_whose_answer_was_lost_counts(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS repeats a request that was not answered, and is told that the link is there: its own."""
    link = os.link

    def twice(*names: Any, **options: Any) -> None:
        link(*names, **options)
        link(*names, **options)

    monkeypatch.setattr(os, "link", twice)
    assert store.write(LOCK, b"1", None) is not None


def test_a_rename_whose_answer_was_lost_counts(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def twice(*names: Any, **options: Any) -> None:
        rename(*names, **options)
        rename(*names, **options)

    monkeypatch.setattr(os, "rename", twice)
    assert store.write(LOCK, b"1", None) is not None


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_where_files_have_no_links_there_are_no_locks(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def no_link(*names: Any, **options: Any) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr(os, "link", no_link)
    error = refused("not_supported", store.write, LOCK, b"1", None)
    assert "use the bucket" in error.message
    assert names(tmp_path) == []


def _copy(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int, follow_symlinks: bool) -> None:
    """As mounts do that have no links and do not say so."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    os.close(os.open(target, flags, 0o600, dir_fd=dst_dir_fd))


def _replace(source: str, target: str, *, src_dir_fd: int, dst_dir_fd: int, follow_symlinks: bool) -> None:
    """As mounts do that take a link for a rename."""
    _link(source, f"{target}.new", src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
    os.rename(f"{target}.new", target, src_dir_fd=dst_dir_fd, dst_dir_fd=dst_dir_fd)


_link = os.link


@pytest.mark.parametrize("link", [_copy, _replace])
def test_links_that_are_none_are_told(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: Any
) -> None:
    monkeypatch.setattr(os, "link", link)
    assert "use the bucket" in refused("not_supported", store.write, LOCK, b"1", None).message
    assert names(tmp_path) == []


def test_a_write_that_fails_leaves_nothing(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*names: Any, **options: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "rename", fails)
    refused("provider_unavailable", store.write, LOCK, b"1", None)
    assert names(tmp_path) == []


def test_a_root_that_is_not_there_is_told_and_not_made(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path / "none"))
    assert "make that directory" in refused("provider_unavailable", store.read, LOCK).message
    refused("provider_unavailable", store.write, LOCK, b"1", None)
    assert os.listdir(tmp_path) == []


def test_no_link_is_followed(store: DirectoryStore, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text('{"ownerId":"x","expiresAt":0}')
    (tmp_path / "sandboxes/box").mkdir(parents=True)
    (tmp_path / LOCK).symlink_to(tmp_path / "secret")
    refused("lock_damaged", store.read, LOCK)
    (tmp_path / LOCK).unlink()
    (tmp_path / "sandboxes/box").rmdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "sandboxes/box").symlink_to(tmp_path / "elsewhere")
    refused("provider_unavailable", store.read, LOCK)
    refused("provider_unavailable", store.write, LOCK, b"1", None)
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["directory", "fifo"])
def test_what_is_no_plain_file_is_no_lock(store: DirectoryStore, tmp_path: Path, make: Any) -> None:
    (tmp_path / "sandboxes/box").mkdir(parents=True)
    make(tmp_path / LOCK)
    refused("lock_damaged", store.read, LOCK)
    refused("lock_damaged", store.write, LOCK, b"1", None)
    assert names(tmp_path) == ["lock.json"]


def test_a_version_is_never_that_of_another_content(store: DirectoryStore, tmp_path: Path) -> None:
    """Edited in place, to the same length, and with the clock set back."""
    first = store.write(LOCK, b"1", None)
    assert first is not None
    status = (tmp_path / LOCK).stat()
    (tmp_path / LOCK).write_bytes(b"2")
    os.utime(tmp_path / LOCK, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert store.write(LOCK, b"3", first.version) is None
