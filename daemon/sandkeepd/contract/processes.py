"""Processes in a sandbox: launch, exit, input and journals."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field

InputNote = Callable[[int, int], None]


def unnoted(taken: int, trying: int) -> None:
    """Discard the progress of input."""


class Terminal(Struct, frozen=True, kw_only=True):
    """The terminal that a process gets: its size, and the name of its tmux session."""

    rows: int
    cols: int
    session: str


class Launch(Struct, frozen=True, kw_only=True):
    """A process to start. `command` is its argv; `secrets` must not reach a disk, an argv or a log.

    `stdin` is None for none, bytes for a complete input, True for a pipe that `Instance.write_stdin` feeds. With a
    `terminal` it is ignored: the process reads the terminal's input. One that is `quick` is expected to end soon: its
    start may be reported some milliseconds later, with its end.
    """

    process_id: str
    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict)
    working_dir: str | None = None
    stdin: bytes | bool | None = None
    terminal: Terminal | None = None
    quick: bool = False

    def __repr__(self) -> str:
        return f"Launch({self.process_id})"


class Exit(Struct, frozen=True, kw_only=True):
    """The end of a process: its exit code, or None when it is unknown (`lost`), with a sentence why."""

    exit_code: int | None
    message: str | None = None


class Chunk(Struct, frozen=True, kw_only=True):
    """Bytes of one stream of a journal from `offset`; `size` is the whole stream's length at that moment.

    `offset` is greater than the requested one when the beginning was dropped; `note` says so. `missing`: there is no
    such file. `modified_us` is the time of its last modification, which the code inside can set to any.
    """

    offset: int
    data: bytes
    size: int
    note: str | None = None
    missing: bool = False
    modified_us: int = 0


class Dropped(NamedTuple):
    """The dropped output of a sandbox: of this many ended processes, and this many bytes of others. `kept_bytes` are
    left on the disk.
    """

    processes: int = 0
    cut_bytes: int = 0
    kept_bytes: int = 0
