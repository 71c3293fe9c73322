"""Files that are replaced whole or not at all, and what of it a power cut leaves."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import disks

from sandkeep.system import durable
from sandkeep.system.durable import Replacement

OLD, NEW = b"old" * 30_000, b"new" * 50_000


@pytest.fixture
def path(tmp_path: Path) -> str:
    made = tmp_path / "file"
    made.write_bytes(OLD)
    return str(made)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[disks.Ext4]:
    for name in ("image", "disk"):
        (tmp_path / name).mkdir()
    with disks.ext4(str(tmp_path / "image"), str(tmp_path / "disk")) as made:
        yield made


def read(path: str) -> bytes:
    return Path(path).read_bytes()


def test_the_old_file_stays_until_the_block_ends(path: str) -> None:
    with Replacement(path) as new:
        new.file.write(NEW)
        new.complete()
        assert read(f"{path}.new") == NEW
        assert read(path) == OLD
    assert read(path) == NEW
    assert os.listdir(os.path.dirname(path)) == ["file"]
    assert os.stat(path).st_mode & 0o777 == 0o600


@pytest.mark.parametrize("completed", [False, True])
def test_what_fails_leaves_the_old_file_alone(path: str, completed: bool) -> None:
    def write(new: Replacement) -> None:
        new.file.write(NEW)
        if completed:
            new.complete()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Replacement(path) as new:
        write(new)
    assert new.file.closed
    assert read(path) == OLD
    assert os.listdir(os.path.dirname(path)) == ["file"]


def test_what_cannot_be_put_in_place_is_removed(path: str) -> None:
    os.unlink(path)
    os.mkdir(path)
    with pytest.raises(IsADirectoryError), Replacement(path) as new:
        new.file.write(NEW)
    assert os.listdir(os.path.dirname(path)) == ["file"]


def test_what_a_dead_writer_left_is_removed_and_no_link_followed(path: str, tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(OLD)
    for left in (tmp_path / "file.new", tmp_path / "mine"):
        left.symlink_to(tmp_path / "other")
    durable.replace(path, NEW)
    with Replacement(path, temporary=str(tmp_path / "mine")) as new:
        new.file.write(NEW[:3])
    assert read(path) == NEW[:3]
    assert (tmp_path / "other").read_bytes() == OLD
    assert sorted(os.listdir(tmp_path)) == ["file", "other"]


def test_names_are_those_of_the_open_directory(path: str, tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with Replacement("file", temporary=".new", directory=directory, mode=0o640) as new:
            new.file.write(NEW)
            assert sorted(os.listdir(tmp_path)) == [".new", "file"]
        assert read(path) == NEW
        assert os.stat(path).st_mode & 0o777 == 0o640
        os.fstat(directory)
    finally:
        os.close(directory)


def test_a_second_writer_with_a_name_of_its_own_does_no_harm(path: str) -> None:
    with Replacement(path, temporary=f"{path}.1") as one, Replacement(path, temporary=f"{path}.2") as two:
        one.file.write(NEW)
        two.file.write(NEW[:3])
    assert read(path) == NEW  # the outer one is put in place last
    assert os.listdir(os.path.dirname(path)) == ["file"]


@pytest.mark.needs("root")
@pytest.mark.parametrize("act", ["replace", "rename", "make_directory"])
def test_each_is_durable_by_itself(disk: disks.Ext4, act: str) -> None:
    Path(f"{disk.at}/source").write_bytes(NEW)
    durable.sync(f"{disk.at}/source")
    durable.sync_directory(disk.at)
    if act == "replace":
        durable.replace(f"{disk.at}/it", NEW)
    elif act == "rename":
        durable.rename(f"{disk.at}/source", f"{disk.at}/it")
    else:
        parent = os.open(disk.at, os.O_RDONLY | os.O_DIRECTORY)
        durable.make_directory("it", parent)
        os.close(parent)
    disk.cut_power()
    disk.again()
    assert os.path.isdir(f"{disk.at}/it") if act == "make_directory" else read(f"{disk.at}/it") == NEW


@pytest.mark.needs("root")
def test_a_replacement_has_its_content_when_it_has_its_name(disk: disks.Ext4) -> None:
    with Replacement(f"{disk.at}/it") as new:
        new.file.write(NEW)
    durable.sync_directory(disk.at)  # else neither may be there
    disk.cut_power()
    disk.again()
    assert read(f"{disk.at}/it") == NEW
