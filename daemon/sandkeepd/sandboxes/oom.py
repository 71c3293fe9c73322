"""Attribute exits to the kernel's OOM killer.

The kernel counts its kills in a sandbox's group, and does not name the processes. So an exit is attributed if all known
facts agree: it is that of SIGKILL, without an order for that or a time limit; and since the process's start, the kernel
has killed more than were attributed since. Of two such exits after one kill, the first to be reported is attributed.

The victim may have been a child instead, as a shell passes on its last command's exit. The attribution is wrong for a
process that kills itself after an unattributed kill of another one. For a process that an earlier daemon started, only
kills after its adoption count.
"""

from typing import Final, NamedTuple

from sandkeep_store.views.processes import ProcessState
from sandkeepd.contract.instance import Instance

KILLED: Final = 128 + 9
"""Exit code of a process that SIGKILL ended."""


class Mark(NamedTuple):
    """The kernel's count of OOM kills at a process's start, and the number attributed until then."""

    killed: int
    attributed: int


class OomWatcher:
    """The OOM kills in one sandbox. Where the kernel does not count them, none is attributed."""

    def __init__(self, instance: Instance) -> None:
        self._count = instance.oom_kills
        self._marks: dict[str, Mark] = {}
        self._attributed = 0

    def begin(self, process_id: str) -> None:
        """Mark the present count, as a process is about to be started, or was found running: earlier kills were not of
        it.
        """
        killed = self._count()
        if killed is not None:
            self._marks[process_id] = Mark(killed, self._attributed)

    def attribute(self, process: ProcessState, exit_code: int | None) -> bool:
        """Return True if a process with this exit was OOM-killed. To be called once."""
        mark = self._marks.pop(process.process_id, None)
        if mark is None or exit_code != KILLED or process.timed_out or process.last_signal == "KILL":
            return False
        killed = self._count()
        if killed is None or killed - mark.killed <= self._attributed - mark.attributed:
            return False
        self._attributed += 1
        return True

    def forget(self, process_id: str) -> None:
        """The process was not started after all."""
        self._marks.pop(process_id, None)
