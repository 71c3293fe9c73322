"""What the daemon writes itself for the processes of a container without a shell: their journals, and what it takes to
find them again.

    out/p/ID.{stdout,stderr}    the journals, as a keeper's sandbox writes them
       /exits                   what became of the processes, in a keeper's words
       /execs/ID                what the engine calls a process, and which one it is on the host

Nothing of it is to be seen inside. Everything here blocks.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Struct

from sandkeepd.hostile_files import HostileTree, NotAFileError
from sandkeepd.hostprocess import Identity
from sandkeepd.providers.base import Chunk
from sandkeepd.providers.docker_exec_stream import Piece

STREAMS: Final = ("stdout", "stderr")
_APPEND: Final = os.O_WRONLY | os.O_APPEND


class Record(Struct, kw_only=True):
    """One process. `pid` is its number inside, 0 when it had ended before anybody could see it; `gap` says what of its
    output is lost, and why.
    """

    exec_id: str
    has_input: bool = False
    first: Identity | None = None
    pid: int | None = None
    gap: str | None = None


class Records:
    """The records of one sandbox, in its directory `out`."""

    def __init__(self, out: HostileTree) -> None:
        self._out = out

    def prepare(self) -> None:
        """Make the place for them. Raises OSError."""
        with suppress(FileExistsError), self._out.directory(writable=True) as directory:
            os.mkdir("execs", 0o700, dir_fd=directory)

    def begin(self, process_id: str, record: Record) -> None:
        """Record a process that is to be started, and make its journals. Raises FileExistsError, OSError."""
        for stream in STREAMS:
            os.close(self._out.open(_journal(process_id, stream), _APPEND | os.O_CREAT | os.O_EXCL, 0o644))
        self.save(process_id, record)

    def save(self, process_id: str, record: Record) -> None:
        """Record what is known now. Raises OSError."""
        new = f"{process_id}.new"
        with open(self._out.open(f"execs/{new}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(record))
        with self._out.directory("execs", writable=True) as directory:
            os.replace(new, process_id, src_dir_fd=directory, dst_dir_fd=directory)

    def load(self, process_id: str) -> Record | None:
        """The record of a process; None when there is none, or none that can be read."""
        return _load(self._out, process_id)

    def tell(self, process_id: str, word: str) -> None:
        """Put down what became of a process, as a keeper does: see `keeper.journal`. When the disk does not take it, a
        later daemon has to ask the engine.
        """
        with suppress(OSError), open(self._out.open("exits", _APPEND | os.O_CREAT, 0o644), "ab", buffering=0) as file:
            file.write(f"{process_id} {word}\n".encode())

    def forget(self, process_id: str) -> None:
        """Remove the record of a process that has ended, unless it tells what its journal lacks."""
        record = self.load(process_id)
        if record is not None and record.gap is None:
            self._unlink(f"execs/{process_id}")

    def remove(self, process_id: str) -> None:
        """Remove everything of a process: a helper, or one that was not started after all."""
        self._unlink(f"execs/{process_id}")
        for stream in STREAMS:
            self._unlink(_journal(process_id, stream))

    def _unlink(self, path: str) -> None:
        with suppress(OSError):
            self._out.unlink(path)


def _journal(process_id: str, stream: str) -> str:
    return f"p/{process_id}.{stream}"


class JournalWriter:
    """Appends to the journals of one process. A stream longer than `most_bytes` is not written on, nor is one that the
    disk does not take: `why_not` says so then.
    """

    def __init__(self, out: HostileTree, process_id: str, most_bytes: int) -> None:
        self._most = most_bytes
        self._files: dict[str, int] = {}
        self.why_not: str | None = None
        self.is_full = False
        try:
            for stream in STREAMS:
                self._files[stream] = out.open(_journal(process_id, stream), _APPEND)
        except BaseException:
            self.close()
            raise

    def write(self, pieces: Sequence[Piece]) -> None:
        """Append pieces of output."""
        for stream, data in pieces:
            if self.why_not is None:
                self._append(self._files[stream], data)

    def _append(self, fd: int, data: memoryview) -> None:
        try:
            if os.fstat(fd).st_size + len(data) > self._most:
                self.is_full = True
                self.why_not = f"it wrote more than the {self._most} bytes that the sandbox may have on the disk"
                return
            while data:
                data = data[os.write(fd, data) :]
        except OSError as error:
            self.why_not = f"the state directory could not be written: {error.strerror}"

    def close(self) -> None:
        """Let go of the files."""
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()


def noted(out: HostileTree, process_id: str, chunk: Chunk) -> Chunk:
    """A piece of a journal, with a note when some of what its process wrote is lost."""
    record = _load(out, process_id)
    if record is None or record.gap is None or chunk.note is not None:
        return chunk
    return msgspec.structs.replace(chunk, note=record.gap)


def _load(out: HostileTree, process_id: str) -> Record | None:
    try:
        with open(out.open_regular(f"execs/{process_id}"), "rb") as file:
            return msgspec.json.decode(file.read(), type=Record)
    except (OSError, NotAFileError, msgspec.MsgspecError):
        return None
