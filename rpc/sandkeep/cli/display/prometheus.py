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
    """A metric: its name after `PREFIX`, its type, its description, and the field it comes from, or one for each
    `mode`.
    """

    name: str
    type: str
    about: str
    fields: Mapping[str, str]


def _family(name: str, type: str, about: str, field: str | None = None) -> Family:
    return Family(name, type, about, {"": field or name})


FAMILIES: Final = (
    _family("cpu_seconds_total", "counter", "CPU time used by all processes, those that ended included.", "cpu_s"),
    Family(
        "cpu_mode_seconds_total",
        "counter",
        "Parts of the CPU time, more coarsely counted.",
        {"user": "cpu_user_s", "system": "cpu_system_s"},
    ),
    _family("cpu_limit_cpus", "gauge", "CPUs that it may use at most.", "cpus_limit"),
    _family("memory_bytes", "gauge", "Memory in use, without files that only lie in the cache."),
    _family("memory_peak_bytes", "gauge", "The most memory that was ever in use, with files in the cache."),
    _family("memory_limit_bytes", "gauge", "Memory that it may use at most."),
    _family("pids", "gauge", "Processes and threads."),
    _family("pids_limit", "gauge", "Processes and threads that there may be at most."),
    _family("io_read_bytes_total", "counter", "Bytes read from disks.", "io_read_bytes"),
    _family("io_written_bytes_total", "counter", "Bytes written to disks.", "io_written_bytes"),
    _family("oom_kills_total", "counter", "Processes that the kernel killed for want of memory.", "oom_kills"),
    _family("running_processes", "gauge", "Processes that callers started and that run."),
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
                words = labels | ({"mode": mode} if mode else {})
                told = ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in words.items())
                yield f"{PREFIX}{family.name}{{{told}}} {value!r}"
