"""The controller of Sandboxes: a pod of the same name, as the Sandbox's template, mode and time say."""

from typing import Any

from tests.support.kubernetes.errors import ApiError
from tests.support.kubernetes.reconcile import (
    Delays,
    Object,
    Watches,
    condition,
    condition_of,
    controller_of,
    itself,
    key_of,
    name_hash,
    owner,
    reference_to,
    seconds_until,
    set_status,
)
from tests.support.kubernetes.store import Store

SANDBOXES = "sandboxes.agents.x-k8s.io"
NAME_HASH = "agents.x-k8s.io/sandbox-name-hash"
POD_NAME = "agents.x-k8s.io/pod-name"
PROPAGATED = {
    "labels": "agents.x-k8s.io/propagated-labels",
    "annotations": "agents.x-k8s.io/propagated-annotations",
}


class Sandboxes:
    """See `reconcile.Controller`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.watches: Watches = {SANDBOXES: itself, "pods": owner("Sandbox")}
        self._delays = Delays()
        self._delay_s = 0.0
        self._hold: Object | None = None

    def script(self, **options: Any) -> None:
        """Options: `sandbox_delay_s`, seconds before a pod is made; `hold_sandboxes`, `{reason, message}` with which
        all stay not ready, or null.
        """
        self._delay_s = options.get("sandbox_delay_s", self._delay_s)
        self._hold = options.get("hold_sandboxes", self._hold)

    async def reconcile(self, namespace: str, name: str) -> float | None:
        """See `reconcile.Controller`."""
        sandbox = self._store.get(SANDBOXES, namespace, name)
        if sandbox is None or "deletionTimestamp" in sandbox["metadata"]:
            return None
        if self._hold is not None:
            self._report(sandbox, [condition("Ready", "False", self._hold["reason"], self._hold.get("message", ""))])
            return None
        left = self._delays.left(sandbox, self._delay_s)
        if left > 0:
            return left
        pod = self._store.get("pods", namespace, pod_name(sandbox))
        until = seconds_until(sandbox["spec"].get("shutdownTime"))
        if until is not None and until <= 0:
            self._expire(sandbox, pod)
        elif sandbox["spec"].get("operatingMode", "Running") == "Suspended":
            self._suspend(sandbox, pod)
            return until
        else:
            self._run(sandbox, pod)
            return until
        return None

    def _report(self, sandbox: Object, conditions: list[Object], pod: Object | None = None) -> None:
        name = sandbox["metadata"]["name"]
        status = pod.get("status", {}) if pod is not None else {}
        fields: Object = {"selector": f"{NAME_HASH}={name_hash(name)}", "podIPs": _addresses(status)}
        fields["nodeName"] = pod["spec"].get("nodeName", "") if pod is not None else ""
        if sandbox["spec"].get("service"):
            namespace = sandbox["metadata"]["namespace"]
            fields |= {"service": name, "serviceFQDN": f"{name}.{namespace}.svc.cluster.local"}
        types = {found["type"] for found in conditions}
        without = {"Ready", "Suspended", "Finished", "PodScheduled"} - types
        set_status(self._store, SANDBOXES, sandbox, conditions, without, **fields)

    def _expire(self, sandbox: Object, pod: Object | None) -> None:
        if sandbox["spec"].get("shutdownPolicy") == "Delete":
            self._store.delete(SANDBOXES, *key_of(sandbox), uid=sandbox["metadata"]["uid"])
            return
        self._delete_pod(sandbox, pod)
        finished = condition_of(sandbox, "Finished")
        ready = condition("Ready", "False", "SandboxExpired", "Sandbox has expired")
        self._report(sandbox, [ready, *([finished] if finished else [])])

    def _suspend(self, sandbox: Object, pod: Object | None) -> None:
        ready = condition("Ready", "False", "SandboxSuspended", "Sandbox is suspended")
        if pod is None:
            suspended = condition("Suspended", "True", "PodTerminated", "Pod has been terminated")
        elif _owned(sandbox, pod):
            self._delete_pod(sandbox, pod)
            suspended = condition("Suspended", "False", "PodTerminating", "Pod is terminating")
        else:
            suspended = condition("Suspended", "False", "PodNotOwned", "Pod is not owned by this sandbox")
        self._report(sandbox, [ready, suspended])

    def _delete_pod(self, sandbox: Object, pod: Object | None) -> None:
        if pod is not None and _owned(sandbox, pod) and "deletionTimestamp" not in pod["metadata"]:
            self._store.delete("pods", *key_of(pod), uid=pod["metadata"]["uid"])

    def _run(self, sandbox: Object, pod: Object | None) -> None:
        if sandbox["spec"].get("service"):
            self._make_service(sandbox)
        if pod is None:
            try:
                pod = self._make_pod(sandbox)
            except ApiError as error:
                self._report(sandbox, [condition("Ready", "False", "ReconcilerError", f"Error seen: {error}")])
                raise
        elif controller_of(pod) is None:
            pod = self._adopt(sandbox, pod)
        if not _owned(sandbox, pod):
            why = f"Error seen: pod {pod['metadata']['name']} is controlled by another object"
            self._report(sandbox, [condition("Ready", "False", "ReconcilerError", why)])
            return
        pod = self._propagate(sandbox, pod)
        self._report(sandbox, _conditions(pod), pod)

    def _make_pod(self, sandbox: Object) -> Object:
        template = sandbox["spec"]["podTemplate"]
        meta: Object = {"name": pod_name(sandbox), "ownerReferences": [reference_to(sandbox)]}
        given = template.get("metadata", {})
        labels, annotations = given.get("labels", {}), given.get("annotations", {})
        meta["labels"] = {**labels, NAME_HASH: name_hash(sandbox["metadata"]["name"])}
        meta["annotations"] = {**annotations, **_marks(given)}
        pod = {"metadata": meta, "spec": template["spec"]}
        return self._store.create("pods", sandbox["metadata"]["namespace"], pod)

    def _adopt(self, sandbox: Object, pod: Object) -> Object:
        def change(new: Object) -> None:
            new["metadata"].setdefault("ownerReferences", []).append(reference_to(sandbox))
            new["metadata"].setdefault("labels", {})[NAME_HASH] = name_hash(sandbox["metadata"]["name"])

        return self._store.update("pods", *key_of(pod), change)

    def _propagate(self, sandbox: Object, pod: Object) -> Object:
        """Bring the metadata of the template to the pod, also what is no longer there."""
        given = sandbox["spec"]["podTemplate"].get("metadata", {})

        def change(new: Object) -> None:
            before = new["metadata"].get("annotations", {})
            for field, mark in PROPAGATED.items():
                values = new["metadata"].setdefault(field, {})
                for key in filter(None, before.get(mark, "").split(",")):
                    if key not in given.get(field, {}):
                        values.pop(key, None)
                values |= given.get(field, {})
            annotations = new["metadata"]["annotations"]
            for mark in PROPAGATED.values():
                annotations.pop(mark, None)
            annotations |= _marks(given)

        return self._store.update("pods", *key_of(pod), change)

    def _make_service(self, sandbox: Object) -> None:
        namespace, name = key_of(sandbox)
        if self._store.get("services", namespace, name) is None:
            spec = {"clusterIP": "None", "selector": {NAME_HASH: name_hash(name)}}
            meta = {"name": name, "ownerReferences": [reference_to(sandbox)]}
            self._store.create("services", namespace, {"metadata": meta, "spec": spec})


def pod_name(sandbox: Object) -> str:
    """Return the name of a Sandbox's pod."""
    name: str = sandbox["metadata"].get("annotations", {}).get(POD_NAME) or sandbox["metadata"]["name"]
    return name


def _marks(given: Object) -> dict[str, str]:
    """Return the annotations that say which metadata come from the template."""
    return {mark: ",".join(sorted(given[field])) for field, mark in PROPAGATED.items() if given.get(field)}


def _owned(sandbox: Object, pod: Object) -> bool:
    found = controller_of(pod)
    return found is not None and found["uid"] == sandbox["metadata"]["uid"]


def _addresses(status: Object) -> list[str]:
    return [address["ip"] for address in status.get("podIPs", [])]


def _conditions(pod: Object) -> list[Object]:
    """Return the conditions of a running Sandbox with this pod."""
    phase = pod.get("status", {}).get("phase", "Pending")
    scheduled = condition_of(pod, "PodScheduled")
    more = [{"reason": "", "message": "", **scheduled}] if scheduled else []
    if phase in ("Succeeded", "Failed"):
        reason = f"Pod{phase}"
        message = pod["status"].get("message") or f"Pod has {phase.lower()}"
        return [condition("Ready", "False", reason, message), condition("Finished", "True", reason, message), *more]
    if "deletionTimestamp" in pod["metadata"]:
        return [condition("Ready", "False", "DependenciesNotReady", "Pod is terminating"), *more]
    if condition_of(pod, "Ready").get("status") == "True":
        return [condition("Ready", "True", "DependenciesReady", "Pod is Ready"), *more]
    message = "Pod is Running but not Ready" if phase == "Running" else f"Pod exists with phase: {phase}"
    return [condition("Ready", "False", "DependenciesNotReady", message), *more]
