"""Pod snapshots (`podsnapshot.gke.io`): their triggers, their selection, and the proof that a pod was restored.

A trigger is an object that makes its controller snapshot one pod. Only that controller may change a PodSnapshot; it
keeps the trigger's object name as a label. That name is thus the one place in which a caller's trigger name survives
the trigger: it is the trigger name, ``-sk`` and ten digits, so that a trigger name can be used again.
"""

import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeGuard

from sandkeep.errors import CallerError, ProviderError
from sandkeep.kubernetes.names import MAX_LENGTH, label_value, object_name
from sandkeep.kubernetes.objects import (
    READY,
    Condition,
    Object,
    condition_of,
    is_ready,
    label_of,
    name_of,
    text_at,
    value_at,
)
from sandkeep.kubernetes.versions import POD_SNAPSHOTS

SNAPSHOTS: Final = "podsnapshots"
TRIGGERS: Final = "podsnapshotmanualtriggers"
POLICIES: Final = "podsnapshotpolicies"

RESTORE_ANNOTATION: Final = "podsnapshot.gke.io/ps-name"
"""Of a pod: the PodSnapshot to restore it from."""

OWNER_LABEL: Final = "sandbox.users.io/sandkeep-owner"
"""Of a pod, and, by a policy's grouping rule, of its PodSnapshots: `label_value` of the owner."""

TRIGGER_LABEL: Final = "sandkeep.trigger"
"""Of a trigger: `label_value` of the trigger name that its caller chose."""

TRIGGERED_BY_LABEL: Final = "gke-pod-snapshot-triggered-by"
POD_NAME_LABEL: Final = "podsnapshot.gke.io/pod-name"
ORIGIN_POD_ANNOTATION: Final = "podsnapshot.gke.io/origin-pod"
RESTORED: Final = "PodRestored"
FILTERS: Final = ("snapshot_id", "trigger_name", "source_pod", "uid", "creationTimestamp", "status", "policy_name")
"""Keys of a list item, each of which can be filtered by."""

_FAILURES: Final = ("Failed", "Error")
_TOKEN_LENGTH: Final = 10
_TOKEN: Final = re.compile(rf"-sk[0-9a-f]{{{_TOKEN_LENGTH}}}\Z")
_STEM_LENGTH: Final = MAX_LENGTH - len("-sk") - _TOKEN_LENGTH
_MAX_VERSION_DIGITS: Final = 30
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


# -- triggers ---------------------------------------------------------------------------------------------------------


def trigger_object_name(trigger_name: str, token: str) -> str:
    """Return an object name for a trigger; `token` is ten random hexadecimal digits."""
    return f"{object_name(trigger_name, _STEM_LENGTH)}-sk{token}"


def trigger_body(
    version: str, name: str, pod_name: str, trigger_name: str, labels: Mapping[str, str]
) -> dict[str, Any]:
    """Return a PodSnapshotManualTrigger for a pod, named by `trigger_object_name`."""
    return {
        "apiVersion": f"{POD_SNAPSHOTS.name}/{version}",
        "kind": "PodSnapshotManualTrigger",
        "metadata": {"name": name, "labels": {**labels, TRIGGER_LABEL: label_value(trigger_name)}},
        "spec": {"targetPod": pod_name},
    }


def created_snapshot(trigger: Object) -> str | None:
    """Return the name of the PodSnapshot that a trigger made; None while the trigger is pending.

    Raises `provider_unavailable`, with the condition's message, if it failed.
    """
    triggered = condition_of(trigger, "Triggered")
    if _has_failed(triggered):
        message = f"pod snapshot trigger {name_of(trigger)!r} failed: {triggered.describe()}"
        raise ProviderError("provider_unavailable", message, reason=triggered.reason)
    if triggered is None or not (triggered.is_true and triggered.reason == "Complete"):
        return None
    return text_at(trigger, "status", "snapshotCreated", "name") or None


def snapshot_is_ready(snapshot: Object) -> bool:
    """Return True once a PodSnapshot can be restored. Raises `provider_unavailable` if it never will."""
    ready = condition_of(snapshot, READY)
    if _has_failed(ready):
        message = f"pod snapshot {name_of(snapshot)!r} failed: {ready.describe()}"
        raise ProviderError("provider_unavailable", message, reason=ready.reason)
    return is_ready(snapshot)


# -- selection --------------------------------------------------------------------------------------------------------


def list_item(snapshot: Object) -> dict[str, str]:
    """Return the metadata of a PodSnapshot in the shape that `list_snapshots` returns."""
    return {
        "snapshot_id": name_of(snapshot),
        "trigger_name": _TOKEN.sub("", label_of(snapshot, TRIGGERED_BY_LABEL)) or "Unknown",
        "source_pod": source_pod(snapshot),
        "uid": text_at(snapshot, "metadata", "uid"),
        "creationTimestamp": text_at(snapshot, "metadata", "creationTimestamp"),
        "status": "Ready" if is_ready(snapshot) else "NotReady",
        "policy_name": policy_of(snapshot),
    }


def source_pod(snapshot: Object) -> str:
    """Return the name of the pod that a PodSnapshot is of; "Unknown" if it does not say."""
    origin = text_at(snapshot, "metadata", "annotations", ORIGIN_POD_ANNOTATION)
    return label_of(snapshot, POD_NAME_LABEL) or origin.rpartition("/")[2] or "Unknown"


def policy_of(snapshot: Object) -> str:
    """Return the name of the policy under which a PodSnapshot was made."""
    return text_at(snapshot, "spec", "policyName")


def newest_first(snapshots: Iterable[Object]) -> list[Object]:
    """Return PodSnapshots by their time of creation; within a second by their last change, which mostly is its end."""
    return sorted(
        snapshots,
        key=lambda snapshot: (_created_at(snapshot), _version_of(snapshot), name_of(snapshot)),
        reverse=True,
    )


def check_filters(filters: Mapping[str, str]) -> None:
    """Raise `invalid` for a filter that is none of `FILTERS`."""
    unknown = sorted(filters.keys() - set(FILTERS))
    if unknown:
        message = f"{unknown[0]!r} is no property of a pod snapshot: filter by {', '.join(FILTERS)}"
        raise CallerError("invalid", message, field=unknown[0])


def matches(snapshot: Object, **filters: str) -> bool:
    """Return True if the list item of a PodSnapshot has all those values.

    `trigger_name` may also be the trigger's object name.
    """
    item = list_item(snapshot)
    by_trigger = filters.pop("trigger_name", None)
    return (by_trigger is None or was_triggered_by(snapshot, by_trigger)) and filters.items() <= item.items()


def was_triggered_by(snapshot: Object, trigger_name: str) -> bool:
    """Return True if a PodSnapshot was made for that trigger name, or by a trigger object of that name."""
    label = label_of(snapshot, TRIGGERED_BY_LABEL)
    return bool(label) and (label == trigger_name or _TOKEN.sub("", label) == object_name(trigger_name, _STEM_LENGTH))


def is_owned_by(snapshot: Object, owner: str) -> bool:
    """Return True if a PodSnapshot is of a pod of that owner's. One without an owner is nobody's."""
    label = label_of(snapshot, OWNER_LABEL)
    return bool(label) and label == label_value(owner)


def is_of_another(snapshot: Object, owner: str) -> bool:
    """Return True if a PodSnapshot is known to be of another owner's pod."""
    return label_of(snapshot, OWNER_LABEL) not in ("", label_value(owner))


def newest_restorable(snapshots: Iterable[Object], policies: AbstractSet[str], owner: str) -> Object | None:
    """Return the newest ready PodSnapshot of one owner under one of those policies; None without any."""
    candidates = [
        snapshot
        for snapshot in snapshots
        if policy_of(snapshot) in policies and is_owned_by(snapshot, owner) and is_ready(snapshot)
    ]
    return next(iter(newest_first(candidates)), None)


def find_snapshot(snapshots: Iterable[Object], snapshot_id: str, owner: str) -> Object:
    """Return the PodSnapshot of that name; else the owner's newest of that trigger name. Raises `not_found`.

    Anybody's can be had by its own name, since that is no accident. Trigger names are chosen by people, and may be the
    same.
    """
    found = newest_first(snapshots)
    for snapshot in found:
        if name_of(snapshot) == snapshot_id:
            return snapshot
    for snapshot in found:
        if was_triggered_by(snapshot, snapshot_id) and is_owned_by(snapshot, owner):
            return snapshot
    message = f"there is no PodSnapshot {snapshot_id!r}, and {owner} has none of such a trigger name"
    raise CallerError("not_found", message, snapshot_id=snapshot_id)


def policy_selects(policy: Object, labels: Mapping[str, str]) -> bool:
    """Return True if a PodSnapshotPolicy is for pods with those labels. One without a selector is for none."""
    wanted, expressions = (value_at(policy, "spec", "selector", key) for key in ("matchLabels", "matchExpressions"))
    wanted = wanted if isinstance(wanted, Mapping) else {}
    expressions = expressions if isinstance(expressions, list) else []
    has_labels = all(labels.get(key) == value for key, value in wanted.items())
    return bool(wanted or expressions) and has_labels and all(_holds(each, labels) for each in expressions)


def _holds(expression: Any, labels: Mapping[str, str]) -> bool:
    """Return True if a requirement of a selector is met; one of an unknown kind is not."""
    if not isinstance(expression, Mapping):
        return False
    value, values = labels.get(text_at(expression, "key")), value_at(expression, "values")
    values = values if isinstance(values, list) else []
    match expression.get("operator"):
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False


# -- restoring --------------------------------------------------------------------------------------------------------


def restore_annotations(snapshot_name: str) -> dict[str, str]:
    """Return the annotations that make a new pod start from a PodSnapshot."""
    return {RESTORE_ANNOTATION: snapshot_name}


def restore_state(pod: Object, snapshot_name: str) -> Literal["pending", "fresh", "restored"]:
    """Return how far a pod is with its restore: "restored" if it was, from that PodSnapshot.

    "fresh" is a ready pod that says nothing of a restore. Raises `provider_unavailable` if the restore failed, or was
    from another PodSnapshot.
    """
    restored = condition_of(pod, RESTORED)
    if restored is None:
        return "fresh" if is_ready(pod) else "pending"
    if _has_failed(restored) or text_at(pod, "status", "phase") == "Failed":
        message = f"pod {name_of(pod)!r} could not be restored from {snapshot_name!r}: {restored.describe()}"
        raise ProviderError("provider_unavailable", message, reason=restored.reason)
    if not restored.is_true:
        return "pending"
    if not _names(restored.message, snapshot_name):
        message = f"pod {name_of(pod)!r} was not restored from {snapshot_name!r}: {restored.describe()}"
        raise ProviderError("provider_unavailable", message, reason=restored.reason)
    return "restored"


def says_restored(pod: Object) -> bool:
    """Return True if a pod was restored, from whatever PodSnapshot."""
    restored = condition_of(pod, RESTORED)
    return restored is not None and restored.is_true


def origin_of(pod: Object, snapshots: Iterable[Object]) -> Object | None:
    """Return the PodSnapshot from which a pod says it was restored; None if it is none of these."""
    restored = condition_of(pod, RESTORED)
    message = restored.message if restored is not None and restored.is_true else ""
    return next((snapshot for snapshot in snapshots if _names(message, name_of(snapshot))), None)


def _names(message: str, name: str) -> bool:
    """Return True if a message has the name as a word of its own: `a-1` is not in `a-10`."""
    return bool(name) and re.search(rf"(?<![A-Za-z0-9-]){re.escape(name)}(?![A-Za-z0-9-])", message) is not None


def _has_failed(condition: Condition | None) -> TypeGuard[Condition]:
    return condition is not None and condition.status == "False" and condition.reason in _FAILURES


def _version_of(obj: Object) -> int:
    """Return the version of an object as a number: those of one kind can be compared."""
    version = text_at(obj, "metadata", "resourceVersion")
    return int(version) if version.isascii() and version.isdecimal() and len(version) <= _MAX_VERSION_DIGITS else 0


def _created_at(snapshot: Object) -> datetime:
    try:
        created = datetime.fromisoformat(text_at(snapshot, "metadata", "creationTimestamp"))
    except ValueError:
        return _EPOCH
    return created if created.tzinfo is not None else created.replace(tzinfo=UTC)
