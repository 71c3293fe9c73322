"""Places at which the daemon can be made to kill itself, for tests of recovery.

``SANDKEEP_FAILPOINT=launch.sent`` kills it when that is reached for the first time, and ``launch.sent@3`` for the
third. Around each commit there are two more for every type of event in it, such as ``process.exited:before`` and
``process.exited:after``; and each operation has four, such as ``Forks.acted``. Unset, as always but in tests, a place
costs one comparison.
"""

import os
import signal
from itertools import count
from typing import Final

SETTING: Final = "SANDKEEP_FAILPOINT"

POINTS: Final = (
    "start.folded",
    "start.ready",
    "adopt.held",
    "sweep.found",
    "image.copied",
    "image.discarded",
    "uid.claimed",
    "uid.emptied",
    "uid.released",
    "create.directories",
    "create.spawned",
    "create.answered",
    "create.secrets",
    "disk.allocated",
    "disk.mounted",
    "disk.extended",
    "update.reserved",
    "update.recorded",
    "update.applied",
    "disk.emptied",
    "docker.staged",
    "docker.tagged",
    "docker.directories",
    "docker.volume",
    "docker.created",
    "docker.started",
    "docker.secrets",
    "docker.killed",
    "docker.removed",
    "gvisor.directories",
    "gvisor.prepared",
    "gvisor.spawned",
    "gvisor.secrets",
    "gvisor.saved",
    "gvisor.renamed",
    "gvisor.restored",
    "gvisor.laid_out",
    "gvisor.aside",
    "gvisor.killed",
    "kubernetes.made",
    "kubernetes.secrets",
    "kubernetes.deleted",
    "kubernetes.triggered",
    "kubernetes.suspended",
    "modal.staged",
    "modal.made",
    "modal.secrets",
    "modal.saved",
    "modal.ended",
    "launch.written",
    "launch.sent",
    "launch.answered",
    "signal.sent",
    "stdin.written",
    "file.written",
    "copy.staged",
    "copy.committed",
    "layer.frozen",
    "layer.copied",
    "layer.made",
    "fork.frozen",
    "snapshot.frozen",
    "snapshot.copied",
    "snapshot.packed",
    "snapshot.received",
    "snapshot.sent",
    "snapshot.kept",
    "snapshot.resent",
    "snapshot.removed",
    "branch.planned",
    "branch.kept",
    "branch.compared",
    "branch.packed",
    "branch.layered",
    "branch.resolved",
    "commit.planned",
    "commit.applied",
    "restore.opened",
    "restore.unpacked",
    "replace.aside",
    "replace.recorded",
    "checkpoint.saved",
    "checkpoint.back",
    "checkpoint.made",
    "checkpoint.kept",
    "checkpoint.removed",
    "checkpoint.named",
    "checkpoint.returning",
    "end.stopped",
    "end.killed",
    "end.discarded",
    "metadata.written",
    "metadata.renamed",
    "rebuild.begun",
    "segment.written",
    "segment.renamed",
    "compact.forgotten",
    "compact.output_dropped",
    "compact.first_raised",
    "compact.removed",
    "redact.changed",
    "redact.wiped",
    "redact.segment_removed",
    "redact.forgotten",
    "output.removed",
    "output.cut",
    "output.answers_cut",
    "output.thinned_out",
    "lock.taken",
    "lock.given_back",
    "stop.asked",
    "stop.carriers_ended",
)
"""Before, between and after the side effects."""

BEFORE: Final = "before"
AFTER: Final = "after"

_name, _, _which = os.environ.get(SETTING, "").partition("@")
_times = count(1)

armed: Final = bool(_name)
"""True if any failpoint is set."""


def reach(name: str) -> None:
    """Be at a place. Does not return if it is the one at which to die."""
    if name == _name and next(_times) == int(_which or 1):
        os.kill(os.getpid(), signal.SIGKILL)
