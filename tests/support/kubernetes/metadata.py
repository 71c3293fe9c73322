"""Metadata that the API server itself writes, and that requests may not change."""

import datetime as dt
import uuid
from secrets import token_hex
from typing import Any

import msgspec
from tests.support.kubernetes.errors import ApiError, conflict, invalid
from tests.support.kubernetes.resources import Object, Resource

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
_FINALIZERS = {"Foreground": FOREGROUND, "Orphan": ORPHAN}
_SERVERS = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)
_STALE = "the object has been modified; please apply your changes to the latest version and try again"


def copy(obj: Object) -> Object:
    """A deep copy of a JSON object."""
    copied: Object = msgspec.json.decode(msgspec.json.encode(obj))
    return copied


def timestamp(after: float = 0) -> str:
    """The time in `after` seconds, as the API writes it."""
    moment = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=after)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def initialize(resource: Resource, namespace: str | None, new: Object) -> Object:
    """Fill in the metadata of an object to create, and return it."""
    meta: Object = new.setdefault("metadata", {})
    if not meta.get("name") and meta.get("generateName"):
        meta["name"] = meta["generateName"][:58] + token_hex(3)[:5]
    if not meta.get("name"):
        raise invalid(resource.kind, "", [("metadata.name", "Required value: name or generateName is required")])
    if meta.pop("resourceVersion", None):
        raise ApiError(400, "BadRequest", "resourceVersion should not be set on objects to be created")
    if not resource.namespaced:
        meta.pop("namespace", None)
    elif meta.setdefault("namespace", namespace or "") != (namespace or ""):
        message = "the namespace of the provided object does not match the namespace sent on the request"
        raise ApiError(400, "BadRequest", message)
    new |= {"apiVersion": resource.api_version(), "kind": resource.kind}
    for key in ("deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"):
        meta.pop(key, None)
    meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": timestamp()}
    if "spec" in new:
        meta["generation"] = 1
    return meta


def merge(resource: Resource, old: Object, new: Object, subresource: str | None) -> Object:
    """Take from a changed object what the request may change, and from the old one the rest."""
    meta, known = new.get("metadata") or {}, old["metadata"]
    if meta.get("resourceVersion", known["resourceVersion"]) != known["resourceVersion"]:
        raise conflict(resource.key, known["name"], _STALE)
    check_precondition(resource, old, "uid", meta.get("uid"))
    if subresource == "status":
        new = {**copy(old), **{key: new[key] for key in ("status",) if key in new}}
    elif subresource is None and resource.status:
        new = {key: value for key, value in new.items() if key != "status"}
        new |= {"status": old["status"]} if "status" in old else {}
    new |= {"apiVersion": old["apiVersion"], "kind": old["kind"]}
    new["metadata"] = _guarded(new.get("metadata") or {}, known)
    if _described(new) != _described(old) and "generation" in known:
        new["metadata"]["generation"] += 1
    return new


def check_precondition(resource: Resource, obj: Object, field: str, wanted: str | None) -> None:
    """Raise ApiError 409 unless `uid` or `resourceVersion` is the one that the request names."""
    actual = obj["metadata"][field]
    if wanted and wanted != actual:
        label = {"uid": "UID"}.get(field, "ResourceVersion")
        why = f"Precondition failed: {label} in precondition: {wanted}, {label} in object meta: {actual}"
        raise conflict(resource.key, obj["metadata"]["name"], why)


def marked(obj: Object, seconds: int, propagation: str | None) -> Object:
    """The object with its deletion time and finalizers; deleting again can only shorten the grace period."""
    meta = copy(obj["metadata"])
    finalizer = _FINALIZERS.get(propagation or "")
    if finalizer and finalizer not in meta.get("finalizers", []):
        meta["finalizers"] = [*meta.get("finalizers", []), finalizer]
    left = meta.get("deletionGracePeriodSeconds")
    if left is None or seconds < left:
        meta |= {"deletionTimestamp": timestamp(seconds), "deletionGracePeriodSeconds": seconds}
    if left is None and "generation" in meta:
        meta["generation"] += 1
    return {**obj, "metadata": meta}


def grace_period(pod: Object, seconds: int | None) -> int:
    """Seconds that a pod has to end: none if it runs on no node, or has ended."""
    spec = pod["spec"]
    if not spec.get("nodeName") or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    return int(spec.get("terminationGracePeriodSeconds", 30) if seconds is None else seconds)


def _guarded(meta: Object, known: Object) -> Object:
    empty = ("labels", "annotations", "finalizers", "ownerReferences", "managedFields")
    kept = {key: value for key, value in meta.items() if key not in _SERVERS and (value or key not in empty)}
    return kept | {key: known[key] for key in _SERVERS if key in known}


def _described(obj: Object) -> dict[str, Any]:
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}
