"""Claims and sandboxes: bodies in both versions, and the end of waiting."""

from typing import Any

import pytest

from sandkeep.errors import ProviderError, SandkeepError
from sandkeep.kubernetes import claims


def status(type: str, status: str, reason: str = "", message: str = "") -> dict[str, Any]:
    condition = {"type": type, "status": status, "reason": reason, "message": message}
    return {"metadata": {"name": "box"}, "status": {"conditions": [condition]}}


def test_the_body_of_a_claim_names_a_pool_or_a_template() -> None:
    body = claims.claim_body("v1beta1", "c", "pool", labels={"a": "b"})
    assert body == {
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxClaim",
        "metadata": {"name": "c", "labels": {"a": "b"}},
        "spec": {"warmPoolRef": {"name": "pool"}},
    }
    body = claims.claim_body("v1alpha1", "c", "template", pod_labels={"l": "1"}, pod_annotations={"n": "2"})
    metadata = {"labels": {"l": "1"}, "annotations": {"n": "2"}}
    assert body["spec"] == {"sandboxTemplateRef": {"name": "template"}, "additionalPodMetadata": metadata}


def test_the_pool_of_a_template_is_the_first_by_name() -> None:
    def pool(name: str, template: str) -> dict[str, Any]:
        return {"metadata": {"name": name}, "spec": {"sandboxTemplateRef": {"name": template}}}

    pools = [pool("c", "t"), pool("a", "other"), pool("b", "t"), {}]
    assert claims.pool_of(pools, "t") == "b"
    assert claims.pool_of(pools, "none") is None


def test_the_mode_of_a_sandbox() -> None:
    assert claims.mode_patch("v1beta1", running=False) == {"spec": {"operatingMode": "Suspended"}}
    assert claims.mode_patch("v1beta1", running=True) == {"spec": {"operatingMode": "Running"}}
    assert claims.mode_patch("v1alpha1", running=False) == {"spec": {"replicas": 0}}


def test_names_of_sandboxes_and_pods_are_checked() -> None:
    def claim(name: Any) -> dict[str, Any]:
        return {"metadata": {"name": "c"}, "status": {"sandbox": {"name": name}}}

    assert claims.sandbox_of(claim("box-1")) == "box-1"
    assert [claims.sandbox_of(each) for each in ({}, claim(None), claim(7), {"status": {"sandbox": "x"}})] == [None] * 4
    sandbox: dict[str, Any] = {"metadata": {"name": "box"}}
    assert claims.pod_of(sandbox) == "box"
    sandbox["metadata"]["annotations"] = {claims.POD_NAME_ANNOTATION: "pod-7"}
    assert claims.pod_of(sandbox) == "pod-7"
    for name in ("../nodes", "A", "a b"):
        with pytest.raises(ProviderError, match="without a valid name"):
            claims.sandbox_of(claim(name))


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("InvalidMetadata", "invalid"),
        ("EnvVarsInjectionRejected", "invalid"),
        ("VolumeClaimTemplatesError", "invalid"),
        ("ClaimExpired", "not_ready"),
        ("SandboxExpired", "not_ready"),
        ("PodFailed", "provider_unavailable"),
        ("PodSucceeded", "provider_unavailable"),
    ],
)
def test_terminal_reasons_are_errors_with_the_message(reason: str, code: str) -> None:
    with pytest.raises(SandkeepError, match="sandbox 'box' cannot be used: it is over") as ended:
        claims.raise_if_terminal(status("Ready", "False", reason, "it is over"))
    assert ended.value.code == code
    claims.raise_if_terminal(status("Ready", "True", reason))
    claims.raise_if_terminal(status("Other", "False", reason))


def test_a_sandbox_that_finished_will_not_be_ready() -> None:
    with pytest.raises(ProviderError, match="cannot be used: PodFailed"):
        claims.raise_if_terminal(status("Finished", "True", "PodFailed"))
    for pending in ({}, status("Finished", "False"), status("Ready", "False", "DependenciesNotReady")):
        claims.raise_if_terminal(pending)
