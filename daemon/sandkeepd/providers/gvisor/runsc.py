"""The words by which `runsc` is called, and what it leaves of a sandbox. Everything here blocks, but for the words.

Each container of a sandbox, one after the other, has an id of its own: a container that is brought back is another. Who
ran last is told by the files that `runsc` writes when a container runs, ``CONTAINER.pid``, so that it can be found also
by a daemon that did not see it begin.
"""

import functools
import hashlib
import os
import re
import secrets
import shutil
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Struct

from sandkeep.errors import ProviderError
from sandkeep.settings import gvisor as settings
from sandkeepd.host.processes import TOOL_PATH, Identity, identify, kill_all, pids_where, run_tool

PROGRAM_PATH: Final = f"/usr/local/bin:{TOOL_PATH}"
_FIRST: Final = "runsc-cont-"
_PID_FILE: Final = re.compile(r"(runsc-cont-.+)\.pid")
_RAN: Final = ".ran"
_VERSION: Final = re.compile(rb"version (\S+)")
_MOST_SAID: Final = 400

KNOWN_KERNELS: Final = ("0.0~20221219.0",)
"""The versions whose kernels are asked to save themselves without `runsc`. The words for that are not an interface of
gVisor's: each was seen to understand them.
"""

_BESIDES_BYTES: Final = 16 * 1024 * 1024
"""More than what `runsc` saves besides memory."""


class _Kernel(Struct, frozen=True):
    pid: int


class _State(Struct, frozen=True, rename="camel"):
    """What `runsc` keeps of a container, of which it tells more."""

    gofer_pid: int
    sandbox: _Kernel


_state = msgspec.json.Decoder(_State)


def program() -> str | None:
    """Where `runsc` is; None: it is missing."""
    return shutil.which("runsc", path=PROGRAM_PATH)


def new_container(sandbox_id: str) -> str:
    """An id for the next container of a sandbox, which no other on this machine has."""
    return f"{_FIRST}{sandbox_id}-{secrets.token_hex(4)}"


def command(root: str, network: str, *, writable: bool, rootless: bool, sandbox_id: str = "") -> list[str]:
    """The words before a subcommand. `root` is where `runsc` keeps its state; what is written goes into memory."""
    words = [program() or "runsc", f"--root={root}", f"--platform={settings.PLATFORM()}", f"--network={network}"]
    if settings.IGNORE_CGROUPS():
        words.append("--ignore-cgroups")
    if rootless:
        words.append("--rootless")
    if writable:
        words.append("--overlay2=root:memory")
    debug = settings.DEBUG_LOG_DIR()
    if debug is not None:
        words += ["--debug", f"--debug-log={debug}/{sandbox_id}/"]
        words += ["--strace"] if settings.STRACE() else []
        words += ["--log-packets"] if settings.LOG_PACKETS() else []
    return words


@functools.cache
def version() -> str:
    """What `runsc` says it is. Raises `provider_unavailable`."""
    found = program()
    done = run_tool([found, "--version"], timeout_s=20) if found else None
    match = _VERSION.search(done.stdout) if done is not None else None
    if match is None:
        raise ProviderError("provider_unavailable", "runsc is missing, or does not tell its version: install runsc")
    return match[1].decode(errors="replace")


@functools.cache
def cpu_features() -> str:
    """A digest of what the processor of this machine can do, which the code in a checkpoint may have looked at."""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        lines = [line for line in file if line.startswith(("flags", "Features", "vendor_id"))]
    return hashlib.sha256("".join(sorted(set(lines))).encode()).hexdigest()[:16]


def running(bundle: str) -> tuple[str, Identity] | None:
    """The container of a sandbox that runs, and its first process on the host; None when none does."""
    for name in _listed(bundle):
        match = _PID_FILE.fullmatch(name)
        first = named_in(f"{bundle}/{name}", match[1]) if match else None
        if match and first is not None:
            return match[1], first
    return None


def _listed(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def named_in(pid_file: str, word: str) -> Identity | None:
    """The process of which that file tells, if it runs, and has that word in its command."""
    try:
        with open(pid_file, encoding="ascii") as file:
            pid = int(file.read(32))
    except (OSError, ValueError):
        return None
    first = identify(pid)
    return first if first is not None and word in _words_of(pid) else None


def _words_of(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(65536).decode(errors="replace").split("\0")
    except OSError:
        return []


def most_saved(bundle: str) -> int:
    """How many bytes what is saved of what runs can come to at most: its memory, in which its files are, too."""
    found = running(bundle)
    total = _BESIDES_BYTES
    if found is not None:
        places = f"/proc/{found[1].pid}/fd"
        for number in _listed(places):
            with suppress(OSError):
                if "runsc-memory" in os.readlink(f"{places}/{number}"):
                    return total + os.stat(f"{places}/{number}").st_blocks * 512 * 33 // 32
    return total


def forget_ended(bundle: str) -> None:
    """Remove what tells of containers, all of which have ended."""
    for name in _listed(bundle):
        if name.endswith((_RAN, f"{_RAN}.not")) or _PID_FILE.fullmatch(name):
            with suppress(FileNotFoundError):
                os.unlink(f"{bundle}/{name}")


def has_run(bundle: str, container: str) -> bool:
    """Whether that container, which was brought back, came so far that its code ran."""
    return os.path.exists(ran_mark(bundle, container))


def ran_mark(bundle: str, container: str) -> str:
    """The file that says so."""
    return f"{bundle}/{container}{_RAN}"


def processes(root: str) -> list[int]:
    """The processes of `runsc` that have their state there."""
    word = f"--root={root}"

    def ours(pid: int) -> bool:
        words = _words_of(pid)
        return word in words and "runsc" in words[0]

    return pids_where(ours)


def holders(root: str, container: str) -> list[int]:
    """The processes that hold the files of a container which runs: its kernel, and who opens files for it. They are on
    record; to look through all processes of the machine takes long where there are many.
    """
    try:
        with open(f"{root}/{container}_sandbox:{container}.state", "rb") as file:
            known = _state.decode(file.read())
    except (OSError, msgspec.MsgspecError):
        return processes(root)
    word = f"--root={root}"
    found = [pid for pid in (known.sandbox.pid, known.gofer_pid) if word in _words_of(pid)]
    return found if len(found) == 2 else processes(root)


def end(root: str) -> None:
    """Kill every process of `runsc` that has its state there. Raises `provider_unavailable`."""
    kill_all(lambda: processes(root))


def forget(root: str, container: str) -> None:
    """Remove what `runsc` keeps of a container that has ended."""
    for name in _listed(root):
        if name.startswith(f"{container}_"):
            with suppress(FileNotFoundError):
                os.unlink(f"{root}/{name}")


def roots_in_use(base: str) -> set[str]:
    """The directories below `base` in which a running `runsc` has its state."""
    prefix = f"--root={base}/"
    found = set[str]()

    def look(pid: int) -> bool:
        words = _words_of(pid)
        if words and "runsc" in words[0]:
            found.update(word.removeprefix("--root=") for word in words if word.startswith(prefix))
        return False

    pids_where(look)
    return found


def sentence(said: bytes) -> str:
    """What `runsc` said, as the end of a sentence: of the trace of a crash its first line."""
    lines = [line.strip() for line in said.decode(errors="replace").splitlines() if line.strip()]
    kept = [line for line in lines if line != "ready" and not line.startswith(("goroutine ", "created by "))]
    first = next((line for line in kept if "error" in line or "panic" in line or "FATAL" in line), None)
    text = first or (kept[-1] if kept else "it did not say why")
    return "".join(character for character in text if character.isprintable())[:_MOST_SAID]
