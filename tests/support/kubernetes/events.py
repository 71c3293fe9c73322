"""Events: what the parts of a cluster say of an object."""

import contextlib
from typing import Any

from tests.support.kubernetes.errors import ApiError
from tests.support.kubernetes.metadata import timestamp
from tests.support.kubernetes.store import Store


def warn(store: Store, obj: dict[str, Any], reason: str, message: str) -> None:
    """Give a warning about an object; one that was given before is counted."""
    meta = obj["metadata"]
    name, namespace = f"{meta['name']}.{reason.lower()}", meta["namespace"]

    def count(event: dict[str, Any]) -> None:
        event |= {"message": message, "count": event["count"] + 1, "lastTimestamp": timestamp()}

    with contextlib.suppress(ApiError):  # the namespace is going
        if store.get("events", namespace, name) is not None:
            store.update("events", namespace, name, count)
            return
        about = {"kind": obj["kind"], "name": meta["name"], "namespace": namespace, "uid": meta["uid"]}
        told = {"reason": reason, "message": message, "type": "Warning", "count": 1}
        times = {"firstTimestamp": timestamp(), "lastTimestamp": timestamp()}
        store.create("events", namespace, {"metadata": {"name": name}, "involvedObject": about, **told, **times})
