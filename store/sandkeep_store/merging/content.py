"""Contents of files of views: compared, read, and copied in pieces. Holes are skipped. Everything here blocks."""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from typing import Final

from sandkeep.system.descriptors import closing_fd
from sandkeep_store.merging.trees import Progress, changed_meanwhile, open_file, unreadable

PIECE: Final = 1 << 20
_BLOCK: Final = 512
_ZEROS: Final = bytes(PIECE)


def no_progress(count: int) -> None:
    """Ignore the number of bytes read."""


def same_content(first: int, second: int, name: bytes, progress: Progress = no_progress) -> bool:
    """Return True if a regular file has the same bytes in two views. Raises as `open_file`."""
    with closing_fd(open_file(first, name)) as one, closing_fd(open_file(second, name)) as other:
        status, status2 = os.fstat(one), os.fstat(other)
        if status.st_size != status2.st_size:
            return False
        if (status.st_dev, status.st_ino) == (status2.st_dev, status2.st_ino):
            return True
        position, size = 0, status.st_size
        with_holes = has_holes(status) and has_holes(status2)
        while position < size:
            if with_holes:
                position = min(_next_data(one, position, size), _next_data(other, position, size))
            count = min(PIECE, size - position)
            mine = read_piece(one, name, position, count)
            if mine != read_piece(other, name, position, count):
                return False
            position += count
            progress(count)
    return True


def has_holes(status: os.stat_result) -> bool:
    """Return True if a file takes less space than it is long."""
    return status.st_blocks * _BLOCK < status.st_size


def read_piece(fd: int, name: bytes, offset: int, count: int) -> bytes:
    """Read exactly `count` bytes. Raises `conflict` if there are fewer."""
    try:
        data = os.pread(fd, count, offset)
        while len(data) < count:
            more = os.pread(fd, count - len(data), offset + len(data))
            if not more:
                raise changed_meanwhile(name)
            data += more
    except OSError as error:
        raise unreadable(name, error) from None
    return data


def read_text(view: int, name: bytes, size: int) -> bytes:
    """Read a whole file, of a known size. Raises as `open_file`."""
    with closing_fd(open_file(view, name)) as opened:
        if os.fstat(opened).st_size != size:
            raise changed_meanwhile(name)
        return read_piece(opened, name, 0, size)


def extents(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield offset and length of the parts of an open file that are no holes."""
    end = 0
    while (begin := _next_data(fd, end, size)) < size:
        end = min(size, os.lseek(fd, begin, os.SEEK_HOLE))
        yield begin, end - begin


def _next_data(fd: int, position: int, size: int) -> int:
    """Return where the next data of a file begin; `size` if there are none."""
    if position >= size:
        return size
    try:
        return min(size, os.lseek(fd, position, os.SEEK_DATA))
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size
        raise


def copy_content(view: int, name: bytes, target: int, progress: Progress) -> str:
    """Copy a regular file to the open, empty file `target`, with its holes; return its SHA-256. Raises OSError if it
    cannot be written.
    """
    digest, position = hashlib.sha256(), 0
    with closing_fd(open_file(view, name)) as opened:
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):
            raise changed_meanwhile(name)
        for begin, length in list(extents(opened, status.st_size)):
            _hash_hole(digest, begin - position, progress)
            for offset in range(begin, begin + length, PIECE):
                piece = read_piece(opened, name, offset, min(PIECE, begin + length - offset))
                write_all(target, piece, offset)
                digest.update(piece)
                progress(len(piece))
            position = begin + length
        _hash_hole(digest, status.st_size - position, progress)
        os.ftruncate(target, status.st_size)
    return digest.hexdigest()


def _hash_hole(digest: "hashlib._Hash", length: int, progress: Progress) -> None:
    while length > 0:
        count = min(PIECE, length)
        digest.update(_ZEROS if count == PIECE else _ZEROS[:count])
        progress(count)
        length -= count


def write_all(fd: int, data: bytes, offset: int) -> None:
    """Write all bytes at an offset. Raises OSError."""
    written = 0
    with memoryview(data) as view:
        while written < len(view):
            written += os.pwrite(fd, view[written:], offset + written)
