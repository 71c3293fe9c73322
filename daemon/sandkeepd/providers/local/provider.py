"""The local provider: sandboxes on this machine, by bubblewrap over copies-on-write of directories.

With root's daemon every sandbox has a host uid of its own; with a user's daemon all have that user's. `start` makes
them, `bubblewrap` defines their view, `common.layout` their directories. See `contract.provider` for the interface.
"""

import functools
import logging
import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import trio

from sandkeep import failpoints
from sandkeep.errors import ProviderError, SandkeepError, SetupError
from sandkeep.ids import is_name
from sandkeep.model import Capability, Isolation, ProviderCapabilities, SandboxSpec
from sandkeep.settings.daemon import UID_REGISTRY
from sandkeep_store.threads import Threads, in_thread
from sandkeepd.contract.caller import Caller
from sandkeepd.contract.ledger import Ledger, Swept
from sandkeepd.host.processes import (
    identify,
    in_fresh_thread,
    reap,
)
from sandkeepd.host.threads import in_ending_thread
from sandkeepd.host.uids.allocation import Claims
from sandkeepd.host.uids.registry import Registry
from sandkeepd.host.undo import undo_on_error
from sandkeepd.keeper.watcher import Watcher
from sandkeepd.providers.common import disk_usage
from sandkeepd.providers.common.capabilities import capability
from sandkeepd.providers.common.directory_provider import DirectoryProvider, Lower, counting
from sandkeepd.providers.common.disks import Disks
from sandkeepd.providers.common.inside import INSIDE, PATH, WORKSPACE, environment, marks
from sandkeepd.providers.common.keeper_provider import HeldInstance, running
from sandkeepd.providers.common.layout import LAYER_MARK, Layout, log_of, unmount_below
from sandkeepd.providers.common.own_disks import OwnDisks, growth_feature, limit_feature
from sandkeepd.providers.local import plan as local_plan
from sandkeepd.providers.local.claims import UidClaims
from sandkeepd.providers.local.end import Cleanup
from sandkeepd.providers.local.layers import LocalLayers
from sandkeepd.providers.local.pause import WHY_NOT_SUSPENDED, FreezerPauses, poll_freezers
from sandkeepd.providers.local.plan import Plan, Planner
from sandkeepd.providers.local.probe import Abilities, probe
from sandkeepd.providers.local.resizing import LocalResizing
from sandkeepd.providers.local.revival import LocalReplacement, LocalRevival
from sandkeepd.providers.local.snapshots import LocalSnapshots, files_features
from sandkeepd.providers.local.start import Handle, Job, start
from sandkeepd.providers.local.strays import Strays

logger: Final = logging.getLogger("sandkeepd")


class LocalInstance(HeldInstance):
    """A local sandbox."""

    plan: Plan
    freezer: FreezerPauses

    def set_plan(self, plan: Plan, *, own_disk: bool) -> None:
        """Set its plan, and the limit of its disk, which is its own or measured."""
        self.plan = plan
        self.own_disk_bytes, self.disk_bytes = (plan.disk_bytes, None) if own_disk else (None, plan.disk_bytes)


class LocalProvider(DirectoryProvider[LocalInstance]):
    """See `Provider`. It runs tasks of its own, so `open_local` makes it."""

    name = "local"
    first = "its first process"

    def __init__(
        self, state_dir: str, log_id: str, watcher: Watcher, nursery: trio.Nursery, *, uid_base: int, disk_limit: int
    ) -> None:
        super().__init__(state_dir, log_id, watcher, nursery, uid_base=uid_base, disk_limit=disk_limit)
        self.host_uids: Claims | None = None
        """The host uids of its sandboxes, which only root can assign."""
        self._uids: UidClaims | None = None
        if self.root:
            self.host_uids = Claims(Registry(UID_REGISTRY()), base=uid_base, log_id=log_id, home=self.layout.state_dir)
            self._uids = UidClaims(self.host_uids)
        self._starts = Threads(max(4, 2 * len(os.sched_getaffinity(0))))
        """More concurrent starts finish no sooner, and keep the daemon from its other work."""
        self._probing = trio.Lock()
        self._abilities: Abilities | None = None
        self.own_disks = OwnDisks(self.layout, self.in_thread, root=self.root)
        self._layers = LocalLayers(self)
        self.resizing = self._resizing = LocalResizing(self)
        revival = LocalRevival(self)
        self.claims, self.layers, self.revival = self._uids, self._layers, revival
        self.replacement = LocalReplacement(self, revival)
        self.snapshots = LocalSnapshots(self, self._layers)

    # Capabilities

    @functools.cached_property
    def _planner(self) -> Planner:
        return Planner(self.hierarchies, disk_limit=self._disk_limit, root=self.root)

    @functools.cached_property
    def cleanup(self) -> Cleanup:
        """Ends sandboxes, and removes their remains."""
        return Cleanup(self.layout, self.log_id, self._planner, self.host_uids)

    async def abilities(self) -> Abilities:
        """Probe this machine once; return its abilities."""
        async with self._probing:
            if self._abilities is None:
                self.layout.prepare()
                self._abilities = await self.in_thread(probe, self.layout.trash, self._uid_base, self.root)
        return self._abilities

    async def capabilities(self) -> ProviderCapabilities:
        try:
            with trio.fail_after(60):
                found, own_disks = await self.abilities(), await self.own_disks.capability()
        except Exception as error:  # noqa: BLE001 - a report of missing capabilities must not fail
            return ProviderCapabilities(provider=self.name, works=False, why=str(error))
        freezes = self.hierarchies.can_freeze()
        limits = {
            f"limit_{name}": Capability(works=True)
            if self.hierarchies.has(controller)
            else Capability(works=name != "cpus", why=local_plan.why_weaker(name))
            for name, controller in (("cpus", "cpu"), ("memory", "memory"), ("pids", "pids"))
        }
        features = {
            "isolation": found.bubblewrap, "overlay": found.overlay, "reflink": found.reflink,
            **limits, "limit_disk": limit_feature(own_disks, suspends=freezes), "grow_disk": growth_feature(own_disks),
            "no_nested_user_namespaces": found.no_nested_userns, "seccomp": found.seccomp,
            "stats": counting(self.hierarchies),
            # Sandboxes see the programs of the host.
            "terminals": capability(shutil.which("tmux", path=PATH), "tmux is missing: install the package tmux"),
            "suspend": capability(freezes, WHY_NOT_SUSPENDED),
            **files_features(found, freezer=freezes),
            "uid_per_sandbox": capability(self.root, "only root has uids to give"),
            "network_bridge": Capability(works=False, why="the local provider has no bridge: use none or host"),
        }  # fmt: skip
        return self._with_watches(
            ProviderCapabilities(
                provider=self.name, works=found.bubblewrap.works, why=found.bubblewrap.why, features=features
            )
        )

    # Sandboxes

    def plan(
        self,
        sandbox_id: str,
        image_id: str,
        spec: SandboxSpec,
        caller: Caller,
        taken: Sequence[dict[str, Any]],
        *,
        details: Mapping[str, Any],
        owner: str,
    ) -> dict[str, Any]:
        self.layout.sandbox(sandbox_id)
        self.layout.image(image_id)
        decided = self._planner.decide(sandbox_id, spec, caller)
        if self._uids is not None and self._planner.needs_uid(decided):
            decided = self._uids.claim(sandbox_id, decided, {plan.get("uid") for plan in taken})
        return dict(msgspec.to_builtins(decided))

    def require_uid(self, sandbox_id: str, plan: Plan) -> None:
        """Raise `provider_unavailable` when the host uid of a plan no longer belongs to the sandbox."""
        if self._uids is not None:
            self._uids.require(sandbox_id, plan)

    async def create(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, secrets: Mapping[str, str], plan: dict[str, Any]
    ) -> LocalInstance:
        decided = msgspec.convert(plan, Plan)
        await self.cleared(sandbox_id)  # of the remains of another with its id
        found = await self.abilities()
        if decided.own_disk:
            await self.own_disks.require()
        lowers = await self.lowers(image_id, decided)
        files = self.files_for(decided, found)
        job = self.job(sandbox_id, spec, decided, lowers, files, found, own_disk=decided.own_disk)
        self.require_uid(sandbox_id, decided)
        async with undo_on_error(self.discard, sandbox_id, plan):
            return await self.start(job, spec, secrets, found)

    def files_for(self, plan: Plan, found: Abilities) -> str:
        """Return the way in which the layers of that plan become a sandbox's own files. Raises `not_supported`."""
        files = found.files
        if plan.mechanism == "none" and not self.root and files == "overlay":
            files = "reflink" if found.reflink.works else "copy"
        if files != "overlay" and len(plan.layers) + plan.over_image > 1:
            why = found.overlay.why or "without isolation a user's daemon has none"
            raise SetupError("not_supported", f"files in layers need overlays: {why}")
        return files

    def job(
        self, sandbox_id: str, spec: SandboxSpec, plan: Plan, lowers: list[Lower], files: str, found: Abilities,
        *, own_disk: bool,
    ) -> Job:  # fmt: skip
        """Return the parameters for starting a sandbox."""
        return Job(
            sandbox_id=sandbox_id, layout=self.layout, lowers=lowers,
            plan=plan, files=files, own_disk=own_disk, host_network=spec.network == "host",
            read_only=spec.read_only, hierarchies=self.hierarchies, log_id=self.log_id,
            close_userns=found.no_nested_userns.works, seccomp=found.seccomp.works,
        )  # fmt: skip

    async def start(self, job: Job, spec: SandboxSpec, secrets: Mapping[str, str], found: Abilities) -> LocalInstance:
        """Start a sandbox, and hold it."""
        with trio.CancelScope(shield=True):  # a start that is waited for can be undone; one that is left cannot
            started = await self._starts(in_fresh_thread, functools.partial(start, job))
        plan, files = job.plan, job.files
        workspace = WORKSPACE if plan.mechanism == "bubblewrap" else started.workspace
        # Nobody else sees the mount. The keeper cannot be moved to another root, nor a mount point be renamed.
        host_path = workspace if plan.mechanism == "none" else f"/proc/{started.first.pid}/root{WORKSPACE}"
        handle = Handle(first=started.first, files=files, workspace=workspace, secrets=list(secrets))
        isolation = Isolation(
            mechanism=plan.mechanism, files=files, host_uid=os.geteuid() if plan.uid is None else plan.uid,
            workspace=workspace, limits=local_plan.shown_limits(plan, own_disk=job.own_disk),
            notes=local_plan.notes(plan, files, found), host_path=host_path,
        )  # fmt: skip
        instance = self._hold(job.sandbox_id, spec, plan, isolation, handle)
        if instance is None:
            reap(started.child)
            raise ProviderError("provider_unavailable", "the sandbox ended while it started")
        instance.child = started.child
        await instance.share_secrets(secrets)
        failpoints.reach("create.secrets")
        return instance

    def _hold(
        self, sandbox_id: str, spec: SandboxSpec, plan: Plan, isolation: Isolation, handle: Handle
    ) -> LocalInstance | None:
        env = (
            environment(sandbox_id)
            if plan.mechanism == "bubblewrap"
            else {"PATH": PATH, **marks(sandbox_id, self.log_id), "HOME": handle.workspace}
        )
        env |= {name: value for name, value in spec.env.items() if name not in handle.secrets}
        owner = (plan.uid, plan.gid) if plan.uid is not None and plan.gid is not None else None
        own_disk = self.layout.has_disk(sandbox_id)

        def make() -> LocalInstance:
            instance = LocalInstance(
                sandbox_id, self.files(sandbox_id), self._watcher, isolation=isolation,
                handle=msgspec.to_builtins(handle), env=env,
                working_dir=spec.directory(handle.workspace), input_owner=owner,
                inside=INSIDE if plan.mechanism == "bubblewrap" else os.path.dirname(handle.workspace),
                own_disk=own_disk,
            )  # fmt: skip
            instance.cgroups = plan.cgroups
            instance.set_plan(plan, own_disk=own_disk)
            mark = self.layout.read_mark(sandbox_id)
            instance.pauses = instance.freezer = FreezerPauses(instance.pause, plan.cgroups, mark)
            return instance

        return self._hold_first(handle.first, make)

    async def adopt(
        self, sandbox_id: str, spec: SandboxSpec, plan: dict[str, Any], isolation: Isolation, handle: dict[str, Any]
    ) -> LocalInstance | None:
        try:
            earlier = msgspec.convert(handle, Handle)
        except msgspec.ValidationError:
            return None
        decided = msgspec.convert(plan, Plan)
        if self._uids is not None:
            self._uids.claim_running(sandbox_id, decided)
        instance = await self._hold_earlier(lambda: self._hold(sandbox_id, spec, decided, isolation, earlier))
        if instance is not None:
            await self._resizing.fit_adopted(sandbox_id, decided)
            return instance
        if identify(earlier.first.pid) == earlier.first:  # it runs, but has made its answers unreadable
            await self.in_thread(self.cleanup.end, sandbox_id, decided, handle)
        return None

    # Ending

    async def terminate(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> None:
        decided = await self._decided(sandbox_id, plan)
        self._mark_terminated(sandbox_id)
        with trio.CancelScope(shield=True):  # each is bounded by its own deadlines
            await in_ending_thread(self.cleanup.end, sandbox_id, decided, handle)
            failpoints.reach("end.killed")
            await self.await_end(sandbox_id)
        self.remove_files(sandbox_id, functools.partial(self.cleanup.end_for_good, sandbox_id, decided))

    async def _decided(self, sandbox_id: str, plan: dict[str, Any]) -> Plan:
        """Return the plan of a sandbox, reconstructed from its remains when no event has it."""
        if plan:
            return msgspec.convert(plan, Plan)
        return await in_ending_thread(self.cleanup.plan_of_stray, sandbox_id)

    async def found(self) -> tuple[list[str], list[str]]:
        return await self.in_thread(self.layout.found)

    async def clean_up(self, ledger: Ledger) -> Swept:
        strays = Strays(self.layout, self.hierarchies, self.log_id, uid_base=self._uid_base if self.root else None)
        await self.abilities()  # their probe uses the trash
        await self.in_thread(unmount_below, self.layout.trash)
        left = await self.in_thread(self.layout.left_in_trash)
        self.remove_files("trash", functools.partial(self.layout.delete, left))  # not waited for: it may be millions
        await self.in_thread(strays.scan)
        failpoints.reach("sweep.found")
        removed, failures = list[str](), list[SandkeepError]()
        for sandbox_id in sorted(strays.sandboxes):
            if not ledger.owns_sandbox(sandbox_id):  # asked last, as sandboxes are made meanwhile
                try:
                    await self._clear_stray(strays, sandbox_id, ledger)
                except SandkeepError as error:  # it keeps no other from being removed
                    failures.append(error)
                removed.append(f"sandbox {sandbox_id}")
        images = await self.images.clean_up(ledger)
        for name in filter(is_name, self.layout.layer_names()):
            log_id = log_of(f"{self.layout.layer(name)}/{LAYER_MARK}")
            if log_id not in (None, self.log_id):
                strays.foreign.append(f"directory {self.layout.layer(name)} of log {log_id}")
            elif not ledger.owns_layer(name):
                await self._layers.discard_layers([name])
                removed.append(f"files {name}")
            else:
                await self.in_thread(self.store.discard_stages, name)
        if self.host_uids is not None:
            uids = {msgspec.convert(plan, Plan).own_uid: name for name, plan in ledger.plans().items()}
            on_record = {uid: name for uid, name in uids.items() if uid is not None}
            strays.foreign += await self.in_thread(self.host_uids.reconcile, on_record)
        if failures:
            raise failures[0]
        return Swept(removed=removed + images.removed, foreign=strays.foreign + images.foreign)

    async def _clear_stray(self, strays: Strays, sandbox_id: str, ledger: Ledger) -> None:
        """Remove the remains of a sandbox; the creation of another one under the same id waits for that."""
        forgotten = not ledger.knows_sandbox(sandbox_id)
        remove = functools.partial(self.cleanup.remove_stray, strays, sandbox_id, forgotten=forgotten)
        self.remove_files(sandbox_id, remove)
        await self.cleared(sandbox_id)

    def _occupied_bytes(self, instance: LocalInstance) -> int:
        first, groups = instance.handle["first"]["pid"], instance.plan.cgroups
        files = self.files(instance.sandbox_id)
        places = [files.below("upper"), files.below("out")]
        return disk_usage.occupied_bytes(places, first, groups, [WORKSPACE, f"{INSIDE}/out"], root=self.root)


@asynccontextmanager
async def open_local(
    state_dir: str, *, uid_base: int, disk_limit: int, log_id: str = ""
) -> AsyncIterator[LocalProvider]:
    """Run the local provider, with its background tasks, for the length of a block. The sandboxes outlive it.

    Its objects carry `log_id`, by which a later daemon identifies them without any other record.
    """

    make = functools.partial(LocalProvider, state_dir, log_id, uid_base=uid_base, disk_limit=disk_limit)
    if os.geteuid() == 0:
        await in_thread(Disks(Layout(state_dir)).attach_all)
    async with running(make) as provider:
        looks = functools.partial(poll_freezers, lambda: [each.freezer for each in provider.instances.values()])
        provider.nursery.start_soon(looks)
        if provider.host_uids is not None:
            provider.nursery.start_soon(provider.host_uids.keep)
        yield provider
