"""Resource usage of sandboxes in Prometheus' text format: samples in, text out.

Units are base units and stand in the names, counters end in ``_total``; an unknown value has no sample. There are no
timestamps, which the textfile collector refuses.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from sandkeep.model import SandboxStats

PREFIX: Final = "sandkeep_sandbox_"
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Family(NamedTuple):
    """A metric: its name after `PREFIX`, type, description, and its field, or one for each `mode`."""

    name: str
    type: str
    about: str
    fields: Mapping[str, str]


def _family(name: str, type: str, about: str, field: str | None = None) -> Family:
    return Family(name, type, about, {"": field or name})


FAMILIES: Final = (
    _family("cpu_seconds_total", "counter", "CPU time used by all processes, including those that ended.", "cpu_s"),
    Family(
        "cpu_mode_seconds_total",
        "counter",
        "CPU time by mode, counted more coarsely.",
        {"user": "cpu_user_s", "system": "cpu_system_s"},
    ),
    _family("cpu_limit_cpus", "gauge", "CPU limit, in cores.", "cpus_limit"),
    _family("memory_bytes", "gauge", "Memory in use, without the page cache."),
    _family("memory_peak_bytes", "gauge", "Maximum memory in use, with the page cache."),
    _family("memory_limit_bytes", "gauge", "Memory limit."),
    _family("pids", "gauge", "Processes and threads."),
    _family("pids_limit", "gauge", "Limit of processes and threads."),
    _family("pids_refused_total", "counter", "Processes not started because of the limit.", "pids_refused"),
    _family("disk_bytes", "gauge", "Bytes taken of the disk limit."),
    _family("disk_limit_bytes", "gauge", "Disk limit."),
    _family("io_read_bytes_total", "counter", "Bytes read from disks.", "io_read_bytes"),
    _family("io_written_bytes_total", "counter", "Bytes written to disks.", "io_written_bytes"),
    _family("oom_kills_total", "counter", "Processes killed by the kernel's OOM killer.", "oom_kills"),
    _family("timeouts_total", "counter", "Processes that ended at their time limit.", "timeouts"),
    _family("running_processes", "gauge", "Running processes that callers started."),
)


def exposition(found: Sequence[SandboxStats]) -> str:
    """The text. A metric of which there is no sample is left out."""
    return "".join(f"{line}\n" for family in FAMILIES for line in _lines(family, found))


def _lines(family: Family, found: Sequence[SandboxStats]) -> Iterator[str]:
    samples = list(_samples(family, found))
    if samples:
        yield f"# HELP {PREFIX}{family.name} {family.about}"
        yield f"# TYPE {PREFIX}{family.name} {family.type}"
        yield from samples


def _samples(family: Family, found: Sequence[SandboxStats]) -> Iterator[str]:
    for one in found:
        labels = {"sandbox_id": one.sandbox_id, "provider": one.provider, "owner": one.owner}
        for mode, field in family.fields.items():
            value = getattr(one, field)
            if value is not None:
                pairs = labels | ({"mode": mode} if mode else {})
                shown = ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in pairs.items())
                yield f"{PREFIX}{family.name}{{{shown}}} {value!r}"
