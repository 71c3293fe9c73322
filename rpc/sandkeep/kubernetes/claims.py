"""Sandboxes and claims of them (`agents.x-k8s.io`): their bodies, and what their status says."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sandkeep.errors import CallerError, ProviderError, SandkeepError, StateError
from sandkeep.kubernetes.names import is_object_name
from sandkeep.kubernetes.objects import READY, Condition, Object, condition_of, name_of, text_at
from sandkeep.kubernetes.versions import EXTENSIONS

SANDBOXES: Final = "sandboxes"
CLAIMS: Final = "sandboxclaims"
TEMPLATES: Final = "sandboxtemplates"
WARM_POOLS: Final = "sandboxwarmpools"

POD_NAME_ANNOTATION: Final = "agents.x-k8s.io/pod-name"
"""Of a Sandbox: the name of its pod, if that is not the Sandbox's own."""

_INVALID: Final = ("InvalidMetadata", "EnvVarsInjectionRejected", "VolumeClaimTemplatesError")
_EXPIRED: Final = ("ClaimExpired", "SandboxExpired")
_ENDED: Final = ("PodSucceeded", "PodFailed")


def claim_body(
    version: str,
    name: str,
    source: str,
    *,
    labels: Mapping[str, str] | None = None,
    pod_labels: Mapping[str, str] | None = None,
    pod_annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a SandboxClaim. `source` is a SandboxWarmPool's name; in v1alpha1 a SandboxTemplate's.

    What is given for the pod reaches it through the Sandbox. A value that differs from the template's makes the claim
    fail.
    """
    reference = "sandboxTemplateRef" if version == "v1alpha1" else "warmPoolRef"
    given = {"labels": pod_labels, "annotations": pod_annotations}
    metadata = {key: dict(value) for key, value in given.items() if value}
    return {
        "apiVersion": f"{EXTENSIONS.name}/{version}",
        "kind": "SandboxClaim",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {reference: {"name": source}} | ({"additionalPodMetadata": metadata} if metadata else {}),
    }


def pool_of(pools: Iterable[Object], template_name: str) -> str | None:
    """Return the name of a SandboxWarmPool of a template, the first by name; None without any."""
    found = [name_of(pool) for pool in pools if text_at(pool, "spec", "sandboxTemplateRef", "name") == template_name]
    return min(found, default=None)


def mode_patch(version: str, *, running: bool) -> dict[str, Any]:
    """Return a merge patch that suspends a Sandbox, which ends its pod, or lets it run."""
    if version == "v1alpha1":
        return {"spec": {"replicas": int(running)}}
    return {"spec": {"operatingMode": "Running" if running else "Suspended"}}


def sandbox_of(claim: Object) -> str | None:
    """Return the name of the Sandbox that a claim got; None while it has none."""
    return _checked(text_at(claim, "status", "sandbox", "name"), claim)


def pod_of(sandbox: Object) -> str:
    """Return the name of a Sandbox's pod, which need not be there yet."""
    annotated = text_at(sandbox, "metadata", "annotations", POD_NAME_ANNOTATION)
    return _checked(annotated, sandbox) or name_of(sandbox)


def raise_if_terminal(obj: Object) -> None:
    """Raise an error, with the condition's message, if a claim or a Sandbox will never be ready (again)."""
    ready, finished = condition_of(obj, READY), condition_of(obj, "Finished")
    if finished is not None and finished.is_true:
        raise _terminal(obj, finished)
    if ready is not None and not ready.is_true and ready.reason in (*_INVALID, *_EXPIRED, *_ENDED):
        raise _terminal(obj, ready)


def _terminal(obj: Object, condition: Condition) -> SandkeepError:
    message = f"sandbox {name_of(obj)!r} cannot be used: {condition.describe()}"
    if condition.reason in _INVALID:
        return CallerError("invalid", message, field=condition.reason)
    if condition.reason in _EXPIRED:
        return StateError("not_ready", message, status=condition.reason)
    return ProviderError("provider_unavailable", message, reason=condition.reason)


def _checked(name: str, obj: Object) -> str | None:
    if name and not is_object_name(name):
        raise ProviderError("provider_unavailable", f"{name_of(obj)!r} refers to an object without a valid name")
    return name or None
