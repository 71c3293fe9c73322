"""Freezing of a sandbox while its files are read, with a guaranteed thaw.

A control group is frozen if there is one, which no process inside can see. Else each process of the sandbox's pid
namespace is stopped, repeatedly until no new one has been started meanwhile; processes that were stopped before stay
so.

A sandbox that is suspended, before or meanwhile, stays so; see `freezer`.

A guard, a small program that waits at a pipe of ours, thaws the sandbox if this process dies: a killed daemon leaves no
sandbox frozen. Everything here but `reading` blocks.
"""

import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final

from msgspec import Struct

from sandkeep.errors import StateError
from sandkeepd.host.cgroups import groups as cgroups
from sandkeepd.host.cgroups.freezer import Freezer, Switch, freezer_state, freezer_state_of, switch_of, wait_until
from sandkeepd.host.cgroups.placement import read
from sandkeepd.host.processes import pids_where, reap, spawn

# The guard of a control group: $1 thaws it when it is written to $2, if its mark $3 is there.
_THAW: Final = 'read -r _; [ ! -e "$3" ] || { echo "$1" >"$2"; rm -f "$3"; }'

# The guard of single processes: $1 is their namespace, the rest are those that had been stopped before.
_CONTINUE: Final = """
read -r _
for place in /proc/[0-9]*; do
	pid=${place#/proc/}
	case " $* " in *" $pid "*) continue ;; esac
	[ "$(readlink "$place/ns/pid")" != "$1" ] || kill -CONT "$pid"
done 2>/dev/null
"""


class Pause(Struct):
    """Milliseconds for which a sandbox was frozen, set at the end; None if it could not be frozen."""

    ms: float | None = None


@contextmanager
def frozen(groups: Mapping[str, str], first_pid: int | None, mark: str) -> Iterator[Pause]:
    """Freeze a sandbox for the length of a block. The caller has the turn of `reading`.

    `groups` are the directories of its control groups by controller; `first_pid` is the first process of its pid
    namespace, None when it has none of its own; `mark` is the path of the mark of a read. Raises `provider_unavailable`
    when it does not freeze in time, and `conflict` at the end of a block in which another program thawed it.
    """
    switch = switch_of(groups)
    pause = Pause()
    if switch is not None and cgroups.members(groups):
        freezing = _group_frozen(switch, mark)
    elif switch is None and first_pid is not None:
        freezing = _all_stopped(first_pid)
    else:
        yield pause
        return
    began = time.monotonic()
    try:
        with freezing:
            yield pause
    finally:
        pause.ms = (time.monotonic() - began) * 1e3


@asynccontextmanager
async def reading(groups: Mapping[str, str], name: str) -> AsyncIterator[Callable[[], None]]:
    """Hold the turn to read the sandbox of that name for the length of a block: in it, a thread may call `frozen`. The
    function that it yields ends the turn before the block ends. See `Turn`.
    """
    state = freezer_state_of(groups) or freezer_state(name)
    async with state.turn.taken() as end:
        yield end


def processes(groups: Mapping[str, str], first_pid: int | None) -> list[int]:
    """All that runs in a sandbox."""
    found = cgroups.members(groups)
    if not found and first_pid is not None:
        found = _inside(os.readlink(f"/proc/{first_pid}/ns/pid"))
    return found


@contextmanager
def _group_frozen(switch: Switch, mark: str) -> Iterator[None]:
    freezer = Freezer(switch, mark)
    with _guard(_THAW, switch.thaw, switch.file, mark):
        freezer.begin_reading()
        try:
            yield
        finally:
            stood = freezer.end_reading()
    if not stood:
        raise StateError("conflict", "the sandbox was resumed while its files were read: try again")


@contextmanager
def _all_stopped(first_pid: int) -> Iterator[None]:
    namespace = os.readlink(f"/proc/{first_pid}/ns/pid")
    before = [pid for pid in _inside(namespace) if _is_still(pid)]
    with _guard(_CONTINUE, namespace, *map(str, before)):
        stopped: list[int] = []
        try:
            wait_until(lambda: _stop(namespace, before, stopped))
            yield
        finally:
            _signal(reversed(stopped), signal.SIGCONT)  # children before those who wait for them


def _stop(namespace: str, before: Collection[int], stopped: list[int]) -> bool:
    """Stop running processes; return True if there was none."""
    running = [pid for pid in _inside(namespace) if pid not in before and not _is_still(pid)]
    stopped.extend(pid for pid in running if pid not in stopped)
    _signal(running, signal.SIGSTOP)
    return not running


def _inside(namespace: str) -> list[int]:
    return pids_where(lambda pid: os.readlink(f"/proc/{pid}/ns/pid") == namespace)


def _is_still(pid: int) -> bool:
    return read(f"/proc/{pid}/stat").rpartition(") ")[2][:1] in ("", "T", "t", "Z", "X")


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@contextmanager
def _guard(script: str, *arguments: str) -> Iterator[None]:
    """Start a program that runs `script` at the end of the block, or of this process."""
    waiting, ours = os.pipe()
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        argv: Sequence[str] = ["sh", "-c", script, "sh", *arguments]
        child = spawn(argv, stdin=waiting, output=nothing)
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(waiting)
        os.close(nothing)
    try:
        yield
    finally:
        os.close(ours)
        reap(child)
