"""The objects of this daemon's sandboxes in the cluster: made, followed by one watch a kind, and deleted."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

import msgspec
import trio
from msgspec import Struct
from msgspec.structs import replace

from sandkeep import failpoints
from sandkeep.errors import ProviderError, SandkeepError, StateError
from sandkeep.kubernetes.pod_snapshots import restore_state
from sandkeep.settings import kubernetes as settings
from sandkeepd.providers.kubernetes import forms, manifests
from sandkeepd.providers.kubernetes.cluster import PODS, Api, Cluster, Json, Kind, read_document
from sandkeepd.providers.kubernetes.forms import Form, Forms
from sandkeepd.providers.kubernetes.manifests import Job
from sandkeepd.providers.kubernetes.marks import LOG_LABEL, SANDBOX_LABEL
from sandkeepd.providers.kubernetes.observed import Metadata, Observed, is_running, why_hopeless
from sandkeepd.providers.kubernetes.requests import CONFLICT, ENGINE, GONE, ForbiddenError, RefusedError
from sandkeepd.providers.kubernetes.warnings import Warnings
from sandkeepd.providers.kubernetes.watch import Watch, until

SYNCED_S: Final = 30.0
"""Seconds that the first list of a watch may take."""

T = TypeVar("T")

CHANGED_S: Final = 60
"""Seconds after which a single object is looked at again, whether it was changed or not."""

CHECKED_S: Final = 60.0
"""Seconds after which the keeper and the policy in the namespace are compared again: anybody there can replace them.
The resources that the cluster has are asked for again as often.
"""

DELETED_S: Final = 60.0
"""Seconds that the cluster may take to delete a sandbox's objects, before the daemon says who holds them."""


class Made(Struct, frozen=True, kw_only=True):
    """An object that was made for a sandbox, which its uid identifies.

    `owner` is the uid of the Sandbox that a SandboxClaim was given, and which its pod belongs to; `container` the one
    of its template that the keeper runs in.
    """

    form: Form
    name: str
    uid: str
    owner: str = ""
    container: str = ""

    @property
    def container_name(self) -> str:
        """The container in which the keeper runs; empty for claims of earlier versions."""
        return self.container if self.form == "claim" else manifests.CONTAINER


class Objects:
    """The objects in the cluster with the labels of the log `log_id`. Watches run in `nursery` from their first use."""

    def __init__(self, cluster: Cluster, log_id: str, nursery: trio.Nursery) -> None:
        self._cluster = cluster
        self._log_id = log_id
        self._nursery = nursery
        self._warnings = Warnings(cluster, nursery)
        self._forms: Forms | None = None
        self._discovered = -math.inf
        self._keeper: dict[str, tuple[str, float]] = {}
        self._watches: dict[Kind, Watch] = {}
        self._preparing = trio.Lock()

    # What there is

    async def forms(self) -> Forms:
        """Return the resources that the cluster has, as they were not long ago: somebody may install some."""
        if (known := self._known_forms()) is not None:  # looked at first, as a lock takes longer
            return known
        async with self._preparing:
            if (known := self._known_forms()) is not None:
                return known
            try:
                return await self.discover()
            except SandkeepError:
                if self._forms is None:
                    raise
                return self._forms  # what the cluster had does not go because it does not answer

    def _known_forms(self) -> Forms | None:
        return self._forms if trio.current_time() - self._discovered <= CHECKED_S else None

    async def discover(self) -> Forms:
        """Ask the cluster anew for its resources. Those known before stay if that fails."""
        self._forms = await self._cluster.call(forms.discover)
        self._discovered = trio.current_time()
        return self._forms

    async def keeper(self, machine: str) -> str:
        """Return the name of the ConfigMap with the keeper, which is made if need be, and compared now and then."""
        if (known := self._checked_keeper(machine)) is not None:
            return known
        async with self._preparing:
            if (known := self._checked_keeper(machine)) is not None:
                return known
            name = await self._cluster.call(lambda api: forms.prepare_namespace(api, machine))
            self._keeper[machine] = name, trio.current_time()
        return name

    def _checked_keeper(self, machine: str) -> str | None:
        """Return the name of the ConfigMap if it was compared not long ago."""
        name, checked = self._keeper.get(machine, (None, 0.0))
        return name if trio.current_time() - checked <= CHECKED_S else None

    def forget_keeper(self) -> None:
        """Make the ConfigMap with the keeper again before the next sandbox: somebody may have deleted it."""
        self._keeper.clear()

    async def watch(self, kind: Kind) -> Watch:
        """Return the watch of a kind, once it knows the objects. Raises `provider_unavailable`."""
        if kind not in self._watches:
            found = self._watches[kind] = Watch(self._cluster, kind, manifests.selector(self._log_id))
            self._nursery.start_soon(found.run)
        await self._watches[kind].synced(SYNCED_S)
        return self._watches[kind]

    async def kind(self, form: Form) -> Kind:
        """Return the kind of the objects of a form. Raises `provider_unavailable` if the cluster does not serve it, by
        now.
        """
        try:
            return (await self.forms()).kind(form)
        except SandkeepError:
            return (await self.discover()).kind(form)

    async def own(self, sandbox_id: str, made: Made) -> Observed | None:
        """Return the object that was made for a sandbox, as last seen."""
        return (await self.watch(await self.kind(made.form))).get(sandbox_id, made.uid)

    async def pod(self, sandbox_id: str, made: Made, uid: str) -> Observed | None:
        """Return the pod of a sandbox that has that uid, else the one that its object controls, as last seen."""
        pods = await self.watch(PODS)
        return pods.get(sandbox_id, uid) or pods.owned(sandbox_id, made.owner or made.uid)

    async def document(self, kind: Kind, name: str) -> Json | None:
        """Return an object of anybody's with all its fields; None where there is none."""
        return await self._cluster.call(lambda api: api.document(kind, name))

    async def all(self, kind: Kind) -> list[Json]:
        """Return all objects of a kind, whoever made them, with all their fields."""
        return (await self._cluster.call(lambda api: api.list(kind, "", read_document))).found

    async def listed(self) -> list[tuple[Kind, Observed]]:
        """Return all objects of sandboxes of any log, with their kinds."""
        kinds = (await self.forms()).kinds()
        return await self._cluster.call(lambda api: _list(api, kinds, SANDBOX_LABEL))

    # Making

    async def make(self, job: Job) -> Made:
        """Make the object of a sandbox, in place of one that an earlier attempt for the same sandbox made.

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
            await self._remove_earlier(kind, job)
            made = await self._cluster.call(lambda api: api.create(kind, body))
        failpoints.reach("kubernetes.made")
        return Made(form=form, name=made.metadata.name, uid=made.metadata.uid)

    async def _remove_earlier(self, kind: Kind, job: Job) -> None:
        """Delete the object that has the name of a new one. It is not used: anybody can make one with such labels."""
        found = await self._cluster.call(lambda api: api.get(kind, job.plan.name))
        if found is None:
            return
        if (found.labels.sandbox, found.labels.log) != (job.sandbox_id, job.log_id):
            message = (
                f"the cluster has an object {job.plan.name!r} that is not Sandkeep's: delete it, or choose another name"
            )
            raise StateError("conflict", message, sandbox_id=job.sandbox_id)
        await self.remove(kind, [found.metadata])

    async def await_running(
        self, sandbox_id: str, made: Made, restored_from: str | None = None
    ) -> tuple[Made, Observed]:
        """Wait until the pod of a sandbox runs, restored from that pod snapshot, if any; return its object, with its
        owner, and the pod.

        Raises `provider_unavailable`, with the cluster's reason, as soon as it never will, and when its time is over.
        """
        objects, pods = await self.watch(await self.kind(made.form)), await self.watch(PODS)
        watches = list(dict.fromkeys((objects, pods)))

        def seen() -> list[Observed]:
            found = objects.get(sandbox_id, made.uid), _pod_of(pods, sandbox_id, made, objects)
            return [each for each in found if each is not None]

        def given() -> str | None:
            _require_hope(seen(), made.container_name)
            claim = objects.get(sandbox_id, made.uid)
            return claim.status.sandbox.name if claim is not None and claim.status.sandbox is not None else None

        def look() -> Observed | None:
            _require_hope(seen(), made.container_name)
            pod = _pod_of(pods, sandbox_id, made, objects)
            if pod is None or not is_running(pod, made.container_name):
                return None
            if restored_from is None:
                _require_fresh(pod)
                return pod
            return pod if _is_restored(pod, restored_from) else None

        def last() -> Observed | None:
            return next(reversed(seen()), None)

        telling = self._warnings.tell(last)
        try:
            with trio.move_on_after(settings.START_S()):
                if made.form == "claim":
                    made = await self._with_owner(made, await until(sandbox_id, watches, given))
                return made, await until(sandbox_id, watches, look)
        finally:
            telling.cancel()
        message = f"the sandbox's pod did not run within {settings.START_S()} s: {await self._warnings.why(last())}"
        raise ProviderError("provider_unavailable", message)

    async def _with_owner(self, claim: Made, name: str) -> Made:
        """Return a claim with the Sandbox that it was given. Raises `provider_unavailable` if that is another's."""
        document = await self.document(await self.kind("sandbox"), name)
        sandbox = None if document is None else msgspec.convert(document, Observed)
        if document is None or sandbox is None or sandbox.controller != claim.uid:
            message = (
                f"the cluster gave the SandboxClaim {claim.name} a Sandbox that is not its own: check its controller"
            )
            raise ProviderError("provider_unavailable", message)
        return replace(claim, owner=sandbox.metadata.uid, container=manifests.main_container(document))

    async def gone_pod(self, sandbox_id: str, uid: str) -> None:
        """Wait until a sandbox has no pod of that uid any more. Raises `provider_unavailable` if it takes too long."""
        pods = await self.watch(PODS)
        with trio.move_on_after(DELETED_S):
            await until(sandbox_id, [pods], lambda: True if pods.get(sandbox_id, uid) is None else None)
            return
        pod = pods.get(sandbox_id, uid)
        raise _not_deleted(f"the last pod of {sandbox_id}", [] if pod is None else [pod])

    async def await_object(self, kind: Kind, name: str, look: Callable[[Json], T | None]) -> T:
        """Wait until `look` finds an answer in an object, by a watch of it alone, and return that.

        Raises `provider_unavailable` when it is deleted.
        """
        while True:
            found = await self.document(kind, name)
            if found is None:
                message = f"{name} was deleted from the cluster before it was done"
                raise ProviderError("provider_unavailable", message)
            if (answer := look(found)) is not None:
                return answer
            await self._changed(kind, name, str(found["metadata"]["resourceVersion"]))

    async def remove(self, kind: Kind, found: Sequence[Metadata], propagation: str = "Foreground") -> None:
        """Delete objects, and wait until they are gone. Safe to repeat.

        Raises `provider_unavailable`, naming the finalizers that hold one, when that takes too long.
        """
        for each in found:
            await self._cluster.call(
                partial(Api.delete, kind=kind, name=each.name, uid=each.uid, propagation=propagation)
            )
        for each in found:
            await self._await_gone(kind, each.name, each.uid)

    async def _await_gone(self, kind: Kind, name: str, uid: str) -> None:
        """Wait until there is no object of that name and uid, by a watch of it alone. See `remove`."""
        found = None
        with trio.move_on_after(DELETED_S):
            while True:
                found = await self._cluster.call(lambda api: api.get(kind, name))
                if found is None or found.metadata.uid != uid:
                    return
                await self._changed(kind, name, found.metadata.resource_version)
        raise _not_deleted(f"{name} ({kind.plural})", [found] if found is not None else [])

    async def _changed(self, kind: Kind, name: str, version: str) -> None:
        """Wait for a change of an object since a version of it, or for the end of the watch."""
        await self.changed(kind, "", version, name=name)

    async def changed(self, kind: Kind, selector: str, version: str, *, name: str | None = None) -> None:
        """Wait for a change of objects with these labels since a version, or for the end of the watch."""

        def read(api: Api) -> None:
            next(api.watch(kind, selector, version, CHANGED_S, name=name), None)

        try:
            await self._cluster.stream(read, CHANGED_S)
        except RefusedError as refused:
            if refused.status != GONE:
                raise

    # Changing

    async def patch(self, sandbox_id: str, made: Made, body: Json) -> None:
        """Change the spec of an object by a merge patch, and wait until its watch has seen that."""
        kind = await self.kind(made.form)
        same = {**body, "metadata": {**body.get("metadata", {}), "uid": made.uid}}  # another's of that name is refused
        metadata = (await self._cluster.call(lambda api: api.patch(kind, made.name, same))).metadata
        watch = await self.watch(kind)

        def look() -> bool | None:
            found = watch.get(sandbox_id, made.uid)
            return True if found is None or found.metadata.generation >= metadata.generation else None

        with trio.move_on_after(SYNCED_S):
            await until(sandbox_id, [watch], look)

    # Deleting

    async def delete(self, sandbox_id: str, made: Made, pod: tuple[str, str]) -> None:
        """Delete the object of a sandbox, and wait until it, and its pod, a name and a uid, are gone. Safe to repeat.

        Raises `provider_unavailable`, naming the finalizers that hold one, when that takes too long.
        """
        kind, (name, uid) = await self.kind(made.form), pod
        objects, pods = await self.watch(kind), await self.watch(PODS)
        owner = made.owner or made.uid
        claim = objects.get(sandbox_id, made.uid) if made.owner else None

        def left() -> list[Observed]:
            found = objects.get(sandbox_id, made.uid), pods.get(sandbox_id, uid), pods.owned(sandbox_id, owner)
            return [each for each in found if each is not None]

        try:
            await self._cluster.call(lambda api: api.delete(kind, made.name, made.uid))
            if claim is not None and (given := claim.status.sandbox) is not None:
                # The garbage collector comes to it later, and until then it gets a new pod for one that is deleted.
                sandboxes = await self.kind("sandbox")
                await self._cluster.call(lambda api: api.delete(sandboxes, given.name, made.owner))
            if made.form != "pod":  # which its controller deletes, too, if that runs
                await self._cluster.call(lambda api: api.delete(PODS, name, uid))
        except ForbiddenError:  # with the namespace, the role has gone that allowed it
            if left():
                raise
            return
        with trio.move_on_after(DELETED_S):
            await until(sandbox_id, [objects, pods], lambda: None if left() else True)
            await self._await_gone(kind, made.name, made.uid)  # one that has lost its labels is not watched
            return
        raise _not_deleted(f"the objects of {sandbox_id}", left())

    async def delete_labelled(self, sandbox_id: str, name: str | None = None) -> None:
        """Delete all objects with the labels of a sandbox that is not known, or failed as it was made: those of that
        `name` and what they own, if any, and wait until they are gone. Safe to repeat, and raises as `delete` does.
        """
        kinds = (await self.forms()).kinds()
        selector = f"{LOG_LABEL}={self._log_id},{SANDBOX_LABEL}={sandbox_id}"
        found = await self._cluster.call(lambda api: _list(api, kinds, selector))
        for kind, each in found:
            if name is None or each.metadata.name == name:
                await self.remove(kind, [each.metadata])


def _pod_of(pods: Watch, sandbox_id: str, made: Made, objects: Watch) -> Observed | None:
    """Return the pod of an object: itself, or the one that it controls, which has the name that it says."""
    if made.form == "pod":
        return pods.get(sandbox_id, made.uid)
    pod = pods.owned(sandbox_id, made.owner or made.uid)
    sandbox = objects.get(sandbox_id, made.uid) if made.form == "sandbox" else None
    if pod is None or sandbox is None:
        return pod
    return pod if pod.metadata.name in (sandbox.metadata.name, sandbox.annotations.pod_name) else None


def _require_hope(seen: list[Observed], container: str) -> None:
    """Raise `provider_unavailable` for objects that never run."""
    for found in seen:
        if why := why_hopeless(found, container):
            raise ProviderError("provider_unavailable", f"the sandbox's pod cannot run: {why}")


def _not_deleted(what: str, left: list[Observed]) -> ProviderError:
    finalizers = sorted({name for each in left for name in each.metadata.finalizers or ()})
    held = f", as its finalizers hold it ({', '.join(finalizers)[:200]})" if finalizers else ""
    message = f"the cluster has not deleted {what} yet{held}: see their controller, and whether the node answers"
    return ProviderError("provider_unavailable", message, engine=ENGINE)


def _require_fresh(pod: Observed) -> None:
    """Raise `provider_unavailable` for a pod that the cluster restored by itself: it has the memory of another, maybe
    of another owner's.
    """
    restored = pod.condition("PodRestored")
    if restored.status == "True":
        message = (
            f"the cluster restored pod {pod.metadata.name} from a pod snapshot that was not requested: "
            f"have its policy group the snapshots by the label {SANDBOX_LABEL}"
        )
        raise ProviderError("provider_unavailable", message)


def _is_restored(pod: Observed, snapshot: str) -> bool:
    state = restore_state(msgspec.to_builtins(pod), snapshot)
    if state == "fresh":
        message = f"pod {pod.metadata.name} started without the pod snapshot {snapshot}: check its controller"
        raise ProviderError("provider_unavailable", message)
    return state == "restored"


def _list(api: Api, kinds: list[Kind], selector: str) -> list[tuple[Kind, Observed]]:
    return [(kind, each) for kind in kinds for each in api.list(kind, selector).found]
