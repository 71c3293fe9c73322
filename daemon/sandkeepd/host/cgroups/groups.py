"""Control groups: limits and usage counters of a sandbox, for both versions of the kernel's interface.

A sandbox has one group in each hierarchy that is needed, named by its log and its id, so that the sandboxes of two
daemons never share one; `placement` chooses the parent directory. Version 2 has one hierarchy, and its controllers must
have been delegated to the daemon (``Delegate=yes`` in its unit). `plan` chooses the directories without making them, so
that they are on record first.
"""

import contextlib
import errno
import os
import time
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from sandkeep.errors import ProviderError, StateError
from sandkeep.ids import is_log_id, is_name
from sandkeep.protocol.amounts import size
from sandkeepd.host.cgroups import placement, usage
from sandkeepd.host.cgroups.placement import CONTROLLERS, ROOT, read, write

PERIOD_US: Final = 100_000
"""The kernel's period of cpu bandwidth; a quota of half of it is half a cpu."""

REMOVE_DEADLINE_S: Final = 10.0
_GATHERINGS: Final = 100
"""Maximum number of passes over processes that fork while they are moved."""


COUNTING: Final = frozenset({"pids", "memory", "cpuacct", "blkio", "io", "freezer"})
"""Controllers of every sandbox, for usage counts and freezing. Not ``cpu``, by which all sandboxes together would get
no more of a busy machine than one process outside; version 2 counts the time of every group anyway.
"""


class Limits(Struct, frozen=True, kw_only=True):
    """The limits of a group; None is no limit."""

    pids: int | None = None
    memory_bytes: int | None = None
    cpus: float | None = None

    def controllers(self) -> list[str]:
        """The controllers that these limits need."""
        wanted = {"pids": self.pids, "memory": self.memory_bytes, "cpu": self.cpus}
        return [name for name, limit in wanted.items() if limit is not None]


class Hierarchies:
    """The controllers that this process can use, and their directories below the mount point `root`."""

    def __init__(self, root: str = ROOT, membership: str | None = None, log_id: str = "") -> None:
        self._prefix = f"{log_id}." if log_id else ""
        self._version: dict[str, int] = {}
        self._base: dict[str, str] = {}
        groups = placement.parse(placement.membership() if membership is None else membership)
        for name in CONTROLLERS:
            if name in groups:
                self._note_v1(name, os.path.realpath(f"{root}/{name}") + groups[name])
        if "" in groups:
            self._note_v2(root + groups[""])

    def _note_v1(self, name: str, own: str) -> None:
        if os.access(own, os.W_OK) and os.path.exists(f"{own}/tasks"):
            self._base[name] = placement.sandboxes_parent_v1(own)
            self._version[name] = 1

    def _note_v2(self, own: str) -> None:
        base, enabled = placement.sandboxes_parent_v2(own)
        if os.access(os.path.dirname(base), os.W_OK):
            for name in CONTROLLERS:
                if name in enabled:
                    self._base.setdefault(name, base)
                    self._version.setdefault(name, 2)

    def has(self, controller: str) -> bool:
        """Return True if ``pids``, ``memory``, … can be limited or counted."""
        return controller in self._base

    def can_freeze(self) -> bool:
        """True if groups can be frozen: version 2 needs no controller for that."""
        return "freezer" in self._base or 2 in self._version.values()

    def uncounted(self) -> list[str]:
        """Return the kinds of usage that are not counted here, in words."""
        counted = {
            "cpu time": self.has("cpuacct") or 2 in self._version.values(),
            "memory": self.has("memory"),
            "processes": self.has("pids"),
        }
        return [what for what, is_counted in counted.items() if not is_counted]

    def plan(self, sandbox_id: str, limits: Limits) -> dict[str, str]:
        """Choose the directory of a sandbox's group for each controller that its limits or counts need."""
        group, wanted = self._prefix + sandbox_id, COUNTING.union(limits.controllers())
        return {name: f"{base}/{group}" for name, base in self._base.items() if name in wanted}

    def found(self) -> list[str]:
        """The directories of all groups that are where those of sandboxes are made, whosever."""
        directories: list[str] = []
        for base in set(self._base.values()):
            with contextlib.suppress(OSError), os.scandir(base) as entries:
                directories += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        return sorted(directories)

    def create(self, groups: Mapping[str, str], limits: Limits) -> dict[str, str]:
        """Create groups and set limits; return those made. Raises `provider_unavailable` if one with a limit fails."""
        made: dict[str, str] = {}
        needed = limits.controllers()
        for name, directory in groups.items():
            try:
                self._make(name, directory)
                if name in needed:
                    for file, value in _settings(name, self._version[name], limits):
                        write(f"{directory}/{file}", value)
                made[name] = directory
            except OSError as error:
                if name in needed:
                    remove(groups)
                    what = f"cannot create a control group: {error.strerror}"
                    remedy = f"the daemon must be able to write to {ROOT} (Delegate=yes in its unit): restart it then"
                    raise ProviderError("provider_unavailable", f"{what}: {remedy}") from None
        return made

    def change(self, groups: Mapping[str, str], limits: Limits) -> None:
        """Let limits be in force for the processes of existing groups; write only what differs. A group that is new
        gets the processes of the others. Blocks. Safe to repeat.

        Raises `in_use` when the processes need more memory, `provider_unavailable` when it cannot be done.
        """
        others = {name: directory for name, directory in groups.items() if os.path.isdir(directory)}
        try:
            for name in limits.controllers():
                directory, version = groups[name], self._version[name]
                self._make(name, directory)
                if version == 1:
                    _gather(directory, {name: other for name, other in others.items() if other != directory})
                for file, value in _settings(name, version, limits):
                    if not _is_in_force(read(f"{directory}/{file}"), value):
                        write(f"{directory}/{file}", value)
        except OSError as error:
            if error.errno == errno.EBUSY and limits.memory_bytes is not None:
                raise needs_more(limits.memory_bytes) from None
            message = f"a limit cannot be changed: {error.strerror}: suspend the sandbox, then try again"
            raise ProviderError("provider_unavailable", message) from None

    def _make(self, name: str, directory: str) -> None:
        parent = os.path.dirname(directory)
        with contextlib.suppress(FileExistsError):
            os.mkdir(parent)  # only this level: directories above it are not ours to make
        if self._version[name] == 2:
            write(f"{parent}/cgroup.subtree_control", f"+{name}")
        os.makedirs(directory, exist_ok=True)

    def join_thread(self, groups: Mapping[str, str]) -> None:
        """Move the calling thread, and its future children, into the groups of version 1.

        The thread is written as 0: a number might be another's, which makes the kernel synchronize all processors.
        """
        for name, directory in groups.items():
            if self._version[name] == 1:
                write(f"{directory}/tasks", "0")

    def wrapper(self, groups: Mapping[str, str]) -> list[str]:
        """The words before a command that put it into the groups of version 2, which takes no single threads."""
        directories = {directory for name, directory in groups.items() if self._version[name] == 2}
        if not directories:
            return []
        return ["sh", "-c", 'echo 0 >"$0/cgroup.procs" && exec "$@"', directories.pop()]


def needs_more(limit: int) -> StateError:
    """Return the error for a memory limit that is less than the processes use."""
    message = f"memory_bytes: its processes use more than {size(limit)}: end some, or choose a higher limit"
    return StateError("in_use", message, field="memory_bytes")


def require_enough_memory(groups: Mapping[str, str], limit: int) -> None:
    """Raise `in_use` if the processes of the group use more than that without files that the kernel can drop: else it
    would kill some.
    """
    if (usage.occupied_memory(groups) or 0) > limit:
        raise needs_more(limit)


def _gather(directory: str, others: Mapping[str, str]) -> None:
    """Move all processes of other groups of a sandbox into its group of version 1. Raises OSError."""
    for _ in range(_GATHERINGS):
        outside = set(members(others)) - set(members({"": directory}))
        if not outside:
            return
        for pid in outside:
            with contextlib.suppress(ProcessLookupError):
                write(f"{directory}/cgroup.procs", str(pid))
    raise OSError(errno.EAGAIN, "its processes fork faster than they can be moved")


def _is_in_force(found: str, wanted: str) -> bool:
    """Tell if a group's file says that already; the kernel rounds bytes down to pages."""
    if found.strip() == wanted:
        return True
    page = os.sysconf("SC_PAGE_SIZE")
    return found.strip().isdigit() and wanted.isdigit() and int(found) == int(wanted) // page * page


def _settings(name: str, version: int, limits: Limits) -> Sequence[tuple[str, str]]:
    """The files of a group that hold a limit, in the order in which they must be written."""
    if name == "pids":
        return [("pids.max", str(limits.pids))]
    if name == "memory":
        if version == 1:
            return [("memory.limit_in_bytes", str(limits.memory_bytes))]
        return [("memory.max", str(limits.memory_bytes)), ("memory.oom.group", "0")]
    quota = max(1000, int((limits.cpus or 1) * PERIOD_US))
    if version == 1:
        return [("cpu.cfs_period_us", str(PERIOD_US)), ("cpu.cfs_quota_us", str(quota))]
    return [("cpu.max", f"{quota} {PERIOD_US}")]


def log_and_sandbox(directory: str) -> tuple[str, str] | None:
    """Parse a group's name: the ids of its log and its sandbox."""
    log_id, _, sandbox_id = os.path.basename(directory).partition(".")
    return (log_id, sandbox_id) if is_log_id(log_id) and is_name(sandbox_id) else None


def groups_of_pid(pid: int, root: str = ROOT, member_of: str | None = None) -> dict[str, str]:
    """Return the groups of a process, by controller, as directories; without shared ones: those of this daemon, and the
    root of a hierarchy. Empty for a process that has gone.

    For sandboxes in groups of another program, such as a container engine. `member_of` is the text of
    ``/proc/PID/cgroup``.
    """
    text = read(f"/proc/{pid}/cgroup") if member_of is None else member_of
    own = placement.parse(placement.membership())
    groups = {name: path for name, path in placement.parse(text).items() if _is_private(path, own.get(name))}
    places = {name: f"{root}/{name}{groups[name]}" for name in map(str, CONTROLLERS) if name in groups}
    found = {name: os.path.realpath(directory) for name, directory in places.items() if os.path.isdir(directory)}
    if "" in groups:
        for top in (root, f"{root}/unified"):
            for name in placement.controllers(top + groups[""]):
                found.setdefault(name, top + groups[""])
    return found


def is_frozen(pid: int) -> bool:
    """Return True if the group of a process is frozen."""
    groups = placement.parse(read(f"/proc/{pid}/cgroup"))
    first = read(f"{ROOT}/freezer{groups['freezer']}/freezer.state") if "freezer" in groups else ""
    second = "".join(read(f"{top}{groups['']}/cgroup.events") for top in (ROOT, f"{ROOT}/unified") if "" in groups)
    return first.startswith("FROZEN") or "frozen 1" in second.splitlines()


def _is_private(path: str, own: str | None) -> bool:
    """Not so a path that leads out of the part of the tree that is mounted here."""
    return path not in ("", own) and ".." not in path.split("/")


def members(groups: Mapping[str, str]) -> list[int]:
    """The processes that are in any of the groups."""
    found: set[int] = set()
    for directory in groups.values():
        found.update(int(pid) for pid in read(f"{directory}/cgroup.procs").split())
    found.discard(os.getpid())
    return sorted(found)


def ran_out_of_memory(groups: Mapping[str, str]) -> bool:
    """Return True if the kernel OOM-killed a process in the group."""
    return bool(usage.oom_kills(groups))


def remove(groups: Mapping[str, str]) -> None:
    """Remove groups whose processes are ending. Blocks. Safe to repeat. Raises `provider_unavailable` if in use."""
    deadline = time.monotonic() + REMOVE_DEADLINE_S
    for directory in set(groups.values()):
        while True:
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                break
            except OSError:
                if time.monotonic() > deadline:
                    message = f"the control group {directory} is still in use: try again later"
                    raise ProviderError("provider_unavailable", message) from None
                time.sleep(0.005)
