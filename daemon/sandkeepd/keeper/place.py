"""The two directories that a sandbox shares with the daemon, and the files in them that belong to one process.

in/   .control      FIFO of requests; the keeper's standard input, so it needs no name inside
      .keeper       the keeper's program
      ID            how to start a process, if that is long     ID.stdin   its input: a file, or a FIFO
                    (with `fed`, where the code inside can open no FIFO of ours, a file that grows)
      ID.told       a FIFO, by which what happens in a terminal is told (with `fed` in `tty`, which only the inside has)
out/  exits         the keeper's answers        p/ID.{stdout,stderr}   written inside, only read here
"""

import os
import stat
from contextlib import suppress
from typing import Final

import trio

from sandkeep.errors import DaemonError, SandkeepError
from sandkeepd.keeper import pipes

_ENDS: Final = ("", ".stdin", ".program", ".pane", ".told")
"""What the names of a process's files in `in` end in."""

_WRITTEN_INSIDE: Final = (".stdout", ".stderr", ".data")

_OPEN_INPUT: Final = 0o644
_CLOSED_INPUT: Final = 0o444
"""The mode of a growing file that is a process's input, and that of one that is complete."""


class Place:
    """The directories of one sandbox. `directory` holds `in` and `out`; `inside` is what the code inside calls it, when
    that is not the same; `input_owner` is the uid and gid that must be able to open a process's input.
    """

    def __init__(
        self, directory: str, inside: str | None, input_owner: tuple[int, int] | None, *, fed: bool = False
    ) -> None:
        self.fed = fed
        self.in_dir = f"{directory}/in"
        self.out_dir = f"{directory}/out"
        self.inside = inside or directory
        """The directory that holds both, as the code inside sees it."""
        self.journals = f"{self.inside}/out/p"
        """The directory of the journals, as the code inside sees it."""
        self.hidden = "tty" if fed else "in"
        """What the directory beside `out` is called, inside, in which terminals tell how they do: with `fed` it is one
        that only the inside sees.
        """
        self.sockets = f"{self.inside}/{self.hidden}" if fed else self.journals
        """The directory of the sockets of tmux, as the code inside sees it."""
        self.input_owner = input_owner

    @property
    def control(self) -> str:
        """The FIFO of requests."""
        return f"{self.in_dir}/.control"

    def was_started(self, process_id: str) -> bool:
        """Whether there is a journal of it, from now or when an earlier daemon was there."""
        return os.path.lexists(f"{self.out_dir}/p/{process_id}.stdout")

    async def write(self, name: str, data: bytes) -> None:
        """Make a file in `in`. A small one, too, may have to wait until the file system has flushed what others wrote.

        Raises OSError.
        """
        await trio.to_thread.run_sync(_write_new, f"{self.in_dir}/{name}", data)

    async def make_input(self, process_id: str) -> None:
        """Make the input of a process that is written to as it runs. Raises OSError."""
        if self.fed:
            await self.write(f"{process_id}.stdin", b"")
        else:
            await self.make_fifo(f"{process_id}.stdin")

    def open_fed(self, process_id: str) -> int | None:
        """Open an input that is a growing file, for more to be added; None when it is complete, or there is none."""
        try:
            fd = os.open(f"{self.in_dir}/{process_id}.stdin", os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        if stat.S_IMODE(os.fstat(fd).st_mode) == _OPEN_INPUT:
            return fd
        os.close(fd)
        return None

    async def make_fifo(self, name: str) -> None:
        """Make a FIFO in `in` that the sandbox's user can open. Raises OSError."""
        await trio.to_thread.run_sync(_make_fifo, f"{self.in_dir}/{name}", self.input_owner)

    def remove_input(self, process_id: str) -> None:
        """Remove the input of a process, which has been told that it is at its end. One that it is fed from stays until
        the process has ended.
        """
        path = f"{self.in_dir}/{process_id}.stdin"
        if self.fed:
            with suppress(OSError):
                os.chmod(path, _CLOSED_INPUT)
        else:
            _unlink(path)

    def remove_start(self, process_id: str) -> None:
        """Remove what a process was started by."""
        for end in _ENDS:
            _unlink(f"{self.in_dir}/{process_id}{end}")

    def remove_ended(self, process_id: str) -> None:
        """Remove what a process that has ended needs no more. Its journal stays."""
        self.remove_start(process_id)
        _unlink(f"{self.out_dir}/p/{process_id}.tmux")

    def remove_helper(self, process_id: str) -> None:
        """Remove every file of a helper command."""
        for end in ("", ".stdin", *pipes.ENDS):
            _unlink(f"{self.in_dir}/{process_id}{end}")
        for end in _WRITTEN_INSIDE:
            _unlink(f"{self.out_dir}/p/{process_id}{end}")


def no_room(error: OSError) -> SandkeepError:
    """The error for a file that could not be made."""
    return DaemonError("storage_unavailable", f"the state directory cannot be written: {error.strerror}")


def _write_new(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OPEN_INPUT)
    with open(fd, "wb", buffering=0) as file:
        while data:
            data = data[file.write(data) :]


def _make_fifo(path: str, owner: tuple[int, int] | None) -> None:
    os.mkfifo(path, 0o600)
    if owner:
        os.chown(path, *owner)


def _unlink(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)
