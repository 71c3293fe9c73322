"""The two directories that a sandbox shares with the daemon, and the files in them that belong to one process.

in/   .control      FIFO of requests; the keeper's standard input, so it needs no name inside
      .keeper       the keeper's program
      ID            how to start a process, if that is long     ID.stdin   its input: a file, or a FIFO
                    (with `fed`, where the code inside can open no FIFO of ours, a file that grows)
      ID.told       a FIFO, by which what happens in a terminal is told (with `fed` in `tty`, which only the inside has)
out/  exits         the keeper's answers        p/ID.{stdout,stderr}   written inside, only read here
"""

import errno
import os
import stat
from contextlib import suppress
from typing import Final

from sandkeep.errors import ProviderError, SandkeepError
from sandkeep_store.threads import in_thread
from sandkeepd.host.hostile_files import HostileTree, NotAFileError
from sandkeepd.keeper import pipes
from sandkeepd.keeper.failure import no_room
from sandkeepd.keeper.output_reserve import OutputReserve

SPARE: Final = "spare"
"""The directory, on the disk of a sandbox, of files that reserve inodes."""

CONTROL: Final = ".control"
"""The FIFO of requests."""

_START_SUFFIXES: Final = ("", ".stdin", ".program", ".pane", ".told")
"""Suffixes of the names of a process's files in `in`."""

_WRITTEN_INSIDE: Final = (".stdout", ".stderr", ".data")

_OPEN_INPUT: Final = 0o644
_INODES_OF_A_START: Final = 8
_FULL_BYTES: Final = 1024 * 1024
"""Free bytes below which a disk is full: a program writes more at once, and the kernel takes all of that or nothing."""

_FULL_SHARE: Final = 32
LEAST_FULL_BYTES: Final = 64 * 1024
"""On a small disk it is a part of it, but no less."""

_CLOSED_INPUT: Final = 0o444
"""The mode of a growing file that is a process's input, and that of one that is complete."""


class SharedDirectory:
    """The directories of a sandbox, at `inside` in it; `input_owner` (uid, gid) must be able to open inputs. With
    `own_disk` they lie on a disk that the code inside can fill.
    """

    def __init__(
        self,
        files: HostileTree,
        inside: str,
        input_owner: tuple[int, int] | None,
        *,
        fed: bool = False,
        own_disk: bool = False,
    ) -> None:
        self.fed = fed
        self.own_disk = own_disk
        self.files = files
        self.out = files.below("out")
        self.reserve = OutputReserve(self.out, input_owner)
        self.inside = inside
        """The directory that holds both, as the code inside sees it."""
        self.journals = f"{self.inside}/out/p"
        """The directory of the journals, as the code inside sees it."""
        self.hidden = "tty" if fed else "in"
        """Name of the directory beside `out` for messages of terminals; with `fed` only the inside sees it."""
        self.sockets = f"{self.inside}/{self.hidden}" if fed else self.journals
        """The directory of the sockets of tmux, as the code inside sees it."""
        self.input_owner = input_owner

    def open_fifo(self, name: str) -> int | None:
        """Open a FIFO in `in` for both directions, so that neither end's death is an end of file. None: it is none."""
        try:
            return self.files.open_fifo(f"in/{name}")
        except (OSError, NotAFileError):
            return None

    def is_full(self) -> bool:
        """Return True if the sandbox's own disk is full."""
        found = self.statvfs()
        if found is None:
            return False
        least = max(LEAST_FULL_BYTES, min(_FULL_BYTES, found.f_blocks * found.f_frsize // _FULL_SHARE))
        return found.f_bavail * found.f_frsize < least or found.f_ffree == 0

    async def reserve_output(self, process_id: str) -> None:
        """Make room for the first output of a process that is about to start, if the sandbox's own disk is full."""
        if self.is_full():
            await in_thread(self.reserve.lend, process_id)

    def statvfs(self) -> os.statvfs_result | None:
        """Return the state of the sandbox's own disk; None if it has none, or that cannot be read."""
        if self.own_disk:
            with suppress(OSError), self.files.directory() as place:
                return os.fstatvfs(place)
        return None

    def free_inodes(self) -> None:
        """Remove a few of the spare files if the code inside has used up the inodes of the sandbox's own disk, so that
        a command can start that removes files.
        """
        if not self.own_disk:
            return
        with suppress(OSError), self.files.directory() as place:
            if os.fstatvfs(place).f_ffree < _INODES_OF_A_START:
                for name in self.files.names(SPARE)[:_INODES_OF_A_START]:
                    self.files.unlink(f"{SPARE}/{name}")

    def no_room(self, error: OSError) -> SandkeepError:
        """Return the error for a file that could not be made."""
        if self.own_disk and error.errno == errno.ENOSPC:
            return ProviderError("disk_limit", "the sandbox's disk is full: remove files in it")
        return no_room(error)

    def names(self) -> list[str]:
        """The names of the files in `in`. Raises OSError."""
        return self.files.names("in")

    def was_started(self, process_id: str) -> bool:
        """Return True if it has a journal, of this daemon or an earlier one."""
        return self.out.exists(f"p/{process_id}.stdout")

    def has_journals(self) -> bool:
        """Return True if the directory of the journals is there: those of a lost sandbox may be gone with it."""
        return self.out.exists("p")

    async def write(self, name: str, data: bytes) -> None:
        """Make a file in `in`, in a thread, as it may wait for the disk. Raises OSError."""
        await in_thread(_write_new, self.files, f"in/{name}", data)

    async def make_input(self, process_id: str) -> None:
        """Make the input of a process that is written to as it runs. Raises OSError."""
        if self.fed:
            await self.write(f"{process_id}.stdin", b"")
        else:
            await self.make_fifo(f"{process_id}.stdin")

    def open_fed(self, process_id: str) -> int | None:
        """Open an input that is a growing file, for more to be added; None when it is complete, or there is none."""
        try:
            fd = self.open_growing(f"{process_id}.stdin")
        except (OSError, NotAFileError):
            return None
        if stat.S_IMODE(os.fstat(fd).st_mode) == _OPEN_INPUT:
            return fd
        os.close(fd)
        return None

    def open_growing(self, name: str) -> int:
        """Open a file in `in` for more to be added. Raises OSError, `NotAFileError`."""
        return self.files.open_regular(f"in/{name}", os.O_WRONLY | os.O_APPEND)

    async def make_fifo(self, name: str) -> None:
        """Make a FIFO in `in` that the sandbox's user can open. Raises OSError."""
        await in_thread(self.files.make_fifo, f"in/{name}", self.input_owner)

    def remove_input(self, process_id: str) -> None:
        """Remove an input that is at its end; mark a growing file as complete, which stays until the process ends."""
        path = f"in/{process_id}.stdin"
        if self.fed:
            with suppress(OSError, NotAFileError):
                self.files.chmod(path, _CLOSED_INPUT)
        else:
            self._unlink(path)

    def remove_start(self, process_id: str) -> None:
        """Remove the files that started a process."""
        for end in _START_SUFFIXES:
            self._unlink(f"in/{process_id}{end}")

    def remove_ended(self, process_id: str) -> None:
        """Remove the files of an ended process but its journal."""
        self.remove_start(process_id)
        self._unlink(f"out/p/{process_id}.tmux")

    def remove_helper(self, process_id: str) -> None:
        """Remove every file of a helper command."""
        for end in ("", ".stdin", *pipes.SUFFIXES):
            self._unlink(f"in/{process_id}{end}")
        for end in _WRITTEN_INSIDE:
            self._unlink(f"out/p/{process_id}{end}")

    def _unlink(self, path: str) -> None:
        with suppress(OSError):
            self.files.unlink(path)


def _write_new(files: HostileTree, path: str, data: bytes) -> None:
    fd = files.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _OPEN_INPUT)
    with open(fd, "wb", buffering=0) as file:
        while data:
            data = data[file.write(data) :]
