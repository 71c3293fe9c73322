"""The controllers of the double: Sandboxes, claims and warm pools, with the real reasons of their conditions."""

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.expect import until
from tests.support.kubernetes import images
from tests.support.kubernetes.clients import Clients, refusal
from tests.support.kubernetes.cluster import Cluster, start_cluster
from tests.support.kubernetes.customs import Customs, Object

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("busybox"), pytest.mark.needs("tmux")]

HASH = "agents.x-k8s.io/sandbox-name-hash"
MINE = "sandbox.users.io/mine"
"""A label of a claim for its pod: in the domain that the real controller allows by default."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, roots: dict[str, str]) -> Iterator[Cluster]:
    with start_cluster(tmp_path_factory.mktemp("cluster"), roots) as cluster:
        yield cluster


@pytest.fixture
def customs(clients: Clients, namespace: str) -> Customs:
    return Customs(clients, namespace)


def template(*command: str, **spec: Any) -> Object:
    """The template of a pod with a label, an annotation and a variable."""
    container: Object = {"name": "main", "image": images.BUSYBOX, "command": list(command or ("sleep", "1000000"))}
    container |= {"env": [{"name": "KNOWN", "value": "template"}]}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container], **spec}
    return {"metadata": {"labels": {"app": "test"}, "annotations": {"note": "first"}}, "spec": spec}


def in_seconds(seconds: float) -> str:
    moment = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=seconds)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def pod_of(customs: Customs, name: str) -> Any:
    return customs.clients.core.read_namespaced_pod(name, customs.namespace)


def pod_is_gone(customs: Customs, name: str) -> bool:
    return refusal(lambda: pod_of(customs, name)) == (404, "NotFound")


# Sandboxes


def test_a_sandbox_has_a_pod_of_its_name(customs: Customs) -> None:
    customs.create("sandboxes", "s", {"podTemplate": template(), "service": True})
    status = customs.until("sandboxes", "s", "True", "DependenciesReady")["status"]
    pod = pod_of(customs, "s")
    assert pod.metadata.labels == {"app": "test", HASH: pod.metadata.labels[HASH]}
    assert pod.metadata.annotations["note"] == "first"
    assert status["selector"] == f"{HASH}={pod.metadata.labels[HASH]}"
    assert status["podIPs"] == [pod.status.pod_ip]
    assert status["serviceFQDN"] == f"s.{customs.namespace}.svc.cluster.local"
    owner = pod.metadata.owner_references[0]
    assert (owner.kind, owner.name, owner.controller) == ("Sandbox", "s", True)
    customs.delete("sandboxes", "s")
    until(lambda: pod_is_gone(customs, "s"))


def test_suspension_and_resumption(customs: Customs) -> None:
    customs.create("sandboxes", "s", {"podTemplate": template()})
    customs.until("sandboxes", "s", "True", "DependenciesReady")
    before = pod_of(customs, "s").metadata.uid
    customs.patch("sandboxes", "s", {"spec": {"operatingMode": "Suspended"}})
    customs.until("sandboxes", "s", "True", "PodTerminated", kind="Suspended")
    assert customs.condition("sandboxes", "s")[:2] == ("False", "SandboxSuspended")
    assert pod_is_gone(customs, "s")
    customs.patch("sandboxes", "s", {"spec": {"operatingMode": "Running"}})
    customs.until("sandboxes", "s", "True", "DependenciesReady")
    assert pod_of(customs, "s").metadata.uid != before


def test_an_older_client_has_replicas(customs: Customs) -> None:
    customs.create("sandboxes", "s", {"podTemplate": template(), "replicas": 0}, version="v1alpha1")
    customs.until("sandboxes", "s", "True", "PodTerminated", kind="Suspended")
    assert customs.get("sandboxes", "s")["spec"]["operatingMode"] == "Suspended"


def test_metadata_reach_the_pod_and_leave_it(customs: Customs) -> None:
    customs.create("sandboxes", "s", {"podTemplate": template()})
    customs.until("sandboxes", "s", "True", "DependenciesReady")
    change = {"note": None, "other": "second"}
    customs.patch("sandboxes", "s", {"spec": {"podTemplate": {"metadata": {"annotations": change}}}})
    until(lambda: "other" in pod_of(customs, "s").metadata.annotations)
    assert "note" not in pod_of(customs, "s").metadata.annotations
    assert pod_of(customs, "s").metadata.labels["app"] == "test"


@pytest.mark.parametrize(("program", "reason"), [("true", "PodSucceeded"), ("false", "PodFailed")])
def test_the_end_of_a_pod(customs: Customs, program: str, reason: str) -> None:
    customs.create("sandboxes", "s", {"podTemplate": template(program, restartPolicy="Never")})
    customs.until("sandboxes", "s", "True", reason, kind="Finished")
    assert customs.condition("sandboxes", "s")[:2] == ("False", reason)


def test_shutdown(customs: Customs) -> None:
    customs.create("sandboxes", "kept", {"podTemplate": template(), "shutdownTime": in_seconds(1)})
    gone = {"podTemplate": template(), "shutdownTime": in_seconds(1), "shutdownPolicy": "Delete"}
    customs.create("sandboxes", "gone", gone)
    customs.until("sandboxes", "kept", "False", "SandboxExpired")
    customs.until_gone("sandboxes", "gone")
    until(lambda: pod_is_gone(customs, "kept") and pod_is_gone(customs, "gone"))


def test_what_keeps_a_sandbox_from_being_ready(cluster: Cluster, customs: Customs) -> None:
    customs.create("sandboxes", "invalid", {"podTemplate": template(restartPolicy="Sometimes")})
    assert (
        "restartPolicy"
        in customs.until("sandboxes", "invalid", "False", "ReconcilerError")["status"]["conditions"][0]["message"]
    )
    cluster.script(unschedulable="0/1 nodes are available")
    try:
        customs.create("sandboxes", "s", {"podTemplate": template()})
        customs.until("sandboxes", "s", "False", "Unschedulable", kind="PodScheduled")
        assert customs.condition("sandboxes", "s")[:2] == ("False", "DependenciesNotReady")
    finally:
        cluster.script(unschedulable="")
    customs.until("sandboxes", "s", "True", "DependenciesReady")
    cluster.script(hold_sandboxes={"reason": "ReconcilerError", "message": "scripted"})
    try:
        assert customs.condition("sandboxes", "s")[1:] in (
            ("ReconcilerError", "scripted"),
            ("DependenciesReady", "Pod is Ready"),
        )
        customs.until("sandboxes", "s", "False", "ReconcilerError")
    finally:
        cluster.script(hold_sandboxes=None)
    customs.until("sandboxes", "s", "True", "DependenciesReady")


# Claims


@pytest.fixture
def pool(customs: Customs) -> Customs:
    """A template, a pool of two, and a pool of one whose template lets claims add variables."""
    customs.create("sandboxtemplates", "t", {"podTemplate": template()})
    customs.create("sandboxwarmpools", "warm", {"replicas": 2, "sandboxTemplateRef": {"name": "t"}})
    customs.create("sandboxtemplates", "open", {"podTemplate": template(), "envVarsInjectionPolicy": "Allowed"})
    customs.create("sandboxwarmpools", "open", {"replicas": 1, "sandboxTemplateRef": {"name": "open"}})
    until_warm(customs, "warm", 2)
    until_warm(customs, "open", 1)
    return customs


def until_warm(customs: Customs, name: str, count: int) -> None:
    until(lambda: customs.get("sandboxwarmpools", name).get("status", {}).get("readyReplicas") == count)


def of_pool(customs: Customs) -> set[str]:
    """The Sandboxes that were made for the pool of two."""
    return {name for name in customs.names("sandboxes") if name.startswith("warm-")}


def claim(customs: Customs, name: str, pool: str = "warm", **spec: Any) -> None:
    customs.create("sandboxclaims", name, {"warmPoolRef": {"name": pool}, **spec})


def sandbox_of(customs: Customs, name: str) -> Object:
    """The Sandbox of a claim, which is ready."""
    found = customs.until("sandboxclaims", name, "True", "DependenciesReady")["status"]["sandbox"]["name"]
    return customs.get("sandboxes", found)


def test_a_claim_takes_a_warm_sandbox(pool: Customs) -> None:
    before = pool.names("sandboxes")
    claim(pool, "c", additionalPodMetadata={"labels": {MINE: "yes"}, "annotations": {"note": "first"}})
    sandbox = sandbox_of(pool, "c")
    name = sandbox["metadata"]["name"]
    assert name in before
    assert sandbox["metadata"]["labels"]["agents.x-k8s.io/launch-type"] == "warm"
    assert [owner["kind"] for owner in sandbox["metadata"]["ownerReferences"]] == ["SandboxClaim"]
    assert until(lambda: pod_of(pool, name).metadata.labels.get(MINE)) == "yes"
    until(lambda: len(of_pool(pool)) == 3)  # the pool is filled up again
    until_warm(pool, "warm", 2)
    pool.delete("sandboxclaims", "c")
    until(lambda: pod_is_gone(pool, name))


def test_changed_metadata_of_a_claim_reach_its_sandbox(pool: Customs) -> None:
    """As a client does that restores a suspended sandbox from a pod snapshot of its choice."""
    claim(pool, "c", additionalPodMetadata={"annotations": {"chosen": "one"}})
    name = sandbox_of(pool, "c")["metadata"]["name"]

    def annotations() -> Object:
        found: Object = pool.get("sandboxes", name)["spec"]["podTemplate"]["metadata"]["annotations"]
        return found

    assert annotations() == {"note": "first", "chosen": "one"}
    for chosen, expected in (("two", {"chosen": "two"}), (None, {})):
        pool.patch("sandboxclaims", "c", {"spec": {"additionalPodMetadata": {"annotations": {"chosen": chosen}}}})
        until(lambda expected=expected: annotations() == {"note": "first", **expected}, seen=annotations)
    assert "chosen" not in pod_of(pool, name).metadata.annotations
    pool.patch("sandboxclaims", "c", {"spec": {"additionalPodMetadata": {"annotations": {"note": "mine"}}}})
    pool.until("sandboxclaims", "c", "False", "InvalidMetadata")
    assert annotations() == {"note": "first"}


def test_a_claim_starts_cold_for_its_variables(pool: Customs) -> None:
    claim(pool, "c", pool="open", env=[{"name": "NEW", "value": "claim"}])
    sandbox = sandbox_of(pool, "c")
    assert sandbox["metadata"]["labels"]["agents.x-k8s.io/launch-type"] == "cold"
    variables = {found.name: found.value for found in pod_of(pool, "c").spec.containers[0].env}
    assert variables == {"KNOWN": "template", "NEW": "claim"}


def test_an_older_client_names_a_template(pool: Customs) -> None:
    pool.create("sandboxclaims", "c", {"sandboxTemplateRef": {"name": "t"}, "warmpool": "none"}, version="v1alpha1")
    assert sandbox_of(pool, "c")["metadata"]["name"] == "c"


@pytest.mark.parametrize(
    ("reason", "spec", "message"),
    [
        ("InvalidMetadata", {"additionalPodMetadata": {"annotations": {"note": "mine"}}}, '"note" conflicts'),
        ("InvalidMetadata", {"additionalPodMetadata": {"labels": {"mine": "yes"}}}, "domain prefix"),
        ("InvalidMetadata", {"additionalPodMetadata": {"labels": {"example.com/mine": "yes"}}}, "allowlist"),
        ("InvalidMetadata", {"additionalPodMetadata": {"annotations": {"x.k8s.io/mine": "yes"}}}, "restricted"),
        ("EnvVarsInjectionRejected", {"env": [{"name": "NEW", "value": "1"}]}, "not allowed"),
        ("EnvVarsInjectionRejected", {"pool": "open", "env": [{"name": "KNOWN", "value": "1"}]}, "already set"),
        (
            "EnvVarsInjectionRejected",
            {"pool": "open", "env": [{"name": "NEW", "value": "1", "containerName": "none"}]},
            "not found",
        ),
        ("VolumeClaimTemplatesError", {"volumeClaimTemplates": [{"metadata": {"name": "v"}}]}, "Disallowed"),
        ("ClaimExpired", {"lifecycle": {"shutdownTime": "2020-01-01T00:00:00Z"}}, "expired"),
        ("WarmPoolNotFound", {"pool": "none"}, "none"),
        ("TemplateNotFound", {"pool": "shadow-pool-none"}, "none"),
    ],
)
def test_why_a_claim_is_not_met(pool: Customs, reason: str, spec: Object, message: str) -> None:
    before = pool.names("sandboxes")
    claim(pool, "c", **spec)
    found = pool.condition("sandboxclaims", "c")
    assert found[:2] == ("False", reason)
    assert message in found[2]
    assert pool.names("sandboxes") == before


def test_the_end_of_a_claimed_sandbox(pool: Customs) -> None:
    claim(pool, "c")
    name = sandbox_of(pool, "c")["metadata"]["name"]
    pool.patch("sandboxes", name, {"spec": {"shutdownTime": in_seconds(-1)}})
    pool.until("sandboxclaims", "c", "False", "SandboxExpired")


def test_the_time_of_a_claim(pool: Customs) -> None:
    claim(pool, "gone", lifecycle={"shutdownTime": in_seconds(1), "shutdownPolicy": "Delete"})
    claim(pool, "kept", lifecycle={"shutdownTime": in_seconds(1)})
    pool.until("sandboxclaims", "kept", "False", "ClaimExpired")
    pool.until_gone("sandboxclaims", "gone")
    until_warm(pool, "warm", 2)
    until(lambda: len(of_pool(pool)) == 2)


def test_claims_can_be_held(cluster: Cluster, pool: Customs) -> None:
    cluster.script(hold_claims={"reason": "SandboxExpired", "message": "scripted"})
    try:
        claim(pool, "c")
        assert pool.condition("sandboxclaims", "c") == ("False", "SandboxExpired", "scripted")
    finally:
        cluster.script(hold_claims=None)
    sandbox_of(pool, "c")


def test_a_pool_follows_its_number_and_template(pool: Customs) -> None:
    pool.patch("sandboxwarmpools", "warm", {"spec": {"replicas": 1}})
    until(lambda: len(of_pool(pool)) == 1)
    before = of_pool(pool)
    pool.patch("sandboxwarmpools", "warm", {"spec": {"updateStrategy": {"type": "Recreate"}}})
    pool.patch("sandboxtemplates", "t", {"spec": {"podTemplate": {"metadata": {"annotations": {"note": "second"}}}}})
    until(lambda: len(of_pool(pool)) == 1 and not of_pool(pool) & before)
