"""The official client for the custom resources of sandboxes and pod snapshots, in one namespace."""

from typing import Any

from tests.support.expect import until
from tests.support.kubernetes.clients import Clients, refusal
from tests.support.kubernetes.sandbox_crds import AGENTS, EXTENSIONS, SNAPSHOTS

Object = dict[str, Any]
KINDS = {
    "sandboxes": (AGENTS, "v1beta1", "Sandbox"),
    "sandboxclaims": (EXTENSIONS, "v1beta1", "SandboxClaim"),
    "sandboxtemplates": (EXTENSIONS, "v1beta1", "SandboxTemplate"),
    "sandboxwarmpools": (EXTENSIONS, "v1beta1", "SandboxWarmPool"),
    "podsnapshotpolicies": (SNAPSHOTS, "v1", "PodSnapshotPolicy"),
    "podsnapshotmanualtriggers": (SNAPSHOTS, "v1", "PodSnapshotManualTrigger"),
    "podsnapshots": (SNAPSHOTS, "v1", "PodSnapshot"),
}


class Customs:
    """Creates, reads, changes and awaits objects by the plural of their kind."""

    def __init__(self, clients: Clients, namespace: str) -> None:
        self.clients = clients
        self.namespace = namespace

    def create(self, plural: str, name: str, spec: Object, version: str | None = None) -> Object:
        """Create an object."""
        group, newest, kind = KINDS[plural]
        version = version or newest
        body = {"apiVersion": f"{group}/{version}", "kind": kind, "metadata": {"name": name}, "spec": spec}
        made: Object = self.clients.custom.create_namespaced_custom_object(group, version, self.namespace, plural, body)
        return made

    def get(self, plural: str, name: str) -> Object:
        """Read an object."""
        found: Object = self.clients.custom.get_namespaced_custom_object(*self._place(plural), name)
        return found

    def names(self, plural: str) -> set[str]:
        """Return the names of all objects."""
        found = self.clients.custom.list_namespaced_custom_object(*self._place(plural))
        return {item["metadata"]["name"] for item in found["items"]}

    def patch(self, plural: str, name: str, body: Object) -> None:
        """Change an object by a merge patch."""
        self.clients.custom.patch_namespaced_custom_object(*self._place(plural), name, body)

    def delete(self, plural: str, name: str) -> None:
        """Delete an object."""
        self.clients.custom.delete_namespaced_custom_object(*self._place(plural), name)

    def condition(self, plural: str, name: str, kind: str = "Ready") -> tuple[str, str, str]:
        """Return status, reason and message of a condition, once the object has it."""
        return until(lambda: self._condition(plural, name, kind))  # type: ignore[no-any-return]

    def until(self, plural: str, name: str, status: str, reason: str, kind: str = "Ready") -> Object:
        """Wait for a condition with that status and reason; return the object."""
        seen = lambda: self.get(plural, name).get("status")  # noqa: E731
        until(lambda: (self._condition(plural, name, kind) or ())[:2] == (status, reason), seen=seen)
        return self.get(plural, name)

    def until_gone(self, plural: str, name: str) -> None:
        """Wait until an object is gone."""
        until(lambda: refusal(lambda: self.get(plural, name)) == (404, "NotFound"))

    def _condition(self, plural: str, name: str, kind: str) -> tuple[str, str, str] | None:
        conditions = self.get(plural, name).get("status", {}).get("conditions", [])
        found = ((c["status"], c.get("reason", ""), c.get("message", "")) for c in conditions if c["type"] == kind)
        return next(found, None)

    def _place(self, plural: str) -> tuple[str, str, str, str]:
        group, version, _ = KINDS[plural]
        return group, version, self.namespace, plural
