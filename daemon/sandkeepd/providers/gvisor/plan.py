"""The plan of a gVisor sandbox: decided from the request and the machine's capabilities, with no effect."""

from typing import Final

from sandkeep.errors import CallerError, SetupError
from sandkeep.model import SandboxSpec
from sandkeep.settings import gvisor as settings
from sandkeepd.host.cgroups.groups import Hierarchies, Limits
from sandkeepd.providers.common.directory_provider import DirectoryPlan, enforcer
from sandkeepd.providers.common.inside import inner_user
from sandkeepd.providers.common.own_disks import APPROXIMATE

PIDS: Final = (
    "gVisor's own threads count as processes here, and a sandbox that meets the limit is killed as a whole: leave out "
    "pids, and limit memory"
)
DISK: Final = "gVisor keeps written files in memory, and this runsc has no separate limit for them"
HOST_NETWORK: Final = "gVisor cannot save a sandbox with the host's network: create it with network 'none'"
ROOTLESS: Final = "a rootless runsc cannot restore what it saved: run the daemon as root"
HOST_THREADS: Final = 8192
"""Maximum number of host threads of a sandbox, so that it cannot use up the machine's. A process takes six or seven."""


class Plan(DirectoryPlan, frozen=True, kw_only=True):
    """A decided plan. `uid` and `gid` are those inside."""

    uid: int
    gid: int
    network: str
    rootless: bool
    writable: bool


def decide(sandbox_id: str, spec: SandboxSpec, hierarchies: Hierarchies, *, disk_limit: int, root: bool) -> Plan:
    """See `Provider.plan`."""
    _refuse(spec)
    rootless = not root or settings.ROOTLESS()
    uid, gid = _inner_user(spec.user, rootless=rootless)
    threads = HOST_THREADS if hierarchies.has("pids") else None
    limits = Limits(memory_bytes=spec.memory_bytes, cpus=spec.cpus, pids=threads)
    return Plan(
        uid=uid, gid=gid, network=_network(spec), rootless=rootless,
        writable=not (spec.read_only or settings.READONLY_FILESYSTEM()),
        limits=limits, disk_bytes=spec.disk_bytes or disk_limit,
        cgroups=hierarchies.plan(sandbox_id, limits), held_by=_held_by(limits, hierarchies),
    )  # fmt: skip


def _refuse(spec: SandboxSpec) -> None:
    if spec.pids is not None:
        raise SetupError("not_supported", PIDS, field="pids")
    if spec.disk_bytes is not None:
        raise SetupError("not_supported", f"{DISK}: limit memory instead", field="disk_bytes")
    if spec.volumes:
        raise SetupError("not_supported", "the gvisor provider has no volumes: copy files in", field="volumes")
    if spec.writable_root and settings.READONLY_FILESYSTEM():
        message = f"writable_root: the administrator set {settings.READONLY_FILESYSTEM.name}: leave it out"
        raise CallerError("permission_denied", message, field="writable_root")
    if spec.isolation == "none":
        raise SetupError("not_supported", "gVisor isolates: leave out isolation, or use the local provider")
    if settings.USE_SUDO():
        message = "RUNSC_USE_SUDO: sudo is not used: have the daemon run as root, or set it to 0"
        raise SetupError("not_configured", message, setting="RUNSC_USE_SUDO")


def _network(spec: SandboxSpec) -> str:
    if spec.network == "bridge":
        message = "this runsc cannot restore a sandbox with a network of its own: use network 'none' or 'host'"
        raise SetupError("not_supported", message)
    if spec.network == "host" and settings.DISABLE_NETWORKING():
        raise SetupError("not_supported", "RUNSC_DISABLE_NETWORKING is set: gVisor sandboxes have no network")
    return spec.network


def _inner_user(user: str | None, *, rootless: bool) -> tuple[int, int]:
    """Return the uid and gid inside. Raises `invalid` and `not_supported`."""
    if rootless:
        if user not in (None, "0", "0:0"):
            raise SetupError("not_supported", "without root, gVisor has one user inside, 0: leave out user")
        return 0, 0
    return inner_user(user)


def _held_by(limits: Limits, hierarchies: Hierarchies) -> dict[str, str]:
    held = {"disk": APPROXIMATE}
    for name, controller in (("memory", "memory"), ("cpus", "cpu")):
        if controller in limits.controllers():
            held[name] = enforcer(name, controller, hierarchies)
    return held


def why_not_saved(network: str, *, rootless: bool) -> str | None:
    """Return the reason why a sandbox can neither be suspended nor checkpointed, or None."""
    if rootless:
        return ROOTLESS
    return HOST_NETWORK if network == "host" else None


def notes(plan: Plan) -> list[str]:
    """Return the unexpected properties of a sandbox, as sentences."""
    told = ["its files are in memory, and count against that limit; only the output of processes is on disk"]
    why = why_not_saved(plan.network, rootless=plan.rootless)
    if why is not None:
        told.append(why)
    if "memory" in plan.held_by:
        told.append("at the memory limit the whole sandbox is killed, not only the largest process")
    return told
