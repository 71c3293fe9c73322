"""CustomResourceDefinitions: serving what they define, and the manifests of agent-sandbox and pod snapshots."""

import dataclasses
from typing import Any

from tests.support.kubernetes.builtin import CRDS
from tests.support.kubernetes.errors import invalid
from tests.support.kubernetes.metadata import timestamp
from tests.support.kubernetes.resources import Object, Resource
from tests.support.kubernetes.schema import Findings, conform
from tests.support.kubernetes.store import Store
from tests.support.kubernetes.validation import check_metadata

_TYPE_AND_METADATA = ("apiVersion", "kind", "metadata")


class Definitions:
    """The definitions in a store: each serves its kind as long as it exists."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._schemas: dict[tuple[str, str], dict[str, Any]] = {}
        self._webhooks: set[str] = set()
        definition = Resource("customresourcedefinitions", "CustomResourceDefinition", "apiextensions.k8s.io")
        definition = dataclasses.replace(
            definition, namespaced=False, status=True, short_names=("crd", "crds"), admit=self._admit
        )
        store.register(definition)

    def serve(self, definition: Object) -> None:
        """Serve the kind of a definition that was stored, and mark it Established."""
        resource = _resource(definition)
        key = resource.key
        for version in definition["spec"]["versions"]:
            self._schemas[key, version["name"]] = version.get("schema", {}).get("openAPIV3Schema", {})
        if definition["spec"].get("conversion", {}).get("strategy") == "Webhook":
            self._webhooks.add(key)

        def admit(new: Object, old: Object | None) -> None:
            self.check(resource, resource.storage, new, old)

        self._store.register(dataclasses.replace(resource, admit=admit))
        name = definition["metadata"]["name"]
        status = _established(definition)
        if definition.get("status", {}).get("acceptedNames") != status["acceptedNames"]:
            self._store.update(CRDS, None, name, lambda obj: obj.update(status=status), subresource="status")

    def withdraw(self, name: str) -> None:
        """Delete all objects of a kind whose definition was deleted, and serve it no longer."""
        self._store.unregister(name)
        self._webhooks.discard(name)

    def defines(self, resource: Resource) -> bool:
        """Tell whether a kind is a custom one."""
        return (resource.key, resource.storage) in self._schemas

    def has_webhook(self, resource: Resource) -> bool:
        """Tell whether versions of this kind are converted by more than their name."""
        return resource.key in self._webhooks

    def check(self, resource: Resource, version: str, new: Object, old: Object | None) -> list[str]:
        """Prune an object of a version, fill in its defaults and validate it. Returns the paths that were pruned.

        Raises ApiError 422.
        """
        found = Findings()
        check_metadata(new["metadata"], found.causes)
        fields = {key: value for key, value in new.items() if key not in _TYPE_AND_METADATA}
        conform(self._schemas[resource.key, version], fields, "", found, old)
        if found.causes:
            causes = [(field.lstrip("."), why) for field, why in found.causes]
            raise invalid(resource.kind, new["metadata"]["name"], causes)
        for key in new.keys() - set(_TYPE_AND_METADATA):
            del new[key]
        new.update(fields)
        return found.unknown

    def _admit(self, new: Object, old: Object | None) -> None:
        spec, name = new.get("spec") or {}, new["metadata"]["name"]
        names = spec.get("names") or {}
        if name != f"{names.get('plural')}.{spec.get('group')}":
            expected = f'must be spec.names.plural+"."+spec.group: "{name}"'
            raise invalid(new["kind"], name, [("metadata.name", f"Invalid value: {expected}")])
        if sum(bool(version.get("storage")) for version in spec.get("versions", [])) != 1:
            raise invalid(new["kind"], name, [("spec.versions", "must have exactly one version marked as storage")])
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", names["kind"] + "List")
        spec.setdefault("conversion", {"strategy": "None"})


def _resource(definition: Object) -> Resource:
    spec = definition["spec"]
    names, versions = spec["names"], spec["versions"]
    storage = next(version for version in versions if version.get("storage"))
    return Resource(
        names["plural"],
        names["kind"],
        spec["group"],
        versions=tuple(version["name"] for version in versions if version.get("served", True)),
        storage=storage["name"],
        namespaced=spec.get("scope") != "Cluster",
        status="status" in storage.get("subresources", {}),
        short_names=tuple(names.get("shortNames", ())),
    )


def _established(definition: Object) -> Object:
    now = timestamp()
    conditions = [
        {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now}
        for kind, reason, message in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]
    stored = [version["name"] for version in definition["spec"]["versions"] if version.get("storage")]
    return {"conditions": conditions, "acceptedNames": definition["spec"]["names"], "storedVersions": stored}
