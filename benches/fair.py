"""The conditions of a measurement: floors and clients have the precedence that root's daemon gives itself.

The daemon's threads have `nice` -10, and so has its session, by which Linux shares the processors out first
(`/proc/self/autogroup`). A floor without them waits longer on a machine that is not idle, and the ratio flatters. So
each `run()` takes both for as long as it runs, and whatever it starts inherits them: the floors' programs, the clients,
and the daemon itself, in the same session. A server that stands for the daemon in a session of its own is given them.

Docker's engine and the crowd of the overload are neither figure nor floor: they keep `nice` 0. So does what the daemon
starts in sandboxes, as ever, in sessions of its own, while the floors' programs have precedence.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sandkeepd.host.processes import ordinary_priority, raise_priority

ordinary = ordinary_priority
"""For what is started in the block and is to have no precedence."""

Precedence = tuple[int, int | None]
"""`nice` of a process, of its threads the least, and that of its session, if the kernel has it."""


def precedence(pid: int) -> Precedence:
    """That of a process."""
    nice = min(os.getpriority(os.PRIO_PROCESS, thread) for thread in _threads(pid))
    with suppress(OSError), open(f"/proc/{pid}/autogroup") as group:
        return nice, int(group.read().split()[-1])
    return nice, None


@contextmanager
def conditions() -> Iterator[None]:
    """Take the daemon's precedence for the block, or the call of what this decorates. Only root may; others measure
    without any, as their daemons run.
    """
    before = precedence(os.getpid())
    raise_priority()
    try:
        yield
    finally:
        _give(os.getpid(), before)


def like_the_daemon(pid: int) -> None:
    """Give our own precedence to a server of a floor, whose session is not ours."""
    _give(pid, precedence(os.getpid()))


def _give(pid: int, wanted: Precedence) -> None:
    nice, session = wanted
    for thread in _threads(pid):
        with suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, thread, nice)
    if session is not None:
        with open(f"/proc/{pid}/autogroup", "w") as group:
            group.write(str(session))


def _threads(pid: int) -> list[int]:
    return [int(thread) for thread in os.listdir(f"/proc/{pid}/task")]


def check(daemon: int) -> None:
    """Raise if that daemon has another precedence than what is measured beside it."""
    ours, its = precedence(os.getpid()), precedence(daemon)
    if ours != its:
        raise RuntimeError(f"unequal conditions: the daemon has precedence {its}, the bench {ours}")
