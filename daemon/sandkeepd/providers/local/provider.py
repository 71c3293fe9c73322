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
from typing import Any, Final, TypeVar, TypeVarTuple

import msgspec
import trio

from sandkeep import failpoints
from sandkeep.errors import ProviderError, SandkeepError, SetupError
from sandkeep.ids import is_name
from sandkeep.model import Capability, Isolation, ProviderCapabilities, SandboxSpec
from sandkeep.settings.daemon import UID_REGISTRY
from sandkeep_store.threads import Threads
from sandkeepd.contract.caller import Caller
from sandkeepd.contract.instance import Ending
from sandkeepd.contract.ledger import Ledger, Swept
from sandkeepd.host.cgroups import groups as cgroups
from sandkeepd.host.cgroups.groups import Hierarchies
from sandkeepd.host.processes import (
    identify,
    in_fresh_thread,
    reap,
)
from sandkeepd.host.uids.allocation import Claims
from sandkeepd.host.uids.registry import Registry
from sandkeepd.keeper.watcher import Watcher
from sandkeepd.providers.common import disk_usage
from sandkeepd.providers.common.directory_images import DirectoryImages, require_there
from sandkeepd.providers.common.disk_watch import DiskWatch
from sandkeepd.providers.common.disks import Disks
from sandkeepd.providers.common.inside import INSIDE, PATH, WORKSPACE, environment, marks
from sandkeepd.providers.common.keeper_provider import HeldInstance, KeeperProvider, running
from sandkeepd.providers.common.layers import Layers
from sandkeepd.providers.common.layout import Layout
from sandkeepd.providers.local import plan as local_plan
from sandkeepd.providers.local.claims import UidClaims
from sandkeepd.providers.local.end import Cleanup
from sandkeepd.providers.local.layers import LocalLayers
from sandkeepd.providers.local.pause import NO_FREEZER, FreezerPauses, keep_looking, suspension
from sandkeepd.providers.local.plan import Plan, Planner
from sandkeepd.providers.local.probe import Abilities, probe
from sandkeepd.providers.local.revival import LocalReplacement, LocalRevival
from sandkeepd.providers.local.snapshots import LocalSnapshots, files_features
from sandkeepd.providers.local.start import Handle, Job, Lower, Started, start
from sandkeepd.providers.local.strays import Strays

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

logger: Final = logging.getLogger("sandkeepd")


class LocalInstance(HeldInstance):
    """A local sandbox."""

    plan: Plan
    freezer: FreezerPauses
    look_after: float = 0.0
    most_written: float = 0.0

    @property
    def disk_bytes(self) -> int:
        """Limit on its disk usage in bytes."""
        return self.plan.disk_bytes


class LocalProvider(KeeperProvider[LocalInstance]):
    """See `Provider`. It runs tasks of its own, so `open_local` makes it."""

    name = "local"

    def __init__(
        self, state_dir: str, *, uid_base: int, disk_limit: int, log_id: str, watcher: Watcher, nursery: trio.Nursery
    ) -> None:
        super().__init__(state_dir, log_id, watcher, nursery)
        self.root = os.geteuid() == 0
        self._store = Layers(self.layout, log_id, uid_base if self.root else None)
        self._uid_base = uid_base
        self._disk_limit = disk_limit
        self.host_uids: Claims | None = None
        """The host uids of its sandboxes, which only root can assign."""
        self._uids: UidClaims | None = None
        if self.root:
            self.host_uids = Claims(Registry(UID_REGISTRY()), base=uid_base, log_id=log_id, home=self.layout.state_dir)
            self._uids = UidClaims(self.host_uids)
        self._being_cleared: dict[str, trio.Event] = {}
        self.disks = DiskWatch(self.instances, self._occupied)
        self._clear_in_thread = Threads(trio.CapacityLimiter(64))
        """Separate threads, as removing a million files must not keep other sandboxes from being made."""
        self._starts = Threads(trio.CapacityLimiter(max(4, 2 * len(os.sched_getaffinity(0)))))
        """More concurrent starts finish no sooner, and keep the daemon from its other work."""
        self._probing = trio.Lock()
        self._abilities: Abilities | None = None
        self.images = DirectoryImages(self.layout, log_id, self.in_thread, self._store.uid)
        self._layers = LocalLayers(self.layout, self.images, self._store, self.in_thread, self.abilities)
        revival = LocalRevival(self)
        self.claims, self.layers, self.revival = self._uids, self._layers, revival
        self.replacement = LocalReplacement(self, revival)
        self.snapshots = LocalSnapshots(self._store, self.layout.state_dir, self._layers.files_of, self.abilities)

    # Capabilities

    @functools.cached_property
    def _hierarchies(self) -> Hierarchies:
        return Hierarchies(log_id=self.log_id)

    @functools.cached_property
    def _planner(self) -> Planner:
        return Planner(self._hierarchies, disk_limit=self._disk_limit, root=self.root)

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
        """See `Provider.capabilities`."""
        try:
            with trio.fail_after(60):
                found = await self.abilities()
        except Exception as error:  # noqa: BLE001 - a report of missing capabilities must not fail
            return ProviderCapabilities(provider=self.name, works=False, why=str(error))
        freezes = self._hierarchies.can_freeze()
        limits = {
            f"limit_{name}": Capability(works=True)
            if self._hierarchies.has(controller)
            else Capability(works=name != "cpus", why=local_plan.why_weaker(name))
            for name, controller in (("cpus", "cpu"), ("memory", "memory"), ("pids", "pids"))
        }
        disks = Capability(works=True)
        if not found.disks.works:
            measured = f"measured every 10 s, and suspended when exceeded: {found.disks.why}"
            disks = Capability(works=freezes, why=measured if freezes else found.disks.why)
        features = {
            "isolation": found.bubblewrap, "overlay": found.overlay, "reflink": found.reflink,
            **limits, "limit_disk": disks,
            "no_nested_user_namespaces": found.no_nested_userns, "seccomp": found.seccomp,
            "stats": _stats(self._hierarchies.uncounted()),
            "terminals": _terminals(), "suspend": suspension(freezer=freezes),
            **files_features(found, freezer=freezes),
            "uid_per_sandbox": Capability(works=self.root, why=None if self.root else "only root has uids to give"),
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
        """See `Provider.plan`."""
        self.layout.sandbox(sandbox_id)
        self.layout.image(image_id)
        decided = self._planner.decide(sandbox_id, spec, caller)
        if self._uids is not None and self._planner.needs_uid(decided):
            decided = self._uids.claim(sandbox_id, decided, {plan.get("uid") for plan in taken})
        document: dict[str, Any] = msgspec.to_builtins(decided)
        return document

    def require_uid(self, sandbox_id: str, plan: Plan) -> None:
        """Raise `provider_unavailable` when the host uid of a plan no longer belongs to the sandbox."""
        if self._uids is not None:
            self._uids.require(sandbox_id, plan)

    async def create(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, secrets: Mapping[str, str], plan: dict[str, Any]
    ) -> LocalInstance:
        """See `Provider.create`."""
        decided = msgspec.convert(plan, Plan)
        if sandbox_id in self._being_cleared:
            await self._being_cleared[sandbox_id].wait()
        found = await self.abilities()
        if spec.disk_bytes is not None and not found.disks.works and not self._hierarchies.can_freeze():
            words = f"disk usage cannot be limited here: {found.disks.why}, and {NO_FREEZER}: leave out disk"
            raise SetupError("not_supported", words, field="disk_bytes")
        lowers = await self.lowers(image_id, decided)
        files = self.files_for(decided, found)
        job = self.job(sandbox_id, spec, decided, lowers, files, found)
        self.require_uid(sandbox_id, decided)
        try:
            return await self.start(job, spec, secrets, found)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.terminate(sandbox_id, plan, {})
            raise

    def files_for(self, plan: Plan, found: Abilities) -> str:
        """Return the way in which the layers of that plan become a sandbox's own files. Raises `not_supported`."""
        files = found.files
        if plan.mechanism == "none" and not self.root and files == "overlay":
            files = "reflink" if found.reflink.works else "copy"
        if files != "overlay" and len(plan.layers) + plan.over_image > 1:
            why = found.overlay.why or "without isolation a user's daemon has none"
            raise SetupError("not_supported", f"files in layers need overlays: {why}")
        return files

    async def lowers(self, image_id: str, plan: Plan) -> list[Lower]:
        """Return the layers that a sandbox of that plan begins with. Raises `not_found` when one is missing."""
        lowers = [
            Lower(self._store.root(layer.name), self._uid_base if layer.uid is None else layer.uid)
            for layer in plan.layers
        ]
        if plan.over_image:
            lowers.append(Lower(self.images.root(image_id), self._uid_base))
        await require_there(lower.root for lower in lowers)
        return lowers

    def job(
        self, sandbox_id: str, spec: SandboxSpec, plan: Plan, lowers: list[Lower], files: str, found: Abilities
    ) -> Job:
        """Return the parameters for starting a sandbox."""
        return Job(
            sandbox_id=sandbox_id, layout=self.layout, lowers=lowers,
            plan=plan, files=files, own_disk=plan.own_disk and found.disks.works, host_network=spec.network == "host",
            read_only=spec.read_only, hierarchies=self._hierarchies, log_id=self.log_id,
            close_userns=found.no_nested_userns.works, seccomp=found.seccomp.works,
        )  # fmt: skip

    async def start(self, job: Job, spec: SandboxSpec, secrets: Mapping[str, str], found: Abilities) -> LocalInstance:
        """Start a sandbox, and hold it."""
        with trio.CancelScope(shield=True):  # a start that is waited for can be undone; one that is left cannot
            started = await self._starts(in_fresh_thread, functools.partial(start, job))
        instance = self._instance(job, spec, started, found, list(secrets))
        await instance.share_secrets(secrets)
        failpoints.reach("create.secrets")
        return instance

    def _instance(
        self, job: Job, spec: SandboxSpec, started: Started, found: Abilities, secrets: list[str]
    ) -> LocalInstance:
        plan, files = job.plan, job.files
        workspace = WORKSPACE if plan.mechanism == "bubblewrap" else started.workspace
        handle = Handle(first=started.first, files=files, workspace=workspace, secrets=secrets)
        isolation = Isolation(
            mechanism=plan.mechanism, files=files, host_uid=os.geteuid() if plan.uid is None else plan.uid,
            workspace=workspace, limits=plan.held_by | ({"disk": "file system"} if job.own_disk else {}),
            notes=local_plan.notes(plan, files, found),
        )  # fmt: skip
        instance = self._hold(job.sandbox_id, spec, plan, isolation, handle)
        if instance is None:
            reap(started.child)
            raise ProviderError("provider_unavailable", "the sandbox ended while it started")
        instance.child = started.child
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

        def make() -> LocalInstance:
            instance = LocalInstance(
                sandbox_id, self.files(sandbox_id), self._watcher, isolation=isolation,
                handle=msgspec.to_builtins(handle), env=env,
                working_dir=spec.working_dir or handle.workspace, input_owner=owner,
                inside=INSIDE if plan.mechanism == "bubblewrap" else os.path.dirname(handle.workspace),
            )  # fmt: skip
            instance.plan, instance.cgroups = plan, plan.cgroups
            mark = self.layout.read_mark(sandbox_id)
            instance.pauses = instance.freezer = FreezerPauses(instance.pause, plan.cgroups, mark)
            return instance

        return self._take_hold(handle.first, make)

    async def _why_ended(self, instance: LocalInstance) -> Ending:
        starved = cgroups.ran_out_of_memory(instance.plan.cgroups)
        how = "ended after it had used up its memory" if starved else "was ended from outside"
        return Ending(kind="failed", message=f"its first process {how}")

    async def adopt(
        self, sandbox_id: str, spec: SandboxSpec, plan: dict[str, Any], isolation: Isolation, handle: dict[str, Any]
    ) -> LocalInstance | None:
        """See `Provider.adopt`."""
        try:
            earlier = msgspec.convert(handle, Handle)
        except msgspec.ValidationError:
            return None
        decided = msgspec.convert(plan, Plan)
        if self._uids is not None:
            self._uids.keep(sandbox_id, decided)
        instance = await self._take_over(lambda: self._hold(sandbox_id, spec, decided, isolation, earlier))
        if instance is not None:
            return instance
        if identify(earlier.first.pid) == earlier.first:  # it runs, but has made its answers unreadable
            await self.in_thread(self.cleanup.end, sandbox_id, decided, handle)
        return None

    # Ending

    async def terminate(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> None:
        """See `Provider.terminate`."""
        decided = await self._decided(sandbox_id, plan)
        instance = self.instances.get(sandbox_id)
        if instance is not None:
            instance.ending = instance.ending or Ending(kind="failed", message="it was terminated")
        with trio.CancelScope(shield=True):
            await self.in_thread(self.cleanup.end, sandbox_id, decided, handle)
            failpoints.reach("end.killed")
            if instance is not None:
                await self.see_end(instance)
            await self._clear_in_thread(self.cleanup.end_for_good, sandbox_id, decided)
            self._release_disk(sandbox_id)

    def _release_disk(self, sandbox_id: str) -> None:
        """Stop using a sandbox's disk, which was removed."""
        root = self._hostile_roots.pop(self.layout.sandbox(sandbox_id), None)
        if root is not None:
            root.release()

    async def _decided(self, sandbox_id: str, plan: dict[str, Any]) -> Plan:
        """Return the plan of a sandbox, reconstructed from its remains when no event has it."""
        if plan:
            return msgspec.convert(plan, Plan)
        return await self.in_thread(self.cleanup.plan_of_stray, sandbox_id)

    async def found(self) -> tuple[list[str], list[str]]:
        """See `Provider.found`."""
        return await self.in_thread(self.layout.found)

    async def clean_up(self, ledger: Ledger) -> Swept:
        """See `Provider.clean_up`."""
        strays = Strays(self.layout, self._hierarchies, self.log_id, everybodys=self.root)
        await self.abilities()  # their probe uses the trash
        await self.in_thread(strays.unmount_trash)
        await self.in_thread(self.layout.empty_trash)
        await self.in_thread(strays.look)
        failpoints.reach("sweep.found")
        removed, failures = list[str](), list[SandkeepError]()
        for sandbox_id in sorted(strays.sandboxes):
            if not ledger.owns_sandbox(sandbox_id):  # asked last, as sandboxes are made meanwhile
                try:
                    await self._clear_stray(strays, sandbox_id, ledger)
                except SandkeepError as error:  # it keeps no other from being removed
                    failures.append(error)
                removed.append(f"sandbox {sandbox_id}")
        for image_id in sorted(strays.images):
            if not ledger.owns_image(image_id):
                await self.in_thread(strays.unmount, self.layout.image(image_id))
                await self.images.remove(image_id)
                removed.append(f"image {image_id}")
        for name in filter(is_name, self.layout.layer_names()):
            log_id = self.layout.log_of_layer(name)
            if log_id not in (None, self.log_id):
                strays.foreign.append(f"directory {self.layout.layer(name)} of log {log_id}")
            elif not ledger.owns_layer(name):
                await self._layers.discard_layers([name])
                removed.append(f"files {name}")
            else:
                await self.in_thread(self._store.discard_stages, name)
        if self.host_uids is not None:
            uids = {msgspec.convert(plan, Plan).own_uid: name for name, plan in ledger.plans().items()}
            on_record = {uid: name for uid, name in uids.items() if uid is not None}
            strays.foreign += await self.in_thread(self.host_uids.settle, on_record)
        if failures:
            raise failures[0]
        return Swept(removed=removed, foreign=strays.foreign)

    async def _clear_stray(self, strays: Strays, sandbox_id: str, ledger: Ledger) -> None:
        """Remove the remains of a sandbox; the creation of another one under the same id waits for that."""
        cleared = self._being_cleared[sandbox_id] = trio.Event()
        forgotten = not ledger.knows_sandbox(sandbox_id)
        remove = functools.partial(self.cleanup.remove_stray, strays, sandbox_id, forgotten=forgotten)
        try:
            await self.in_thread(remove)
            self._release_disk(sandbox_id)
        finally:
            del self._being_cleared[sandbox_id]
            cleared.set()

    def _occupied(self, instance: LocalInstance) -> int:
        if self.layout.has_disk(instance.sandbox_id):
            return 0  # it cannot exceed its limit
        first, groups = instance.handle["first"]["pid"], instance.plan.cgroups
        files = self.files(instance.sandbox_id)
        places = [files.below("upper"), files.below("out")]
        return disk_usage.occupied(places, first, groups, [WORKSPACE, f"{INSIDE}/out"], root=self.root)


@asynccontextmanager
async def open_local(
    state_dir: str, *, uid_base: int, disk_limit: int, log_id: str = ""
) -> AsyncIterator[LocalProvider]:
    """Run the local provider, with its background tasks, for the length of a block. The sandboxes outlive it.

    Its objects carry `log_id`, by which a later daemon identifies them without any other record.
    """

    def make(watcher: Watcher, nursery: trio.Nursery) -> LocalProvider:
        provider = LocalProvider(
            state_dir, uid_base=uid_base, disk_limit=disk_limit, log_id=log_id, watcher=watcher, nursery=nursery
        )
        nursery.start_soon(provider.disks.run)
        nursery.start_soon(keep_looking, lambda: [instance.freezer for instance in provider.instances.values()])
        if provider.host_uids is not None:
            nursery.start_soon(provider.host_uids.keep)
        return provider

    if os.geteuid() == 0:
        await trio.to_thread.run_sync(Disks(Layout(state_dir)).attach_all)
    async with running(make) as provider:
        yield provider


def _terminals() -> Capability:
    """Return the capability for terminals. Sandboxes see the programs of the host, so a program missing here is missing
    there.
    """
    if shutil.which("tmux", path=PATH):
        return Capability(works=True)
    return Capability(works=False, why="tmux is missing: install the package tmux")


def _stats(uncounted: Sequence[str]) -> Capability:
    if not uncounted:
        return Capability(works=True)
    why = f"there are no writable control groups that count {', '.join(uncounted)}: start the daemon as a service"
    return Capability(works=False, why=why)
