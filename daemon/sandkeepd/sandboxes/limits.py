"""Attribute failures of processes to the limits of their sandbox, and tell which limit a sandbox is at.

A process that failed while its sandbox's disk is full failed of that, as far as anybody can tell: its own message may
be lost, as its journal lies on that disk. One that failed after the kernel refused a process to the sandbox failed of
the limit of processes; others that ran meanwhile and failed are told the same.
"""

from typing import Final

from sandkeep.model import LimitName
from sandkeep_store.views.processes import ProcessState
from sandkeepd.contract.instance import Instance
from sandkeepd.host.cgroups import usage
from sandkeepd.sandboxes.oom import OomWatcher

FILE_TOO_LARGE: Final = 128 + 25
"""Exit code of a process that SIGXFSZ ended: a file was to become larger than the disk limit."""


class LimitWatcher:
    """The limits of one sandbox. Where the kernel does not count refused processes, no failure is attributed to them.
    For a process that an earlier daemon started, only those since its adoption count. To be closed.
    """

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        self._oom = OomWatcher(instance)
        self._refused: dict[str, int] = {}
        self._had_space: set[str] = set()
        self._processes = usage.ProcessCount(instance.cgroups)

    def begin(self, process_id: str) -> None:
        """Mark the kernel's counts, as a process is about to be started, or was found running."""
        self._oom.begin(process_id)
        refused = usage.refused_pids(self._instance.cgroups)
        if refused is not None:
            self._refused[process_id] = refused
        if not self._instance.disk_is_full():
            self._had_space.add(process_id)

    def forget(self, process_id: str) -> None:
        """The process was not started after all."""
        self._oom.forget(process_id)
        self._refused.pop(process_id, None)
        self._had_space.discard(process_id)

    def met(self, process: ProcessState, exit_code: int | None) -> list[LimitName]:
        """Return the limits at which a process with this exit ended. To be called once.

        Of a success only the disk is told, if it became full meanwhile: many programs ignore ENOSPC.
        """
        oom_killed = self._oom.attribute(process, exit_code)
        refused = self._refused.pop(process.process_id, None)
        had_space = process.process_id in self._had_space
        self._had_space.discard(process.process_id)
        if exit_code is None:
            return []
        if exit_code == 0:
            return ["disk"] if had_space and self._instance.disk_is_full() else []
        met: dict[LimitName, bool] = {
            "disk": exit_code == FILE_TOO_LARGE or self._instance.disk_is_full(),
            "memory": oom_killed,
            "pids": refused is not None and (usage.refused_pids(self._instance.cgroups) or 0) > refused,
            "time": process.timed_out,
        }
        return [limit for limit, is_met in met.items() if is_met]

    def note(self) -> str | None:
        """Return a note on the limits that the running sandbox is at; None if there are none."""
        notes = []
        if self._instance.disk_is_full():
            growth = ", or `sandkeep update --disk`" if self._instance.has_own_disk else ""
            notes.append(f"its disk is full: remove files{growth}")
        if (count := self._processes.at_limit()) is not None:
            notes.append(f"it has {count} processes, which is its limit: end some")
        return "; ".join(notes) or None

    def changed(self) -> None:
        """Go by the present limits of the sandbox, which were changed."""
        self._processes.forget_limit()

    def close(self) -> None:
        """Release the descriptors."""
        self._processes.close()
