"""Having everything in a sandbox stand still while its files are read, and go on again for sure.

Where there is a control group it is frozen, which no process inside can see. Else each process of the sandbox's pid
namespace is stopped, again and again until none has been started meanwhile; those that were stopped before stay so.

A sandbox that somebody has suspended stays so, and is not resumed by us meanwhile.

A guard, a small program that waits at a pipe of ours, has them go on when we are not there any more to do it: a daemon
that is killed leaves no sandbox standing. Everything here blocks.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from msgspec import Struct

from sandkeep.errors import ProviderError, StateError
from sandkeepd import cgroups, placement
from sandkeepd.hostprocess import pids_where, reap, spawn

FREEZE_DEADLINE_S: Final = 10.0
"""How long a process may take to stand still: it may wait in the kernel for a disk."""

_LOOK_EVERY_S: Final = 0.0002

# What the guard of a control group does: $1 thaws it when it is written to $2.
_THAW: Final = 'read -r _; echo "$1" >"$2"'

# What the guard of single processes does: $1 is their namespace, the rest are those that had been stopped before.
_CONTINUE: Final = """
read -r _
for place in /proc/[0-9]*; do
	pid=${place#/proc/}
	case " $* " in *" $pid "*) continue ;; esac
	[ "$(readlink "$place/ns/pid")" != "$1" ] || kill -CONT "$pid"
done 2>/dev/null
"""


class Pause(Struct):
    """How long a sandbox stood still, once it goes on; None for one that could not be made to."""

    ms: float | None = None


class _Switch(NamedTuple):
    """The file that freezes a group, and what is written to it."""

    file: str
    freeze: str
    thaw: str


@contextmanager
def frozen(groups: Mapping[str, str], first_pid: int | None) -> Iterator[Pause]:
    """Have a sandbox stand still for the length of a block. Of several at a time one waits for the other.

    `groups` are the directories of its control groups by controller; `first_pid` is the first process of its pid
    namespace, None when it has none of its own. Raises `provider_unavailable` when it does not stand still in time, and
    `conflict` at the end of a block in which a sandbox that was suspended was resumed.
    """
    switch = _switch(groups)
    pause = Pause()
    if switch is not None and cgroups.members(groups):
        turn = _turn(switch.file)
        stand_still = _group_frozen(switch, turn)
    elif switch is None and first_pid is not None:
        turn, stand_still = _turn(f"pid {first_pid}"), _all_stopped(first_pid)
    else:
        yield pause
        return
    with turn.lock:
        began = time.monotonic()
        try:
            with stand_still:
                yield pause
        finally:
            pause.ms = (time.monotonic() - began) * 1e3


class Turn:
    """What those take turns by who have the same sandbox stand still: the first to be done must not thaw it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_ours = False
        """Whether it is us who have it stand still."""


_turns: Final[WeakValueDictionary[str, Turn]] = WeakValueDictionary()


def _turn(what: str) -> Turn:
    with _turns_lock:
        return _turns.setdefault(what, Turn())


_turns_lock: Final = threading.Lock()


def turn_of(groups: Mapping[str, str]) -> Turn | None:
    """By what those take turns who have a sandbox stand still, or suspend it; None for one that has no such group."""
    switch = _switch(groups)
    return _turn(switch.file) if switch is not None else None


def processes(groups: Mapping[str, str], first_pid: int | None) -> list[int]:
    """All that runs in a sandbox."""
    found = cgroups.members(groups)
    if not found and first_pid is not None:
        found = _inside(os.readlink(f"/proc/{first_pid}/ns/pid"))
    return found


def thaw(groups: Mapping[str, str]) -> None:
    """Have a sandbox go on that an earlier daemon left standing. Safe to repeat."""
    switch = _switch(groups)
    if switch is not None:
        with suppress(OSError):
            placement.write(switch.file, switch.thaw)


def _switch(groups: Mapping[str, str]) -> _Switch | None:
    """What freezes the groups: version 1 has a hierarchy of its own for that, version 2 a file in every group."""
    first = f"{groups['freezer']}/freezer.state" if "freezer" in groups else ""
    if first and os.access(first, os.W_OK):
        return _Switch(first, "FROZEN", "THAWED")
    for directory in groups.values():
        second = f"{directory}/cgroup.freeze"
        if os.access(second, os.W_OK):
            return _Switch(second, "1", "0")
    return None


@contextmanager
def _group_frozen(switch: _Switch, turn: Turn) -> Iterator[None]:
    if _is_frozen(switch.file):  # by whoever suspended it
        yield
        if not _is_frozen(switch.file):
            raise StateError("conflict", "the sandbox was resumed while its files were read: try again")
        return
    with _guard(_THAW, switch.thaw, switch.file):
        turn.is_ours = True
        try:
            placement.write(switch.file, switch.freeze)
            _await(lambda: _is_frozen(switch.file))
            yield
        finally:
            placement.write(switch.file, switch.thaw)
            turn.is_ours = False


def _is_frozen(file: str) -> bool:
    if file.endswith("freezer.state"):
        return _read(file).strip() == "FROZEN"
    return "frozen 1" in _read(f"{os.path.dirname(file)}/cgroup.events").splitlines()


@contextmanager
def _all_stopped(first_pid: int) -> Iterator[None]:
    namespace = os.readlink(f"/proc/{first_pid}/ns/pid")
    before = [pid for pid in _inside(namespace) if _is_still(pid)]
    with _guard(_CONTINUE, namespace, *map(str, before)):
        told: list[int] = []
        try:
            _await(lambda: _stop(namespace, before, told))
            yield
        finally:
            _signal(reversed(told), signal.SIGCONT)  # children before those who wait for them


def _stop(namespace: str, before: Collection[int], told: list[int]) -> bool:
    """Stop what runs; answer whether nothing did."""
    running = [pid for pid in _inside(namespace) if pid not in before and not _is_still(pid)]
    told.extend(pid for pid in running if pid not in told)
    _signal(running, signal.SIGSTOP)
    return not running


def _inside(namespace: str) -> list[int]:
    return pids_where(lambda pid: os.readlink(f"/proc/{pid}/ns/pid") == namespace)


def _is_still(pid: int) -> bool:
    return _read(f"/proc/{pid}/stat").rpartition(") ")[2][:1] in ("", "T", "t", "Z", "X")


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _await(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + FREEZE_DEADLINE_S
    while not done():
        if time.monotonic() > deadline:
            words = "a process in the sandbox does not stand still: its disk may be stuck; try again later"
            raise ProviderError("provider_unavailable", words)
        time.sleep(_LOOK_EVERY_S)


@contextmanager
def _guard(script: str, *words: str) -> Iterator[None]:
    """Have a program run `script` when the block has ended, or this process, whichever is first."""
    waiting, ours = os.pipe()
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        argv: Sequence[str] = ["sh", "-c", script, "sh", *words]
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


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
