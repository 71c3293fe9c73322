"""A running sandbox, as the daemon holds it."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

from msgspec import Struct

from sandkeep.model import FileContent, FileEntry, Isolation
from sandkeepd.contract.commands import PipedCommand
from sandkeepd.contract.pauses import Pausing
from sandkeepd.contract.processes import Chunk, Exit, InputNote, Launch, unnoted


class Ending(Struct, frozen=True, kw_only=True):
    """The end of a sandbox, with a sentence why.

    ``failed``: it ended by itself; ``lost``: its provider no longer has it, as when an administrator removed it.
    """

    kind: Literal["failed", "lost"]
    message: str


class Directory(Struct, frozen=True, kw_only=True):
    """Some files of a directory; `last` is the name after which there are more, None when there are none."""

    entries: list[FileEntry]
    last: bytes | None


class Instance(Protocol):
    """A running sandbox, held by the daemon. Closing it releases descriptors only; the sandbox goes on.

    `no_terminals` and `no_copies` are the reasons why its processes can have no terminals, and why trees are not copied
    into it and out of it, as in an image without the programs for that. `cgroups` are the directories of its control
    groups, by controller: its resource usage is read there, and is unknown where a controller is missing. `pauses`
    suspends it.
    """

    sandbox_id: str
    isolation: Isolation
    handle: dict[str, Any]
    no_terminals: str | None
    no_copies: str | None
    cgroups: Mapping[str, str]
    pauses: Pausing | None

    async def require_reachable(self) -> None:
        """Raise `provider_unavailable` where what is asked now would be done some time later, as the back end does not
        answer. Waits out a short interruption.
        """
        ...

    async def launch(self, launch: Launch) -> int:
        """Start a process and return its pid inside the sandbox, once it has certainly started.

        Raises `provider_unavailable` when the sandbox does not take the request in time, `conflict` when a process of
        this id was started before, `not_ready` when the sandbox has ended. Cancelled: it may or may not have been
        started; `find` determines that.
        """
        ...

    async def find(self, process_id: str) -> int | None:
        """Return the pid of a process that was started, running or ended; None if it never was. For a daemon that
        starts anew.
        """
        ...

    async def wait(self, process_id: str) -> Exit:
        """Wait until a process that was started has ended. Any number of tasks may wait; a repeated call returns the
        same.
        """
        ...

    def exit_of(self, process_id: str) -> Exit | None:
        """Return the process's exit, if it is known already."""
        ...

    def never_started(self, process_id: str) -> bool:
        """Return True if the sandbox has ended, and certainly did not begin the process. Blocks briefly."""
        ...

    async def signal(self, process_id: str, signal: int, *, order: int | None = None) -> None:
        """Send a signal to the process's group. No error if the process has ended. `order` is a number that identifies
        the signal for `was_signalled`, also in a later daemon.
        """
        ...

    async def was_signalled(self, process_id: str, order: int) -> bool:
        """Return True if the sandbox confirms that it sent the signal of that number, or if the process has ended."""
        ...

    async def write_stdin(
        self, process_id: str, data: bytes, *, eof: bool, done: int = 0, note: InputNote = unnoted
    ) -> int:
        """Write to the process's input without blocking others, wait for room, return the number of bytes taken.

        With `eof` the input is closed afterwards. The first `done` bytes were taken before. `note` is called before
        each step, with the number of bytes taken by now and the number that the step may take. Raises `not_ready` when
        the process has no input or has ended.
        """
        ...

    def read(self, process_id: str, stream: str, offset: int, max_bytes: int) -> Chunk:
        """Read the journal of ``stdout`` or ``stderr``. Never blocks; beyond the end there are no bytes."""
        ...

    def sizes(self, process_id: str) -> tuple[int, int]:
        """Return the lengths of the journals of ``stdout`` and ``stderr`` in bytes. Never blocks."""
        ...

    async def wait_output(self, process_id: str, stdout_offset: int, stderr_offset: int) -> None:
        """Return when a journal is longer than its offset, or the process has ended. It may also return early."""
        ...

    def sync(self, process_id: str) -> None:
        """Force the journal to the disk. Blocks: call it in a thread."""
        ...

    def forget(self, process_id: str) -> None:
        """Release the resources held for a process that has ended and whose end is on record. Its journal stays."""
        ...

    @property
    def has_own_disk(self) -> bool:
        """True if the sandbox, with its journals, lies on a disk that the code inside can fill."""
        ...

    def disk_is_full(self) -> bool:
        """Return True if nothing can be written to the sandbox's own disk, or its usage had reached the limit when it
        was measured last.
        """
        ...

    def oom_kills(self) -> int | None:
        """Return how many processes of the sandbox the kernel has ended because it was out of memory, as of the last
        `measure_memory` where that is needed; None if unknown.
        """
        ...

    async def measure_memory(self) -> None:
        """Bring `oom_kills` up to date, where the back end has to be asked for it. Never raises."""
        ...

    async def measure_disk(self) -> None:
        """Measure the disk usage if that is limited only by being measured, and may have reached the limit by now."""
        ...

    def disk_usage(self) -> tuple[int | None, int | None]:
        """Return the bytes taken of its disk limit, and that; None for what is unknown, or not limited."""
        ...

    async def ended(self) -> Ending:
        """Wait until the sandbox itself is gone; return the reason, as far as it is known."""
        ...

    async def run_command(
        self,
        command: Sequence[str],
        stdin: bytes | None = None,
        *,
        working_dir: str | None = None,
        most_bytes: int = 65_536,
    ) -> tuple[int | None, bytes, bytes]:
        """Run an unrecorded helper command to its end; return exit code, stdout (`most_bytes` of it) and stderr.

        On cancellation it is ended: by SIGTERM first, so that it can remove its partial work.
        """
        ...

    def run_piped(
        self, command: Sequence[str], *, incoming: bool, working_dir: str | None = None
    ) -> AbstractAsyncContextManager[PipedCommand]:
        """Run an unrecorded helper command for the length of a block.

        Descriptor 3 is its end of the data pipe: read from when data is `incoming`, else written to. From descriptor 4
        it reads control words; that ends when the daemon dies. It first writes ``ready`` to its stdout. At the block's
        end it is ended by SIGTERM, if it has not ended before; it then removes its partial work.
        """
        ...

    async def is_alive(self) -> bool:
        """Return True if the sandbox takes requests."""
        ...

    async def read_piece(self, path: str, offset: int, max_bytes: int) -> FileContent:
        """Return up to `max_bytes` of a file from `offset`, read as the sandbox's own user.

        Raises `not_found`, `invalid` (not a file), `permission_denied`.
        """
        ...

    async def write_whole(self, path: str, data: bytes, *, mode: int | None = None, parents: bool = False) -> None:
        """Write a file as the sandbox's own user, whole or not at all; with `parents` also the directories above it.

        Raises as `read_piece` does, and `disk_limit`.
        """
        ...

    async def list_directory(self, path: str, after: bytes, limit: int) -> Directory:
        """Return up to `limit` files of a directory, by the bytes of their names, that come after the name `after`."""
        ...

    async def open_terminal(self, process_id: str, *, rows: int, cols: int, term: str, read_only: bool = False) -> int:
        """Attach a new viewer to the process's terminal; return the controlling side of the viewer's own terminal.

        That is an open descriptor, not blocking, which the caller closes: the viewer goes when the last copy of it is
        closed, also after the daemon's death. Its output was written inside the sandbox. `term` is the client's
        terminal type (``TERM``). Raises `provider_unavailable` with tmux's error.
        """
        ...

    async def resize_terminal(self, process_id: str, *, rows: int, cols: int) -> None:
        """Resize the process's terminal, until the next viewer brings its own size."""
        ...

    async def type_into(self, process_id: str, data: bytes, *, eof: bool) -> int:
        """Type exactly these bytes into the process's terminal; with `eof` also its end-of-file character. Returns the
        number of bytes typed.
        """
        ...

    async def aclose(self) -> None:
        """Release the descriptors. The sandbox and its processes go on."""
        ...
