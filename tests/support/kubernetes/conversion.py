"""Conversion between served versions and the stored one, as the webhook of agent-sandbox does it.

v1alpha1 of a Sandbox has `replicas` (0 or 1) in place of `operatingMode`. A v1alpha1 claim names a template and
possibly a warm pool; the stored one names a warm pool, or `shadow-pool-T` for template T. An annotation keeps what
v1beta1 cannot say.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from tests.support.kubernetes.resources import Object, Resource

SHADOW = "shadow-pool-"
_STATE = "api.agents.x-k8s.io/v1alpha1-sandboxclaim-state"
_NO_POOLS = ("none", "default", None)


def to_storage(resource: Resource, version: str, obj: Object, *, webhook: bool) -> Object:
    """Convert an object from a served version. The argument may be changed."""
    return _convert(_TO_STORAGE, resource, version, resource.storage, obj, webhook=webhook)


def from_storage(resource: Resource, version: str, obj: Object, *, webhook: bool) -> Object:
    """Convert a stored object, which is left alone, to a served version."""
    return _convert(_FROM_STORAGE, resource, version, version, obj, webhook=webhook)


def _convert(
    converters: "dict[str, Converter]", resource: Resource, version: str, target: str, obj: Object, *, webhook: bool
) -> Object:
    if version == resource.storage:
        return obj
    converted = {**obj, "apiVersion": resource.api_version(target)}
    convert = converters.get(resource.key) if webhook and version == "v1alpha1" else None
    if convert and isinstance(obj.get("spec"), dict):
        converted["metadata"] = {**obj.get("metadata", {})}
        converted["spec"] = convert(converted["metadata"], {**obj["spec"]})
    return converted


def _sandbox_to_storage(meta: Object, spec: Object) -> Object:
    replicas = spec.pop("replicas", 1)
    return spec | {"operatingMode": "Suspended" if replicas == 0 else "Running"}


def _sandbox_from_storage(meta: Object, spec: Object) -> Object:
    return spec | {"replicas": 0 if spec.pop("operatingMode", "Running") == "Suspended" else 1}


def _claim_to_storage(meta: Object, spec: Object) -> Object:
    template, pool = spec.pop("sandboxTemplateRef", {}), spec.pop("warmpool", None)
    name = SHADOW + template.get("name", "") if pool in _NO_POOLS else pool
    state = msgspec.json.encode({"sandboxTemplateRef": template, "warmpool": pool}).decode()
    meta["annotations"] = {**meta.get("annotations", {}), _STATE: state}
    return spec | {"warmPoolRef": {"name": name}}


def _claim_from_storage(meta: Object, spec: Object) -> Object:
    name = spec.pop("warmPoolRef", {}).get("name", "")
    pool, template = ("default", name.removeprefix(SHADOW)) if name.startswith(SHADOW) else (name, name)
    state = meta.get("annotations", {}).get(_STATE)
    if state:
        meta["annotations"] = {key: value for key, value in meta["annotations"].items() if key != _STATE}
        original: dict[str, Any] = msgspec.json.decode(state)
        template = original["sandboxTemplateRef"].get("name", "")
        asked = original["warmpool"]
        if name == (SHADOW + template if asked in _NO_POOLS else asked):
            pool = asked
    return spec | {"sandboxTemplateRef": {"name": template}} | ({"warmpool": pool} if pool else {})


Converter = Callable[[Object, Object], Object]
_SANDBOXES, _CLAIMS = "sandboxes.agents.x-k8s.io", "sandboxclaims.extensions.agents.x-k8s.io"
_TO_STORAGE: dict[str, Converter] = {_SANDBOXES: _sandbox_to_storage, _CLAIMS: _claim_to_storage}
_FROM_STORAGE: dict[str, Converter] = {_SANDBOXES: _sandbox_from_storage, _CLAIMS: _claim_from_storage}
