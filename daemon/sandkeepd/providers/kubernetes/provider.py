"""The Kubernetes provider: sandboxes as pods of a cluster.

`objects` makes the API's objects and follows them by one watch a kind, `manifests` has their content. In each pod a
keeper runs the processes, as everywhere; one exec that stays open carries its requests and journals to a mirror in the
state directory, see `keeper.relay`. `plan` decides on a pod, `pods` runs commands in it. See `contract.provider` for
the interface.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import msgspec
import trio

from sandkeep import failpoints
from sandkeep.errors import ProviderError, SandkeepError
from sandkeep.model import Isolation, ProviderCapabilities, SandboxSpec
from sandkeepd.contract.caller import Caller
from sandkeepd.contract.instance import Ending
from sandkeepd.contract.ledger import Ledger, Swept
from sandkeepd.keeper import program
from sandkeepd.keeper.watcher import Watcher
from sandkeepd.providers.common.keeper_provider import running
from sandkeepd.providers.common.relayed_provider import RelayedProvider
from sandkeepd.providers.common.streamed_layers import StreamedLayers, StreamedSnapshots
from sandkeepd.providers.kubernetes import manifests, probe
from sandkeepd.providers.kubernetes import plan as kubernetes_plan
from sandkeepd.providers.kubernetes.cluster import PODS, Cluster
from sandkeepd.providers.kubernetes.images import KubernetesImages
from sandkeepd.providers.kubernetes.instance import KubernetesInstance
from sandkeepd.providers.kubernetes.manifests import Job
from sandkeepd.providers.kubernetes.objects import Made, Objects
from sandkeepd.providers.kubernetes.observed import Observed, container_id, ending_of, has_ended
from sandkeepd.providers.kubernetes.plan import Plan
from sandkeepd.providers.kubernetes.pod_snapshots import (
    KubernetesCheckpoints,
    PodPauses,
    PodSaver,
    is_suspended,
    suspension,
)
from sandkeepd.providers.kubernetes.pods import Handle, Pod
from sandkeepd.providers.kubernetes.requests import ENGINE
from sandkeepd.providers.kubernetes.watch import Watch, until

logger = logging.getLogger("sandkeepd")

ENDED_AGAIN_S: Final = 10.0
"""Seconds until the removal of what is left of an ended sandbox is tried again."""

IMAGE_FILES: Final = "the files of a cluster's images are on its nodes alone"


class KubernetesProvider(RelayedProvider[KubernetesInstance]):
    """See `Provider`. It runs tasks of its own, so `open_kubernetes` makes it."""

    name = "kubernetes"

    def __init__(
        self, state_dir: str, log_id: str, watcher: Watcher, nursery: trio.Nursery, *, cluster: Cluster
    ) -> None:
        super().__init__(state_dir, log_id, watcher, nursery, cluster)
        self.cluster = cluster
        self.objects = Objects(cluster, log_id, nursery)
        self.images = self.builder = KubernetesImages(self.objects)
        self.snapshots = StreamedSnapshots(self, kubernetes_plan.WORKSPACE)
        self.layers = self._layers = StreamedLayers(self, IMAGE_FILES)
        self._saver = PodSaver(self)
        self._saved = set[str]()
        """Sandboxes that end, and of which pod snapshots may be left."""
        self.checkpoints = KubernetesCheckpoints(self, self._saver)

    # Sandboxes

    def plan(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, caller: Caller, taken: Sequence[dict[str, Any]], *,
        details: Mapping[str, Any], owner: str = "",
    ) -> dict[str, Any]:  # fmt: skip
        self.layout.sandbox(sandbox_id)  # raises `invalid`
        names = {str(plan.get("name")) for plan in taken}
        return dict(msgspec.to_builtins(kubernetes_plan.decide(sandbox_id, owner, spec, details, names)))

    async def create(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, secrets: Mapping[str, str], plan: dict[str, Any]
    ) -> KubernetesInstance:
        decided = msgspec.convert(plan, Plan)
        job = partial(self._job, sandbox_id, spec, decided, sorted(secrets))
        return await self._undone_on_error(sandbox_id, lambda: self._create(job, secrets), plan)

    async def create_from(
        self, sandbox_id: str, spec: SandboxSpec, plan: Plan, secrets: list[str]
    ) -> KubernetesInstance:
        """Make a sandbox of a pod snapshot, which the plan names; `secrets` are the names of those in it."""
        job = partial(self._job, sandbox_id, spec, plan, secrets)
        return await self._undone_on_error(sandbox_id, lambda: self._create_restored(job), {"name": plan.name})

    async def _remove_remains(self, sandbox_id: str, plan: Mapping[str, Any]) -> None:
        self.objects.forget_keeper()
        await super()._remove_remains(sandbox_id, plan)

    async def _create(self, job: Callable[[], Awaitable[Job]], secrets: Mapping[str, str]) -> KubernetesInstance:
        made = await job()
        instance = await self._start(made)
        await instance.share_secrets(secrets)
        failpoints.reach("kubernetes.secrets")
        if made.plan.layers:
            await self._layers.send(instance, instance.place.workspace, [layer.name for layer in made.plan.layers])
        return instance

    async def _create_restored(self, job: Callable[[], Awaitable[Job]]) -> KubernetesInstance:
        return await self._start(await job())

    async def _job(self, sandbox_id: str, spec: SandboxSpec, plan: Plan, secrets: list[str]) -> Job:
        """Return the parameters of a start, after its namespace was prepared."""
        keeper = "" if plan.is_claim else await self.objects.keeper(plan.machine)
        return Job(
            sandbox_id=sandbox_id, log_id=self.log_id, plan=plan, spec=spec, secrets=secrets, keeper=keeper
        )  # fmt: skip

    async def _start(self, job: Job) -> KubernetesInstance:
        """Make the object, and hold its pod once the keeper answers."""
        await self.objects.watch(PODS)  # the cluster is there, before anything is made
        await self.in_thread(self._make_mirror, job.sandbox_id)
        made = await self.objects.make(job)
        made, found = await self.objects.await_running(job.sandbox_id, made, job.plan.restored_from)
        handle = await self._handle(job, made, found)
        instance = self._hold(job.sandbox_id, job.spec, job.plan, _isolation(job.plan, handle), handle)
        if job.plan.restored_from is not None:
            await instance.remember_earlier()
        await self._require_alive(instance)
        return instance

    async def _handle(self, job: Job, made: Made, found: Observed) -> Handle:
        api = await self.cluster.api()
        name, program_path, directory, workspace = found.metadata.name, manifests.PROGRAM, manifests.DIRECTORY, ""
        if job.plan.is_claim:
            pod = Pod(self.cluster, api.namespace, name, made.container_name)
            place, workspace = await pod.copy_keeper(program.read(job.plan.machine))
            program_path, directory = f"{place}/keeper", f"{place}/io"
        return Handle(
            namespace=api.namespace, made=made, pod=name, pod_uid=found.metadata.uid, program=program_path,
            directory=directory, workspace=workspace or kubernetes_plan.WORKSPACE, secrets=job.secrets,
            name=f"{api.namespace}/{name}", cluster=api.address, container_id=container_id(found, made.container_name),
        )  # fmt: skip

    def _hold(
        self, sandbox_id: str, spec: SandboxSpec, plan: Plan, isolation: Isolation, handle: Handle, *,
        suspended: bool = False,
    ) -> KubernetesInstance:  # fmt: skip
        """Hold a pod, and follow it, until it is released."""
        files = self.files(sandbox_id)
        job = Job(
            sandbox_id=sandbox_id, log_id=self.log_id, plan=plan, spec=spec, secrets=handle.secrets, keeper=""
        )  # fmt: skip
        instance = KubernetesInstance(
            sandbox_id, files, self._watcher, place=handle,
            pod=Pod(self.cluster, handle.namespace, handle.pod, handle.made.container_name or None),
            relay=self._relay(sandbox_id), nursery=self.nursery, isolation=isolation,
            handle=msgspec.to_builtins(handle), env=manifests.environment(job),
            working_dir=spec.directory(handle.workspace),
        )  # fmt: skip
        instance.pauses = PodPauses(self, self._saver, instance)
        if suspended:
            instance.hold_requests()
            instance.suspended.set(True)
        self._hold_relayed(instance)
        return instance

    async def _await_end(self, instance: KubernetesInstance) -> Ending:
        ending = ending_of(await self._ended_pod(instance), instance.place.made.container_name)
        if instance.ending is None:
            self._remove_ended(instance.sandbox_id, instance.place)
        return ending

    def _remove_ended(self, sandbox_id: str, place: Handle) -> None:
        """Have what is left of a sandbox removed that has ended by itself: its controller would make another pod, which
        nobody looks after.
        """
        self.nursery.start_soon(self._delete_ended, sandbox_id, place)

    async def _delete_ended(self, sandbox_id: str, place: Handle) -> None:
        told = ""
        while True:
            try:
                await self._delete(sandbox_id, place)
            except SandkeepError as error:  # it is tried again as long as the daemon lives, and the next one sweeps it
                if error.message != told:
                    told = error.message
                    logger.warning("the objects of %s, which has ended, are left for now: %s", sandbox_id, told)
                await self.cluster.recovered()
                await trio.sleep(ENDED_AGAIN_S)
            else:
                return

    async def _ended_pod(self, instance: KubernetesInstance) -> Observed | None:
        """Wait until the pod of a sandbox has ended; return it as it was then, None if it is gone, or another's.

        While suspended, a sandbox has no pod, and ends with its object.
        """
        objects, pods = await self._watches(instance)
        sandbox_id, made = instance.sandbox_id, instance.place.made

        def look() -> tuple[Observed | None] | None:
            if instance.suspended.is_on:
                return None if objects.get(sandbox_id, made.uid) is not None else (None,)
            pod = pods.get(sandbox_id, instance.place.pod_uid)
            if not has_ended(pod, made.container_name, instance.place.container_id):
                return None
            if is_suspended(objects.get(sandbox_id, made.uid)):  # ordered, and the answer to that was lost
                instance.suspended.set(True)
                instance.hold_requests()
                return None
            return (pod,)

        return (await until(sandbox_id, [pods, objects], look))[0]

    async def _watches(self, instance: KubernetesInstance) -> tuple[Watch, Watch]:
        """Return the watches of a sandbox's object and of pods, however long the cluster does not answer."""
        while True:
            try:
                kind = await self.objects.kind(instance.place.made.form)
                return await self.objects.watch(kind), await self.objects.watch(PODS)
            except SandkeepError:
                await self.cluster.recovered()

    async def _why_ended(self, instance: KubernetesInstance) -> Ending:
        place = instance.place
        pod = (await self.objects.watch(PODS)).get(instance.sandbox_id, place.pod_uid)
        return ending_of(pod, place.made.container_name)

    async def adopt(
        self, sandbox_id: str, spec: SandboxSpec, plan: dict[str, Any], isolation: Isolation, handle: dict[str, Any]
    ) -> KubernetesInstance | Ending | None:
        earlier, decided = msgspec.convert(handle, Handle), msgspec.convert(plan, Plan)
        own = await self.objects.own(sandbox_id, earlier.made)
        pod = await self.objects.pod(sandbox_id, earlier.made, earlier.pod_uid)
        suspended = is_suspended(own)
        if not suspended and (pod is None or not _is_same(pod, earlier, own)):
            await self._require_its_cluster(sandbox_id, earlier)
            self._remove_ended(sandbox_id, earlier)
            return None
        container = earlier.made.container_name
        known_id = earlier.container_id if pod is not None and pod.metadata.uid == earlier.pod_uid else ""
        if not suspended and has_ended(pod, container, known_id):
            self._remove_ended(sandbox_id, earlier)
            return ending_of(pod, container)

        def hold() -> KubernetesInstance:
            instance = self._hold(sandbox_id, spec, decided, isolation, earlier, suspended=suspended)
            if pod is not None and not suspended:
                instance.moved_to(pod)
            return instance

        instance = await self._hold_earlier(hold)
        if instance is not None and not suspended:
            self.nursery.start_soon(instance.take_over)  # not waited for: the channel may be down
        return instance

    async def _require_its_cluster(self, sandbox_id: str, place: Handle) -> None:
        """Raise `provider_unavailable` if the daemon uses another cluster than the one in which a sandbox was made: it
        is not lost there.
        """
        here = (await self.cluster.api()).address
        if place.cluster not in ("", here):
            message = (
                f"sandbox {sandbox_id} is in the cluster {place.cluster}, and the daemon uses {here}: start the daemon "
                "with the KUBECONFIG of that cluster"
            )
            raise ProviderError("provider_unavailable", message, engine=ENGINE)

    async def terminate(self, sandbox_id: str, plan: dict[str, Any], handle: dict[str, Any]) -> None:
        self._mark_terminated(sandbox_id)
        if handle:
            await self._delete(sandbox_id, msgspec.convert(handle, Handle))
        else:
            await self.objects.delete_labelled(sandbox_id, plan.get("name"))
        failpoints.reach("kubernetes.deleted")
        await self.await_end(sandbox_id)
        await self.in_thread(self.layout.clear, sandbox_id)

    async def _delete(self, sandbox_id: str, place: Handle) -> None:
        """Delete the objects of a sandbox, and then the pod snapshots that go with it."""
        own = await self.objects.own(sandbox_id, place.made)
        if own is None and await self.objects.pod(sandbox_id, place.made, place.pod_uid) is None:
            await self._require_its_cluster(sandbox_id, place)
        if own is not None and own.annotations.saved:
            self._saved.add(sandbox_id)
        await self.objects.delete(sandbox_id, place.made, (place.pod, place.pod_uid))
        if sandbox_id in self._saved:
            await self._saver.remove_triggered(suspension(sandbox_id))
            self._saved.discard(sandbox_id)

    # All that there is

    async def capabilities(self) -> ProviderCapabilities:
        return self._with_watches(await probe.capabilities(self.name, self.cluster, self.objects))

    async def found(self) -> tuple[list[str], list[str]]:
        ours = (each.labels for _, each in await self.objects.listed() if each.labels.log == self.log_id)
        return sorted({labels.sandbox for labels in ours}), []

    async def clean_up(self, ledger: Ledger) -> Swept:
        """See `Provider.clean_up`. A cluster that only its user's own tools know is not asked without need."""
        if not self.cluster.is_named and not ledger.plans():
            return Swept()
        removed, foreign, failures = dict[str, None](), dict[str, None](), list[SandkeepError]()
        for _, each in await self.objects.listed():
            labels = each.labels
            if labels.log != self.log_id:
                foreign[f"sandbox {labels.sandbox} of log {labels.log}: object {each.metadata.name}"] = None
            elif not ledger.owns_sandbox(labels.sandbox):  # asked last, as sandboxes are made meanwhile
                try:
                    await self.terminate(labels.sandbox, {}, {})
                    removed[f"sandbox {labels.sandbox}"] = None
                except SandkeepError as error:  # it keeps no other from being removed
                    failures.append(error)
        removed |= dict.fromkeys(await self._saver.sweep(ledger))
        if failures:
            raise failures[0]
        return Swept(removed=[*removed], foreign=[*foreign])


def _is_same(pod: Observed, handle: Handle, sandbox: Observed | None) -> bool:
    """Return True if a pod is that of the handle, or was restored from it by Sandkeep."""
    snapshot = sandbox.annotations.suspended_as if sandbox is not None else ""
    restored = bool(snapshot) and pod.annotations.restored_from == snapshot
    return pod.metadata.uid == handle.pod_uid or restored


def _isolation(plan: Plan, handle: Handle) -> Isolation:
    limits = {"cpus": plan.cpus, "memory": plan.memory_bytes}
    held = {name: "cgroup" for name, limit in limits.items() if limit}
    runtime = plan.runtime_class or "the cluster's runtime"
    return Isolation(
        mechanism=f"pod ({'its template' if plan.is_claim else runtime})", files="image", host_uid=None,
        workspace=handle.workspace, limits=held, notes=[probe.NETWORK] if plan.network == "none" else [],
    )  # fmt: skip


@asynccontextmanager
async def open_kubernetes(
    state_dir: str, *, log_id: str = "", cluster: Cluster | None = None
) -> AsyncIterator[KubernetesProvider]:
    """Run the Kubernetes provider, with its background tasks, for the length of a block. The sandboxes outlive it.

    The cluster is not asked before it is needed, so that a daemon starts without one.
    """
    way = cluster or Cluster()
    try:
        async with running(partial(KubernetesProvider, state_dir, log_id, cluster=way)) as provider:
            yield provider
    finally:
        way.close()
