"""Pod snapshots: triggers that save gVisor pods, and the choice of the snapshot from which a new pod goes on."""

import asyncio
import os
import shutil
import uuid
from typing import Any

from tests.support.doubles.processes import StartError
from tests.support.kubernetes.errors import ApiError
from tests.support.kubernetes.kubelet import Kubelet
from tests.support.kubernetes.reconcile import (
    Delays,
    Object,
    Watches,
    condition,
    condition_of,
    itself,
    key_of,
    set_status,
)
from tests.support.kubernetes.slots import RefusedError, Restore
from tests.support.kubernetes.snapshot_rules import (
    CONFIGS,
    GROUP,
    SNAPSHOTS,
    TEMPLATE_HASH,
    TRIGGERS,
    files_of,
    group_labels,
    is_served,
    policies_of,
    same_group,
    snapshots_of,
    template_hash,
)
from tests.support.kubernetes.store import Store

CHOSEN = f"{GROUP}/ps-name"
TRIGGERED_BY = "gke-pod-snapshot-triggered-by"
POD_NAME = f"{GROUP}/pod-name"
ORIGIN_POD, ORIGIN_NODE = f"{GROUP}/origin-pod", f"{GROUP}/origin-node"
FINALIZER = f"{GROUP}/snapshot-cleanup"
COMPLETE = ".complete"
CONTROLLER_NAMESPACE, CONTROLLER_POD = "gps-system", "gke-pod-snapshot-controller-7d9c5b6f4-x2x7q"


class Triggers:
    """Handles PodSnapshotManualTriggers; see `reconcile.Controller`."""

    def __init__(self, store: Store, kubelet: Kubelet) -> None:
        self._store = store
        self._kubelet = kubelet
        self.watches: Watches = {TRIGGERS: itself}
        self._delays = Delays()
        self._delay_s = 0.0
        self._failures: list[Object] = []

    def script(self, **options: Any) -> None:
        """Options: `trigger_delay_s`, seconds until a trigger is handled; `fail_triggers`, a list of `{reason,
        message}`, with each of which one more trigger fails.
        """
        self._delay_s = options.get("trigger_delay_s", self._delay_s)
        self._failures += options.get("fail_triggers", [])

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """See `reconcile.Controller`."""
        trigger = self._store.get(TRIGGERS, namespace, name)
        if trigger is None or "deletionTimestamp" in trigger["metadata"] or condition_of(trigger, "Triggered"):
            return None
        left = self._delays.left(trigger, self._delay_s)
        if left > 0:
            return left
        if self._failures:
            failure = self._failures.pop(0)
            self._report(trigger, "False", failure["reason"], failure.get("message", ""))
            return None
        try:
            pod, policy = self._target(trigger)
        except LookupError as error:
            self._report(trigger, "False", "Failed", str(error.args[0]))
            return None
        try:
            snapshot = await self._save(trigger, pod, policy)
        except StartError as error:
            self._report(trigger, "False", "Error", f"checkpoint failed: {error}")
            return None
        self._report(trigger, "True", "Complete", "checkpoint completed", snapshotCreated={"name": snapshot})
        self._retain(namespace, snapshot, policy)
        return None

    def _report(self, trigger: Object, status: str, reason: str, message: str, **fields: Any) -> None:
        set_status(self._store, TRIGGERS, trigger, [condition("Triggered", status, reason, message)], **fields)

    def _target(self, trigger: Object) -> tuple[Object, Object]:
        """Return the pod to save, and its policy. Raises LookupError with a message."""
        namespace, name = trigger["metadata"]["namespace"], trigger["spec"]["targetPod"]
        pod = self._store.get("pods", namespace, name)
        if pod is None:
            raise LookupError(f'pod "{name}" not found')
        policies = [p for p in policies_of(self._store, pod) if p["spec"]["triggerConfig"]["type"] == "manual"]
        if not policies:
            raise LookupError(f'no PodSnapshotPolicy with manual trigger matches pod "{name}"')
        config = policies[0]["spec"]["storageConfigName"]
        if self._store.get(CONFIGS, None, config) is None:
            raise LookupError(f'PodSnapshotStorageConfig "{config}" not found')
        if pod["spec"].get("runtimeClassName") != "gvisor" or pod.get("status", {}).get("phase") != "Running":
            raise LookupError(f'pod "{name}" is not a running gVisor pod')
        return pod, policies[0]

    async def _save(self, trigger: Object, pod: Object, policy: Object) -> str:
        """Save a pod; return the name of its PodSnapshot. Raises StartError."""
        name = str(uuid.uuid4())
        grouping = group_labels(policy)
        have = pod["metadata"].get("labels", {})
        labels = {key: have[key] for key in grouping if key in have}
        labels |= {TRIGGERED_BY: trigger["metadata"]["name"], POD_NAME: pod["metadata"]["name"]}
        labels |= {TEMPLATE_HASH: template_hash(pod)}
        annotations = {ORIGIN_POD: pod["metadata"]["name"], ORIGIN_NODE: pod["spec"].get("nodeName", "")}
        meta = {"name": name, "labels": labels, "annotations": annotations, "finalizers": [FINALIZER]}
        spec = {"policyName": policy["metadata"]["name"]}
        snapshot = self._store.create(SNAPSHOTS, pod["metadata"]["namespace"], {"metadata": meta, "spec": spec})
        waiting = condition("Ready", "False", "Creating", "the snapshot is being written")
        set_status(self._store, SNAPSHOTS, snapshot, [waiting])
        directory = files_of(self._kubelet, name)
        os.makedirs(directory)
        resume = policy["spec"]["triggerConfig"].get("postCheckpoint", "resume") == "resume"
        try:
            await self._kubelet.pod(pod["metadata"]["uid"]).checkpoint(directory, resume=resume)
        except (StartError, ApiError) as error:
            failed = condition("Ready", "False", "Failed", str(error))
            set_status(self._store, SNAPSHOTS, snapshot, [failed])
            raise StartError(str(error)) from error
        os.close(os.open(f"{directory}/{COMPLETE}", os.O_WRONLY | os.O_CREAT, 0o600))
        done = condition("Ready", "False", "Uploading", "the snapshot is being uploaded")
        set_status(self._store, SNAPSHOTS, snapshot, [done])
        return name

    def _retain(self, namespace: str, name: str, policy: Object) -> None:
        """Delete the oldest snapshots of a group that has more than its policy lets it have."""
        rules = policy["spec"].get("snapshotGroupingRules", {}).get("groupByLabelValue", {})
        most = rules.get("groupRetentionPolicy", {}).get("maxSnapshotCountPerGroup")
        made = self._store.get(SNAPSHOTS, namespace, name)
        if most is None or made is None:
            return
        group = [found for found in snapshots_of(self._store, self._kubelet, policy) if same_group(policy, found, made)]
        for found in group[most:]:
            self._store.delete(SNAPSHOTS, *key_of(found), uid=found["metadata"]["uid"])


class Snapshots:
    """Makes PodSnapshots ready, and removes their files; see `reconcile.Controller`."""

    def __init__(self, store: Store, kubelet: Kubelet) -> None:
        self._store = store
        self._kubelet = kubelet
        self.watches: Watches = {SNAPSHOTS: itself}
        self._ready, self._gone = Delays(), Delays()
        self._delay_s = self._deletion_s = 0.0
        self._hold: Object | None = None
        self._ignored = False
        self._refused = ""
        kubelet.restore = self.choose

    def script(self, **options: Any) -> None:
        """Options: `snapshot_delay_s`, seconds until one is Ready; `hold_snapshots`, `{reason, message}` with which all
        stay not Ready, or null; `snapshot_deletion_s`, seconds until the finalizer is removed; `ignore_ps_name`;
        `fail_restores`, the message with which no pod is restored, or ""; `controller_present`.
        """
        self._delay_s = options.get("snapshot_delay_s", self._delay_s)
        self._hold = options.get("hold_snapshots", self._hold)
        self._deletion_s = options.get("snapshot_deletion_s", self._deletion_s)
        self._ignored = options.get("ignore_ps_name", self._ignored)
        self._refused = options.get("fail_restores", self._refused)
        if "controller_present" in options:
            show_controller(self._store, present=options["controller_present"])

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """See `reconcile.Controller`."""
        snapshot = self._store.get(SNAPSHOTS, namespace, name)
        if snapshot is None:
            return None
        directory = files_of(self._kubelet, name)
        if "deletionTimestamp" in snapshot["metadata"]:
            left = self._gone.left(snapshot, self._deletion_s)
            if left > 0:
                return left
            await asyncio.to_thread(shutil.rmtree, directory, True)
            self._store.update(SNAPSHOTS, namespace, name, _without_finalizer)
            return None
        if condition_of(snapshot, "Ready").get("status") == "True" or not os.path.exists(f"{directory}/{COMPLETE}"):
            return None
        if self._hold is not None:
            held = condition("Ready", "False", self._hold["reason"], self._hold.get("message", ""))
            set_status(self._store, SNAPSHOTS, snapshot, [held])
            return None
        left = self._ready.left(snapshot, self._delay_s)
        if left > 0:
            return left
        set_status(self._store, SNAPSHOTS, snapshot, [condition("Ready", "True", "Complete", "the snapshot is ready")])
        return None

    async def choose(self, pod: Object) -> Restore | None:
        """Return what a new pod goes on from: what its annotation names, or the latest of its policy and group that
        fits; None: it starts afresh. Raises RefusedError.
        """
        if pod["spec"].get("runtimeClassName") != "gvisor" or not is_served(self._store):
            return None
        name = None if self._ignored else pod["metadata"].get("annotations", {}).get(CHOSEN)
        found = self._named(pod, name) if name else self._latest(pod)
        if found is None:
            return None
        if self._refused:
            raise RefusedError("RestoreFailed", f"{found['metadata']['name']}: {self._refused}")
        name = found["metadata"]["name"]
        return Restore(name, files_of(self._kubelet, name))

    def _named(self, pod: Object, name: str) -> Object:
        found = self._store.get(SNAPSHOTS, pod["metadata"]["namespace"], name)
        if found is None:
            raise RefusedError("SnapshotNotFound", f'PodSnapshot "{name}" not found')
        if condition_of(found, "Ready").get("status") != "True":
            raise RefusedError("SnapshotNotReady", f'PodSnapshot "{name}" is not ready')
        return found

    def _latest(self, pod: Object) -> Object | None:
        wanted = template_hash(pod)
        for policy in policies_of(self._store, pod):
            for found in snapshots_of(self._store, self._kubelet, policy):
                ready = condition_of(found, "Ready").get("status") == "True"
                fits = found["metadata"]["labels"].get(TEMPLATE_HASH) == wanted
                if ready and fits and same_group(policy, found, pod):
                    return found
        return None


def _without_finalizer(snapshot: Object) -> None:
    kept = [found for found in snapshot["metadata"].get("finalizers", []) if found != FINALIZER]
    snapshot["metadata"]["finalizers"] = kept


def show_controller(store: Store, *, present: bool) -> None:
    """Have the pod of GKE's controller in the cluster, or not. It is no pod of our node."""
    there = store.get("pods", CONTROLLER_NAMESPACE, CONTROLLER_POD) is not None
    if there and not present:
        store.delete("pods", CONTROLLER_NAMESPACE, CONTROLLER_POD, grace=0)
    if there or not present:
        return
    if store.get("namespaces", None, CONTROLLER_NAMESPACE) is None:
        store.create("namespaces", None, {"metadata": {"name": CONTROLLER_NAMESPACE}})
    container = {"name": "controller", "image": "gke.gcr.io/pod-snapshot-controller:v1"}
    spec = {"containers": [container], "nodeName": "control-plane"}
    store.create("pods", CONTROLLER_NAMESPACE, {"metadata": {"name": CONTROLLER_POD}, "spec": spec})
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}

    def run(pod: Object) -> None:
        pod["status"] = ready

    store.update("pods", CONTROLLER_NAMESPACE, CONTROLLER_POD, run, subresource="status")
