"""Processes in a sandbox: launch, exit, input and journals."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field

InputNote = Callable[[int, int], None]


def unnoted(taken: int, trying: int) -> None:
    """For input whose progress nobody puts down."""


class Terminal(Struct, frozen=True, kw_only=True):
    """The terminal that a process is to have: its size, and what its tmux session is called."""

    rows: int
    cols: int
    session: str


class Launch(Struct, frozen=True, kw_only=True):
    """A process to start. `command` is a list of words; `secrets` must not reach a disk, an argv or a log.

    `stdin` is None for none, bytes for all there will be, True for a pipe that `Instance.write_stdin` feeds. With a
    `terminal` it is left alone: the process reads what is typed.
    One that is `quick` is expected to end soon: that it was started may be told some milliseconds later, with its end.
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
    """How a process ended: its exit code, or None when nobody saw it (`lost`), with a sentence why."""

    exit_code: int | None
    message: str | None = None


class Chunk(Struct, frozen=True, kw_only=True):
    """Bytes of one stream of a journal from `offset`; `size` is the whole stream's length at that moment.

    `offset` is further on than what was asked for when the beginning was dropped; `note` says so. `missing`: there is
    no such file.
    """

    offset: int
    data: bytes
    size: int
    note: str | None = None
    missing: bool = False


class Dropped(NamedTuple):
    """What of a sandbox's output was dropped: that of so many processes that ended, and so many bytes of others'."""

    processes: int = 0
    cut_bytes: int = 0
