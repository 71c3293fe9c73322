"""The local provider: sandboxes on this machine, by bubblewrap over copies-on-write of directories.

With root's daemon every sandbox has a host uid of its own; with a user's daemon all have that user's. `local_start`
makes them, `local_bubblewrap` says what they see, `local_layout` where they are kept. See `base` for the interface.
"""

import functools
import math
import os
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeVar, TypeVarTuple

import msgspec
import trio

from sandkeep import failpoints
from sandkeep.errors import CallerError, ProviderError, SandkeepError, SetupError
from sandkeep.model import Capability, Isolation, ProviderCapabilities, SandboxSpec
from sandkeep.settings import UID_RANGE
from sandkeepd import cgroups
from sandkeepd.cgroups import Hierarchies, Limits
from sandkeepd.hostpath import import_tree
from sandkeepd.hostprocess import (
    identify,
    in_fresh_thread,
    keep_descriptors_private,
    kill_all,
    kill_and_wait,
    marked,
    open_process,
    owned_by,
    pids_where,
    reap,
    session_leader,
    wait_ended,
)
from sandkeepd.keeper import dropping, journal
from sandkeepd.keeper.client import KeeperInstance
from sandkeepd.keeper.processes import last_exits
from sandkeepd.keeper.watcher import Watcher
from sandkeepd.providers import local_disk
from sandkeepd.providers.base import Caller, Chunk, Dropped, Exit, ImportedImage, Ledger, Progress, Swept
from sandkeepd.providers.local_bubblewrap import INSIDE, PATH, WORKSPACE, environment, marks
from sandkeepd.providers.local_layout import IMAGE_MARK, TEMPORARY, Layout, write_mark
from sandkeepd.providers.local_probe import Abilities, probe
from sandkeepd.providers.local_start import Handle, Job, Plan, Started, start, translate
from sandkeepd.providers.local_strays import Strays
from sandkeepd.turns import my_turn

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

DEFAULT_PIDS: Final = 2048
DEFAULT_SCRATCH_BYTES: Final = 1024**3
"""The size of `/tmp`, of the home directory and of `/dev/shm`, each, when memory is not limited to less."""

END_TOLD_S: Final = 5.0
"""How long the end of a sandbox that was killed may take to be noticed."""

DISK_PERIOD_S: Final = 10.0
"""How often it is looked at what the sandboxes have written."""

DISK_REST: Final = 3
"""How many times as long as such a look took, the sandbox is not looked at again, if that is more."""

SWEEP_PERIOD_S: Final = 20.0
"""How often the keepers are asked after watchers that were killed."""


class LocalInstance(KeeperInstance):
    """A local sandbox. `pidfd` is its first process, by which its end is seen and brought about."""

    pidfd: int
    plan: Plan
    child: int | None = None
    reason: str | None = None
    look_after: float = 0.0
    scope: trio.CancelScope

    def groups(self) -> Mapping[str, str]:
        """See `Measuring.groups`."""
        return self.plan.cgroups

    async def aclose(self) -> None:
        """See `Instance.aclose`."""
        if not self._closed:
            self.scope.cancel()
            trio.lowlevel.notify_closing(self.pidfd)
            os.close(self.pidfd)
        await super().aclose()


class LocalProvider:
    """See `Provider`. It runs tasks of its own, so `open_local` makes it."""

    name = "local"

    def __init__(
        self, state_dir: str, *, uid_base: int, disk_limit: int, log_id: str, watcher: Watcher, nursery: trio.Nursery
    ) -> None:
        self.layout = Layout(state_dir)
        self.log_id = log_id
        self.root = os.geteuid() == 0
        self._uid_base = uid_base
        self._disk_limit = disk_limit
        self._watcher = watcher
        self._nursery = nursery
        self._instances: dict[str, LocalInstance] = {}
        self._clearing: dict[str, trio.Event] = {}
        self._limiter = trio.CapacityLimiter(16)
        self._disk_limiter = trio.CapacityLimiter(4)
        self._clear_limiter = trio.CapacityLimiter(64)  # what has a million files keeps no other from being made
        self._starts = trio.CapacityLimiter(max(4, 2 * len(os.sched_getaffinity(0))))
        """More at once end no sooner, and keep the daemon from its other work."""
        self._probing = trio.Lock()
        self._asking_leader = trio.Lock()
        self._abilities: Abilities | None = None
        self._leader: list[str] = []
        self._bubblewrap: str | None = None

    # What works

    @functools.cached_property
    def _hierarchies(self) -> Hierarchies:
        return Hierarchies(log_id=self.log_id)

    async def abilities(self) -> Abilities:
        """What was found out about this machine, once."""
        await self._know_leader()
        async with self._probing:
            if self._abilities is None:
                self.layout.prepare()
                self._abilities = await self._in_thread(probe, self.layout.trash, self._uid_base, self.root)
        return self._abilities

    async def _know_leader(self) -> None:
        async with self._asking_leader:
            self._leader = self._leader or await self._in_thread(session_leader)

    async def capabilities(self) -> ProviderCapabilities:
        """See `Provider.capabilities`."""
        try:
            with trio.fail_after(60):
                found = await self.abilities()
        except Exception as error:  # noqa: BLE001 - a report of what does not work must not fail
            return ProviderCapabilities(provider=self.name, works=False, why=str(error))
        limits = {
            f"limit_{name}": Capability(works=True)
            if self._hierarchies.has(controller)
            else Capability(works=name != "cpus", why=_why_weaker(name))
            for name, controller in (("cpus", "cpu"), ("memory", "memory"), ("pids", "pids"))
        }
        features = {
            "isolation": found.bubblewrap, "overlay": found.overlay, "reflink": found.reflink, **limits,
            "no_nested_user_namespaces": found.no_nested_userns,
            "stats": _stats(self._hierarchies.uncounted()),
            "terminals": _terminals(),
            "uid_per_sandbox": Capability(works=self.root, why=None if self.root else "only root has uids to give"),
            "network_bridge": Capability(works=False, why="the local provider has no bridge: use none or host"),
        }  # fmt: skip
        return ProviderCapabilities(
            provider=self.name, works=found.bubblewrap.works, why=found.bubblewrap.why, features=features
        )

    # Images

    async def import_image(self, image_id: str, source: str, caller: Caller, progress: Progress) -> ImportedImage:
        """See `Provider.import_image`."""
        self.layout.prepare()
        directory = self.layout.image(image_id)
        try:
            self._make_image(directory)
            return await import_tree(
                source, caller, f"{directory}/root", owner=self._uid_base if self.root else None,
                hide=self.layout.state_dir, progress=progress,
            )  # fmt: skip
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.remove_image(image_id)
            raise

    def _make_image(self, directory: str) -> None:
        try:
            os.mkdir(directory, 0o755)
            write_mark(f"{directory}/{IMAGE_MARK}", self.log_id)
        except OSError as error:
            raise translate(error, "the image") from None

    async def remove_image(self, image_id: str) -> None:
        """See `Provider.remove_image`."""
        await self._in_thread(self.layout.discard, [self.layout.image(image_id)])

    # Sandboxes

    def plan(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, caller: Caller, taken: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        """See `Provider.plan`."""
        self.layout.sandbox(sandbox_id)
        self.layout.image(image_id)
        mechanism = self._mechanism(spec)
        if spec.network == "bridge":
            raise SetupError("not_supported", "the local provider has no bridge network: use network 'none' or 'host'")
        inner_uid, inner_gid = _inner_user(spec.user)
        limits = Limits(pids=spec.pids or DEFAULT_PIDS, memory_bytes=spec.memory_bytes, cpus=spec.cpus)
        disk_bytes = spec.disk_bytes or self._disk_limit
        host_uid = self._host_uid(sandbox_id, taken)
        groups: list[int] = []
        host_gid = host_uid
        if mechanism == "none":
            if spec.user is not None:
                raise SetupError("not_supported", "without isolation a sandbox runs as its caller: leave out user")
            if spec.read_only:
                raise SetupError(
                    "not_supported", "without isolation nothing can be made read-only: leave out read_only"
                )
            host_uid, host_gid, groups = (
                (caller.uid, caller.gid, list(caller.groups)) if self.root else (None, None, [])
            )
        plan = Plan(
            mechanism=mechanism, uid=host_uid, gid=host_gid, groups=groups, inner_uid=inner_uid, inner_gid=inner_gid,
            limits=limits, disk_bytes=disk_bytes, scratch_bytes=_scratch(spec.memory_bytes, disk_bytes),
            cgroups=self._hierarchies.plan(sandbox_id, limits),
            held_by=self._held_by(limits),
        )  # fmt: skip
        document: dict[str, Any] = msgspec.to_builtins(plan)
        return document

    def _mechanism(self, spec: SandboxSpec) -> str:
        if spec.isolation == "none":
            return "none"
        self._bubblewrap = self._bubblewrap or shutil.which("bwrap")
        if self._bubblewrap is None:
            raise SetupError("not_supported", "bubblewrap is missing: install the package bubblewrap")
        return "bubblewrap"

    def _host_uid(self, sandbox_id: str, taken: Sequence[dict[str, Any]]) -> int | None:
        """A uid of the range that no living sandbox has. The search begins at the id's own place, so that uids rest."""
        if not self.root:
            return None
        used = {plan.get("uid") for plan in taken}
        first = int.from_bytes(sandbox_id.encode()[-6:], "big")
        for step in range(UID_RANGE - 1):
            uid = self._uid_base + 1 + (first + step) % (UID_RANGE - 1)
            if uid not in used:
                return uid
        raise ProviderError("provider_unavailable", f"all {UID_RANGE - 1} host uids are in use: terminate sandboxes")

    def _held_by(self, limits: Limits) -> dict[str, str]:
        held = {"disk": "rlimit and watcher"}
        for name, controller in (("pids", "pids"), ("memory", "memory"), ("cpus", "cpu")):
            if controller not in limits.controllers():
                continue
            if self._hierarchies.has(controller):
                held[name] = "cgroup"
            elif name == "cpus":
                raise SetupError(
                    "not_supported", "cpus cannot be limited here: the daemon needs a writable cpu control group"
                )
            else:
                held[name] = "rlimit"
        return held

    async def create(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, secrets: Mapping[str, str], plan: dict[str, Any]
    ) -> LocalInstance:
        """See `Provider.create`."""
        decided = msgspec.convert(plan, Plan)
        if sandbox_id in self._clearing:
            await self._clearing[sandbox_id].wait()
        found = await self.abilities()
        image_root = f"{self.layout.image(image_id)}/root"
        if not await trio.Path(image_root).is_dir():
            raise CallerError("not_found", f"there is no image {image_id}", image_id=image_id)
        files = found.files
        if decided.mechanism == "none" and not self.root and files == "overlay":
            files = "reflink" if found.reflink.works else "copy"
        job = Job(
            sandbox_id=sandbox_id, directory=self.layout.sandbox(sandbox_id), image_root=image_root,
            image_uid=self._uid_base, plan=decided, files=files, host_network=spec.network == "host",
            read_only=spec.read_only, hierarchies=self._hierarchies, log_id=self.log_id,
            close_userns=found.no_nested_userns.works,
        )  # fmt: skip
        try:
            with trio.CancelScope(shield=True):  # a start that is waited for can be undone; one that is left cannot
                started = await trio.to_thread.run_sync(
                    in_fresh_thread, functools.partial(start, job), limiter=self._starts
                )
            instance = self._instance(sandbox_id, spec, decided, started, files, found, list(secrets))
            await instance.share_secrets(secrets)
            failpoints.reach("create.secrets")
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.terminate(sandbox_id, plan, {})
            raise
        return instance

    def _instance(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        plan: Plan,
        started: Started,
        files: str,
        found: Abilities,
        secrets: list[str],
    ) -> LocalInstance:
        workspace = WORKSPACE if plan.mechanism == "bubblewrap" else started.workspace
        handle = Handle(first=started.first, files=files, workspace=workspace, secrets=secrets)
        isolation = Isolation(
            mechanism=plan.mechanism, files=files, host_uid=os.geteuid() if plan.uid is None else plan.uid,
            workspace=workspace, limits=plan.held_by, notes=self._notes(plan, files, found),
        )  # fmt: skip
        instance = self._hold(sandbox_id, spec, plan, isolation, handle)
        if instance is None:
            reap(started.child)
            raise ProviderError("provider_unavailable", "the sandbox ended while it started")
        instance.child = started.child
        return instance

    def _notes(self, plan: Plan, files: str, found: Abilities) -> list[str]:
        notes = [_why_weaker(name) for name, how in plan.held_by.items() if how == "rlimit"]
        if plan.mechanism == "none":
            notes.append("nothing isolates: the code runs as its caller, sees the host, and shares its network")
        elif plan.uid is None:
            notes.append("its files belong to the daemon's own user on the host")
        if plan.mechanism == "bubblewrap" and found.no_nested_userns.why:
            notes.append(found.no_nested_userns.why)
        if files != "overlay":
            notes.append(f"the image was copied: {found.overlay.why or 'no overlay without isolation'}")
        return notes

    def _hold(
        self, sandbox_id: str, spec: SandboxSpec, plan: Plan, isolation: Isolation, handle: Handle
    ) -> LocalInstance | None:
        pidfd = open_process(handle.first)
        if pidfd is None:
            return None
        env = (
            environment(sandbox_id)
            if plan.mechanism == "bubblewrap"
            else {"PATH": PATH, **marks(sandbox_id, self.log_id), "HOME": handle.workspace}
        )
        env |= {name: value for name, value in spec.env.items() if name not in handle.secrets}
        owner = (plan.uid, plan.gid) if plan.uid is not None and plan.gid is not None else None
        try:
            instance = LocalInstance(
                sandbox_id, self.layout.sandbox(sandbox_id), self._watcher, isolation=isolation,
                handle=msgspec.to_builtins(handle), leader=self._leader, env=env,
                working_dir=spec.working_dir or handle.workspace, input_owner=owner,
                inside=INSIDE if plan.mechanism == "bubblewrap" else os.path.dirname(handle.workspace),
            )  # fmt: skip
        except (FileNotFoundError, PermissionError, NotADirectoryError, journal.NotAFileError):
            os.close(pidfd)
            return None
        except BaseException:
            os.close(pidfd)
            raise
        instance.pidfd, instance.plan, instance.scope = pidfd, plan, trio.CancelScope()
        self._instances[sandbox_id] = instance
        self._nursery.start_soon(self._await_end, instance)
        return instance

    async def _await_end(self, instance: LocalInstance) -> None:
        with instance.scope:
            await trio.lowlevel.checkpoint()  # it may have been closed already
            await wait_ended(instance.pidfd)
            await my_turn()
            if instance.child is not None:
                await self._in_thread(reap, instance.child)
            reason = instance.reason
            if reason is None and cgroups.ran_out_of_memory(instance.plan.cgroups):
                reason = "its first process ended after it had used up its memory"
            await instance.went(reason or "its first process was ended from outside")

    async def adopt(
        self, sandbox_id: str, spec: SandboxSpec, plan: dict[str, Any], isolation: Isolation, handle: dict[str, Any]
    ) -> LocalInstance | None:
        """See `Provider.adopt`."""
        await self._know_leader()
        try:
            earlier = msgspec.convert(handle, Handle)
        except msgspec.ValidationError:
            return None
        decided = msgspec.convert(plan, Plan)
        try:
            instance = self._hold(sandbox_id, spec, decided, isolation, earlier)
        except OSError as error:  # nothing of that tells whether the sandbox is gone
            raise ProviderError("provider_unavailable", f"it cannot be looked at: {error.strerror}") from error
        if instance is not None:
            try:
                await instance.remember_earlier()
            except BaseException:
                await self._let_go(instance)
                raise
            return instance
        if identify(earlier.first.pid) == earlier.first:  # it runs, but has made its answers unreadable
            await self._in_thread(self._end, sandbox_id, decided, handle)
        return None

    async def _let_go(self, instance: LocalInstance) -> None:
        with trio.CancelScope(shield=True):
            await instance.aclose()
        if self._instances.get(instance.sandbox_id) is instance:
            del self._instances[instance.sandbox_id]

    async def terminate(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> None:
        """See `Provider.terminate`."""
        decided = msgspec.convert(plan, Plan) if plan else await self._in_thread(self._plan_of_stray, sandbox_id)
        instance = self._instances.get(sandbox_id)
        if instance is not None:
            instance.reason = instance.reason or "it was terminated"
        with trio.CancelScope(shield=True):
            await self._in_thread(self._end, sandbox_id, decided, handle)
            failpoints.reach("end.killed")
            if instance is not None:
                with trio.move_on_after(END_TOLD_S):  # whoever closed it already hears no more
                    await instance.ended()
                await instance.aclose()
                self._instances.pop(sandbox_id, None)
            await trio.to_thread.run_sync(self._clear, sandbox_id, limiter=self._clear_limiter)

    def _clear(self, sandbox_id: str) -> None:
        """Remove the files of a sandbox that has ended, all but its journals. That can take long. Blocks."""
        directory = self.layout.sandbox(sandbox_id)
        self.layout.tidy(sandbox_id)
        self.layout.discard([f"{directory}/{name}" for name in TEMPORARY])

    def _plan_of_stray(self, sandbox_id: str, taken: Collection[int | None] = ()) -> Plan:
        """What the plan of a sandbox that no event owns must have said, from what there is of it. Blocks.

        `taken` are the host uids of other sandboxes, besides those that are held.
        """
        everything = Limits(pids=DEFAULT_PIDS, memory_bytes=1, cpus=1)
        uid = self._uid_of_stray(sandbox_id, {held.plan.uid for held in self._instances.values()} | set(taken))
        return Plan(
            mechanism="bubblewrap", uid=uid, gid=uid, limits=everything, disk_bytes=0, scratch_bytes=0,
            cgroups=self._hierarchies.plan(sandbox_id, everything),
        )  # fmt: skip

    def _uid_of_stray(self, sandbox_id: str, taken: Collection[int | None]) -> int | None:
        """The host uid that its files have, unless that is another sandbox's or a user's of the host."""
        try:
            uid = os.lstat(f"{self.layout.sandbox(sandbox_id)}/upper").st_uid
        except OSError:
            return None
        ours = self.root and self._uid_base < uid < self._uid_base + UID_RANGE
        return uid if ours and uid not in taken else None

    def _end(self, sandbox_id: str, plan: Plan, handle: dict[str, Any]) -> None:
        """Kill what there is: the first process of the namespace takes all the others with it. Blocks."""
        known = plan.mechanism == "bubblewrap" and bool(handle)
        if handle:
            pidfd = open_process(msgspec.convert(handle, Handle).first)
            if pidfd is not None:
                try:
                    kill_and_wait(pidfd)
                finally:
                    os.close(pidfd)
        if not known:
            kill_all(lambda: marked(marks(sandbox_id, self.log_id), {os.geteuid(), plan.uid or 0}))
            if plan.mechanism == "bubblewrap" and plan.uid is not None:
                kill_all(lambda: pids_where(owned_by(plan.uid or -1)))
        if plan.cgroups:
            kill_all(lambda: cgroups.members(plan.cgroups))
            cgroups.remove(plan.cgroups)

    async def forget(self, sandbox_ids: Sequence[str]) -> None:
        """See `Provider.forget`."""
        await self._in_thread(self.layout.discard, [self.layout.sandbox(sandbox_id) for sandbox_id in sandbox_ids])

    async def found(self) -> tuple[list[str], list[str]]:
        """See `Provider.found`."""
        return await self._in_thread(self.layout.found)

    async def clean_up(self, ledger: Ledger) -> Swept:
        """See `Provider.clean_up`."""
        strays = Strays(self.layout, self._hierarchies, self.log_id, everybodys=self.root)
        await self._in_thread(strays.unmount_trash)
        await self._in_thread(self.layout.empty_trash)
        await self._in_thread(strays.look)
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
                await self._in_thread(strays.unmount, self.layout.image(image_id))
                await self.remove_image(image_id)
                removed.append(f"image {image_id}")
        if failures:
            raise failures[0]
        return Swept(removed=removed, foreign=strays.foreign)

    async def _clear_stray(self, strays: Strays, sandbox_id: str, ledger: Ledger) -> None:
        """Remove what is left of a sandbox; one that is to be made under the same id waits for that."""
        cleared = self._clearing[sandbox_id] = trio.Event()
        taken = {plan.get("uid") for plan in ledger.plans()}
        try:
            await self._in_thread(self._remove_stray, strays, sandbox_id, taken, not ledger.knows_sandbox(sandbox_id))
        finally:
            del self._clearing[sandbox_id]
            cleared.set()

    def _remove_stray(self, strays: Strays, sandbox_id: str, taken: Collection[int | None], forgotten: bool) -> None:
        directory = self.layout.sandbox(sandbox_id)
        strays.kill(sandbox_id)
        strays.unmount(directory)
        self._end(sandbox_id, self._plan_of_stray(sandbox_id, taken), {})
        strays.remove_groups(sandbox_id)
        if forgotten:
            self.layout.discard([directory])
        else:
            self._clear(sandbox_id)

    def last_exits(self, sandbox_id: str, process_ids: Sequence[str]) -> dict[str, Exit]:
        """See `Provider.last_exits`."""
        return last_exits(f"{self.layout.sandbox(sandbox_id)}/out", process_ids)

    def read_ended(self, sandbox_id: str, process_id: str, stream: str, offset: int, max_bytes: int) -> Chunk:
        """See `Provider.read_ended`."""
        return journal.read_journal(f"{self.layout.sandbox(sandbox_id)}/out", process_id, stream, offset, max_bytes)

    def trim_output(self, sandbox_id: str, running: Collection[str], most_bytes: int) -> Dropped:
        """See `Provider.trim_output`."""
        return dropping.trim(f"{self.layout.sandbox(sandbox_id)}/out", running, most_bytes)

    def drop_output(self, sandbox_id: str, process_ids: Collection[str]) -> None:
        """See `Provider.drop_output`."""
        dropping.drop(f"{self.layout.sandbox(sandbox_id)}/out", process_ids)

    def open_journal(self, sandbox_id: str, process_id: str, stream: str) -> int:
        """See `Provider.open_journal`."""
        return journal.open_for_caller(f"{self.layout.sandbox(sandbox_id)}/out", process_id, stream)

    async def aclose(self) -> None:
        """See `Provider.aclose`."""
        for instance in list(self._instances.values()):
            await instance.aclose()
        self._instances.clear()

    # What goes on beside

    async def watch_disks(self) -> None:
        """End sandboxes that have written more than they may. Runs until cancelled.

        One with so many files that it takes long does not keep the others from their turn, and is looked at less often.
        """
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(DISK_PERIOD_S)
                for instance in list(self._instances.values()):
                    if instance.look_after <= trio.current_time():
                        instance.look_after = math.inf
                        nursery.start_soon(self._try_disk, instance)

    async def _try_disk(self, instance: LocalInstance) -> None:
        began = trio.current_time()
        try:
            with suppress(SandkeepError):  # the next round tries again
                await self.check_disk(instance)
        finally:
            now = trio.current_time()
            instance.look_after = now + DISK_REST * (now - began)

    async def check_disk(self, instance: LocalInstance) -> None:
        """Look once at what a sandbox has written."""
        directory = self.layout.sandbox(instance.sandbox_id)
        first, groups = instance.handle["first"]["pid"], instance.plan.cgroups
        written = await trio.to_thread.run_sync(
            local_disk.occupied, directory, first, groups, self.root, limiter=self._disk_limiter
        )
        if written > instance.plan.disk_bytes and instance.reason is None:
            limit = instance.plan.disk_bytes
            instance.reason = f"disk_limit: it had written {written} bytes, and its limit is {limit}"
            await self._in_thread(self._end, instance.sandbox_id, instance.plan, instance.handle)

    async def sweep(self) -> None:
        """Ask all keepers after lost watchers, now and then. Runs until cancelled."""
        while True:
            await trio.sleep(SWEEP_PERIOD_S)
            for instance in list(self._instances.values()):
                instance.sweep()
                await trio.lowlevel.checkpoint()

    async def _in_thread(self, work: Callable[[*Ts], T], *arguments: *Ts) -> T:
        return await trio.to_thread.run_sync(work, *arguments, limiter=self._limiter)


@asynccontextmanager
async def open_local(
    state_dir: str, *, uid_base: int, disk_limit: int, log_id: str = ""
) -> AsyncIterator[LocalProvider]:
    """Open the local provider, with the tasks that it needs, for the length of a block. The sandboxes outlive it.

    What it makes carries `log_id`, by which it is known again when nothing else is left of it.
    """
    keep_descriptors_private()
    with Watcher() as watcher:
        async with trio.open_nursery() as nursery:
            provider = LocalProvider(
                state_dir, uid_base=uid_base, disk_limit=disk_limit, log_id=log_id, watcher=watcher, nursery=nursery
            )
            nursery.start_soon(watcher.run)
            nursery.start_soon(provider.watch_disks)
            nursery.start_soon(provider.sweep)
            try:
                yield provider
            finally:
                with trio.CancelScope(shield=True):
                    await provider.aclose()
                nursery.cancel_scope.cancel()


def _terminals() -> Capability:
    """Sandboxes see the programs of the host, so what is missing here is missing there."""
    if shutil.which("tmux", path=PATH):
        return Capability(works=True)
    return Capability(works=False, why="tmux is missing: install the package tmux")


def _stats(uncounted: Sequence[str]) -> Capability:
    if not uncounted:
        return Capability(works=True)
    why = f"there are no writable control groups that count {', '.join(uncounted)}: start the daemon as a service"
    return Capability(works=False, why=why)


def _scratch(memory_bytes: int | None, disk_bytes: int) -> int:
    """The size of each of the three file systems that lie in memory: together they leave a quarter to the processes."""
    return min(DEFAULT_SCRATCH_BYTES, disk_bytes, (memory_bytes or disk_bytes) // 4)


def _why_weaker(limit: str) -> str:
    return {
        "cpus": "cpus cannot be limited: the daemon has no writable cpu control group",
        "memory": "memory is limited for each process, not for all together: there is no writable memory control group",
        "pids": "processes are counted by uid: there is no writable pids control group",
    }[limit]


def _inner_user(user: str | None) -> tuple[int, int]:
    """The uid and gid inside. Raises `invalid`."""
    if user is None:
        return 1000, 1000
    uid, colon, gid = user.partition(":")
    if (
        not uid.isascii()
        or not uid.isdigit()
        or len(uid) > 9
        or (colon and not (gid.isascii() and gid.isdigit() and len(gid) < 10))
    ):
        raise CallerError("invalid", f"user: {user[:80]!r} is not a uid such as 1000, or uid:gid", field="user")
    return int(uid), int(gid) if colon else int(uid)
