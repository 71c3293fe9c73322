"""The processes of one host uid: detection, and killing all of them.

A uid that belongs to one sandbox alone identifies the sandbox's processes most reliably: the code inside can leave its
process group, its session, and other groupings, but without privileges never its uid. So they are killed by a helper
that has that uid and nothing else, with ``kill(-1)``: the kernel goes through all processes while none can fork, and
the helper can hit no process of another user.
"""

import os
import signal
import sys
import time
from typing import Final

from sandkeep.system.backoff import pauses
from sandkeep.system.descriptors import closing_fd
from sandkeepd.host import spawn
from sandkeepd.host.processes import TOOL_ENV, has_ended, ordinary_priority, owned_by, pids_where

DEADLINE_S: Final = 10.0
"""Seconds killed processes may take to be gone."""

_HELPER_S: Final = 5.0
_CONTINUE_EVERY_S: Final = 0.1
_MOST_PAUSE_S: Final = 0.5

# It has root's rights until the very call before the one that kills, so that the code inside has no time to kill the
# helper first; and as it executes nothing after that, nobody but root may attach to it as a debugger.
_HELPER: Final = """
import os, sys
uid = int(sys.argv[1])
os.chdir("/")
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
try:
    os.kill(-1, 9)
except ProcessLookupError:
    pass
"""


def has_any(uid: int) -> bool:
    """Return True if any process has this real uid, zombies too; code in sandboxes cannot change it. Takes 1 µs."""
    try:
        os.getpriority(os.PRIO_USER, uid)
    except ProcessLookupError:
        return False
    return True


def pids_of(uid: int) -> list[int]:
    """The processes that have the uid as their real, effective, saved or file system's, and can still do something."""
    return pids_where(owned_by(uid))


def kill_all_of(uid: int, deadline_s: float = DEADLINE_S) -> bool:
    """Kill every process of a uid that belongs to a sandbox of ours; return True if certainly none is left.

    A scan of /proc is conclusive only after a kill that hit all of them at once: with processes that fork and exit all
    the time, a scan misses both the one that has gone and the one that came. Returns False if a process cannot be
    killed now, such as one that waits for a dead disk. Blocks.
    """
    if uid <= 0:
        raise ValueError(f"uid {uid} belongs to no sandbox")
    if not has_any(uid):
        return True
    deadline = time.monotonic() + deadline_s
    hit = False
    for pause_s in pauses(0.002, _MOST_PAUSE_S):
        hit = hit or _kill_as(uid)
        if hit and not pids_of(uid):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
    return False


def _kill_as(uid: int) -> bool:
    """Kill all processes of a uid by a helper that has it; False when the code inside killed him first. Blocks."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        with ordinary_priority():
            argv = [sys.executable, "-I", "-S", "-c", _HELPER, str(uid)]
            child = spawn.start(argv, TOOL_ENV, dict.fromkeys(range(3), null), [signal.SIGPIPE])
    except OSError:  # there is no room for one more process now
        return False
    finally:
        os.close(null)
    with closing_fd(os.pidfd_open(child)) as pidfd:  # not reaped before, so it is that very process
        deadline = time.monotonic() + _HELPER_S
        while not has_ended(pidfd, _CONTINUE_EVERY_S):  # the code inside may have stopped it
            late = time.monotonic() > deadline
            signal.pidfd_send_signal(pidfd, signal.SIGKILL if late else signal.SIGCONT)
    return os.waitpid(child, 0)[1] == 0
