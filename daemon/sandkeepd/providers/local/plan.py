"""The plan of a local sandbox: decided from the request and the machine's capabilities, with no effect."""

import shutil
from typing import Final

from msgspec import field

from sandkeep.errors import SetupError
from sandkeep.model import SandboxSpec
from sandkeep.settings.daemon import PIDS_LIMIT, SCRATCH_LIMIT
from sandkeepd.contract.caller import Caller
from sandkeepd.host.cgroups.groups import Hierarchies, Limits
from sandkeepd.providers.common.directory_provider import DirectoryPlan, enforcer
from sandkeepd.providers.common.inside import inner_user
from sandkeepd.providers.common.own_disks import APPROXIMATE, ONLY_ROOT, refused
from sandkeepd.providers.local.probe import Abilities

NO_ROOT: Final = (
    "writable_root: a local sandbox sees the programs of the host, read-only: install into the workspace, or make an "
    "image for docker"
)


class Plan(DirectoryPlan, frozen=True, kw_only=True):
    """A decided plan. `uid` is the host's, None when it is the daemon's own user's. With `own_disk` the caller asked
    for a disk of that size.
    """

    mechanism: str
    uid: int | None
    gid: int | None
    groups: list[int] = field(default_factory=list)
    inner_uid: int = 1000
    inner_gid: int = 1000
    scratch_bytes: int
    own_disk: bool = False

    @property
    def own_uid(self) -> int | None:
        """The host uid of this sandbox alone; None when there is none."""
        return self.uid if self.mechanism == "bubblewrap" else None


class Planner:
    """Decides for one daemon; with `root`, sandboxes may have host uids of their own."""

    def __init__(self, hierarchies: Hierarchies, *, disk_limit: int, root: bool) -> None:
        self._hierarchies = hierarchies
        self._disk_limit = disk_limit
        self._root = root
        self._bubblewrap: str | None = None

    def decide(self, sandbox_id: str, spec: SandboxSpec, caller: Caller) -> Plan:
        """See `Provider.plan`. A plan that `needs_uid` says nothing of the host uid yet. No effect."""
        mechanism = self._mechanism(spec)
        if spec.writable_root:
            raise SetupError("not_supported", NO_ROOT, field="writable_root")
        if spec.network == "bridge":
            raise SetupError("not_supported", "the local provider has no bridge network: use network 'none' or 'host'")
        if spec.volumes:
            raise SetupError(
                "not_supported", "the local provider has no volumes: make an image for docker", field="volumes"
            )
        inner_uid, inner_gid = inner_user(spec.user)
        if spec.disk_bytes is not None and not self._root:
            raise refused(ONLY_ROOT)
        limits = Limits(pids=spec.pids or PIDS_LIMIT(), memory_bytes=spec.memory_bytes, cpus=spec.cpus)
        disk_bytes = spec.disk_bytes or self._disk_limit
        host_uid, host_gid, groups = None, None, list[int]()
        if mechanism == "none":
            _check_bare(spec)
            if self._root:
                host_uid, host_gid, groups = caller.uid, caller.gid, list(caller.groups)
        return Plan(
            mechanism=mechanism, uid=host_uid, gid=host_gid, groups=groups, inner_uid=inner_uid, inner_gid=inner_gid,
            limits=limits, disk_bytes=disk_bytes, own_disk=spec.disk_bytes is not None,
            scratch_bytes=_scratch(spec.memory_bytes, counted=self._hierarchies.has("memory")),
            cgroups=self._hierarchies.plan(sandbox_id, limits),
            held_by=self._held_by(limits),
        )  # fmt: skip

    def needs_uid(self, plan: Plan) -> bool:
        """Return True if a host uid has to be claimed for it."""
        return self._root and plan.mechanism == "bubblewrap" and plan.uid is None

    def plan_of_stray(self, sandbox_id: str, uid: int | None) -> Plan:
        """Reconstruct the plan of a sandbox that no event owns. `uid` is the uid still claimed for it."""
        everything = Limits(pids=PIDS_LIMIT(), memory_bytes=1, cpus=1)
        return Plan(
            mechanism="bubblewrap", uid=uid, gid=uid, limits=everything, disk_bytes=0, scratch_bytes=0,
            cgroups=self._hierarchies.plan(sandbox_id, everything),
        )  # fmt: skip

    def _mechanism(self, spec: SandboxSpec) -> str:
        if spec.isolation == "none":
            return "none"
        self._bubblewrap = self._bubblewrap or shutil.which("bwrap")
        if self._bubblewrap is None:
            raise SetupError("not_supported", "bubblewrap is missing: install the package bubblewrap")
        return "bubblewrap"

    def _held_by(self, limits: Limits) -> dict[str, str]:
        held = dict[str, str]()
        for name, controller in (("pids", "pids"), ("memory", "memory"), ("cpus", "cpu")):
            if controller in limits.controllers():
                held[name] = enforcer(name, controller, self._hierarchies, or_rlimit=name != "cpus")
        return held


def shown_limits(plan: Plan, *, own_disk: bool) -> dict[str, str]:
    """Return the enforcement of each limit, for callers: `approximate` is one that code inside can exceed."""
    limits = {**plan.held_by, "disk": "file system" if own_disk else APPROXIMATE}
    return limits | ({"memory": APPROXIMATE} if plan.held_by.get("memory") == "rlimit" else {})


def notes(plan: Plan, files: str, found: Abilities) -> list[str]:
    """Return the weaknesses of a sandbox's isolation, as sentences. `files` is the way in which it got the image's
    files.
    """
    weaker = [why_weaker(name) for name, how in plan.held_by.items() if how == "rlimit"]
    if plan.mechanism == "none":
        weaker.append("nothing isolates: the code runs as its caller, sees the host, and shares its network")
    elif plan.uid is None:
        weaker.append("its files belong to the daemon's own user on the host")
    if plan.mechanism == "bubblewrap" and found.seccomp.why:
        weaker.append(found.seccomp.why)
        if found.no_nested_userns.why:  # the filter refuses them, too
            weaker.append(found.no_nested_userns.why)
    if files != "overlay":
        weaker.append(f"the image was copied: {found.overlay.why or 'no overlay without isolation'}")
    return weaker


def why_weaker(limit: str) -> str:
    """Return a sentence on the effect of a limit that no control group enforces."""
    return {
        "cpus": "cpus cannot be limited: the daemon has no writable cpu control group",
        "memory": "memory is approximate: a limit of each process's own data, without shared memory and page cache, as "
        "there is no writable memory control group",
        "pids": "processes are counted by uid: there is no writable pids control group",
    }[limit]


def _check_bare(spec: SandboxSpec) -> None:
    """Raise `not_supported` for options that do not exist without isolation."""
    if spec.user is not None:
        raise SetupError("not_supported", "without isolation a sandbox runs as its caller: leave out user")
    if spec.read_only:
        raise SetupError("not_supported", "without isolation nothing can be made read-only: leave out read_only")


def _scratch(memory_bytes: int | None, *, counted: bool) -> int:
    """Return the size of each of the three file systems in memory. Their files count as the sandbox's memory; where
    nothing is `counted`, so that only their sizes limit them, the three together leave a quarter to the processes.
    """
    if memory_bytes is None or counted:
        return SCRATCH_LIMIT()
    return min(SCRATCH_LIMIT(), memory_bytes // 4)
