"""The CustomResourceDefinitions of agent-sandbox and of GKE pod snapshots."""

from collections.abc import Mapping, Sequence
from typing import Any

Schema = dict[str, Any]

AGENTS, EXTENSIONS, SNAPSHOTS = "agents.x-k8s.io", "extensions.agents.x-k8s.io", "podsnapshot.gke.io"
ALL = {AGENTS: ("v1beta1", "v1alpha1"), EXTENSIONS: ("v1beta1", "v1alpha1"), SNAPSHOTS: ("v1", "v1alpha1")}
"""The groups, and the versions that they serve by default."""

_STORAGE = {AGENTS: "v1beta1", EXTENSIONS: "v1beta1", SNAPSHOTS: "v1"}


def _object(required: Sequence[str] = (), **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties} | ({"required": list(required)} if required else {})


def _array(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _choice(*values: str, default: str | None = None) -> Schema:
    return {"type": "string", "enum": list(values)} | ({"default": default} if default else {})


_ANY: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_TEXT: Schema = {"type": "string"}
_TEXTS: Schema = {"type": "object", "additionalProperties": _TEXT}
_TIME: Schema = {"type": "string", "format": "date-time"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_NAMED = _object(["name"], name={"type": "string", "minLength": 1})
_SELECTOR = _object(
    matchLabels=_TEXTS,
    matchExpressions=_array(
        _object(
            ["key", "operator"],
            key=_TEXT,
            operator=_choice("In", "NotIn", "Exists", "DoesNotExist"),
            values=_array(_TEXT),
        )
    ),
)
_POD_METADATA = _object(labels=_TEXTS, annotations=_TEXTS)
_POD_SPEC: Schema = {**_ANY, "required": ["containers"], "properties": {"containers": _array(_ANY)}}
_POD_TEMPLATE = _object(["spec"], metadata=_POD_METADATA, spec=_POD_SPEC)
_CLAIM_TEMPLATES: Schema = {**_array(_ANY), "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}
_BLUEPRINT = {"podTemplate": _POD_TEMPLATE, "service": {"type": "boolean"}, "volumeClaimTemplates": _CLAIM_TEMPLATES}
_SHUTDOWN = {"shutdownTime": _TIME, "shutdownPolicy": _choice("Delete", "Retain", default="Retain")}
_SANDBOX = _BLUEPRINT | _SHUTDOWN
_CLAIM = {
    "ttlSecondsAfterCreated": _COUNT,
    "lifecycle": _object(
        shutdownTime=_TIME,
        ttlSecondsAfterFinished=_COUNT,
        shutdownPolicy=_choice("Delete", "DeleteForeground", "Retain", default="Retain"),
    ),
    "additionalPodMetadata": _POD_METADATA,
    "env": _array(_object(["name", "value"], name=_TEXT, value=_TEXT, containerName=_TEXT)),
}
_POLICY = _choice("Allowed", "Overrides", "Disallowed", default="Disallowed")
_TEMPLATE = _object(
    ["podTemplate"],
    **_BLUEPRINT,
    networkPolicy=_object(ingress=_array(_ANY), egress=_array(_ANY)),
    networkPolicyManagement=_choice("Managed", "Unmanaged", default="Managed"),
    envVarsInjectionPolicy=_POLICY,
    volumeClaimTemplatesPolicy=_POLICY,
)
_POOL = _object(
    ["sandboxTemplateRef"],
    replicas={**_COUNT, "default": 1},
    sandboxTemplateRef=_NAMED,
    updateStrategy=_object(type=_choice("Recreate", "OnReplenish", default="OnReplenish")),
)
_SNAPSHOT_POLICY = _object(
    ["storageConfigName", "selector", "triggerConfig"],
    storageConfigName=_TEXT,
    selector=_SELECTOR,
    triggerConfig=_object(["type"], type=_choice("workload", "manual"), postCheckpoint=_choice("resume", "stop")),
    snapshotGroupingRules=_object(
        groupByLabelValue=_object(
            ["labels"],
            labels=_array(_TEXT),
            groupRetentionPolicy=_object(maxSnapshotCountPerGroup={"type": "integer", "minimum": 1}),
        )
    ),
)
_STORAGE_CONFIG = _object(
    ["snapshotStorageConfig"],
    snapshotStorageConfig=_object(gcs=_object(["bucket"], bucket=_TEXT, path=_TEXT, tokenSource=_TEXT)),
)

_KINDS: tuple[tuple[str, str, str, Schema, Schema], ...] = (
    (
        AGENTS,
        "Sandbox",
        "sandboxes",
        _object(["podTemplate"], **_SANDBOX, operatingMode=_choice("Running", "Suspended", default="Running")),
        _object(["podTemplate"], **_SANDBOX, replicas={**_COUNT, "maximum": 1, "default": 1}),
    ),
    (
        EXTENSIONS,
        "SandboxClaim",
        "sandboxclaims",
        _object(["warmPoolRef"], **_CLAIM, warmPoolRef=_NAMED, volumeClaimTemplates=_array(_ANY)),
        _object(["sandboxTemplateRef"], **_CLAIM, sandboxTemplateRef=_NAMED, warmpool=_TEXT),
    ),
    (EXTENSIONS, "SandboxTemplate", "sandboxtemplates", _TEMPLATE, _TEMPLATE),
    (EXTENSIONS, "SandboxWarmPool", "sandboxwarmpools", _POOL, _POOL),
    (SNAPSHOTS, "PodSnapshotStorageConfig", "podsnapshotstorageconfigs", _STORAGE_CONFIG, _STORAGE_CONFIG),
    (SNAPSHOTS, "PodSnapshotPolicy", "podsnapshotpolicies", _SNAPSHOT_POLICY, _SNAPSHOT_POLICY),
    (
        SNAPSHOTS,
        "PodSnapshotManualTrigger",
        "podsnapshotmanualtriggers",
        _object(["targetPod"], targetPod=_TEXT),
        _object(["targetPod"], targetPod=_TEXT),
    ),
    (SNAPSHOTS, "PodSnapshot", "podsnapshots", {**_ANY, "properties": {"policyName": _TEXT}}, _ANY),
)


def manifests(served: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """Definitions of the groups in `served`, each in the versions given there; all are stored in one."""
    return [
        _manifest(group, kind, plural, {_STORAGE[group]: newest, "v1alpha1": oldest}, served[group])
        for group, kind, plural, newest, oldest in _KINDS
        if group in served
    ]


def _manifest(group: str, kind: str, plural: str, specs: dict[str, Schema], served: Sequence[str]) -> dict[str, Any]:
    versions = [
        {
            "name": name,
            "served": name in served,
            "storage": name == _STORAGE[group],
            "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {**_object(["spec"], spec=spec, status=_ANY)}},
        }
        for name, spec in specs.items()
    ]
    cluster = kind == "PodSnapshotStorageConfig"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Cluster" if cluster else "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"},
            "versions": versions,
            "conversion": {"strategy": "None" if group == SNAPSHOTS else "Webhook"},
        },
    }
