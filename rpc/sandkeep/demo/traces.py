"""Remains of a directory on the machine: processes that run from it or see it, and mounts below it."""

import os
import time
from contextlib import suppress
from typing import Final

VANISH_S: Final = 30.0


def processes(root: str) -> list[int]:
    """Return processes with this path in their arguments or in mounts of their own, without ourselves and our
    ancestors, which may have named it.

    Mounts in our mount namespace prove nothing: all processes on the machine have those, and callers kill the returned
    processes. Nor do mount points below the path: any namespace that is created while something is mounted there
    inherits that mount.
    """
    ours = _ancestors()
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and pid not in ours and _knows(pid, root)]


def _ancestors() -> set[str]:
    """This process, and those that it descends from."""
    found, pid = set[str](), str(os.getpid())
    while pid != "0" and pid not in found:
        found.add(pid)
        with suppress(OSError):  # it has ended, and we are another's child now
            pid = _read(f"/proc/{pid}/stat").rpartition(b") ")[2].split()[1].decode()
    return found


def _knows(pid: str, root: str) -> bool:
    name = os.fsencode(root)
    with suppress(OSError):
        if name in _read(f"/proc/{pid}/cmdline"):
            return True
        if os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt"):
            return any(name in _without_mount_point(line) for line in _read(f"/proc/{pid}/mountinfo").splitlines())
    return False


def _without_mount_point(line: bytes) -> bytes:
    """A line of mountinfo without its fifth word, which is where it is mounted."""
    fields = line.split(b" ")
    return b" ".join(fields[:4] + fields[5:])


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def mounts(root: str) -> list[str]:
    """Mounts of this place in our own mount namespace."""
    with open("/proc/self/mountinfo") as text:
        return [line.split()[4] for line in text if root in line]


def remaining(root: str) -> list[str]:
    """Return the remains after a moment: the kernel takes its time to clear a namespace."""
    deadline = time.monotonic() + VANISH_S
    while True:
        left = [f"process {pid}" for pid in processes(root)] + [f"mount {path}" for path in mounts(root)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)
