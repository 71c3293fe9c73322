"""The argv of `runsc`, and the files that it leaves of a sandbox. Everything here blocks, except building an argv.

Each container of a sandbox, one after the other, has an id of its own: a restored container is another. The last one is
found by the files that `runsc` writes when a container runs, ``CONTAINER.pid``, also by a daemon that did not see it
begin.
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
from sandkeepd.providers.gvisor.plan import Plan

PROGRAM_PATH: Final = f"/usr/local/bin:{TOOL_PATH}"
_FIRST: Final = "runsc-cont-"
_PID_FILE: Final = re.compile(r"(runsc-cont-.+)\.pid")
_RAN: Final = ".ran"
_VERSION: Final = re.compile(rb"version (\S+)")
_MOST_SAID: Final = 400

KNOWN_KERNELS: Final = ("0.0~20221219.0",)
"""The versions whose kernels are asked to save themselves without `runsc`. That request is not an interface of
gVisor's: each version was tested with it.
"""

_BESIDES_BYTES: Final = 16 * 1024 * 1024
"""Upper bound of the bytes that `runsc` saves besides memory."""


class _Kernel(Struct, frozen=True):
    pid: int


class _State(Struct, frozen=True, rename="camel"):
    """The part of `runsc`'s state file of a container that is used here."""

    gofer_pid: int
    sandbox: _Kernel


_state = msgspec.json.Decoder(_State)


def program() -> str | None:
    """Return the path of `runsc`; None: it is missing."""
    return shutil.which("runsc", path=PROGRAM_PATH)


def new_container(sandbox_id: str) -> str:
    """Return an id for the next container of a sandbox, unique on this machine."""
    return f"{_FIRST}{sandbox_id}-{secrets.token_hex(4)}"


def command(root: str, plan: Plan, sandbox_id: str) -> list[str]:
    """Return the argv before a subcommand. `root` is the directory of `runsc`'s state."""
    argv = [program() or "runsc", f"--root={root}", f"--platform={settings.PLATFORM()}", f"--network={plan.network}"]
    if settings.IGNORE_CGROUPS():
        argv.append("--ignore-cgroups")
    if plan.rootless:
        argv.append("--rootless")
    if plan.writable:  # into memory
        argv.append("--overlay2=root:memory")
    debug = settings.DEBUG_LOG_DIR()
    if debug is not None:
        argv += ["--debug", f"--debug-log={debug}/{sandbox_id}/"]
        argv += ["--strace"] if settings.STRACE() else []
        argv += ["--log-packets"] if settings.LOG_PACKETS() else []
    return argv


@functools.cache
def version() -> str:
    """Return the version that `runsc` reports. Raises `provider_unavailable`."""
    found = program()
    done = run_tool([found, "--version"], timeout_s=20) if found else None
    match = _VERSION.search(done.stdout) if done is not None else None
    if match is None:
        raise ProviderError("provider_unavailable", "runsc is missing, or does not report its version: install runsc")
    return match[1].decode(errors="replace")


@functools.cache
def cpu_features() -> str:
    """Return a digest of this machine's CPU features, which the code in a checkpoint may rely on."""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        lines = [line for line in file if line.startswith(("flags", "Features", "vendor_id"))]
    return hashlib.sha256("".join(sorted(set(lines))).encode()).hexdigest()[:16]


def running(bundle: str) -> tuple[str, Identity] | None:
    """Return the running container of a sandbox, and its first process on the host; None when none runs."""
    for name in _names_in(bundle):
        match = _PID_FILE.fullmatch(name)
        first = process_of(f"{bundle}/{name}", match[1]) if match else None
        if match and first is not None:
            return match[1], first
    return None


def _names_in(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []


def process_of(pid_file: str, word: str) -> Identity | None:
    """Return the process named in that file, if it runs, and has that word in its argv."""
    try:
        with open(pid_file, encoding="ascii") as file:
            pid = int(file.read(32))
    except (OSError, ValueError):
        return None
    first = identify(pid)
    return first if first is not None and word in _argv_of(pid) else None


def _argv_of(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(65536).decode(errors="replace").split("\0")
    except OSError:
        return []


def max_saved_bytes(bundle: str) -> int:
    """Return the maximum bytes of a save of the running container: its memory, which includes its files."""
    found = running(bundle)
    total = _BESIDES_BYTES
    if found is not None:
        places = f"/proc/{found[1].pid}/fd"
        for number in _names_in(places):
            with suppress(OSError):
                if "runsc-memory" in os.readlink(f"{places}/{number}"):
                    return total + os.stat(f"{places}/{number}").st_blocks * 512 * 33 // 32
    return total


def forget_ended(bundle: str) -> None:
    """Remove the files about containers, all of which have ended."""
    for name in _names_in(bundle):
        if name.endswith((_RAN, f"{_RAN}.not")) or _PID_FILE.fullmatch(name):
            with suppress(FileNotFoundError):
                os.unlink(f"{bundle}/{name}")


def has_run(bundle: str, container: str) -> bool:
    """Return True if the code of that restored container has run."""
    return os.path.exists(ran_mark(bundle, container))


def ran_mark(bundle: str, container: str) -> str:
    """Return the path of the mark file for that."""
    return f"{bundle}/{container}{_RAN}"


def processes(root: str) -> list[int]:
    """Return the processes of `runsc` that have their state there."""
    word = f"--root={root}"

    def ours(pid: int) -> bool:
        argv = _argv_of(pid)
        return word in argv and "runsc" in argv[0]

    return pids_where(ours)


def holders(root: str, container: str) -> list[int]:
    """Return the processes that hold the files of a running container: its kernel, and the gofer that opens files for
    it. They are taken from the state file; a search through all processes takes long where there are many.
    """
    try:
        with open(f"{root}/{container}_sandbox:{container}.state", "rb") as file:
            known = _state.decode(file.read())
    except (OSError, msgspec.MsgspecError):
        return processes(root)
    word = f"--root={root}"
    found = [pid for pid in (known.sandbox.pid, known.gofer_pid) if word in _argv_of(pid)]
    return found if len(found) == 2 else processes(root)


def end(root: str) -> None:
    """Kill every process of `runsc` that has its state there. Raises `provider_unavailable`."""
    kill_all(lambda: processes(root))


def forget(root: str, container: str) -> None:
    """Remove `runsc`'s state files of a container that has ended."""
    for name in _names_in(root):
        if name.startswith(f"{container}_"):
            with suppress(FileNotFoundError):
                os.unlink(f"{root}/{name}")


def roots_in_use(base: str) -> set[str]:
    """Return the directories below `base` in which a running `runsc` has its state."""
    prefix = f"--root={base}/"
    found = set[str]()

    def look(pid: int) -> bool:
        argv = _argv_of(pid)
        if argv and "runsc" in argv[0]:
            found.update(word.removeprefix("--root=") for word in argv if word.startswith(prefix))
        return False

    pids_where(look)
    return found


def error_in(output: bytes) -> str:
    """Return the output of `runsc` as the end of a sentence: of a crash's trace its first line."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    kept = [line for line in lines if line != "ready" and not line.startswith(("goroutine ", "created by "))]
    first = next((line for line in kept if "error" in line or "panic" in line or "FATAL" in line), None)
    text = first or (kept[-1] if kept else "it did not say why")
    return "".join(character for character in text if character.isprintable())[:_MOST_SAID]
