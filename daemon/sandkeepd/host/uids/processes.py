"""The processes of one host uid: are there any, and ending them all.

A uid that belongs to one sandbox alone says more surely than anything else what the sandbox's processes are: the code
inside can leave its process group, its session, and whatever else it was put into, but without privileges never its
uid. So they are killed by a helper that has that uid and nothing else, with ``kill(-1)``: the kernel goes through all
processes while none can fork, and lets the helper hit none of anybody else.
"""

import os
import signal
import sys
import time
from typing import Final

from sandkeep.system.backoff import pauses
from sandkeepd.host import spawn
from sandkeepd.host.processes import TOOL_ENV, has_ended, ordinary_priority, owned_by, pids_where

DEADLINE_S: Final = 10.0
"""How long killed processes may take to be gone."""

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


def any_of(uid: int) -> bool:
    """Tell if the kernel knows of a process with this real uid, be it only what is left of one. Takes a microsecond.

    Looking for all four uids of a process takes a file of /proc for each. Code in sandboxes has the same in all four:
    it was started so, and has no privileges by which one could become another.
    """
    try:
        os.getpriority(os.PRIO_USER, uid)
    except ProcessLookupError:
        return False
    return True


def living(uid: int) -> list[int]:
    """The processes that have the uid as their real, effective, saved or file system's, and can still do something."""
    return pids_where(owned_by(uid))


def end_all(uid: int, deadline_s: float = DEADLINE_S) -> bool:
    """Kill every process of a uid that belongs to a sandbox of ours; answer whether it is certain that none is left.

    Only after a kill that hit all of them at once it is certain what is found in /proc: of processes that fork and end
    all the time, a look sees neither the one that has gone nor the one that came. Blocks. It is not certain of one that
    the kernel cannot end now, such as one that waits for a dead disk.
    """
    if uid <= 0:
        raise ValueError(f"uid {uid} belongs to no sandbox")
    if not any_of(uid):
        return True
    deadline = time.monotonic() + deadline_s
    hit = False
    for pause_s in pauses(0.002, _MOST_PAUSE_S):
        hit = hit or _kill_as(uid)
        if hit and not living(uid):
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
    pidfd = os.pidfd_open(child)  # not reaped before, so it is that very process
    try:
        deadline = time.monotonic() + _HELPER_S
        while not has_ended(pidfd, _CONTINUE_EVERY_S):  # the code inside may have stopped it
            late = time.monotonic() > deadline
            signal.pidfd_send_signal(pidfd, signal.SIGKILL if late else signal.SIGCONT)
    finally:
        os.close(pidfd)
    return os.waitpid(child, 0)[1] == 0
