"""Rules of pod snapshots: which policy selects a pod, which snapshots belong together, which pods they fit."""

import json
import os
from typing import Any

from tests.support.kubernetes.kubelet import Kubelet
from tests.support.kubernetes.reconcile import name_hash
from tests.support.kubernetes.selectors import matches_selector
from tests.support.kubernetes.store import Store

Object = dict[str, Any]
GROUP = "podsnapshot.gke.io"
TRIGGERS, SNAPSHOTS = f"podsnapshotmanualtriggers.{GROUP}", f"podsnapshots.{GROUP}"
POLICIES, CONFIGS = f"podsnapshotpolicies.{GROUP}", f"podsnapshotstorageconfigs.{GROUP}"
TEMPLATE_HASH = f"{GROUP}/pod-template-hash"
COMPARED = ("name", "image", "command", "args", "workingDir", "env", "volumeMounts", "securityContext")


def is_served(store: Store) -> bool:
    """Return True if the cluster has pod snapshots."""
    return any(resource.group == GROUP for resource in store.resources())


def files_of(kubelet: Kubelet, name: str) -> str:
    """Return the directory with the files of a snapshot."""
    return f"{kubelet.directory}/snapshots/{name}"


def policies_of(store: Store, pod: Object) -> list[Object]:
    """Return the policies that select a pod."""
    labels = pod["metadata"].get("labels", {})
    policies = store.list(POLICIES, pod["metadata"]["namespace"])
    return [policy for policy in policies if matches_selector(policy["spec"]["selector"], labels)]


def group_labels(policy: Object) -> list[str]:
    """Return the labels by whose values a policy groups snapshots."""
    rules = policy["spec"].get("snapshotGroupingRules", {}).get("groupByLabelValue", {})
    labels: list[str] = rules.get("labels", [])
    return labels


def same_group(policy: Object, one: Object, other: Object) -> bool:
    """Return True if two objects have the same values of the labels that group."""
    have, wanted = one["metadata"].get("labels", {}), other["metadata"].get("labels", {})
    return all(have.get(key) == wanted.get(key) for key in group_labels(policy))


def snapshots_of(store: Store, kubelet: Kubelet, policy: Object) -> list[Object]:
    """Return the snapshots of a policy, the newest first."""
    name, namespace = policy["metadata"]["name"], policy["metadata"]["namespace"]
    found = [
        snapshot
        for snapshot in store.list(SNAPSHOTS, namespace)
        if snapshot["spec"].get("policyName") == name and "deletionTimestamp" not in snapshot["metadata"]
    ]
    return sorted(found, key=lambda snapshot: _age(kubelet, snapshot), reverse=True)


def _age(kubelet: Kubelet, snapshot: Object) -> tuple[str, int]:
    """Return the time of a snapshot, to be compared; that of its object is in whole seconds."""
    meta = snapshot["metadata"]
    try:
        return meta["creationTimestamp"], os.stat(files_of(kubelet, meta["name"])).st_ctime_ns
    except FileNotFoundError:
        return meta["creationTimestamp"], 0


def template_hash(pod: Object) -> str:
    """Return a hash of the parts of a pod that have to be the same in one that goes on from its snapshot."""
    spec = pod["spec"]
    containers = [{key: found.get(key) for key in COMPARED} for found in spec["containers"]]
    return name_hash(json.dumps([spec.get("runtimeClassName"), containers], sort_keys=True))
