"""The Docker provider: sandboxes as containers of an engine on this machine.

The engine makes containers, pauses and removes them, and reports why one ended. The keeper runs the processes inside,
as everywhere: they can be started also while the engine is down. `plan` decides on a container, `container` translates
that into the engine's terms, `start` makes it. See `contract.provider` for the interface.
"""

import os
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import msgspec
import trio

from sandkeep import failpoints
from sandkeep.errors import ProviderError, SandkeepError
from sandkeep.model import Isolation, Network, ProviderCapabilities, SandboxSpec
from sandkeep.settings.daemon import MEMORY_LIMIT
from sandkeepd.contract.caller import Caller
from sandkeepd.contract.instance import Ending
from sandkeepd.contract.ledger import Ledger, Swept
from sandkeepd.host.cgroups import freezer
from sandkeepd.host.hostile_files import HostileTree
from sandkeepd.host.threads import in_ending_thread
from sandkeepd.host.undo import undo_on_error
from sandkeepd.keeper.watcher import Watcher
from sandkeepd.providers.common import disk_usage
from sandkeepd.providers.common.keeper_provider import KeeperProvider, running
from sandkeepd.providers.common.own_disks import APPROXIMATE, OwnDisks
from sandkeepd.providers.docker import inotify, probe
from sandkeepd.providers.docker import plan as docker_plan
from sandkeepd.providers.docker import start as docker_start
from sandkeepd.providers.docker.container import LOG_LABEL, SANDBOX_LABEL, Job
from sandkeepd.providers.docker.engine import Client, Engine, Event
from sandkeepd.providers.docker.image_probe import NO_SHELL
from sandkeepd.providers.docker.images import DockerImages
from sandkeepd.providers.docker.instance import DockerInstance, ShelllessInstance
from sandkeepd.providers.docker.kept_layers import DockerLayers
from sandkeepd.providers.docker.plan import Plan
from sandkeepd.providers.docker.replacement import DockerReplacement
from sandkeepd.providers.docker.resizing import DockerResizing
from sandkeepd.providers.docker.revival import DockerRevival
from sandkeepd.providers.docker.snapshots import DockerSnapshots
from sandkeepd.providers.docker.start import Handle, kill
from sandkeepd.providers.docker.trees import ImageLayers
from sandkeepd.providers.docker.volumes import DockerVolumes

ASKED_S: Final = 20.0
"""Seconds that the report of capabilities may take."""

READY_S: Final = 30.0
"""Seconds that the keeper of a new container may take to answer."""

NEWS_S: Final = 3.0
"""Seconds that an engine may take to report why a container ended; after that, the end is reported without a reason."""

_NO_CAPABILITIES: Final = "without any capabilities"

LOOK_AGAIN_S: Final = 0.1
REMOVED_S: Final = 1.5
"""Seconds to wait after a container's end for its removal, since ``docker rm -f`` kills it first."""


class DockerProvider(KeeperProvider[DockerInstance]):
    """See `Provider`. It runs tasks of its own, so `open_docker` makes it."""

    name = "docker"

    def __init__(
        self, state_dir: str, log_id: str, watcher: Watcher, nursery: trio.Nursery, *, engine: Engine, disk_limit: int
    ) -> None:
        super().__init__(state_dir, log_id, watcher, nursery)
        self.engine = self.docker = engine
        self.images = DockerImages(engine, self.layout, log_id)
        self._disk_limit = disk_limit
        self.own_disks = OwnDisks(self.layout, self.in_thread, root=os.geteuid() == 0, for_engine=True)
        self._driver: str | None = None
        self._following = False
        self.snapshots = self._snapshots = snapshots = DockerSnapshots(self)
        self._image_layers = ImageLayers()
        self._kept = DockerLayers(self, snapshots)
        self.revival = self._revival = DockerRevival(self)
        self._replacement = DockerReplacement(self, self._revival)
        self.resizing = self._resizing = DockerResizing(self)
        self.volumes = DockerVolumes(engine)
        self.builder, self.layers, self.replacement = self.images, self._kept, self._replacement

    # Sandboxes

    def default_network(self) -> Network:
        return docker_plan.default_network()

    def default_memory(self) -> int | None:
        return MEMORY_LIMIT()

    def plan(
        self,
        sandbox_id: str,
        image_id: str,
        spec: SandboxSpec,
        caller: Caller,
        taken: Sequence[dict[str, Any]],
        *,
        details: Mapping[str, Any],
        owner: str = "",
    ) -> dict[str, Any]:
        self.layout.sandbox(sandbox_id)
        decided = docker_plan.decide(
            sandbox_id, owner, spec, details, self._disk_limit, {str(plan.get("name")) for plan in taken}
        )
        return dict(msgspec.to_builtins(decided))

    async def create(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, secrets: Mapping[str, str], plan: dict[str, Any]
    ) -> DockerInstance:
        async with self.creating(sandbox_id, plan):
            await self._make_disk(sandbox_id, plan)
            return await self.start(self.job(sandbox_id, spec, secrets, plan), secrets, docker_start.start)

    @asynccontextmanager
    async def creating(self, sandbox_id: str, plan: dict[str, Any]) -> AsyncIterator[None]:
        """Make a container for the length of a block; on any error nothing is left of it."""
        await self.follow_engine()
        self.layout.prepare()
        async with undo_on_error(self._remove_remains, sandbox_id, plan):
            yield

    async def _make_disk(self, sandbox_id: str, plan: dict[str, Any]) -> None:
        """Make the disk of a sandbox that is to have one. Raises `not_supported`, and `storage_unavailable`."""
        decided = msgspec.convert(plan, Plan)
        if decided.own_disk:
            await self.own_disks.require()
            await self._snapshots.require_data_root()
            with trio.CancelScope(shield=True):
                await self.in_thread(self.own_disks.disks.make, sandbox_id, decided.disk_bytes)

    async def _remove_remains(self, sandbox_id: str, plan: dict[str, Any]) -> None:
        """Remove the remains of a failed container; if the engine does not answer, once it does again."""
        try:
            await self.discard(sandbox_id, plan)
        except SandkeepError as error:
            if "engine" in error.data:
                self.nursery.start_soon(self._remove_remains_later, sandbox_id, plan)

    async def _remove_remains_later(self, sandbox_id: str, plan: dict[str, Any]) -> None:
        await self.docker.recovered()
        await self.docker.drained()
        await self._remove_remains(sandbox_id, plan)

    def job(self, sandbox_id: str, spec: SandboxSpec, secrets: Collection[str], plan: dict[str, Any]) -> Job:
        """Return the parameters for starting a container."""
        return Job(
            sandbox_id=sandbox_id, directory=self.layout.sandbox(sandbox_id), files=self.files(sandbox_id),
            plan=msgspec.convert(plan, Plan), spec=spec, log_id=self.log_id, secrets=sorted(secrets),
            image_layers=self._image_layers,
        )  # fmt: skip

    async def start(
        self, job: Job, secrets: Mapping[str, str], start: Callable[[Client, Job], Handle]
    ) -> DockerInstance:
        """Prepare the directories, `start` the container, and hold it once its keeper answers."""
        job = msgspec.structs.replace(job, data_root=await self._snapshots.data_root())
        await self.in_thread(docker_start.make_directories, job)
        failpoints.reach("docker.directories")
        with docker_start.control_held_open(job):
            with trio.CancelScope(shield=True):  # a start that is waited for can be undone; one that is left cannot
                handle = await self.docker.call(lambda client: start(client, job))
            return await self._begin(job, handle, secrets)

    async def _begin(self, job: Job, handle: Handle, secrets: Mapping[str, str]) -> DockerInstance:
        """Hold a container that was just started, once its keeper answers."""
        isolation = await self._isolation(job.plan, counted=handle.counted)
        instance = self._hold(job.sandbox_id, job.spec, job.plan, isolation, handle)
        alive = False
        if instance is not None:
            with trio.move_on_after(READY_S):
                alive = await instance.is_alive()
        if instance is None or not alive:
            raise ProviderError("provider_unavailable", docker_start.why_not_started(job, await self._state(handle)))
        docker_start.close_control(job)
        await instance.share_secrets(secrets)
        failpoints.reach("docker.secrets")
        return instance

    def _hold(
        self, sandbox_id: str, spec: SandboxSpec, plan: Plan, isolation: Isolation, handle: Handle
    ) -> DockerInstance | None:
        env = {name: value for name, value in spec.env.items() if name not in handle.secrets}

        def make() -> DockerInstance:
            made = (DockerInstance if plan.shell else ShelllessInstance)(
                sandbox_id, self.files(sandbox_id), self._watcher, isolation=isolation,
                handle=msgspec.to_builtins(handle), env=env, working_dir=spec.directory(plan.workspace),
                input_owner=docker_start.owner_of_files(plan), inside=docker_plan.INSIDE, own_disk=plan.own_disk,
            )  # fmt: skip
            made.set_up(plan, self.docker, self.layout.read_mark(sandbox_id))
            return made

        return self._hold_first(handle.first, make)

    async def _isolation(self, plan: Plan, *, counted: bool) -> Isolation:
        if self._driver is None:
            self._driver = await self.docker.call(lambda client: str(client.info().get("Driver") or "unknown"))
        held = {"pids": "cgroup", "disk": "file system" if plan.own_disk else APPROXIMATE}
        held |= {name: "cgroup" for name, limit in (("memory", plan.memory_bytes), ("cpus", plan.cpus)) if limit}
        notes = []
        if plan.uid == 0:
            may = f"with the capabilities {', '.join(plan.capabilities)}" if plan.capabilities else _NO_CAPABILITIES
            notes.append(f"its processes are root, inside and on the host, {may}")
        if not counted:
            notes.append(inotify.SHARED)
        if plan.shell is None:
            notes.append(f"{plan.why_no_shell or NO_SHELL}, so it has no terminals and no copies of trees")
        return Isolation(
            mechanism="docker", files=self._driver, host_uid=plan.uid, workspace=plan.workspace, limits=held,
            notes=notes,
        )  # fmt: skip

    async def adopt(
        self, sandbox_id: str, spec: SandboxSpec, plan: dict[str, Any], isolation: Isolation, handle: dict[str, Any]
    ) -> DockerInstance | Ending | None:
        """See `Provider.adopt`. A container whose first process runs is taken over without the engine."""
        decided, earlier = msgspec.convert(plan, Plan), msgspec.convert(handle, Handle)
        self._begin_to_follow()
        instance = await self._hold_earlier(lambda: self._hold(sandbox_id, spec, decided, isolation, earlier))
        if instance is not None and decided.own_disk:
            await self.own_disks.fit_found(sandbox_id, decided.disk_bytes)
        if instance is not None and decided.updated:
            self.nursery.start_soon(self._resizing.fit_adopted, instance)  # not by now: the engine may be down
        return instance

    async def terminate(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> None:
        """See `Provider.terminate`. Processes end at once, also when the engine is down; the rest waits for it."""
        self._mark_terminated(sandbox_id)
        self._replacement.forget(sandbox_id)
        await in_ending_thread(kill, handle)
        instance = self.instances.get(sandbox_id)
        if instance is not None and not instance.is_suspended():  # what a reader has frozen does not end
            freezer.end(instance.cgroups)
        failpoints.reach("docker.killed")
        await self.docker.call(lambda client: docker_start.remove(client, sandbox_id, self.log_id))
        failpoints.reach("docker.removed")
        await self.await_end(sandbox_id)
        self.remove_files(sandbox_id, partial(self._clear, sandbox_id))

    def _clear(self, sandbox_id: str) -> None:
        self.own_disks.disks.release(sandbox_id)
        self.layout.clear(sandbox_id)

    # Events of the engine

    async def follow_engine(self) -> None:
        """Probe the engine, and follow the events of our containers from now on."""
        await self.docker.answer()
        self._begin_to_follow()

    def _begin_to_follow(self) -> None:
        if not self._following:
            self._following = True
            filters = {"type": ["container"], "label": [f"{LOG_LABEL}={self.log_id}"]}
            self.nursery.start_soon(self.docker.follow, filters, self._on_event, self._refresh_pauses)

    def _on_event(self, event: Event) -> None:
        """Handle an event of one of our containers, perhaps caused from outside. A late event may be outdated, so look
        at the state.
        """
        instance = self.instances.get(event.get("Actor", {}).get("Attributes", {}).get(SANDBOX_LABEL, ""))
        if instance is not None and event.get("Action") in ("pause", "unpause"):
            instance.pause.set(instance.is_suspended())

    def _refresh_pauses(self) -> None:
        """Look at the state of all containers, after events may have been missed: the end of a container is seen
        without the engine.
        """
        for instance in self.instances.values():
            instance.pause.set(instance.is_suspended())

    async def _state(self, handle: Handle) -> dict[str, Any] | None:
        """Return the engine's view of a container's state; None when there is no such container."""
        return await self.docker.call(lambda client: docker_start.state_of(client, handle.container_id))

    async def _last_state(self, handle: Handle) -> dict[str, Any] | None:
        """Return the state of a container that has ended; None when it was removed, as it is a moment after it was
        killed.
        """
        deadline = trio.current_time() + REMOVED_S
        state = await self._state(handle)
        while state is not None and trio.current_time() < deadline:
            await trio.sleep(LOOK_AGAIN_S)
            state = await self._state(handle)
        return state

    async def _why_ended(self, instance: DockerInstance) -> Ending:
        with_engine = self.docker.was_away
        try:
            with trio.fail_after(NEWS_S):
                state = await self._last_state(msgspec.convert(instance.handle, Handle))
        except (SandkeepError, trio.TooSlowError):
            return _lost_with_engine()
        if state is None:
            return Ending(kind="lost", message="its container was removed outside Sandkeep")
        if with_engine:
            return _lost_with_engine()
        starved = ", after the OOM killer had ended processes in it" if state.get("OOMKilled") else ""
        message = f"its container was ended outside Sandkeep (exit code {state.get('ExitCode')}){starved}"
        return Ending(kind="failed", message=message)

    # All that there is

    async def capabilities(self) -> ProviderCapabilities:
        try:
            with trio.fail_after(ASKED_S):
                found = await self.docker.call(probe.look)
        except Exception as error:  # noqa: BLE001 - a report of missing capabilities must not fail
            why = error.message if isinstance(error, SandkeepError) else f"the Docker engine cannot be asked: {error}"
            why = "the Docker engine is too slow" if isinstance(error, trio.TooSlowError) else why
            return ProviderCapabilities(provider=self.name, works=False, why=why)
        own_disks = await self.own_disks.capability()
        return self._with_watches(probe.report(self.name, found, own_disks, root=os.geteuid() == 0))

    async def found(self) -> tuple[list[str], list[str]]:
        containers = await self.docker.call(docker_start.list_objects)
        sandboxes = sorted({mark.sandbox_id for mark in containers if mark.log_id == self.log_id})
        return sandboxes, await self.images.found()

    async def clean_up(self, ledger: Ledger) -> Swept:
        """See `Provider.clean_up`. Where there never was an engine, there is nothing to be cleaned."""
        if not self.docker.has_socket and not ledger.plans():
            return Swept()
        removed, foreign = dict[str, None](), dict[str, None]()
        for mark in await self.docker.call(docker_start.list_objects):
            if mark.log_id != self.log_id:
                foreign[f"{mark.kind} {mark.name}"] = None
            elif not ledger.owns_sandbox(mark.sandbox_id):  # asked last, as sandboxes are made meanwhile
                removed[f"sandbox {mark.sandbox_id}"] = None
                await self.discard(mark.sandbox_id, {})
        images, layers = await self.images.clean_up(ledger), await self._kept.clean_up(ledger)
        return Swept(
            removed=[*removed, *images.removed, *layers.removed], foreign=[*foreign, *images.foreign, *layers.foreign]
        )

    # Background tasks

    def _occupied_bytes(self, instance: DockerInstance) -> int:
        handle = msgspec.convert(instance.handle, Handle)
        places: list[str | HostileTree] = [*handle.written, self._out(instance.sandbox_id)]
        inside = [instance.plan.workspace, "/", f"{docker_plan.INSIDE}/out"]
        return disk_usage.occupied_bytes(places, handle.first.pid, instance.cgroups, inside, root=os.geteuid() == 0)


def _lost_with_engine() -> Ending:
    message = (
        "it ended while the Docker engine was down or stopping, which takes containers along without live-restore: "
        "resume the sandbox"
    )
    return Ending(kind="lost", message=message)


@asynccontextmanager
async def open_docker(
    state_dir: str, *, disk_limit: int, log_id: str = "", engine: Engine | None = None
) -> AsyncIterator[DockerProvider]:
    """Run the Docker provider, with its background tasks, for the length of a block. The sandboxes outlive it.

    The engine is not asked before it is needed, so that a daemon starts without one.
    """
    way = engine or Engine()
    try:
        async with running(partial(DockerProvider, state_dir, log_id, engine=way, disk_limit=disk_limit)) as provider:
            provider.nursery.start_soon(way.watch)
            yield provider
    finally:
        way.close()
