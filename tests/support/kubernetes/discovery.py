"""Discovery documents: the groups, versions and resources of the cluster."""

from typing import Any

from tests.support.kubernetes.resources import Object, Resource

VERSION = {
    "major": "1",
    "minor": "35",
    "gitVersion": "v1.35.0",
    "gitCommit": "0" * 40,
    "gitTreeState": "clean",
    "buildDate": "2025-12-17T00:00:00Z",
    "goVersion": "go1.25.5",
    "compiler": "gc",
    "platform": "linux/amd64",
}
_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_POD_SUBRESOURCES = {
    "pods/binding": ("Binding", ["create"]),
    "pods/eviction": ("Eviction", ["create"]),
    "pods/exec": ("PodExecOptions", ["create", "get"]),
    "pods/log": ("Pod", ["get"]),
}
_REVIEWS = {"authorization.k8s.io": ("selfsubjectaccessreviews", "SelfSubjectAccessReview")}


def document(path: str, resources: list[Resource]) -> Object | None:
    """The answer for `/api`, `/apis`, `/apis/G` or `/apis/G/V`; None for a path of another kind or without a group."""
    parts = [part for part in path.split("/") if part]
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    groups = _groups(resources)
    if parts == ["apis"]:
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(*item) for item in groups.items()]}
    if parts[0] == "api" and parts[1:] == ["v1"]:
        return _resource_list("", "v1", resources)
    if parts[0] != "apis" or parts[1] not in groups:
        return None
    if len(parts) == 2:
        return {"kind": "APIGroup", "apiVersion": "v1", **_group(parts[1], groups[parts[1]])}
    if len(parts) == 3 and parts[2] in groups[parts[1]]:
        return _resource_list(parts[1], parts[2], resources)
    return None


def _groups(resources: list[Resource]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {group: ["v1"] for group in _REVIEWS}
    for resource in resources:
        versions = groups.setdefault(resource.group, [])
        versions += [version for version in resource.versions if version not in versions]
    del groups[""]
    return {group: sorted(versions, key=_priority, reverse=True) for group, versions in groups.items()}


def _priority(version: str) -> tuple[int, str]:
    """Order versions as API servers do: stable ones before beta, beta before alpha."""
    return (0 if "alpha" in version else 1 if "beta" in version else 2, version)


def _group(name: str, versions: list[str]) -> dict[str, Any]:
    listed = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _resource_list(group: str, version: str, resources: list[Resource]) -> Object:
    rows: list[Object] = []
    for kind in resources:
        if kind.group == group and version in kind.versions:
            row = {"name": kind.plural, "singularName": kind.kind.lower(), "namespaced": kind.namespaced}
            row |= {"kind": kind.kind, "verbs": _VERBS}
            rows.append(row | ({"shortNames": list(kind.short_names)} if kind.short_names else {}))
            if kind.status:
                rows.append(row | {"name": f"{kind.plural}/status", "verbs": ["get", "patch", "update"]})
            extra = _POD_SUBRESOURCES if kind.key == "pods" else {}
            rows += [row | {"name": name, "kind": other, "verbs": verbs} for name, (other, verbs) in extra.items()]
    if group in _REVIEWS:
        plural, name = _REVIEWS[group]
        rows.append(
            {"name": plural, "singularName": name.lower(), "namespaced": False, "kind": name, "verbs": ["create"]}
        )
    api_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": rows}
