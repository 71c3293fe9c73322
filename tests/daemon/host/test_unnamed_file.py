"""Temporary files of which nothing is left."""

import os
from pathlib import Path

import pytest

from sandkeep.errors import DaemonError
from sandkeepd.host.unnamed_file import open_unnamed, unnamed_file


def test_it_is_written_and_read_and_has_no_name(tmp_path: Path) -> None:
    with unnamed_file(str(tmp_path)) as descriptor:
        os.write(descriptor, b"content")
        assert os.pread(descriptor, 10, 0) == b"content"
        assert os.listdir(tmp_path) == []
        assert os.fstat(descriptor).st_dev == tmp_path.stat().st_dev
        assert os.fstat(descriptor).st_mode & 0o777 == 0o600
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(descriptor)


def test_the_directory_is_made_only_if_that_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(DaemonError, match="cannot be written") as caught:
        open_unnamed(str(tmp_path / "a" / "b"))
    assert caught.value.code == "storage_unavailable"
    os.close(open_unnamed(str(tmp_path / "a" / "b"), create=True))
    assert (tmp_path / "a" / "b").is_dir()


def test_a_filesystem_without_such_files_is_told_of() -> None:
    with pytest.raises(DaemonError, match="cannot hold files without names"):
        open_unnamed("/proc")
