"""Retention of journals: those of ended processes are removed, oldest first; of others the beginning is dropped.

A dropped part becomes a hole: offsets stay valid, the process goes on appending, and the hole itself records the loss;
see `journal.first_kept`. No name that the code inside could redirect is used, and only files of the directory's owner
are changed. Everything blocks.
"""

import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from sandkeep import failpoints
from sandkeep.ids import PROCESS
from sandkeep.system.descriptors import closing_fd
from sandkeepd.contract.processes import Dropped
from sandkeepd.host import blocks
from sandkeepd.host.hostile_files import HostileTree, NotAFileError
from sandkeepd.keeper.journal import MAX_BACKLOG_BYTES

STREAMS: Final = ("stdout", "stderr")
PARTS: Final = (*STREAMS, "pid")
FILE_BYTES: Final = 4096
"""Minimum size that a file counts as: a file system runs out of inodes, too."""

LEAST_KEPT_BYTES: Final = 64 * 1024
"""Bytes kept of the end of a journal in any case, so that its readers see something."""

_BLOCK: Final = 4096


class _File(NamedTuple):
    process_id: str
    part: str
    occupied: int


def trim(out: HostileTree, running: Collection[str], most_bytes: int) -> Dropped:
    """Limit the disk usage of the journals in `out` to `most_bytes`; if it was exceeded, to a quarter less.

    `running` are the processes that have not ended, and is read only after the files. Raises OSError, of EOPNOTSUPP
    where files cannot have holes.
    """
    _trim_answers(out)
    with out.directory("p", flags=os.O_RDONLY, writable=True) as directory:
        files, owner = list(_files(directory)), os.fstat(directory).st_uid
        size = sum(file.occupied for file in files)
        excess = size - most_bytes
        if excess <= 0:
            return Dropped(kept_bytes=size)
        excess += most_bytes // 4
        gone: dict[str, None] = {}
        for file in sorted(files):  # ids are in the order of time
            if file.process_id not in running:
                if excess <= 0 and file.process_id not in gone:
                    break
                gone[file.process_id] = None
                excess -= file.occupied
        _remove(directory, gone)
        cut = 0
        for file in sorted(files, key=lambda file: file.occupied, reverse=True):
            if excess > cut and file.process_id in running and file.part in STREAMS:
                cut += _cut(out, owner, file, excess - cut)
        left = sum(file.occupied for file in files if file.process_id not in gone)
        return Dropped(len(gone), cut, max(0, left - cut))


def drop(out: HostileTree, process_ids: Iterable[str]) -> None:
    """Remove the journals of processes that have ended. Those that are not there are no error. Raises OSError."""
    with suppress(FileNotFoundError), out.directory("p", writable=True) as directory:
        _remove(directory, process_ids)


def _files(directory: int) -> Iterator[_File]:
    """Yield the files of journals, by their names. The runners of helper commands remove those of helpers."""
    with os.scandir(directory) as entries:
        for entry in entries:
            process_id, _, part = entry.name.rpartition(".")
            if part in PARTS and process_id.startswith(f"{PROCESS}_"):
                with suppress(OSError):  # it was removed meanwhile
                    found = entry.stat(follow_symlinks=False)
                    yield _File(process_id, part, max(FILE_BYTES, found.st_blocks * 512))


def _remove(directory: int, process_ids: Iterable[str]) -> None:
    for process_id in process_ids:
        for part in PARTS:
            try:
                os.unlink(f"{process_id}.{part}", dir_fd=directory)
            except (FileNotFoundError, IsADirectoryError):  # a directory is the code's own doing, and goes with it
                continue
        failpoints.reach("output.removed")


def _cut(out: HostileTree, owner: int, file: _File, wanted: int) -> int:
    """Drop about `wanted` bytes of a journal's beginning; return the number dropped."""
    if file.occupied - LEAST_KEPT_BYTES < _BLOCK:
        return 0
    try:
        descriptor = _open_own(out, f"p/{file.process_id}.{file.part}", owner)
    except (OSError, NotAFileError):  # the code inside put something else there
        return 0
    with closing_fd(descriptor):
        found = os.fstat(descriptor)
        occupied = found.st_blocks * 512
        cut = min(wanted, occupied - LEAST_KEPT_BYTES)
        if cut < _BLOCK:
            return 0
        _punch(descriptor, found.st_size - (occupied - cut))
        failpoints.reach("output.cut")
        return occupied - os.fstat(descriptor).st_blocks * 512


def _trim_answers(out: HostileTree) -> None:
    """Drop old answers of the keeper: a reader begins at most `MAX_BACKLOG_BYTES` before the end."""
    try:
        descriptor = _open_own(out, "exits", out.stat("p").st_uid)
    except (OSError, NotAFileError):  # the code inside put something else there, or closed it to us
        return
    with closing_fd(descriptor), suppress(OSError):  # it has no holes
        found = os.fstat(descriptor)
        if found.st_blocks * 512 > 3 * MAX_BACKLOG_BYTES:
            _punch(descriptor, found.st_size - 2 * MAX_BACKLOG_BYTES)
            failpoints.reach("output.answers_cut")


def _open_own(out: HostileTree, path: str, owner: int) -> int:
    """Open a regular file of that owner for writing. Raises OSError, `NotAFileError`."""
    descriptor = out.open_regular(path, os.O_WRONLY)
    found = os.fstat(descriptor)
    if found.st_uid == owner and found.st_nlink == 1:
        return descriptor
    os.close(descriptor)
    raise NotAFileError(path)


def _punch(descriptor: int, upto: int) -> None:
    """Make a hole of a file's beginning, in whole blocks; it stays as long as it is. Raises OSError."""
    length = upto // _BLOCK * _BLOCK
    if length <= 0:
        return
    with suppress(InterruptedError):
        blocks.punch(descriptor, length)
