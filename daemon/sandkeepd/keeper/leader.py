"""What a process is started by, so that it leads a session of its own and signals do to it what they do by default.

A program of ours, where there is one for the machine: see ``leader.c``. Elsewhere the same is done by two programs of
the sandbox's own.
"""

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct

from sandkeepd.hostprocess import TOOL_PATH, run_tool

NAME: Final = ".leader"
"""What our program is called in `in`."""

QUICK_MS: Final = 20
"""How long the start of a process that is expected to end soon may wait for its end, so that both are told at once."""

_PROGRAM: Final = os.path.join(os.path.dirname(__file__), f"leader.{os.uname().machine}")


class Leader(Struct, frozen=True, kw_only=True):
    """The words before a command, after which may come NAME=VALUE for its environment: `apart` for one that is to have
    a session of its own, `within` for one that has a session already. `program` is ours, which can be more than that.
    """

    apart: list[str]
    within: list[str]
    program: str | None = None

    def watching(self, process_id: str, *, quick: bool) -> list[str]:
        """The same words for a process apart, by which our program is its watcher as well."""
        return [self.program or "", "-w", process_id, str(QUICK_MS if quick else 0)]

    @property
    def failing(self) -> list[str]:
        """The command that ends as one does whose directory is not there."""
        return [self.program or "", "-e", "126"]


def has_program() -> bool:
    """Whether we have a program for this machine."""
    return os.path.exists(_PROGRAM)


def install(in_dir: str) -> None:
    """Put our program into `in`, if we have one for this machine. Raises OSError."""
    if has_program():
        with open(_PROGRAM, "rb") as program:
            put_program(f"{in_dir}/{NAME}", program.read())


def put_program(path: str, program: bytes) -> None:
    """Put a program there that the code inside is to run, in place of an earlier one. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(path)  # it may be running
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o755), "wb") as file:
        os.fchmod(file.fileno(), 0o755)
        file.write(program)


def leader_of(in_dir: str, inside: str, otherwise: Sequence[str]) -> Leader:
    """The words in a sandbox with this `in`, which the code inside calls `inside`. `otherwise`, if it was not given our
    program, they are those of its own: a ``setsid`` and an ``env``, which begins at the second.
    """
    if os.path.exists(f"{in_dir}/{NAME}"):
        path = f"{inside}/{NAME}"
        return Leader(apart=[path, "-s"], within=[path, "-"], program=path)
    return Leader(apart=list(otherwise), within=list(otherwise[1:]))


def of_host() -> list[str]:
    """The words of the host's own programs. Blocks.

    Only an `env` that knows the option undoes what shells do to signals. Absolute, since a shell may have commands of
    the same names built in that do not.
    """
    setsid, env = (shutil.which(name, path=TOOL_PATH) or name for name in ("setsid", "env"))
    resets = run_tool([env, "--default-signal", "true"]).returncode == 0
    return [setsid, env, "--default-signal"] if resets else [setsid, env]
