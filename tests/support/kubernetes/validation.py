"""Defaults and validation of built-in objects, as far as clients come to notice."""

import base64
import binascii
import re
from typing import Any

from tests.support.kubernetes.errors import ApiError, invalid
from tests.support.kubernetes.metadata import copy
from tests.support.kubernetes.resources import Object

Causes = list[tuple[str, str]]

LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_QUALIFIED = re.compile(r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
_LABEL_VALUE = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")
_DATA_KEY = re.compile(r"^[-._a-zA-Z0-9]{1,253}$")
_QUANTITY = re.compile(r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+|[KMGTPE]i|[numkMGTPE])?$")
_LARGEST_DATA = 1 << 20
_LARGEST_ANNOTATIONS = 256 << 10

_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character"
)
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start "
    "and end with an alphanumeric character"
)
_POD_CHANGES = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def check_metadata(meta: Object, causes: Causes, *, label: bool = False) -> None:
    """Check name, labels, annotations and finalizers."""
    _check_name(meta["name"], "metadata.name", causes, label=label)
    for key, value in meta.get("labels", {}).items():
        if not _QUALIFIED.match(key):
            causes.append(("metadata.labels", f'Invalid value: "{key}": name part must consist of alphanumerics'))
        if not isinstance(value, str) or not _LABEL_VALUE.match(value):
            causes.append(("metadata.labels", f'Invalid value: "{value}": must be at most 63 alphanumerics, -, _ or .'))
    annotations = meta.get("annotations", {})
    if not all(isinstance(value, str) for value in annotations.values()):
        raise ApiError(400, "BadRequest", "json: cannot unmarshal into Go struct field ObjectMeta.metadata.annotations")
    causes += [
        ("metadata.annotations", f'Invalid value: "{key}": name part must consist of alphanumerics')
        for key in annotations
        if not _QUALIFIED.match(key.lower())
    ]
    if sum(len(key) + len(value) for key, value in annotations.items()) > _LARGEST_ANNOTATIONS:
        causes.append(("metadata.annotations", f"Too long: may not be more than {_LARGEST_ANNOTATIONS} bytes"))
    causes += [
        ("metadata.finalizers", f'Invalid value: "{key}": name is neither a standard finalizer name nor qualified')
        for key in meta.get("finalizers", [])
        if "/" not in key and key not in ("foregroundDeletion", "orphan", "kubernetes")
    ]


def admit_plain(new: Object, old: Object | None) -> None:
    """Admit an object of which only the metadata are checked."""
    causes: Causes = []
    check_metadata(new["metadata"], causes)
    _refuse(new, causes)


def admit_namespace(new: Object, old: Object | None) -> None:
    """Admit a namespace."""
    causes: Causes = []
    check_metadata(new["metadata"], causes, label=True)
    _refuse(new, causes)
    new["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = new["metadata"]["name"]
    new.setdefault("spec", {"finalizers": ["kubernetes"]})
    new.setdefault("status", {"phase": "Active"})


def admit_data(new: Object, old: Object | None) -> None:
    """Admit a ConfigMap or a Secret."""
    causes: Causes = []
    check_metadata(new["metadata"], causes)
    if new["kind"] == "Secret":
        new.setdefault("type", "Opaque")
        plain = {key: base64.b64encode(value.encode()).decode() for key, value in new.pop("stringData", {}).items()}
        new["data"] = new.get("data", {}) | plain
    encoded = new.get("data", {}) if new["kind"] == "Secret" else new.get("binaryData", {})
    size = sum(_decoded_size(value) for value in encoded.values())
    if new["kind"] == "ConfigMap":
        size += sum(len(value.encode()) for value in new.get("data", {}).values())
    for key in [*new.get("data", {}), *new.get("binaryData", {})]:
        if not _DATA_KEY.match(key):
            causes.append(
                (f"data[{key}]", f'Invalid value: "{key}": a valid config key must consist of [-._a-zA-Z0-9]')
            )
    if size > _LARGEST_DATA:
        causes.append(("data", f"Too long: may not be more than {_LARGEST_DATA} bytes"))
    if (
        old
        and old.get("immutable")
        and any(new.get(key) != old.get(key) for key in ("data", "binaryData", "immutable"))
    ):
        causes.append(("data", "Forbidden: field is immutable when `immutable` is set"))
    _refuse(new, causes)


def admit_pod(new: Object, old: Object | None) -> None:
    """Admit a pod: defaults and validation on creation, an immutable spec afterwards."""
    causes: Causes = []
    check_metadata(new["metadata"], causes)
    if old is None:
        if not isinstance(new.get("spec"), dict):
            raise invalid("Pod", new["metadata"]["name"], [("spec.containers", "Required value")])
        _set_pod_defaults(new)
        _check_pod(new["spec"], causes)
    elif new.get("spec") != old["spec"] and _immutable(new.get("spec", {})) != _immutable(old["spec"]):
        causes.append(("spec", f"Forbidden: {_POD_CHANGES}"))
    _refuse(new, causes)


def _set_pod_defaults(pod: Object) -> None:
    spec = pod["spec"]
    for key, value in (
        ("restartPolicy", "Always"),
        ("terminationGracePeriodSeconds", 30),
        ("dnsPolicy", "ClusterFirst"),
        ("serviceAccountName", "default"),
        ("schedulerName", "default-scheduler"),
        ("enableServiceLinks", True),
    ):
        spec.setdefault(key, value)
    spec.setdefault("securityContext", {})
    for container in _containers(spec):
        tagged = ":" in str(container.get("image", "")).rpartition("/")[2]
        container.setdefault("imagePullPolicy", "IfNotPresent" if tagged else "Always")
        container.setdefault("resources", {})
        limits = container["resources"].get("limits", {})
        if limits:
            container["resources"]["requests"] = limits | container["resources"].get("requests", {})
        container |= {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
    for volume in spec.get("volumes", []):
        for kind in ("configMap", "secret"):
            if isinstance(volume.get(kind), dict):
                volume[kind].setdefault("defaultMode", 0o644)
    pod["status"] = {"phase": "Pending", "qosClass": _quality(spec)}


def _quality(spec: Object) -> str:
    resources = [container["resources"] for container in _containers(spec)]
    if not any(part.get("requests") or part.get("limits") for part in resources):
        return "BestEffort"
    full = all({"cpu", "memory"} <= part.get("limits", {}).keys() for part in resources)
    return "Guaranteed" if full and all(part["limits"] == part["requests"] for part in resources) else "Burstable"


def _containers(spec: Object) -> list[Object]:
    listed = [*spec.get("initContainers", []), *spec.get("containers", [])]
    return [container for container in listed if isinstance(container, dict)]


def _check_pod(spec: Object, causes: Causes) -> None:
    if not spec.get("containers"):
        causes.append(("spec.containers", "Required value"))
    volumes = _check_names(spec.get("volumes", []), "spec.volumes", causes)
    for field in ("initContainers", "containers"):
        _check_names(spec.get(field, []), f"spec.{field}", causes)
        for place, container in enumerate(spec.get(field, [])):
            _check_container(container, f"spec.{field}[{place}]", volumes, causes)
    if spec["restartPolicy"] not in ("Always", "OnFailure", "Never"):
        supported = 'supported values: "Always", "OnFailure", "Never"'
        causes.append(("spec.restartPolicy", f'Unsupported value: "{spec["restartPolicy"]}": {supported}'))
    deadline = spec.get("activeDeadlineSeconds", 1)
    if deadline < 1:
        causes.append(("spec.activeDeadlineSeconds", f"Invalid value: {deadline}: must be between 1 and 2147483647"))


def _check_container(container: Object, path: str, volumes: set[str], causes: Causes) -> None:
    if not container.get("image"):
        causes.append((f"{path}.image", "Required value"))
    for place, mounted in enumerate(container.get("volumeMounts", [])):
        if mounted.get("name") not in volumes:
            causes.append((f"{path}.volumeMounts[{place}].name", f'Not found: "{mounted.get("name")}"'))
    for place, variable in enumerate(container.get("env", [])):
        if not variable.get("name") or "=" in variable["name"]:
            causes.append((f"{path}.env[{place}].name", "Required value"))
    for kind in ("limits", "requests"):
        for name, quantity in container["resources"].get(kind, {}).items():
            if not _QUANTITY.match(str(quantity)):
                message = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
                raise ApiError(400, "BadRequest", f"Pod in version v1 cannot be handled as a Pod: {name}: {message}")


def _check_names(items: list[Any], path: str, causes: Causes) -> set[str]:
    names: set[str] = set()
    for place, item in enumerate(items):
        name = item.get("name", "")
        _check_name(name, f"{path}[{place}].name", causes, label=True)
        if name in names:
            causes.append((f"{path}[{place}].name", f'Duplicate value: "{name}"'))
        names.add(name)
    return names


def _check_name(name: str, path: str, causes: Causes, *, label: bool) -> None:
    pattern, rule, longest = (LABEL, _LABEL_RULE, 63) if label else (SUBDOMAIN, _SUBDOMAIN_RULE, 253)
    if not name:
        causes.append((path, "Required value"))
    elif len(name) > longest:
        causes.append((path, f'Invalid value: "{name}": must be no more than {longest} characters'))
    elif not pattern.match(name):
        causes.append((path, f'Invalid value: "{name}": {rule}'))


def _immutable(spec: Object) -> Object:
    """The part of a pod's spec that no update may change."""
    kept = copy(spec)
    for key in ("activeDeadlineSeconds", "tolerations"):
        kept.pop(key, None)
    for container in _containers(kept):
        container.pop("image", None)
    return kept


def _decoded_size(value: str) -> int:
    try:
        return len(base64.b64decode(value, validate=True))
    except (binascii.Error, TypeError) as error:
        raise ApiError(400, "BadRequest", f"illegal base64 data: {error}") from error


def _refuse(obj: Object, causes: Causes) -> None:
    if causes:
        raise invalid(obj["kind"], obj["metadata"]["name"], causes)
