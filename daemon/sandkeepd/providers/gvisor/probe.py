"""The gVisor provider's capabilities on this machine, and a sentence for each missing one."""

import trio

from sandkeep.errors import SandkeepError
from sandkeep.model import Capability, ProviderCapabilities
from sandkeep.settings import gvisor
from sandkeep_store.threads import in_thread
from sandkeepd.host.cgroups.groups import Hierarchies
from sandkeepd.keeper import program
from sandkeepd.providers.common.capabilities import capability
from sandkeepd.providers.common.directory_provider import counting
from sandkeepd.providers.gvisor import plan, runsc

MISSING = "runsc is missing: install the package runsc, or gVisor's own"


async def capabilities(name: str, hierarchies: Hierarchies, *, root: bool) -> ProviderCapabilities:
    """See `Provider.capabilities`."""
    why = program.why_missing() or (None if runsc.program() else MISSING)
    if why is None:
        try:
            with trio.fail_after(20):
                await in_thread(runsc.version)
        except (SandkeepError, trio.TooSlowError) as error:
            why = str(error)
    return ProviderCapabilities(provider=name, works=why is None, why=why, features=_features(hierarchies, root=root))


def _features(hierarchies: Hierarchies, *, root: bool) -> dict[str, Capability]:
    return {
        "isolation": Capability(works=True, why="by gVisor's own kernel; RUNSC_PLATFORM sets its platform"),
        "seccomp": Capability(
            works=True, why="gVisor handles system calls itself, and filters those that it makes to the host"
        ),
        "checkpoints": _saving("only of sandboxes without a network; " + _SAME, root=root),
        "suspend": _saving("suspended sandboxes are saved to disk", root=root),
        "terminals": Capability(works=True, why="in images that have tmux; " + _KEYS),
        "overlay": Capability(works=True, why="written files are kept in memory, and saved in checkpoints"),
        "limit_memory": _limit(hierarchies, "memory", "at the limit the whole sandbox is killed"),
        "limit_cpus": _limit(hierarchies, "cpu", None),
        "limit_disk": Capability(works=False, why=plan.DISK),
        "limit_pids": Capability(works=False, why=plan.PIDS),
        "stats": counting(hierarchies),
        "network_host": Capability(works=True, why=plan.HOST_NETWORK),
        "network_bridge": Capability(
            works=False, why="this runsc cannot restore a sandbox with a network of its own: use none or host"
        ),
        "snapshots": Capability(works=True, why=SNAPSHOTS),
        "incremental_snapshots": Capability(works=False, why="gVisor does not tell which files were changed"),
        "forks": Capability(works=False, why=FORKS),
        "users": capability(root, "without root there is one user inside, 0"),
    }


_SAME = "they are restored by the same version of runsc, on a processor with the same features"
_KEYS = "Ctrl-D on an empty line ends no input of programs that read whole lines, such as cat"
SNAPSHOTS = "of the workspace, not frozen meanwhile: a file may be saved half written"
FORKS = "files are in the memory of gVisor's kernel: use `checkpoint create --leave-running`, and restore that"


def _saving(note: str, *, root: bool) -> Capability:
    why = plan.why_not_saved("none", rootless=not root or gvisor.ROOTLESS())
    return Capability(works=why is None, why=why or note)


def _limit(hierarchies: Hierarchies, controller: str, note: str | None) -> Capability:
    if hierarchies.has(controller):
        return Capability(works=True, why=note)
    return Capability(works=False, why=f"the daemon has no writable {controller} control group")
