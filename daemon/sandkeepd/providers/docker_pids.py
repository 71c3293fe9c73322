"""The processes of a container as the host sees them: known by their identity, whatever number they have inside."""

import os
import signal
from contextlib import suppress

from sandkeepd.hostprocess import Identity, identify, open_process, wait_ended


def identify_in(first: Identity, pid: int) -> Identity | None:
    """The identity of the process `pid`, if it belongs to the container with the first process `first`: the number may
    be another's by now.
    """
    with suppress(OSError):
        found = identify(pid) if pid else None
        return found if found and _group(pid) == _group(first.pid) else None
    return None


async def ended(first: Identity) -> None:
    """Wait until a process has ended."""
    pidfd = open_process(first)
    if pidfd is not None:
        try:
            await wait_ended(pidfd)
        finally:
            os.close(pidfd)


def send(first: Identity | None, number: int) -> None:
    """Send a signal to a process and its group, which it leads. One that has ended is no error."""
    pidfd = None if first is None else open_process(first)
    if first is None or pidfd is None:
        return
    try:
        with suppress(ProcessLookupError):
            if os.getpgid(first.pid) == first.pid:
                os.killpg(first.pid, number)
            else:
                signal.pidfd_send_signal(pidfd, number)
    finally:
        os.close(pidfd)


def _group(pid: int) -> str:
    """The control groups of a process. Raises OSError."""
    with open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def pid_inside(pid: int) -> int:
    """The number that a process has inside; 0 when it has gone."""
    with suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0
