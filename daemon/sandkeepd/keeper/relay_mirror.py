"""The mirror: the local copy of the directory of a pod's keeper, with `in` and `out` as in a shared directory.

The daemon owns all of it, and names are checked before they get here. What the code inside writes is bounded: beyond
`most_bytes` the journals of ended processes are removed, oldest first, then the beginning of others is dropped, as
`journal_trimming` does more strictly twice a minute.
"""

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from sandkeep.system.descriptors import closing_fd
from sandkeepd.host import blocks, free_space
from sandkeepd.host.hostile_files import HostileTree
from sandkeepd.keeper import journal
from sandkeepd.keeper.journal_trimming import FILE_BYTES, LEAST_KEPT_BYTES
from sandkeepd.keeper.relay_frames import EXITS, is_input, is_journal
from sandkeepd.keeper.shared_directory import CONTROL

_BLOCK: Final = 4096
_LOOK_BYTES: Final = 4 << 20
"""Bytes after which the free space of the disk is looked at again."""
_TICK_NS: Final = 100_000_000
_RETRY_S: Final = 1.0
_ENDED_BYTES: Final = 512 * 1024
"""Bytes of answers that are read for the processes that have ended: those of the last 20,000 or so."""
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_KEPT_EXITS_BYTES: Final = 2 * journal.MAX_BACKLOG_BYTES


class Mirror:
    """The files of one mirror, made if they are not there. Raises OSError, as all methods do."""

    def __init__(self, files: HostileTree, most_bytes: int) -> None:
        self._files = files
        self._most = most_bytes
        self._descriptors: list[int] = []
        for path in ("in", "out", "out/p"):
            _make_directory(files, path)
        if not files.exists(f"in/{CONTROL}"):
            files.make_fifo(f"in/{CONTROL}", None)
        self.control = self._held(files.open_fifo(f"in/{CONTROL}"))
        self._in = self._held(files.open("in", os.O_RDONLY | os.O_DIRECTORY, writable=True))
        self._p = self._held(files.open("out/p", os.O_RDONLY | os.O_DIRECTORY, writable=True))
        self._exits = self._held(files.open(f"out/{EXITS}", _NEW, 0o600))
        self._seen: dict[int, int] = {}
        self.sizes: dict[str, int] = {}
        """The size of each journal, and of `exits`."""
        self._kept_from: dict[str, int] = {}
        self._occupied = self._shrink_at = 0
        self._retry_at = 0.0
        self._unseen = _LOOK_BYTES
        """Bytes that came since the disk was looked at."""
        self._read_sizes()

    def _held(self, descriptor: int) -> int:
        self._descriptors.append(descriptor)
        return descriptor

    def close(self) -> None:
        """Close all descriptors."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    # Input

    def stat_input(self, name: str) -> os.stat_result | None:
        """Return the status of a regular file in `in`; None if there is none."""
        with suppress(FileNotFoundError):
            found = os.stat(name, dir_fd=self._in, follow_symlinks=False)
            return found if stat.S_ISREG(found.st_mode) else None
        return None

    def inputs(self) -> list[str]:
        """Return the names in `in` that are mirrored."""
        return [name for name in os.listdir(self._in) if is_input(name)]

    def read_input(self, name: str, offset: int, max_bytes: int) -> bytes:
        """Read a piece of a file in `in`; nothing if it has gone."""
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._in)
        except FileNotFoundError:
            return b""
        with closing_fd(descriptor):
            return os.pread(descriptor, max_bytes, offset)

    def have_inputs_changed(self) -> bool:
        """Return True if names came to `in`, or went, since the last call."""
        return self._has_changed(self._in)

    def _has_changed(self, directory: int) -> bool:
        changed_ns = os.fstat(directory).st_mtime_ns
        if self._seen.get(directory) == changed_ns:
            return False
        if time.time_ns() - changed_ns > _TICK_NS:  # a later change could have the same time
            self._seen[directory] = changed_ns
        return True

    # Output

    def write(self, name: str, offset: int, data: bytes) -> None:
        """Write a piece of a journal behind what there is of it; what lies between is dropped, with all before it.

        One that was removed here, or for which there is no room, is not written.
        """
        self._require_room(len(data))
        size = self.sizes.get(name, 0)
        data, offset = data[max(0, size - offset) :], max(size, offset)
        if name == EXITS:
            self._append(self._exits, name, offset, data)
        elif name in self.sizes or self._occupied < self._most * 5 // 4:  # `shrink` comes before that
            flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | (0 if name in self.sizes else os.O_CREAT)
            with suppress(FileNotFoundError), closing_fd(os.open(name, flags, 0o600, dir_fd=self._p)) as descriptor:
                self._append(descriptor, name, offset, data)

    def _require_room(self, more: int) -> None:
        """Raise OSError if the disk is nearly full: the pod keeps the output until there is room again."""
        self._unseen += more
        if self._unseen > _LOOK_BYTES:
            if free_space.room(self._p) < _LOOK_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._unseen = 0

    def _append(self, descriptor: int, name: str, offset: int, data: bytes) -> None:
        size = self.sizes.get(name)
        if size is None:
            self._occupied += FILE_BYTES
        if offset > (size or 0):
            os.ftruncate(descriptor, offset)
            if name != EXITS and offset >= _BLOCK:
                blocks.punch(descriptor, offset // _BLOCK * _BLOCK)
        at = offset
        while data:
            written = os.pwrite(descriptor, data, at)
            data, at = data[written:], at + written
        self.sizes[name] = at
        self._occupied += at - offset

    def cut_exits(self) -> None:
        """Begin `exits` anew: the code inside has cut it, and its reader has to notice."""
        os.ftruncate(self._exits, 0)
        self.sizes[EXITS] = 0

    def rename(self, name: str, new: str) -> None:
        """Give a journal another name."""
        with suppress(FileNotFoundError):
            os.rename(name, new, src_dir_fd=self._p, dst_dir_fd=self._p)
            self.sizes[new] = self.sizes.pop(name)
        self.sizes.pop(name, None)

    # Bounds

    def removed(self) -> list[str]:
        """Return the journals that are not here any more, and forget them."""
        if not self._has_changed(self._p):
            return []
        gone = self.sizes.keys() - set(os.listdir(self._p)) - {EXITS}
        for name in gone:
            del self.sizes[name]
            self._kept_from.pop(name, None)
        return sorted(gone)

    def punched(self) -> Iterator[tuple[str, int]]:
        """Yield the journals whose beginning was dropped since the last call, with its length."""
        for name, size in list(self.sizes.items()):
            if size <= LEAST_KEPT_BYTES:
                continue
            with suppress(FileNotFoundError), closing_fd(self._open(name, os.O_RDONLY)) as descriptor:
                kept_from = journal.first_kept(descriptor)
                if kept_from > self._kept_from.get(name, 0):
                    self._kept_from[name] = kept_from
                    yield name, kept_from

    def _open(self, name: str, flags: int) -> int:
        if name == EXITS:
            return self._files.open_regular(f"out/{EXITS}", flags)
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._p)

    @property
    def is_too_large(self) -> bool:
        """True if `shrink` is to be called."""
        enough = self._occupied >= self._shrink_at or time.monotonic() >= self._retry_at
        return self._occupied >= self._most and enough

    def measure(self) -> None:
        """Count anew what the files take of the disk. Where that is still too much, it is a while until it is again."""
        occupied = sum(occupied for _, occupied in self._occupied_by().values())
        self._occupied = occupied + os.fstat(self._exits).st_blocks * 512
        self._shrink_at = self._occupied + self._most // 8
        self._retry_at = time.monotonic() + _RETRY_S

    def _read_sizes(self) -> None:
        found = {name: size for name, (size, _) in self._occupied_by().items()}
        self.sizes = {**found, EXITS: os.fstat(self._exits).st_size}
        self.measure()

    def _occupied_by(self) -> dict[str, tuple[int, int]]:
        """Return the size of each journal, and the bytes that it takes of the disk."""
        files = {}
        with os.scandir(self._p) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    found = entry.stat(follow_symlinks=False)
                    if is_journal(entry.name) and stat.S_ISREG(found.st_mode):
                        files[entry.name] = found.st_size, max(FILE_BYTES, found.st_blocks * 512)
        return files

    def shrink(self) -> None:
        """Drop output until a quarter of the room is free, as far as that is possible. Blocks: call it in a thread."""
        _punch(self._exits, os.fstat(self._exits).st_size - _KEPT_EXITS_BYTES)
        files = {name: occupied for name, (_, occupied) in self._occupied_by().items()}
        excess = sum(files.values()) - self._most * 3 // 4
        ended = self._ended() if excess > 0 else set()
        for name in sorted(files):  # ids are in the order of time
            if excess > 0 and name.rpartition(".")[0] in ended:
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=self._p)
                excess -= files.pop(name)
        for name in sorted(files, key=files.__getitem__, reverse=True):
            cut = min(excess, files[name] - LEAST_KEPT_BYTES)
            if cut < _BLOCK:
                break
            with suppress(FileNotFoundError), closing_fd(self._open(name, os.O_WRONLY)) as descriptor:
                _punch(descriptor, os.fstat(descriptor).st_size - files[name] + cut)
            excess -= cut

    def _ended(self) -> set[str]:
        """Return the processes that have ended, as the last answers say."""
        with closing_fd(self._files.open_regular(f"out/{EXITS}")) as descriptor:
            start = max(0, os.fstat(descriptor).st_size - _ENDED_BYTES)
            lines = os.pread(descriptor, _ENDED_BYTES, start)
        return {answer.process_id for answer in journal.parse_answers(lines) if answer.is_final}


def _make_directory(files: HostileTree, path: str) -> None:
    head, _, name = path.rpartition("/")
    with files.directory(head or ".", writable=True) as directory, suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=directory)


def _punch(descriptor: int, upto: int) -> None:
    if upto >= _BLOCK:
        blocks.punch(descriptor, upto // _BLOCK * _BLOCK)
