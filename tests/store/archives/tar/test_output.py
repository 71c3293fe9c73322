"""The file that an archive is written to holds what was written, whatever the filesystem takes."""

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from sandkeep_store.archives.tar import output
from sandkeep_store.archives.tar.output import CHUNK, Output, OutputError


@pytest.fixture(params=["on a disk", "in memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    where = str(tmp_path) if request.param == "on a disk" else "/dev/shm"
    descriptor = os.open(where, os.O_TMPFILE | os.O_RDWR, 0o600)
    yield descriptor
    os.close(descriptor)


def is_direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)


def content(descriptor: int) -> bytes:
    return os.pread(descriptor, 1 << 30, 0)


SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 5 * CHUNK + 4097]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("most", [700, CHUNK // 3, 4 * CHUNK])
def test_all_of_it_in_pieces_of_any_size(place: int, size: int, most: int) -> None:
    random = Random(size + most)
    data = random.randbytes(size)
    written, at = Output(place), 0
    while at < size:
        piece = bytearray(data[at : at + random.randint(1, most)])
        assert written.write(memoryview(piece)) == len(piece)
        at += len(piece)
        piece[:] = bytes(len(piece))  # it may be changed as soon as it was taken
    written.finish()
    assert content(place) == data
    assert (written.size_bytes, written.sha256) == (size, hashlib.sha256(data).hexdigest())
    assert not is_direct(place), "who goes on writing need not write whole blocks"


def test_much_goes_past_the_cache_and_little_does_not(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path, os.O_TMPFILE | os.O_RDWR, 0o600)
    written = Output(descriptor)
    written.write(bytes(CHUNK - 1))
    assert not is_direct(descriptor)
    written.write(bytes(2))
    assert is_direct(descriptor)
    os.close(descriptor)


def test_after_something_that_is_no_whole_block(place: int) -> None:
    os.write(place, b"abc")
    written = Output(place)
    written.write(b"x" * (2 * CHUNK + 5))
    written.finish()
    assert content(place) == b"abc" + b"x" * (2 * CHUNK + 5)


def test_what_is_taken_in_part(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As filesystems do that are nearly full, and then find room after all."""
    write = os.write
    monkeypatch.setattr(output.os, "write", lambda fd, data: write(fd, data[: max(1, len(data) // 3)]))
    data = Random(1).randbytes(3 * CHUNK + 11)
    written = Output(place)
    written.write(data)
    written.finish()
    assert content(place) == data


def test_a_full_disk_is_told() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    written = Output(descriptor)
    with pytest.raises(OutputError) as caught:
        written.write(bytes(CHUNK))
    assert caught.value.errno == errno.ENOSPC
    os.close(descriptor)
