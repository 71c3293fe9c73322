"""The control group above the containers of one build: it limits processes, for which the engine has no parameter, and
memory once more; it tells which limit was reached, and ends what an engine that died has left running.

The engine takes it as `cgroupparent`: a path with the driver `cgroupfs`, the name of a slice with `systemd`, which
makes that slice and sets its limits. Both versions of the kernel's interface. Everything here blocks.
"""

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from glob import glob
from typing import Any, Final

from sandkeep.errors import ProviderError
from sandkeep.settings import docker
from sandkeepd.host.cgroups.freezer import wait_until
from sandkeepd.host.cgroups.placement import ROOT, write
from sandkeepd.host.cgroups.usage import oom_kills
from sandkeepd.host.processes import kill_all, run_tool

TOP: Final = "sandkeep_builds"
"""The group, and the slice, of all builds of all daemons."""

SPARE_BYTES: Final = 1024 * 1024
"""Difference of the engine's memory limit and the group's, which must be reached first: in version 1 an OOM kill is
reported only to the group whose limit caused it.
"""

REMOVED_S: Final = 5.0
"""Seconds in which the engine removes the groups of containers that have ended."""

_MANAGER: Final = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
_NO_PROCESS: Final = re.compile(
    r"can(?:no|')t fork|fork:|resource temporarily unavailable|pthread_create", re.IGNORECASE
)


def why_missing(found: dict[str, Any], *, root: bool) -> str | None:
    """Return the reason why builds cannot be limited with this engine; None if they can."""
    options = found.get("SecurityOptions") or ()
    if not root:
        return "only root's daemon limits the processes of builds, and ends those of an engine that died"
    if not all(found.get(key) for key in ("CpuCfsQuota", "MemoryLimit", "PidsLimit")):
        return "the engine has no control groups for CPU time, memory or processes"
    if found.get("CgroupDriver") not in ("cgroupfs", "systemd") or any("rootless" in option for option in options):
        return "the engine has no control groups that root's daemon can limit: builds are without a limit of processes"
    return None


class BuildGroup:
    """The group of one build, named by its log and its image. `parent` is its name for the engine."""

    def __init__(self, name: str, driver: str, root: str = ROOT) -> None:
        self.name = name
        self._slice = f"{TOP}-{name}.slice" if driver == "systemd" else None
        self.parent = self._slice or f"/{TOP}/{name}"
        path = f"/{TOP}.slice/{self._slice}" if self._slice else self.parent
        self._everywhere = [f"{root}{path}", f"{root}/*{path}"]
        is_v2 = os.path.exists(f"{root}/cgroup.controllers")
        self._pids = f"{root}{path}" if is_v2 else f"{root}/pids{path}"
        self._memory = f"{root}{path}" if is_v2 else f"{root}/memory{path}"
        self._is_v2 = is_v2
        self._processes = self._bytes = 0
        self._oom: int | None = None

    def open(self) -> None:
        """Make it, with its limits. Raises `provider_unavailable`."""
        self._processes, self._bytes = docker.BUILD_PIDS(), docker.BUILD_MEMORY()
        try:
            if self._slice:
                self._start_slice(self._slice)
            else:
                self._make()
            if not self._is_v2:
                self._oom = _oom_counter(self._memory)
        except BaseException as error:
            self.close()
            if not isinstance(error, OSError):
                raise
            what = f"the control group of a build could not be made: {error.strerror}"
            raise ProviderError("provider_unavailable", f"{what}: look at the daemon's rights to {ROOT}") from None

    def _make(self) -> None:
        if self._is_v2:
            top = os.path.dirname(self._pids)
            write(f"{os.path.dirname(top)}/cgroup.subtree_control", "+pids +memory")
            os.makedirs(top, exist_ok=True)
            write(f"{top}/cgroup.subtree_control", "+pids +memory")
        for directory in {self._pids, self._memory}:
            os.makedirs(directory)
        write(f"{self._pids}/pids.max", str(self._processes))
        write(f"{self._memory}/{'memory.max' if self._is_v2 else 'memory.limit_in_bytes'}", str(self._bytes))

    def _start_slice(self, name: str) -> None:
        properties = {"TasksMax": self._processes, "MemoryMax": self._bytes, "MemorySwapMax": 0}
        words = [word for key, value in properties.items() for word in (key, "t", str(value))]
        asked = [name, "fail", str(len(properties)), *words, "0"]
        done = run_tool(["busctl", "call", *_MANAGER, "StartTransientUnit", "ssa(sv)a(sa(sv))", *asked], timeout_s=30)
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            raise ProviderError("provider_unavailable", f"systemd made no slice for a build: {said}")
        # The answer only says that the job was begun.
        wait_until(lambda: os.path.exists(f"{self._pids}/pids.max"), f"systemd made no slice for a build: {name}")

    def reached(self, tail: str) -> str | None:
        """Return the limit that the build has reached, in words. `tail` is the end of its output, by which a lack of
        processes is recognised where the kernel does not count it (before Linux 6.6).
        """
        if _is_set(self._oom) if self._oom is not None else oom_kills({"memory": self._memory}):
            return f"killed at its memory limit of {self._bytes >> 20} MiB ({docker.BUILD_MEMORY.name})"
        peak = _read(f"{self._pids}/pids.peak")
        if (int(peak) >= self._processes) if peak.isdigit() else _NO_PROCESS.search(tail):
            return f"at its limit of {self._processes} processes ({docker.BUILD_PIDS.name})"
        return None

    def kill(self) -> None:
        """Kill all that is in it, and let nothing begin in it any more. Safe to repeat."""
        with suppress(OSError):
            write(f"{self._pids}/pids.max", "0")
        kill_all(lambda: list(_members(self._pids)))

    def close(self) -> None:
        """Remove it. Safe to repeat. What the engine has not left yet stays for the next start of the daemon."""
        if self._oom is not None:
            os.close(self._oom)
            self._oom = None
        if self._slice:
            run_tool(["systemctl", "stop", "--no-block", self._slice], timeout_s=30)
            return
        deadline = time.monotonic() + REMOVED_S
        while any(not _removed(directory) for pattern in self._everywhere for directory in glob(pattern)):
            if time.monotonic() > deadline:
                return
            time.sleep(0.02)


def left_over(log_id: str, root: str = ROOT) -> list[BuildGroup]:
    """Return the groups of an earlier daemon's builds."""
    paths = [f"/{TOP}/{log_id}.*", f"/{TOP}.slice/{TOP}-{log_id}.*.slice"]
    found = [path for pattern in paths for path in (*glob(f"{root}{pattern}"), *glob(f"{root}/*{pattern}"))]
    slices = {os.path.basename(path).removeprefix(f"{TOP}-"): path.endswith(".slice") for path in found}
    return [
        BuildGroup(name.removesuffix(".slice"), "systemd" if is_slice else "cgroupfs", root)
        for name, is_slice in sorted(slices.items())
    ]


def _oom_counter(directory: str) -> int:
    """Return a descriptor that counts how often a group of version 1 was out of memory: the kernel's own count of kills
    is the container's, and goes with it.
    """
    counter = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    control = os.open(f"{directory}/memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
    try:
        write(f"{directory}/cgroup.event_control", f"{counter} {control}")
    except OSError:
        os.close(counter)
        raise
    finally:
        os.close(control)
    return counter


def _is_set(counter: int) -> bool:
    try:
        count = os.eventfd_read(counter)
    except BlockingIOError:
        return False
    os.eventfd_write(counter, count)
    return True


def _members(directory: str) -> Iterator[int]:
    for group, _, _ in os.walk(directory):
        yield from map(int, _read(f"{group}/cgroup.procs").split())


def _removed(directory: str) -> bool:
    """Remove a group with those below it. Return True if it is gone."""
    for group, _, _ in os.walk(directory, topdown=False):
        with suppress(OSError):
            os.rmdir(group)
    return not os.path.exists(directory)


def _read(path: str) -> str:
    with suppress(OSError), open(path, encoding="ascii") as file:
        return file.read().strip()
    return ""
