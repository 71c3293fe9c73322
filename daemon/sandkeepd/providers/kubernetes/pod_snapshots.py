"""Pods saved with their memory, by the cluster's pod snapshots: checkpoints, and suspension.

A checkpoint's directory on this machine holds the name of a PodSnapshot alone; the state itself is where the cluster's
storage config puts it. A suspended sandbox is an ``agents.x-k8s.io`` Sandbox whose pod is gone, and whose next pod is
restored from the last snapshot. The keeper's channel is closed before a snapshot, as a pod in which an exec runs may
not be restorable (google/gvisor#11439).
"""

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio
from msgspec import Struct
from msgspec.structs import replace

from sandkeep import failpoints
from sandkeep.errors import DataError, ProviderError, SandkeepError, SetupError, StateError
from sandkeep.kubernetes import pod_snapshots, versions
from sandkeep.kubernetes.names import label_value
from sandkeep.model import SandboxSpec
from sandkeep.settings import kubernetes as settings
from sandkeepd.contract.checkpoints import Checkpointing, CheckpointResult
from sandkeepd.contract.ledger import Ledger
from sandkeepd.keeper.pause import Pauses
from sandkeepd.providers.common.errors import storage_errors
from sandkeepd.providers.kubernetes import manifests
from sandkeepd.providers.kubernetes.cluster import Api, Json, Kind
from sandkeepd.providers.kubernetes.instance import KubernetesInstance
from sandkeepd.providers.kubernetes.marks import LOG_LABEL, SAVED_ANNOTATION, SUSPENDED_ANNOTATION
from sandkeepd.providers.kubernetes.objects import DELETED_S
from sandkeepd.providers.kubernetes.observed import Metadata, Observed
from sandkeepd.providers.kubernetes.plan import Plan

if TYPE_CHECKING:
    from sandkeepd.providers.kubernetes.provider import KubernetesProvider

FILE: Final = "pod-snapshot.json"
"""The file in a checkpoint's directory."""

SAVED_S: Final = 180.0
"""Seconds that a snapshot may take to be ready."""

LATE_S: Final = 1800.0
"""Seconds for which a snapshot that was given up may still appear."""

ANSWERED_S: Final = 60.0
"""Seconds for the requests before and after that."""

CHECKPOINT_LABEL: Final = "sandkeep.checkpoint"
_IN_PLACE: Final = "a pod cannot be restored in place: restore the checkpoint as a new sandbox"
_CLAIMED: Final = "a pod of a SandboxClaim is its controller's to start: make a checkpoint, and restore that"


class SavedPod(Struct, frozen=True, kw_only=True):
    """The content of a checkpoint's file: a PodSnapshot in a namespace of a cluster."""

    cluster: str
    namespace: str
    snapshot: str


class PodSaver:
    """Makes and removes PodSnapshots of pods that are held."""

    def __init__(self, provider: "KubernetesProvider") -> None:
        self._provider = provider

    async def kind(self, plural: str) -> Kind:
        """Return the kind of a resource of pod snapshots. Raises `not_supported`."""
        version = (await self._provider.objects.forms()).pod_snapshots
        if version is None:
            message = f"the cluster has no {versions.POD_SNAPSHOTS.name}: install its controller"
            raise SetupError("not_supported", message)
        return Kind(versions.POD_SNAPSHOTS.name, version, plural)

    async def save(self, instance: KubernetesInstance, trigger_name: str) -> str:
        """Save a pod with its memory, and return the name of the PodSnapshot, which is ready.

        Raises `provider_unavailable` with the controller's reason when that fails, or takes too long.
        """
        kind = await self.kind(pod_snapshots.TRIGGERS)
        name = pod_snapshots.trigger_object_name(trigger_name, token_hex(5))
        labels = {LOG_LABEL: self._provider.log_id, CHECKPOINT_LABEL: label_value(trigger_name)}
        body = pod_snapshots.trigger_body(kind.version, name, instance.place.pod, trigger_name, labels)
        try:
            with trio.fail_after(SAVED_S):
                async with instance.disconnected():
                    await self._provider.cluster.call(lambda api: api.create(kind, body))
                    failpoints.reach("kubernetes.triggered")
                    snapshot = await self._provider.objects.await_object(kind, name, pod_snapshots.created_snapshot)
                await self._await_ready(snapshot)
        except BaseException as error:
            self._provider.nursery.start_soon(self._sweep_late, name)
            if isinstance(error, trio.TooSlowError):
                message = f"the pod snapshot {trigger_name} was not ready after {SAVED_S:.0f} s: see its controller"
                raise ProviderError("provider_unavailable", message) from None
            raise
        finally:
            with trio.move_on_after(5, shield=True):
                await self._quietly_delete(kind, name)
        return snapshot

    async def _sweep_late(self, trigger: str) -> None:
        """Remove the PodSnapshots of a trigger whose operation failed, or was cut off, also those that come later."""
        selector = f"{pod_snapshots.TRIGGERED_BY_LABEL}={trigger}"
        with trio.move_on_after(LATE_S):
            while True:
                try:
                    kind = await self.kind(pod_snapshots.SNAPSHOTS)
                    listed = await self._provider.cluster.call(partial(Api.list, kind=kind, selector=selector))
                    found = [each.metadata for each in listed.found]
                    await self._provider.objects.remove(kind, found, "Background")
                    await self._provider.objects.changed(kind, selector, listed.version)
                except SandkeepError:
                    await self._provider.cluster.recovered()

    async def _await_ready(self, snapshot: str) -> None:
        def look(found: Json) -> bool | None:
            return pod_snapshots.snapshot_is_ready(found) or None

        kind = await self.kind(pod_snapshots.SNAPSHOTS)
        await self._provider.objects.await_object(kind, snapshot, look)

    async def _quietly_delete(self, kind: Kind, name: str) -> None:
        """Delete an object that is of no more use; it stays, without harm, if that fails."""
        with suppress(SandkeepError):
            await self._provider.cluster.call(partial(Api.delete, kind=kind, name=name, propagation="Background"))

    async def remove_triggered(self, trigger_name: str) -> None:
        """Delete all PodSnapshots that a trigger name of ours has made, and the triggers, and wait until they are gone.
        Safe to repeat.
        """
        for plural in (pod_snapshots.TRIGGERS, pod_snapshots.SNAPSHOTS):
            kind = await self.kind(plural)
            found = await self._provider.objects.all(kind)
            ours = [each["metadata"] for each in found if self._is_of(each, plural, trigger_name)]
            if plural == pod_snapshots.TRIGGERS:  # an earlier daemon was killed before it was done
                for each in ours:
                    self._provider.nursery.start_soon(self._sweep_late, str(each["name"]))
            await self._provider.objects.remove(kind, msgspec.convert(ours, list[Metadata]), "Background")

    async def sweep(self, ledger: Ledger) -> list[str]:
        """Remove the PodSnapshots with which sandboxes were suspended that have ended; return a sentence for each."""
        if (await self._provider.objects.forms()).pod_snapshots is None:
            return []
        removed = []
        for found in await self._provider.objects.all(await self.kind(pod_snapshots.SNAPSHOTS)):
            sandbox_id = _suspended(pod_snapshots.list_item(found)["trigger_name"])
            # Ids of other logs, and of people, are unknown here.
            if ledger.knows_sandbox(sandbox_id) and not ledger.owns_sandbox(sandbox_id):
                await self.remove_triggered(suspension(sandbox_id))
                removed.append(f"pod snapshot of {sandbox_id}")
        return removed

    def _is_of(self, found: Json, plural: str, trigger_name: str) -> bool:
        labels = found["metadata"].get("labels") or {}
        if plural == pod_snapshots.SNAPSHOTS:
            return pod_snapshots.was_triggered_by(found, trigger_name)
        ours = label_value(trigger_name), self._provider.log_id
        return (labels.get(CHECKPOINT_LABEL), labels.get(LOG_LABEL)) == ours


class KubernetesCheckpoints(Checkpointing):
    """See `Checkpointing`."""

    def __init__(self, provider: "KubernetesProvider", saver: PodSaver) -> None:
        self._provider = provider
        self._saver = saver

    def why_no_checkpoint(self, plan: Mapping[str, Any]) -> str | None:
        return None  # the policies of the cluster decide on that, and say why

    def plan_like(self, plan: Mapping[str, Any], planned: Mapping[str, Any]) -> dict[str, Any]:
        return {**plan, "name": planned["name"], "layers": []}

    def facts(self) -> dict[str, str]:
        return {"cluster": self._provider.cluster.address()}

    def why_not_here(self, facts: Mapping[str, str]) -> str | None:
        here = self.facts()["cluster"]
        if facts.get("cluster") == here:
            return None
        return f"it is in the cluster {facts.get('cluster')}, and this daemon's is {here}"

    async def checkpoint(
        self, sandbox_id: str, directory: str, process_ids: Collection[str], *, leave_running: bool
    ) -> CheckpointResult:
        instance = self._provider.running(sandbox_id)
        if not leave_running:
            message = "a checkpoint of a pod leaves it running: leave out --suspend, and suspend the sandbox afterwards"
            raise SetupError("not_supported", message)
        began = trio.current_time()
        snapshot = await self._saver.save(instance, _name_of(directory))
        paused = (trio.current_time() - began) * 1000
        saved = SavedPod(cluster=self.facts()["cluster"], namespace=instance.place.namespace, snapshot=snapshot)
        await self._provider.in_thread(_write, directory, saved)
        return CheckpointResult(pause_ms=paused)

    async def discard(self, checkpoint_id: str) -> None:
        await self._saver.remove_triggered(_trigger_name(checkpoint_id))

    async def create_from_checkpoint(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, plan: dict[str, Any], secrets: Collection[str],
        directory: str,
    ) -> KubernetesInstance:  # fmt: skip
        saved = await self._provider.in_thread(_read, directory)
        decided = replace(msgspec.convert(plan, Plan), restored_from=saved.snapshot)
        return await self._provider.create_from(sandbox_id, spec, decided, sorted(secrets))

    async def restore_in_place(
        self, sandbox_id: str, image_id: str, spec: SandboxSpec, plans: tuple[dict[str, Any], dict[str, Any]],
        handle: dict[str, Any], directory: str,
    ) -> KubernetesInstance:  # fmt: skip
        raise SetupError("not_supported", _IN_PLACE)

    async def rename(self, sandbox_id: str, process_id: str, new: str) -> None:
        await self._provider.instances[sandbox_id].rename(process_id, new)


def _name_of(directory: str) -> str:
    """Return the trigger name of the checkpoint that is made in a directory, whose name begins with its id."""
    return _trigger_name(os.path.basename(directory).partition(".")[0])


def _write(directory: str, saved: SavedPod) -> None:
    with storage_errors("the checkpoint"), open(f"{directory}/{FILE}", "xb") as file:
        file.write(msgspec.json.encode(saved))


def _read(directory: str) -> SavedPod:
    try:
        with open(f"{directory}/{FILE}", "rb") as file:
            return msgspec.json.decode(file.read(), type=SavedPod)
    except (OSError, msgspec.DecodeError) as error:
        raise DataError("snapshot_corrupt", f"the checkpoint names no pod snapshot: {error}: make it again") from None


def suspension(sandbox_id: str) -> str:
    """Return the trigger name of the snapshot with which a sandbox is suspended."""
    return _trigger_name(f"suspend-{sandbox_id}")


def _suspended(trigger_name: str) -> str:
    """Return the sandbox that is suspended under a trigger name; an id of none for any other name."""
    return trigger_name.removeprefix("suspend-").replace("-", "_", 1)


def _trigger_name(text: str) -> str:
    """Return an id as part of an object's name, as which it stays readable."""
    return text.replace("_", "-")


def is_suspended(sandbox: Observed | None) -> bool:
    """Return True for a Sandbox that Sandkeep has suspended."""
    return sandbox is not None and sandbox.is_suspended and bool(sandbox.annotations.suspended_as)


class PodPauses(Pauses):
    """Suspends a Sandbox: its pod is saved and deleted, and the next one is restored from that."""

    def __init__(self, provider: "KubernetesProvider", saver: PodSaver, instance: KubernetesInstance) -> None:
        is_sandbox = instance.place.made.form == "sandbox"
        super().__init__(instance.suspended, None if is_sandbox else _CLAIMED)
        self._provider = provider
        self._saver = saver
        self._instance = instance

    @property
    def deadline_s(self) -> float:
        """See `Pausing.deadline_s`. Each step has a deadline of its own, whose error says more."""
        return max(SAVED_S, DELETED_S + settings.START_S()) + ANSWERED_S

    async def suspend(self) -> None:
        instance = self._instance
        if self.pause.is_on:
            return
        version = (await self._provider.objects.forms()).sandboxes or ""
        mark = {"metadata": {"annotations": {SAVED_ANNOTATION: "true"}}}
        await self._provider.objects.patch(instance.sandbox_id, instance.place.made, mark)
        async with instance.disconnected():  # all that is requested and said after the snapshot would be undone
            snapshot = await self._saver.save(instance, suspension(instance.sandbox_id))
            with trio.CancelScope(shield=True):
                self.pause.set(True)  # first, as the end of the pod is no end of the sandbox then
                try:
                    await self._patch(snapshot, manifests.running(version, is_on=False))
                except BaseException:
                    self.pause.set(False)
                    raise
        failpoints.reach("kubernetes.suspended")

    async def resume(self) -> None:
        instance = self._instance
        if not self.pause.is_on:
            return
        # Not as last seen by the watch: that may still name the snapshot of an earlier suspension.
        kind, made = await self._provider.objects.kind("sandbox"), instance.place.made
        sandbox = await self._provider.cluster.call(lambda api: api.get(kind, made.name))
        is_ours = sandbox is not None and sandbox.metadata.uid == made.uid
        snapshot = sandbox.annotations.suspended_as if sandbox is not None and is_ours else ""
        if not snapshot:
            raise StateError("not_ready", f"sandbox {instance.sandbox_id} was not suspended by Sandkeep")
        version = (await self._provider.objects.forms()).sandboxes or ""
        await self._provider.objects.gone_pod(instance.sandbox_id, instance.place.pod_uid)
        await self._patch(snapshot, manifests.running(version, is_on=True))
        _, pod = await self._provider.objects.await_running(instance.sandbox_id, made, snapshot)
        instance.moved_to(pod)
        self.pause.set(False)
        instance.release_requests()
        with suppress(SandkeepError):  # it goes with the sandbox at the latest
            await self._saver.remove_triggered(suspension(instance.sandbox_id))

    async def _patch(self, snapshot: str, mode: Json) -> None:
        template = {"metadata": {"annotations": pod_snapshots.restore_annotations(snapshot)}}
        body = {
            "metadata": {"annotations": {SUSPENDED_ANNOTATION: snapshot}},
            "spec": {**mode, "podTemplate": template},
        }
        await self._provider.objects.patch(self._instance.sandbox_id, self._instance.place.made, body)
