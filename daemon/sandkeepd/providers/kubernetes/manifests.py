"""The objects of a sandbox, as the API takes them. No I/O here.

All of it is visible to whoever may read objects in the namespace; secrets are not part of it, they reach the keeper by
its request channel.
"""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Final, TypeAlias

from msgspec import Struct

from sandkeep.kubernetes.names import label_value
from sandkeep.kubernetes.pod_snapshots import OWNER_LABEL, RESTORE_ANNOTATION
from sandkeep.model import SandboxSpec
from sandkeepd.providers.common.inside import MARK
from sandkeepd.providers.kubernetes.marks import (
    LOG_LABEL,
    NETWORK_LABEL,
    OWNER_ANNOTATION,
    SANDBOX_LABEL,
    SESSION_LABEL,
)
from sandkeepd.providers.kubernetes.plan import WORKSPACE, Plan

Json: TypeAlias = dict[str, Any]

CONTAINER: Final = "sandbox"
"""The name of the container in pods that are made here."""

PROGRAM: Final = "/sandkeep/bin/keeper"
"""The path of the keeper in those, from a ConfigMap: a volume of programs is needed before any image is."""

DIRECTORY: Final = "/sandkeep/io"
"""The directory of its requests and journals: memory of the node's disk, which dies with the pod."""

CLOSED_POLICY: Final = "sandkeep-no-network"
"""The NetworkPolicy that cuts off the pods with `NETWORK_LABEL` ``none``."""

GRACE_S: Final = 60
"""Seconds after the end of a sandbox's lifetime at which the cluster ends it, if no daemon has."""

_DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
_KEEPER_MODE: Final = 0o555


class Job(Struct, frozen=True, kw_only=True):
    """The parameters of one start."""

    sandbox_id: str
    log_id: str
    plan: Plan
    spec: SandboxSpec
    secrets: list[str]
    keeper: str
    """The name of the ConfigMap with the keeper."""


def labels_of(job: Job) -> dict[str, str]:
    """Return the labels of all objects of a sandbox, and of its pod."""
    return {**job.spec.labels, **_marks(job)}


def _marks(job: Job) -> dict[str, str]:
    found = {SANDBOX_LABEL: job.sandbox_id, LOG_LABEL: job.log_id}
    found |= {OWNER_LABEL: label_value(job.plan.owner), NETWORK_LABEL: job.plan.network}
    if job.spec.session_id is not None:
        found[SESSION_LABEL] = label_value(job.spec.session_id)
    return found


def _annotations(job: Job) -> dict[str, str]:
    found = {OWNER_ANNOTATION: job.plan.owner}
    if job.plan.restored_from is not None:
        found[RESTORE_ANNOTATION] = job.plan.restored_from
    return found


def selector(log_id: str) -> str:
    """Return the label selector of everything that belongs to a log."""
    return f"{LOG_LABEL}={log_id},{SANDBOX_LABEL}"


# The keeper and the policy, once in a namespace


def keeper_map(program: bytes) -> Json:
    """Return the ConfigMap with the keeper, which is named by its content."""
    name = f"sandkeep-keeper-{sha256(program).hexdigest()[:16]}"
    data = base64.b64encode(program).decode()
    return {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"sandkeep.part": "keeper"}},
        "immutable": True, "binaryData": {"keeper": data},
    }  # fmt: skip


def closed_policy() -> Json:
    """Return the NetworkPolicy for sandboxes without a network."""
    return {
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": CLOSED_POLICY},
        "spec": {"podSelector": {"matchLabels": {NETWORK_LABEL: "none"}}, "policyTypes": ["Ingress", "Egress"]},
    }  # fmt: skip


# A sandbox


def pod(job: Job) -> Json:
    """Return a plain pod."""
    spec = pod_spec(job)
    if job.plan.lifetime_s is not None:
        spec["activeDeadlineSeconds"] = int(job.plan.lifetime_s) + GRACE_S
    metadata = {"name": job.plan.name, "labels": labels_of(job), "annotations": _annotations(job)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def sandbox(job: Job, version: str) -> Json:
    """Return an ``agents.x-k8s.io`` Sandbox."""
    template = {"metadata": {"labels": labels_of(job), "annotations": _annotations(job)}, "spec": pod_spec(job)}
    spec: Json = {"podTemplate": template, **running(version, is_on=True)}
    if job.plan.lifetime_s is not None:
        spec |= {"shutdownTime": _shutdown_time(job.plan.lifetime_s), "shutdownPolicy": "Delete"}
    return {
        "apiVersion": f"agents.x-k8s.io/{version}", "kind": "Sandbox",
        "metadata": {"name": job.plan.name, "labels": labels_of(job)}, "spec": spec,
    }  # fmt: skip


def running(version: str, *, is_on: bool) -> Json:
    """Return the part of a Sandbox's spec that runs it, or suspends it."""
    if version == "v1alpha1":
        return {"replicas": 1 if is_on else 0}
    return {"operatingMode": "Running" if is_on else "Suspended"}


def claim(job: Job, version: str) -> Json:
    """Return a SandboxClaim on the plan's template, or on its warm pool. Its pod does not get the caller's labels: the
    cluster refuses those that are not of a domain that it allows.
    """
    plan = job.plan
    spec: Json = {"additionalPodMetadata": {"labels": _marks(job), "annotations": _annotations(job)}}
    if version == "v1alpha1":
        spec["sandboxTemplateRef"] = {"name": plan.template}
        if plan.warm_pool is not None:
            spec["warmpool"] = plan.warm_pool
    else:
        spec["warmPoolRef"] = {"name": plan.warm_pool}
    if plan.lifetime_s is not None:
        spec["lifecycle"] = {"shutdownTime": _shutdown_time(plan.lifetime_s), "shutdownPolicy": "Delete"}
    return {
        "apiVersion": f"extensions.agents.x-k8s.io/{version}", "kind": "SandboxClaim",
        "metadata": {"name": plan.name, "labels": labels_of(job)}, "spec": spec,
    }  # fmt: skip


def main_container(sandbox: Json) -> str:
    """Return the container that the template of a Sandbox says is the main one, or its first."""
    template = sandbox["spec"]["podTemplate"]
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    return str(annotations.get(_DEFAULT_CONTAINER) or template["spec"]["containers"][0]["name"])


def _shutdown_time(lifetime_s: float) -> str:
    moment = datetime.now(UTC) + timedelta(seconds=lifetime_s + GRACE_S)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def environment(job: Job) -> dict[str, str]:
    """Return the variables of a sandbox's processes, without secrets."""
    return {MARK: job.sandbox_id, **_container_environment(job)}


def _container_environment(job: Job) -> dict[str, str]:
    """Return the variables of the container, the same in pods that are restored from one another: a pod snapshot fits
    only pods like its own.
    """
    env = {"HOME": WORKSPACE, **job.spec.env}
    return {name: value for name, value in env.items() if name not in job.secrets}


def pod_spec(job: Job) -> Json:
    """Return the spec of the pod: the keeper is its only program."""
    plan = job.plan
    spec: Json = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,  # the keeper, as pid 1, heeds no other signal than SIGKILL
        "nodeSelector": {"kubernetes.io/arch": plan.machine, "kubernetes.io/os": "linux"},
        "securityContext": {
            "runAsUser": plan.uid, "runAsGroup": plan.gid, "runAsNonRoot": plan.uid != 0, "fsGroup": plan.gid,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(job)],
        "volumes": [
            {"name": "keeper", "configMap": {"name": job.keeper, "defaultMode": _KEEPER_MODE}},
            *({"name": name, "emptyDir": {}} for name in ("io", "workspace", "tmp")),
        ],
    }  # fmt: skip
    if plan.runtime_class is not None:
        spec["runtimeClassName"] = plan.runtime_class
    return spec


def _container(job: Job) -> Json:
    plan = job.plan
    mounts = [("keeper", "/sandkeep/bin", True), ("io", DIRECTORY, False), ("tmp", "/tmp", False)]  # noqa: S108 - inside
    mounts.append(("workspace", WORKSPACE, plan.read_only))
    return {
        "name": CONTAINER, "image": plan.image, "command": [PROGRAM, "-p", DIRECTORY],
        "workingDir": WORKSPACE,
        "env": [{"name": name, "value": value} for name, value in _container_environment(job).items()],
        "resources": _resources(plan),
        "securityContext": {
            "allowPrivilegeEscalation": False, "privileged": False, "readOnlyRootFilesystem": not plan.writable_root,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": name, "mountPath": path, "readOnly": read_only} for name, path, read_only in mounts
        ],
    }  # fmt: skip


def _resources(plan: Plan) -> Mapping[str, Json]:
    limits = {}
    if plan.cpus is not None:
        limits["cpu"] = f"{max(1, round(plan.cpus * 1000))}m"
    if plan.memory_bytes is not None:
        limits["memory"] = str(plan.memory_bytes)
    return {"limits": limits, "requests": limits} if limits else {}
