"""The objects of this daemon's sandboxes in the cluster: made, followed by one watch a kind, and deleted."""

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec
import trio
from msgspec import Struct

from sandkeep import failpoints
from sandkeep.errors import ProviderError, StateError
from sandkeep.kubernetes.pod_snapshots import restore_state
from sandkeep.settings import kubernetes as settings
from sandkeepd.providers.kubernetes import forms, manifests
from sandkeepd.providers.kubernetes.cluster import (
    CONFLICT,
    ENGINE,
    GONE,
    PODS,
    Api,
    Cluster,
    Json,
    Kind,
    RefusedError,
    Watched,
)
from sandkeepd.providers.kubernetes.forms import Form, Forms
from sandkeepd.providers.kubernetes.manifests import LOG_LABEL, SANDBOX_LABEL, Job
from sandkeepd.providers.kubernetes.observed import Metadata, Observed, is_running, why_hopeless, why_waiting
from sandkeepd.providers.kubernetes.watch import Watch, until

SYNCED_S: Final = 30.0
"""Seconds that the first list of a watch may take."""

T = TypeVar("T")

CHANGED_S: Final = 60
"""Seconds after which a single object is looked at again, whether it was changed or not."""

DELETED_S: Final = 60.0
"""Seconds that the cluster may take to delete a sandbox's objects, before the daemon says who holds them."""


class Made(Struct, frozen=True, kw_only=True):
    """An object that was made for a sandbox."""

    form: Form
    name: str
    uid: str


class Objects:
    """The objects in the cluster with the labels of the log `log_id`. Watches run in `nursery` from their first use."""

    def __init__(self, cluster: Cluster, log_id: str, nursery: trio.Nursery) -> None:
        self._cluster = cluster
        self._log_id = log_id
        self._nursery = nursery
        self._forms: Forms | None = None
        self._keeper: dict[str, str] = {}
        self._watches: dict[Kind, Watch] = {}
        self._preparing = trio.Lock()

    # What there is

    async def forms(self) -> Forms:
        """Return the resources that the cluster has, as they were at the first use."""
        async with self._preparing:
            if self._forms is None:
                self._forms = await self._cluster.call(forms.discover)
        return self._forms

    async def discover(self) -> Forms:
        """Ask the cluster anew for its resources: somebody may have installed some. Those known before stay if that
        fails.
        """
        self._forms = await self._cluster.call(forms.discover)
        return self._forms

    async def keeper(self, machine: str) -> str:
        """Return the name of the ConfigMap with the keeper, which is made if need be."""
        async with self._preparing:
            if machine not in self._keeper:
                self._keeper[machine] = await self._cluster.call(lambda api: forms.prepare_namespace(api, machine))
        return self._keeper[machine]

    def forget_keeper(self) -> None:
        """Make the ConfigMap with the keeper again before the next sandbox: somebody may have deleted it."""
        self._keeper.clear()

    async def watch(self, kind: Kind) -> Watch:
        """Return the watch of a kind, once it knows the objects. Raises `provider_unavailable`."""
        if kind not in self._watches:
            found = self._watches[kind] = Watch(
                self._cluster, kind, manifests.selector(self._log_id), manifests.SANDBOX_LABEL
            )
            self._nursery.start_soon(found.run)
        await self._watches[kind].synced(SYNCED_S)
        return self._watches[kind]

    async def pod(self, sandbox_id: str) -> Observed | None:
        """Return the pod of a sandbox, as last seen."""
        return (await self.watch(PODS)).get(sandbox_id)

    async def get(self, kind: Kind, name: str) -> Json | None:
        """Return an object of anybody's; None where there is none."""
        return await self._cluster.call(lambda api: api.get(kind, name))

    async def all(self, kind: Kind) -> list[Json]:
        """Return all objects of a kind, whoever made them."""
        return (await self._cluster.call(lambda api: api.list(kind, "", dict)))[0]

    async def sandbox(self, sandbox_id: str) -> Observed | None:
        """Return the ``agents.x-k8s.io`` Sandbox of a sandbox, as last seen."""
        kind = (await self.forms()).kind("sandbox")
        return (await self.watch(kind)).get(sandbox_id) if kind != PODS else None

    async def listed(self) -> list[tuple[Kind, Observed]]:
        """Return all objects of sandboxes of any log, with their kinds."""
        kinds = (await self.forms()).kinds()
        return await self._cluster.call(lambda api: _list(api, kinds, SANDBOX_LABEL))

    # Making

    async def make(self, job: Job) -> Made:
        """Make the object of a sandbox. One that an earlier attempt for the same sandbox made is used.

        Raises `conflict` for a name that an object of somebody else has.
        """
        known = await self.forms()
        form = known.form_of(job)
        kind, body = known.kind(form), known.body(form, job)
        try:
            made = await self._cluster.call(lambda api: api.create(kind, body))
        except RefusedError as refused:
            if refused.status != CONFLICT:
                raise
            made = await self._existing(kind, job)
        failpoints.reach("kubernetes.made")
        return Made(form=form, name=made["metadata"]["name"], uid=made["metadata"]["uid"])

    async def _existing(self, kind: Kind, job: Job) -> Json:
        found = await self._cluster.call(lambda api: api.get(kind, job.plan.name))
        labels = ((found or {}).get("metadata") or {}).get("labels") or {}
        if found is not None and (labels.get(SANDBOX_LABEL), labels.get(LOG_LABEL)) == (job.sandbox_id, job.log_id):
            return found
        message = (
            f"the cluster has an object {job.plan.name!r} that is not Sandkeep's: delete it, or choose another name"
        )
        raise StateError("conflict", message, sandbox_id=job.sandbox_id)

    async def await_running(self, sandbox_id: str, form: Form, restored_from: str | None = None) -> Observed:
        """Wait until the pod of a sandbox runs, restored from that pod snapshot, if any, and return it.

        Raises `provider_unavailable`, with the cluster's reason, as soon as it never will, and when its time is over.
        """
        watches = await self._watches_of(form)

        def look() -> Observed | None:
            pod = watches[-1].get(sandbox_id)
            for found in (watch.get(sandbox_id) for watch in watches):
                if found is not None and (why := why_hopeless(found)):
                    raise ProviderError("provider_unavailable", f"the sandbox's pod cannot run: {why}")
            if pod is None or not is_running(pod, ""):
                return None
            if restored_from is None:
                _require_fresh(pod)
                return pod
            return pod if _is_restored(pod, restored_from) else None

        with trio.move_on_after(settings.START_S()):
            return await until(sandbox_id, watches, look)
        seen = [found for watch in reversed(watches) if (found := watch.get(sandbox_id)) is not None]
        why = why_waiting(seen[0] if seen else None)
        message = f"the sandbox's pod did not run within {settings.START_S()} s: {why}"
        raise ProviderError("provider_unavailable", message)

    async def gone_pod(self, sandbox_id: str, uid: str) -> None:
        """Wait until a sandbox has no pod of that uid any more. Raises `provider_unavailable` if it takes too long."""
        pods = await self.watch(PODS)

        def look() -> bool | None:
            pod = pods.get(sandbox_id)
            return None if pod is not None and pod.metadata.uid == uid else True

        with trio.move_on_after(DELETED_S):
            await until(sandbox_id, [pods], look)
            return
        message = f"the cluster has not deleted the last pod of {sandbox_id} yet: does its node answer?"
        raise ProviderError("provider_unavailable", message, engine=ENGINE)

    async def _watches_of(self, form: Form) -> list[Watch]:
        """Return the watches of an object of a form, and of its pod, which is the last."""
        kind = (await self.forms()).kind(form)
        return [await self.watch(each) for each in dict.fromkeys((kind, PODS))]

    async def await_object(self, kind: Kind, name: str, look: Callable[[Json], T | None]) -> T:
        """Wait until `look` finds an answer in an object, by a watch of it alone, and return that.

        Raises `provider_unavailable` when it is deleted.
        """
        while True:
            found = await self.get(kind, name)
            if found is None:
                message = f"{name} was deleted from the cluster before it was done"
                raise ProviderError("provider_unavailable", message)
            if (answer := look(found)) is not None:
                return answer
            await self._changed(kind, name, str(found["metadata"]["resourceVersion"]))

    async def await_gone(self, kind: Kind, name: str) -> None:
        """Wait until an object is gone, by a watch of it alone."""
        while (found := await self.get(kind, name)) is not None:
            await self._changed(kind, name, str(found["metadata"]["resourceVersion"]))

    async def _changed(self, kind: Kind, name: str, version: str) -> None:
        """Wait for a change of an object since a version of it, or for the end of the watch."""

        def read(api: Api, opened: Callable[[Watched], None]) -> None:
            watched = api.watch(kind, "", version, CHANGED_S, name=name)
            opened(watched)
            next(iter(watched), None)

        try:
            await self._cluster.stream(read)
        except RefusedError as refused:
            if refused.status != GONE:
                raise

    # Changing

    async def patch(self, made: Made, body: Json) -> None:
        """Change the spec of an object by a merge patch, and wait until its watch has seen that."""
        kind = (await self.forms()).kind(made.form)
        answer = await self._cluster.call(lambda api: api.patch(kind, made.name, body))
        metadata, watch = msgspec.convert(answer["metadata"], Metadata), await self.watch(kind)
        sandbox_id = (metadata.labels or {}).get(SANDBOX_LABEL, "")

        def look() -> bool | None:
            found = watch.get(sandbox_id)
            return True if found is None or found.metadata.generation >= metadata.generation else None

        with trio.move_on_after(SYNCED_S):
            await until(sandbox_id, [watch], look)

    # Deleting

    async def delete(self, sandbox_id: str) -> None:
        """Delete all objects of a sandbox, and wait until they, and its pod, are gone. Safe to repeat.

        Raises `provider_unavailable`, naming the finalizers that hold one, when that takes too long.
        """
        kinds = (await self.forms()).kinds()
        selector = f"{LOG_LABEL}={self._log_id},{SANDBOX_LABEL}={sandbox_id}"
        found = await self._cluster.call(lambda api: _delete_all(api, kinds, selector))
        watches = [await self.watch(kind) for kind in kinds if any(each is kind for each, _ in found)]

        def look() -> bool | None:
            return None if any(watch.get(sandbox_id) is not None for watch in watches) else True

        with trio.move_on_after(DELETED_S):
            await until(sandbox_id, watches, look)
            return
        left = await self._cluster.call(lambda api: _list(api, kinds, selector))
        finalizers = sorted({name for _, each in left for name in each.metadata.finalizers or ()})
        held = f", as its finalizers hold it ({', '.join(finalizers)[:200]})" if finalizers else ""
        message = f"the cluster has not deleted the objects of {sandbox_id} yet{held}: see their controller"
        raise ProviderError("provider_unavailable", message, engine=ENGINE)


def _require_fresh(pod: Observed) -> None:
    """Raise `provider_unavailable` for a pod that the cluster restored by itself: it has the memory of another, maybe
    of another owner's.
    """
    restored = pod.condition("PodRestored")
    if restored.status == "True":
        message = (
            f"the cluster restored pod {pod.metadata.name} from a pod snapshot, which nobody asked for: have the "
            f"snapshots of its policy grouped by the label {SANDBOX_LABEL}"
        )
        raise ProviderError("provider_unavailable", message)


def _is_restored(pod: Observed, snapshot: str) -> bool:
    state = restore_state(msgspec.to_builtins(pod), snapshot)
    if state == "fresh":
        message = f"pod {pod.metadata.name} started without the pod snapshot {snapshot}: does its controller run?"
        raise ProviderError("provider_unavailable", message)
    return state == "restored"


def _list(api: Api, kinds: list[Kind], selector: str) -> list[tuple[Kind, Observed]]:
    return [(kind, each) for kind in kinds for each in api.list(kind, selector, Observed)[0]]


def _delete_all(api: Api, kinds: list[Kind], selector: str) -> list[tuple[Kind, Observed]]:
    """Delete objects, owners before what they own, which the cluster deletes then."""
    found = _list(api, kinds, selector)
    for kind, each in found:
        if not each.is_going:
            api.delete(kind, each.metadata.name, each.metadata.uid)
    return found
