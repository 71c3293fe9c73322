"""The keeper itself: our program that is a sandbox's first process, and that begins processes in terminals.

See ``keeper.c``. It is compiled for each common kind of machine, and put into `in`.
"""

import fcntl
import filecmp
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from sandkeep.errors import SetupError

NAME: Final = ".keeper"
"""Its name in `in`."""

COUNTED: Final = "-w"
"""The option of a keeper whose sandbox's inotify instances are made by `inotify_argv`."""

LISTENER: Final = 15
"""The descriptor by which such a keeper hands over the making of them."""

QUICK_MS: Final = 20
"""Milliseconds that the start of a short process may wait for its end, so that both are reported at once."""

STATX_NAME: Final = ".statx.so"
"""The name of ``statx.c``'s library in `in`, in gVisor sandboxes."""

FED_QUICK_MS: Final = 100
"""The same where each step of a process takes longer, as each of its system calls does."""

_WRITERS_S: Final = 5.0
"""Seconds to wait until a new program has no open writers."""

_PROGRAM: Final = os.path.join(os.path.dirname(__file__), f"keeper.{os.uname().machine}")
_STATX: Final = os.path.join(os.path.dirname(__file__), f"statx.{os.uname().machine}")


def why_missing() -> str | None:
    """Return the reason why this machine has no keeper; None if there is one."""
    if os.path.exists(_PROGRAM):
        return None
    machine = os.uname().machine
    return f"there is no keeper for {machine} machines: make one with scripts/build-keeper, where its compiler is"


_MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}


def read(machine: str) -> bytes:
    """Return the keeper for a machine, which is named as container images name theirs. Raises `not_supported`."""
    path = Path(__file__).with_name(f"keeper.{_MACHINES.get(machine, machine)}")
    if not path.exists():
        raise SetupError("not_supported", f"there is no keeper for {machine} machines: see scripts/build-keeper")
    return path.read_bytes()


def install(in_dir: str) -> None:
    """Put it into `in`. Raises OSError."""
    write_program(f"{in_dir}/{NAME}", Path(_PROGRAM).read_bytes())


def on_host(directory: str) -> str:
    """Return a path at which the host can run it: the installed one, or a copy in `directory`. Raises OSError."""
    if os.access(_PROGRAM, os.X_OK):
        return _PROGRAM
    copy = f"{directory}/{NAME}"
    if not os.path.exists(copy) or not filecmp.cmp(copy, _PROGRAM, shallow=False):
        install(directory)
    return copy


def install_statx(in_dir: str) -> None:
    """Put the library for programs in gVisor sandboxes into `in`, if there is one. Raises OSError."""
    if os.path.exists(_STATX):
        write_program(f"{in_dir}/{STATX_NAME}", Path(_STATX).read_bytes())


def write_program(path: str, program: bytes) -> None:
    """Put a program there, in place of an earlier one; it can be run when this returns. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(path)  # it may be running
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o755), "wb") as file:
        os.fchmod(file.fileno(), 0o755)
        file.write(program)
    _wait_for_writers(path)


def _wait_for_writers(path: str) -> None:
    """Wait until no process has a file open for writing, so that it can be executed.

    A program that another thread was just starting inherits our descriptor until its exec, and until then the kernel
    refuses to execute the file (ETXTBSY). It grants a lease for reading (fcntl(2), F_SETLEASE) under that same
    condition.
    """
    with open(path, "rb", buffering=0) as file:
        deadline = time.monotonic() + _WRITERS_S
        while time.monotonic() < deadline:
            try:
                fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            except BlockingIOError:
                time.sleep(0.0002)  # an exec takes about as long, and nothing tells when a writer is gone
            except OSError:
                return  # this file system knows no leases
            else:
                return


def keeper_argv(
    in_dir: str, out_dir: str, limits: Sequence[str] = (), *, by_name: bool = False, shares: bool = False,
    counted: bool = False,
) -> list[str]:  # fmt: skip
    """The words that start the keeper; the directories are as it will see them. `limits` are those of ``keeper.c``.

    `by_name` where nobody opens its descriptors: it finds its requests in `in` then. `shares` where a copy of its
    memory for each process that it starts would be dear. `counted`, which is `by_name`, where inotify in the sandbox
    has to be made by `inotify_argv`.
    """
    option = [COUNTED] if counted else ["-c"] if by_name else ["-v"] if shares else []
    return [f"{in_dir}/{NAME}", *option, in_dir, out_dir, *limits]


def reset_signals_argv(in_dir: str) -> list[str]:
    """Return the argv prefix that resets all signals to their defaults; NAME=VALUE for the environment may follow."""
    return [f"{in_dir}/{NAME}", "-"]


def inotify_argv(program: str, pid: int, ceilings: Mapping[str, int]) -> list[str]:
    """Return the argv that makes inotify for a sandbox, in a user namespace; `pid` is its counted keeper."""
    return [program, "-i", str(pid), *(f"{name}={most}" for name, most in ceilings.items())]


NOT_ASKED: Final = 3
"""Exit code of `save_argv` when nothing was requested of the kernel."""


def save_argv(program: str, container: str, pid: int, image: str, source: str, target: str) -> list[str]:
    """The words that have the kernel of a running `runsc` container, the process `pid`, save itself into the new file
    `image`, after which it ends; then as `rename_after_argv`. The umask does not count, `image` is for its owner alone.
    """
    return [program, "-k", f"runsc-sandbox.{container}", str(pid), image, source, target]


def rename_after_argv(program: str, umask: int, source: str, target: str) -> list[str]:
    """Return the argv prefix of a host command that renames `source` to `target` after success, even if the daemon has
    died. `program` is the keeper's path. Descriptor 3 stays open until then.
    """
    return [program, "-m", str(umask), source, target]
