"""Resource usage of a sandbox, from the files of its control groups, in both versions of the kernel's interface.

A measurement reads a dozen small files, which takes a fraction of a millisecond; no engine is asked. Values that are no
numbers, or that this kernel does not count, are None. Version 1 has a directory for each controller, version 2 one for
all of them; a mapping of controllers to directories stands for both.

Version 1 counts input and output only of disks with a limit. The rest is summed up from the processes themselves: each
includes its reaped children.
"""

import os
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

MOST_BYTES: Final = 65_536
"""Of no file is more read than that: the longest has a line for each disk."""

MOST: Final = 2**63 - 1
_MOST_DIGITS: Final = 20
MOST_PROCESSES: Final = 256
"""The input and output of more processes than that is not summed up."""

UNLIMITED: Final = 2**60
"""From here on a limit in bytes is none: version 1 says "no limit" by the greatest number of whole pages."""

NANO: Final = 1e-9
MICRO: Final = 1e-6
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")

_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK

_READS: Final = frozenset({"Read", "rbytes"})
_OF_A_PROCESS: Final = {"read_bytes": "rbytes", "write_bytes": "wbytes"}


class Usage(Struct, frozen=True, kw_only=True):
    """The usage of a group's processes, and its limits. See `sandkeep.model.SandboxStats`."""

    cpu_s: float | None = None
    cpu_user_s: float | None = None
    cpu_system_s: float | None = None
    cpus_limit: float | None = None
    memory_bytes: int | None = None
    memory_peak_bytes: int | None = None
    memory_limit_bytes: int | None = None
    pids: int | None = None
    pids_limit: int | None = None
    pids_refused: int | None = None
    io_read_bytes: int | None = None
    io_written_bytes: int | None = None
    oom_kills: int | None = None


def measure(groups: Mapping[str, str]) -> Usage | None:
    """Read the usage of the groups: controller -> directory. None when they have gone. Blocks, for a short time."""
    if groups and not any(map(os.path.isdir, set(groups.values()))):
        return None
    found: dict[str, int | float] = {}
    for read, directory in _readers(groups):
        found |= _known(read(directory))
    if "io_read_bytes" not in found and "pids" in groups:
        found |= _known(_io_of_processes(groups["pids"]))
    return Usage(**found)  # type: ignore[arg-type]  # the readers return values of these fields' types


def _readers(groups: Mapping[str, str]) -> list[tuple["Reader", str]]:
    """Return the readers for the groups, each with its directory."""
    version_2 = {directory for directory in groups.values() if os.path.exists(f"{directory}/cgroup.controllers")}
    asked = [(reader, directory) for directory in sorted(version_2) for reader in VERSION_2]
    for controller, directory in groups.items():
        if directory not in version_2 and controller in VERSION_1:
            asked.append((VERSION_1[controller], directory))
    return asked


def oom_kills(groups: Mapping[str, str]) -> int | None:
    """Return the number of OOM kills in the group; None if unknown."""
    directory = groups.get("memory")
    if directory is None:
        return None
    for file in ("memory.oom_control", "memory.events"):
        count = _number(_table(f"{directory}/{file}").get("oom_kill"))
        if count is not None:
            return count
    return None


def occupied_memory(groups: Mapping[str, str]) -> int | None:
    """Return the bytes that the group's processes need: without files that the kernel can drop. None if unknown."""
    table = _table(f"{groups.get('memory', '')}/memory.stat")
    for own, shared in (("total_rss", "total_shmem"), ("anon", "shmem")):
        if own in table:
            return (_number(table[own]) or 0) + (_number(table.get(shared)) or 0)
    return None


def refused_pids(groups: Mapping[str, str]) -> int | None:
    """Return the number of processes that were not started because of the group's limit; None if unknown."""
    directory = groups.get("pids")
    return None if directory is None else _number(_table(f"{directory}/pids.events").get("max"))


class ProcessCount:
    """The number of processes in a group, beside its limit. A descriptor is held from the first question to `close`: to
    open the file each time would take ten times as long as to read it.
    """

    def __init__(self, groups: Mapping[str, str]) -> None:
        self._directory = groups.get("pids")
        self._fd: int | None = None
        self._limit = 0

    def at_limit(self) -> int | None:
        """Return the number of processes if the group can have no more; None otherwise, or if unknown. A limit that was
        lowered after the first question is not noticed before `forget_limit`.
        """
        if self._directory is None:
            return None
        try:
            if self._fd is None:
                self._fd = os.open(f"{self._directory}/pids.current", _FLAGS)
            count = int(os.pread(self._fd, _MOST_DIGITS, 0))
        except (OSError, ValueError):
            return None
        if count >= self._limit:
            limit = _number(_read(f"{self._directory}/pids.max"))
            self._limit = MOST if limit is None else limit
        return count if count >= self._limit else None

    def forget_limit(self) -> None:
        """Read the limit anew."""
        self._limit = 0

    def close(self) -> None:
        """Close the descriptor. The number is unknown afterwards."""
        self._directory = None
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


# -- version 1 --------------------------------------------------------------------------------------------------------


def _cpuacct_v1(directory: str) -> dict[str, float | None]:
    split = _table(f"{directory}/cpuacct.stat")
    return {
        "cpu_s": _scaled(_read(f"{directory}/cpuacct.usage"), NANO),
        "cpu_user_s": _scaled(split.get("user"), _TICK_S),
        "cpu_system_s": _scaled(split.get("system"), _TICK_S),
    }


def _cpu_v1(directory: str) -> dict[str, float | None]:
    return {"cpus_limit": _share(_read(f"{directory}/cpu.cfs_quota_us"), _read(f"{directory}/cpu.cfs_period_us"))}


def _memory_v1(directory: str) -> dict[str, int | None]:
    files = ("memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.limit_in_bytes")
    return _memory(directory, "total_inactive_file", files)


def _blkio_v1(directory: str) -> dict[str, int | None]:
    """Lines such as ``8:0 Read 4096``, and others; none of a disk that is not counted, or from which nothing came."""
    for file in ("blkio.throttle.io_service_bytes_recursive", "blkio.throttle.io_service_bytes"):
        text = _read(f"{directory}/{file}")
        if text is not None:
            lines = [line.split() for line in text.splitlines()]
            pairs = [(fields[1], fields[2]) for fields in lines if len(fields) == 3]
            counted = [pair for pair in pairs if pair[0] in ("Read", "Write")]
            return _io(counted) if counted else {}
    return {}


# -- version 2 --------------------------------------------------------------------------------------------------------


def _cpu_v2(directory: str) -> dict[str, float | None]:
    times = _table(f"{directory}/cpu.stat")
    quota, _, period = (_read(f"{directory}/cpu.max") or "").strip().partition(" ")
    return {
        "cpu_s": _scaled(times.get("usage_usec"), MICRO),
        "cpu_user_s": _scaled(times.get("user_usec"), MICRO),
        "cpu_system_s": _scaled(times.get("system_usec"), MICRO),
        "cpus_limit": _share(quota, period),
    }


def _memory_v2(directory: str) -> dict[str, int | None]:
    return _memory(directory, "inactive_file", ("memory.current", "memory.peak", "memory.max"))


def _io_v2(directory: str) -> dict[str, int | None]:
    """Lines such as ``8:0 rbytes=4096 wbytes=0 rios=1 …``; none at all as long as nothing was read or written."""
    text = _read(f"{directory}/io.stat")
    if text is None:
        return {}
    pairs = [word.partition("=") for word in text.split()]
    return _io([(name, value) for name, _, value in pairs if name in ("rbytes", "wbytes")])


# -- both -------------------------------------------------------------------------------------------------------------


def _memory(directory: str, cache: str, files: tuple[str, str, str]) -> dict[str, int | None]:
    """The usage without the cache, the peak and the limit. Usage and cache are not read in the same instant."""
    cached = _number(_table(f"{directory}/memory.stat").get(cache)) or 0
    used, peak, limit = (_number(_read(f"{directory}/{file}")) for file in files)
    return {
        "memory_bytes": None if used is None else max(0, used - cached),
        "memory_peak_bytes": peak,
        "memory_limit_bytes": limit if limit is not None and limit < UNLIMITED else None,
        "oom_kills": oom_kills({"memory": directory}),
    }


def _pids(directory: str) -> dict[str, int | None]:
    return {
        "pids": _number(_read(f"{directory}/pids.current")),
        "pids_limit": _number(_read(f"{directory}/pids.max")),
        "pids_refused": refused_pids({"pids": directory}),
    }


Reader = Callable[[str], Mapping[str, int | float | None]]

VERSION_1: Final[dict[str, Reader]] = {
    "cpuacct": _cpuacct_v1,
    "cpu": _cpu_v1,
    "memory": _memory_v1,
    "blkio": _blkio_v1,
    "pids": _pids,
}
"""The reader of each controller."""

VERSION_2: Final[tuple[Reader, ...]] = (_cpu_v2, _memory_v2, _io_v2, _pids)
"""The readers of a group, for its available controllers. CPU time needs no controller."""


def _io(pairs: list[tuple[str, str]]) -> dict[str, int | None]:
    """Sum bytes read and bytes written over all disks."""
    read = [_number(value) for name, value in pairs if name in _READS]
    written = [_number(value) for name, value in pairs if name not in _READS]
    return {"io_read_bytes": _sum(read), "io_written_bytes": _sum(written)}


def _io_of_processes(group: str) -> dict[str, int | None]:
    """Sum the bytes that a group's processes read and wrote, with those of their children that ended before."""
    alive = _pids_in(f"{group}/cgroup.procs")
    if not 0 < len(alive) <= MOST_PROCESSES:
        return {}
    waited_for = [child for pid in alive for child in _pids_in(f"/proc/{pid}/task/{pid}/children")]
    pids = sorted({*alive, *waited_for})  # those that ended, and nobody has waited for yet, are in no group any more
    pairs: list[tuple[str, str]] = []
    for pid in pids:
        text = _read(f"/proc/{pid}/io")
        if text is None and os.path.exists(f"/proc/{pid}"):
            return {}  # there is something that we may not see
        fields = dict(line.split(": ", 1) for line in (text or "").splitlines() if ": " in line)
        pairs += [(name, fields[file]) for file, name in _OF_A_PROCESS.items() if file in fields]
    return _io(pairs) if pairs else {}


def _pids_in(path: str) -> list[str]:
    return [pid for pid in (_read(path) or "").split() if pid.isdigit()]


def _known(usage: Mapping[str, int | float | None]) -> dict[str, int | float]:
    return {name: value for name, value in usage.items() if value is not None}


def _sum(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _share(quota: str | None, period: str | None) -> float | None:
    """A limit in cpus. Without one the quota is -1 or ``max``."""
    used, of = _number(quota), _number(period)
    return used / of if used is not None and of else None


def _scaled(text: str | None, unit: float) -> float | None:
    count = _number(text)
    return None if count is None else round(count * unit, 9)


def _number(text: str | None) -> int | None:
    """A count that the kernel wrote; None for anything else."""
    digits = (text or "").strip()
    if not digits.isdigit() or len(digits) > _MOST_DIGITS:
        return None
    return min(int(digits), MOST)


def _table(path: str) -> dict[str, str]:
    """A file of lines with a name and a value each."""
    lines = (line.split() for line in (_read(path) or "").splitlines())
    return {fields[0]: fields[1] for fields in lines if len(fields) == 2}


def _read(path: str) -> str | None:
    """The beginning of a file; None when it cannot be had."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return None
    try:
        return os.read(descriptor, MOST_BYTES).decode("ascii", "replace")
    except OSError:
        return None
    finally:
        os.close(descriptor)
