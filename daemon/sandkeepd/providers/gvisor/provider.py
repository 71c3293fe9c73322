"""The gVisor provider: sandboxes under a kernel of their own, which can be saved and restored.

`runsc` starts, saves and restores them; the keeper runs the processes inside, as everywhere. Each call of `runsc` takes
at least 20 ms, so it is not asked for facts that can be seen otherwise: a sandbox runs as long as its first process on
the host does. `bundle` builds a sandbox's root, `start` starts it, `saves` saves and restores it, `checkpoints` makes
checkpoints. See `contract.provider` for the interface.
"""

import functools
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import msgspec
import trio
from msgspec import Struct, field

from sandkeep import failpoints
from sandkeep.errors import ProviderError, SandkeepError, SetupError
from sandkeep.ids import is_name
from sandkeep.model import Isolation, ProviderCapabilities, SandboxSpec
from sandkeep.settings import gvisor as settings
from sandkeep_store.threads import Threads, in_abandoned_thread
from sandkeepd.contract.caller import Caller
from sandkeepd.contract.ledger import Ledger, Swept
from sandkeepd.host.cgroups import freezer
from sandkeepd.host.cgroups import groups as cgroups
from sandkeepd.host.cgroups.groups import Limits
from sandkeepd.host.processes import Identity, in_fresh_thread, kill_all, kill_process, open_process, reap
from sandkeepd.host.threads import in_ending_thread
from sandkeepd.host.undo import undo_on_error
from sandkeepd.keeper.watcher import Watcher
from sandkeepd.providers.common import disk_usage
from sandkeepd.providers.common.directory_provider import DirectoryProvider, Lower
from sandkeepd.providers.common.inside import INSIDE, environment
from sandkeepd.providers.common.keeper_provider import running
from sandkeepd.providers.common.layout import log_of
from sandkeepd.providers.gvisor import bundle as gvisor_bundle
from sandkeepd.providers.gvisor import plan as gvisor_plan
from sandkeepd.providers.gvisor import probe, runsc, start
from sandkeepd.providers.gvisor.checkpoints import GvisorCheckpoints
from sandkeepd.providers.gvisor.instance import GvisorInstance
from sandkeepd.providers.gvisor.layers import GvisorLayers
from sandkeepd.providers.gvisor.plan import Plan
from sandkeepd.providers.gvisor.replacement import GvisorReplacement
from sandkeepd.providers.gvisor.resizing import GvisorResizing
from sandkeepd.providers.gvisor.saves import SavedPauses, Saves
from sandkeepd.providers.gvisor.snapshots import GvisorSnapshots
from sandkeepd.providers.gvisor.start import Job, Started
from sandkeepd.providers.gvisor.viewers import Runsc

_BUNDLE: Final = "runsc_bundle_"
_ROOT: Final = "runsc_root_"
_DEFAULT_BASE: Final = "gvisor"


class Handle(Struct, frozen=True, kw_only=True):
    """The facts that identify a sandbox, besides those in its bundle: its image, True if that is a `whole` root file
    system, the working directory of its processes, and the names of its secrets.
    """

    image_id: str
    workspace: str
    whole: bool = False
    secrets: list[str] = field(default_factory=list)


class GvisorProvider(DirectoryProvider[GvisorInstance]):
    """See `Provider`. It runs tasks of its own, so `open_gvisor` makes it."""

    name = "gvisor"
    first = "its kernel"

    def __init__(
        self, state_dir: str, log_id: str, watcher: Watcher, nursery: trio.Nursery, *, uid_base: int, disk_limit: int
    ) -> None:
        super().__init__(state_dir, log_id, watcher, nursery, uid_base=uid_base, disk_limit=disk_limit, threads=32)
        self.starts = Threads(max(8, 4 * len(os.sched_getaffinity(0))))
        self._saves = Saves(self)
        self.checkpoints = GvisorCheckpoints(self, self._saves)
        self.layers = GvisorLayers(self)
        self.replacement = GvisorReplacement(self)
        self.resizing = self._resizing = GvisorResizing(self)
        self.snapshots = GvisorSnapshots(self.instances, self.layout.state_dir, root=self.root)

    # Where things are

    def _base(self, given: str | None) -> str:
        return given or f"{self.layout.state_dir}/{_DEFAULT_BASE}"

    def bundle(self, sandbox_id: str) -> str:
        """Return the directory of a sandbox's bundle."""
        self.layout.sandbox(sandbox_id)  # raises for an invalid id
        return f"{self._base(settings.BUNDLE_DIR_BASE())}/{_BUNDLE}{sandbox_id}"

    def runsc_root(self, sandbox_id: str) -> str:
        """Return the directory in which `runsc` keeps its state of a sandbox."""
        self.layout.sandbox(sandbox_id)
        return f"{self._base(settings.ROOT_DIR_BASE())}/{_ROOT}{sandbox_id}"

    # Capabilities

    async def capabilities(self) -> ProviderCapabilities:
        return self._with_watches(await probe.capabilities(self.name, self.hierarchies, root=self.root))

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
        if runsc.program() is None:
            raise SetupError("not_supported", probe.MISSING)
        decided = gvisor_plan.decide(sandbox_id, spec, self.hierarchies, disk_limit=self._disk_limit, root=self.root)
        return dict(msgspec.to_builtins(decided))

    async def create(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, secrets: Mapping[str, str], plan: dict[str, Any]
    ) -> GvisorInstance:
        self.layout.prepare()
        job = await self.job(sandbox_id, image_id, spec, list(secrets), msgspec.convert(plan, Plan))
        async with undo_on_error(self.discard, sandbox_id, plan):
            await self.in_thread(start.make_directories, job)
            failpoints.reach("gvisor.directories")
            instance = await self._start(job, image_id)
            await instance.share_secrets(secrets)
            failpoints.reach("gvisor.secrets")
        return instance

    async def job(self, sandbox_id: str, image_id: str, spec: SandboxSpec, secrets: Sequence[str], plan: Plan) -> Job:
        """Return the parameters for starting a sandbox."""
        return Job(
            sandbox_id=sandbox_id, directory=self.layout.sandbox(sandbox_id), bundle=self.bundle(sandbox_id),
            root=self.runsc_root(sandbox_id), lowers=await self._lowers(image_id, plan), plan=plan, spec=spec,
            hierarchies=self.hierarchies, log_id=self.log_id, secrets=sorted(secrets), files=self.files(sandbox_id),
        )  # fmt: skip

    async def _lowers(self, image_id: str, plan: Plan) -> list[Lower]:
        """Do as `lowers`. Raises `not_supported` for several where `runsc` is rootless."""
        lowers = await self.lowers(image_id, plan)
        if len(lowers) > 1 and plan.rootless:
            message = "files in layers need mounts, which a rootless runsc cannot make: make a full snapshot"
            raise SetupError("not_supported", message)
        return lowers

    async def _start(self, job: Job, image_id: str) -> GvisorInstance:
        with trio.CancelScope(shield=True):  # a start that is waited for can be undone; one that is left cannot
            work = functools.partial(start.start, job)
            started = await self.starts(in_fresh_thread, work)
            self.nursery.start_soon(_reap, started.child)
        return self.hold_started(job, image_id, started)

    def hold_started(self, job: Job, image_id: str, started: Started) -> GvisorInstance:
        """Hold a started container as a sandbox."""
        handle = Handle(image_id=image_id, workspace=started.workspace, whole=started.whole, secrets=job.secrets)
        instance = self._make(job.sandbox_id, job.spec, job.plan, self._isolation(job.plan, started), handle)
        self.hold_container(instance, started.container, started.first)
        return instance

    def _isolation(self, plan: Plan, started: Started) -> Isolation:
        return Isolation(
            mechanism="gvisor", files="memory", host_uid=None, workspace=started.workspace, limits=plan.held_by,
            notes=gvisor_plan.notes(plan),
        )  # fmt: skip

    # Holding

    def _make(
        self, sandbox_id: str, spec: SandboxSpec, plan: Plan, isolation: Isolation, handle: Handle
    ) -> GvisorInstance:
        env = {} if handle.whole else environment(sandbox_id)
        env |= {name: value for name, value in spec.env.items() if name not in handle.secrets}
        instance = GvisorInstance(
            sandbox_id, self.files(sandbox_id), self._watcher, isolation=isolation,
            handle=msgspec.to_builtins(handle), env=env, working_dir=spec.directory(handle.workspace),
            inside=INSIDE, fed=True,
        )  # fmt: skip
        instance.prepare(handle.image_id, plan, spec)
        instance.runsc = self._runsc(sandbox_id, plan)
        instance.pauses = SavedPauses(instance, self._saves)
        self.instances[sandbox_id] = instance
        return instance

    def _runsc(self, sandbox_id: str, plan: Plan) -> Runsc:
        argv = runsc.command(self.runsc_root(sandbox_id), plan, sandbox_id)
        user, blocks = f"{plan.uid}:{plan.gid}", gvisor_bundle.file_blocks(plan)
        return Runsc(bundle=self.bundle(sandbox_id), argv=argv, user=user, file_blocks=blocks)

    def hold_container(self, instance: GvisorInstance, container: str, first: Identity) -> None:
        """Hold its running container from now on."""
        pidfd = open_process(first)
        if pidfd is None:
            raise ProviderError("provider_unavailable", "the sandbox ended while it started")
        instance.container, instance.pidfd, instance.scope = container, pidfd, trio.CancelScope()
        self.nursery.start_soon(self._watch_end, instance)

    async def adopt(
        self, sandbox_id: str, spec: SandboxSpec, plan: dict[str, Any], isolation: Isolation, handle: dict[str, Any]
    ) -> GvisorInstance | None:
        """See `Provider.adopt`. A sandbox that an earlier daemon saved only for a moment goes on."""
        decided, earlier = msgspec.convert(plan, Plan), msgspec.convert(handle, Handle)
        job = await self.job(sandbox_id, earlier.image_id, spec, earlier.secrets, decided)
        found = await self.in_thread(_find_state, job)
        if found is None:
            return None
        instance = self._make(sandbox_id, spec, decided, isolation, earlier)
        try:
            if found.first is None:
                instance.hold_requests()
                instance.suspended.set(True)
                if found.goes_on:
                    await self._saves.resume(instance)
            else:
                self.hold_container(instance, found.container, found.first)
            await instance.remember_earlier()
            await self._resizing.fit_adopted(instance)
        except BaseException:
            await self._release(instance)
            raise
        return instance

    # Ending

    async def terminate(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> None:
        self._mark_terminated(sandbox_id)
        with trio.CancelScope(shield=True):  # each is bounded by its own deadlines
            await in_ending_thread(self._end, sandbox_id, plan)
            failpoints.reach("gvisor.killed")
            instance = self.instances.get(sandbox_id)
            if instance is not None and instance.pidfd < 0 and instance.ending is not None:  # no process will end
                await instance.went(instance.ending)
            await self.await_end(sandbox_id)
        self.remove_files(sandbox_id, functools.partial(self._clear, sandbox_id))

    def _end(self, sandbox_id: str, plan: dict[str, Any]) -> None:
        """Kill its processes and remove its control groups. Blocks."""
        if self._log_of(sandbox_id) in (None, self.log_id):
            found = runsc.running(self.bundle(sandbox_id))
            if found is not None:
                kill_process(found[1])
            runsc.end(self.runsc_root(sandbox_id))
        everything = Limits(memory_bytes=1, cpus=1, pids=1)
        groups = plan["cgroups"] if plan else self.hierarchies.plan(sandbox_id, everything)
        if groups:
            freezer.end(groups)
            kill_all(lambda: cgroups.members(groups))
            cgroups.remove(groups)

    def _clear(self, sandbox_id: str) -> None:
        """Remove the files of a sandbox that has ended, all but its journals. Blocks."""
        self.layout.remove_all_but_journals(sandbox_id)
        theirs = self._log_of(sandbox_id) not in (None, self.log_id)
        self.layout.discard([f"{self.layout.sandbox(sandbox_id)}/in"])
        if theirs:
            return
        for directory in (self.bundle(sandbox_id), self.runsc_root(sandbox_id)):  # perhaps not in the state directory
            start.remove_directory(directory)

    async def found(self) -> tuple[list[str], list[str]]:
        """See `Provider.found`. The images are also those of the local provider, which keeps them alike."""
        return await self.in_thread(self._bundles), (await self.in_thread(self.layout.found))[1]

    def _bundles(self) -> list[str]:
        names = set[str]()
        for base, prefix in (
            (self._base(settings.BUNDLE_DIR_BASE()), _BUNDLE),
            (self._base(settings.ROOT_DIR_BASE()), _ROOT),
        ):
            try:
                found = os.listdir(base)
            except OSError:
                continue
            names.update(name.removeprefix(prefix) for name in found if name.startswith(prefix))
            names.update(
                os.path.basename(root).removeprefix(_ROOT)
                for root in runsc.roots_in_use(base)
                if os.path.basename(root).startswith(_ROOT)
            )
        return sorted(names)

    async def clean_up(self, ledger: Ledger) -> Swept:
        removed, foreign, failures = list[str](), list[str](), list[SandkeepError]()
        for sandbox_id in filter(is_name, await self.in_thread(self._bundles)):
            whose = await self.in_thread(self._log_of, sandbox_id)
            if whose != self.log_id:
                foreign.append(f"directory {self.bundle(sandbox_id)}" + (f" of log {whose}" if whose else ""))
            elif not ledger.owns_sandbox(sandbox_id):
                try:
                    await self.discard(sandbox_id, {})
                    removed.append(f"sandbox {sandbox_id}")
                except SandkeepError as error:  # it keeps no other from being removed
                    failures.append(error)
        images = await self.images.clean_up(ledger)
        if failures:
            raise failures[0]
        return Swept(removed=removed + images.removed, foreign=foreign + images.foreign)

    def _log_of(self, sandbox_id: str) -> str | None:
        """Return the id of the log in a bundle's mark. One without a mark is ours, unless other daemons share the
        directory.
        """
        log_id = log_of(f"{self.bundle(sandbox_id)}/{start.BUNDLE_MARK}")
        log_id = log_id or self.layout.log_of_sandbox(sandbox_id)
        shared = settings.BUNDLE_DIR_BASE() or settings.ROOT_DIR_BASE()
        return log_id or (None if shared else self.log_id)

    def _occupied_bytes(self, instance: GvisorInstance) -> int:
        return disk_usage.occupied_bytes([self._out(instance.sandbox_id)], 0, {}, [], root=self.root)


async def _reap(child: int) -> None:
    if child >= 0:
        await in_abandoned_thread(reap, child)


class Found(Struct, frozen=True, kw_only=True):
    """The state of a sandbox of an earlier daemon: its running container, or that it `goes_on` from its saved state."""

    container: str = ""
    first: Identity | None = None
    goes_on: bool = False


def _find_state(job: Job) -> Found | None:
    """Return the state of a sandbox, once it is no longer being saved. None: it is gone. Blocks."""
    if not os.path.isdir(job.bundle):
        return None
    start.await_saving(job, start.SAVING_S)
    start.end_saved(job)
    running_one = runsc.running(job.bundle)
    if running_one is not None:
        start.remove_saved(job.bundle)
        return Found(container=running_one[0], first=running_one[1])
    if not start.recover_saved(job.bundle):
        return None
    goes_on = os.path.exists(f"{job.saved}/{start.GO_ON}")
    if not goes_on:
        start.stay_suspended(job)  # the daemon that saved it may have died before it was on the disk
    return Found(goes_on=goes_on)


def open_gvisor(
    state_dir: str, *, uid_base: int, disk_limit: int, log_id: str = ""
) -> AbstractAsyncContextManager[GvisorProvider]:
    """Run the gVisor provider, with its background tasks, for the length of a block. The sandboxes outlive it."""
    return running(functools.partial(GvisorProvider, state_dir, log_id, uid_base=uid_base, disk_limit=disk_limit))
