"""A container's share of inotify. Everything here blocks, except `can_count`.

The kernel counts watches by user, and containers have users in common with each other and with the host: root, most
often. The creator of an inotify instance is the user that counts. So the keeper forwards all calls that create one (by
seccomp's user notification), and a program on the host makes them instead, in a user namespace with ceilings of its
own: see ``keeper.c``. It is independent of the daemon, and ends with the sandbox.
"""

import logging
import os
import time
from typing import Final

from sandkeepd.host.pools import ceilings
from sandkeepd.host.processes import Identity, identify, run_tool
from sandkeepd.keeper import program

logger = logging.getLogger("sandkeepd")

SHARED: Final = "its inotify watches are taken from those of all programs on the host that have its user"
"""The weakness without it, as the view of a sandbox reports it."""

BEGIN_S: Final = 10.0
"""Seconds that a keeper may take to give its notification descriptor."""

_TELLS: Final = "anon_inode:seccomp notify"
_CANNOT: Final = "/dev/full"
_SINCE: Final = (5, 14)
_LOOK_S: Final = 0.001


def can_count() -> bool:
    """Tell if watches can be counted: from Linux 5.14 on, and by root."""
    major, minor = os.uname().release.split(".")[:2]
    return os.geteuid() == 0 and (int(major), int("".join(filter(str.isdigit, minor)) or 0)) >= _SINCE


def begin(first: Identity, directory: str) -> bool:
    """Serve inotify for a container whose keeper is just starting; return True if that worked. `directory` is ours."""
    if _listener(first) != _TELLS:
        logger.warning("the kernel, or the seccomp profile, lets no container have inotify watches of its own")
        return False
    done = run_tool(program.inotify_argv(program.on_host(directory), first.pid, ceilings()))
    if done.returncode:
        logger.warning("the inotify watches of a container cannot be counted: %d", done.returncode)
    return done.returncode == 0


def _listener(first: Identity) -> str | None:
    """Return the type of the keeper's notification descriptor, once it is known; None when the keeper has ended or is
    too slow.
    """
    deadline = time.monotonic() + BEGIN_S
    while time.monotonic() < deadline:
        try:
            found = os.readlink(f"/proc/{first.pid}/fd/{program.LISTENER}")
        except FileNotFoundError:
            found = ""
        except OSError:
            return None
        if found in (_TELLS, _CANNOT):
            return found
        if identify(first.pid) != first:
            return None
        time.sleep(_LOOK_S)
    return None
