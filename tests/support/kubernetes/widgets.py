"""A kind of custom objects for tests of the API server, and the official client for it."""

from typing import Any

from tests.support.kubernetes.clients import Clients

GROUP, VERSION, PLURAL = "widgets.example.com", "v1", "widgets"


def pod(name: str, **spec: Any) -> dict[str, Any]:
    """A pod that no kubelet can run: it has no image."""
    containers = [{"name": "main", "image": "none", "command": ["sleep", "1"]}]
    return {"metadata": {"name": name, "labels": {"app": name}}, "spec": {"containers": containers} | spec}


def widget(name: str, **spec: Any) -> dict[str, Any]:
    """A custom object."""
    meta = {"name": name}
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": "Widget", "metadata": meta, "spec": {"size": 1} | spec}


def definition() -> dict[str, Any]:
    """The definition of the kind."""
    spec: dict[str, Any] = {"type": "object", "required": ["size"], "x-kubernetes-preserve-unknown-fields": True}
    spec["properties"] = {
        "size": {"type": "integer", "minimum": 0, "maximum": 1},
        "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
    }
    status = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": spec, "status": status}}
    version = {"name": VERSION, "served": True, "storage": True, "subresources": {"status": {}}}
    return {
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"plural": PLURAL, "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [version | {"schema": {"openAPIV3Schema": schema}}],
        },
    }


class Widgets:
    """The client for custom objects, in one namespace."""

    def __init__(self, clients: Clients, namespace: str) -> None:
        self._custom, self._where = clients.custom, (GROUP, VERSION, namespace, PLURAL)

    def create(self, body: dict[str, Any]) -> Any:
        return self._custom.create_namespaced_custom_object(*self._where, body)

    def get(self, name: str) -> Any:
        return self._custom.get_namespaced_custom_object(*self._where, name)

    def patch(self, name: str, body: Any, **options: Any) -> Any:
        return self._custom.patch_namespaced_custom_object(*self._where, name, body, **options)

    def patch_status(self, name: str, body: Any) -> Any:
        return self._custom.patch_namespaced_custom_object_status(*self._where, name, body)

    def replace(self, name: str, body: Any) -> Any:
        return self._custom.replace_namespaced_custom_object(*self._where, name, body)

    def delete(self, name: str, **options: Any) -> Any:
        return self._custom.delete_namespaced_custom_object(*self._where, name, **options)

    def names(self) -> list[str]:
        items = self._custom.list_namespaced_custom_object(*self._where)["items"]
        return [item["metadata"]["name"] for item in items]
