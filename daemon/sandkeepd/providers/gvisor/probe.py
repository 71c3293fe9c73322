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
        "isolation": Capability(works=True, why="gVisor's own kernel, on the platform that RUNSC_PLATFORM names"),
        "seccomp": Capability(
            works=True, why="calls are its own kernel's, and runsc filters what that asks of the host"
        ),
        "checkpoints": _saving("only of sandboxes without a network; " + _SAME, root=root),
        "suspend": _saving("what is suspended is saved, and lies on the disk", root=root),
        "terminals": Capability(works=True, why="in images that have tmux; " + _KEYS),
        "overlay": Capability(works=True, why="what is written lies in memory, also in checkpoints"),
        "limit_memory": _limit(hierarchies, "memory", "when it is used up, all of the sandbox is killed"),
        "limit_cpus": _limit(hierarchies, "cpu", None),
        "limit_disk": Capability(works=False, why=plan.DISK),
        "limit_pids": Capability(works=False, why=plan.PIDS),
        "stats": counting(hierarchies),
        "network_host": Capability(works=True, why=plan.HOST_NETWORK),
        "network_bridge": Capability(
            works=False, why="this runsc cannot restore a sandbox with a network of its own: use none or host"
        ),
        "snapshots": Capability(works=True, why=SNAPSHOTS),
        "incremental_snapshots": Capability(works=False, why="only gVisor's kernel knows what was changed"),
        "forks": Capability(works=False, why=FORKS),
        "users": capability(root, "without root there is one user inside, 0"),
    }


_SAME = "they are restored by the same version of runsc, on a processor with the same features"
_KEYS = "where a program leaves its keys to the terminal, an end of input typed into an empty line does nothing"
SNAPSHOTS = "the sandbox's own tar reads its workspace while all goes on, and may find changes in part"
FORKS = "files lie in the memory of gVisor's kernel: make a checkpoint that leaves it running, and restore that"


def _saving(note: str, *, root: bool) -> Capability:
    why = plan.why_not_saved("none", rootless=not root or gvisor.ROOTLESS())
    return Capability(works=why is None, why=why or note)


def _limit(hierarchies: Hierarchies, controller: str, note: str | None) -> Capability:
    if hierarchies.has(controller):
        return Capability(works=True, why=note)
    return Capability(works=False, why=f"the daemon has no writable {controller} control group")
