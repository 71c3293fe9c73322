"""Choose the version of an API group from a cluster's answer to discovery."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

from sandkeep.errors import SetupError
from sandkeep.kubernetes.objects import Object


class Group(Struct, frozen=True):
    """An API group, and the versions of it that Sandkeep speaks, the preferred one first."""

    name: str
    versions: tuple[str, ...]


AGENTS: Final = Group("agents.x-k8s.io", ("v1beta1", "v1alpha1"))
EXTENSIONS: Final = Group("extensions.agents.x-k8s.io", ("v1beta1", "v1alpha1"))
POD_SNAPSHOTS: Final = Group("podsnapshot.gke.io", ("v1", "v1alpha1"))


def choose_version(discovery: Object | None, group: Group) -> str | None:
    """Return the version to use of a group; None if the cluster does not have the group.

    `discovery` is the answer to ``GET /apis`` or to ``GET /apis/GROUP``, or None for 404. Raises `not_supported` if
    the cluster has the group, in other versions alone.
    """
    served = served_versions(discovery or {}, group.name)
    for version in group.versions:
        if version in served:
            return version
    if served:
        message = (
            f"the cluster serves {group.name} in {', '.join(served)} alone, and {' or '.join(group.versions)} is needed"
        )
        raise SetupError("not_supported", f"{message}: install such a version of its controller", group=group.name)
    return None


def served_versions(discovery: Object, name: str) -> list[str]:
    """Return the versions of a group that the answer to ``GET /apis`` or ``GET /apis/GROUP`` tells of."""
    groups = discovery.get("groups", [discovery])
    found = [group for group in _mappings(groups) if group.get("name") == name]
    versions = [version.get("version") for group in found for version in _mappings(group.get("versions"))]
    return [version for version in versions if isinstance(version, str)]


def _mappings(values: Any) -> list[Mapping[str, Any]]:
    return [value for value in values if isinstance(value, Mapping)] if isinstance(values, list) else []
