"""Access control of the double, versions of custom resources, and faults."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
from kubernetes import client
from tests.support.kubernetes.clients import Clients, refusal
from tests.support.kubernetes.cluster import Cluster, start_cluster

AGENTS, EXTENSIONS = "/apis/agents.x-k8s.io", "/apis/extensions.agents.x-k8s.io"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with start_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@contextlib.contextmanager
def account(
    clients: Clients, cluster: Cluster, namespace: str, path: Path, rules: list[dict[str, Any]]
) -> Iterator[Clients]:
    """A client with the token of a service account that has a role of these rules."""
    clients.core.create_namespaced_service_account(namespace, {"metadata": {"name": "worker"}})
    clients.rbac.create_namespaced_role(namespace, {"metadata": {"name": "work"}, "rules": rules})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "work"}
    subjects = [{"kind": "ServiceAccount", "name": "worker", "namespace": namespace}]
    body = {"metadata": {"name": "work"}, "roleRef": reference, "subjects": subjects}
    clients.rbac.create_namespaced_role_binding(namespace, body)
    request: dict[str, Any] = {"spec": {"audiences": []}}
    token = clients.core.create_namespaced_service_account_token("worker", namespace, request).status.token
    with Clients(cluster, cluster.write_kubeconfig(path / "kubeconfig", token, namespace)) as worker:
        yield worker


def test_roles_are_enforced(clients: Clients, cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    rules = [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "get"]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["one"], "verbs": ["get"]},
        {"apiGroups": ["agents.x-k8s.io"], "resources": ["sandboxes"], "verbs": ["list"]},
    ]
    with account(clients, cluster, namespace, tmp_path, rules) as worker:
        worker.core.create_namespaced_config_map(namespace, {"metadata": {"name": "a"}})
        worker.core.read_namespaced_config_map("a", namespace)
        assert refusal(lambda: worker.core.delete_namespaced_config_map("a", namespace)) == (403, "Forbidden")
        assert refusal(lambda: worker.core.list_namespaced_config_map(namespace)) == (403, "Forbidden")
        assert refusal(lambda: worker.core.read_namespaced_config_map("a", "default")) == (403, "Forbidden")
        assert refusal(lambda: worker.core.read_namespaced_secret("one", namespace)) == (404, "NotFound")
        assert refusal(lambda: worker.core.read_namespaced_secret("two", namespace)) == (403, "Forbidden")
        assert worker.request("GET", f"{AGENTS}/v1beta1/namespaces/{namespace}/sandboxes")[0] == 200
    used = {
        (row["verb"], row["group"], row["resource"], row["subresource"])
        for row in cluster.used()
        if row["user"] == f"system:serviceaccount:{namespace}:worker"
    }
    granted = {("create", "", "configmaps", ""), ("get", "", "configmaps", ""), ("get", "", "secrets", "")}
    assert used == granted | {("list", "agents.x-k8s.io", "sandboxes", "")}


def test_reviews_answer_as_the_rules_do(clients: Clients, cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    rules = [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]}]
    attributes = {"resource": "pods", "subresource": "exec", "namespace": namespace, "group": ""}
    with account(clients, cluster, namespace, tmp_path, rules) as worker:
        for verb, allowed in (("create", True), ("get", False)):
            review: Any = {"spec": {"resourceAttributes": attributes | {"verb": verb}}}
            answer: Any = client.AuthorizationV1Api(worker.api).create_self_subject_access_review(review)
            assert answer.status.allowed is allowed


def test_tokens_are_needed(cluster: Cluster) -> None:
    with urllib3.PoolManager() as pool:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            assert pool.request("GET", f"{cluster.url}/api/v1/pods", headers=headers).status == 401
        assert pool.request("GET", f"{cluster.url}/version").status == 200


def sandbox(version: str, name: str, **spec: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "main", "image": "none"}]}}
    api_version = f"agents.x-k8s.io/{version}"
    spec = {"podTemplate": template} | spec
    return {"apiVersion": api_version, "kind": "Sandbox", "metadata": {"name": name}, "spec": spec}


def test_sandboxes_convert(clients: Clients, namespace: str) -> None:
    old, new = (f"{AGENTS}/{version}/namespaces/{namespace}/sandboxes" for version in ("v1alpha1", "v1beta1"))
    assert clients.request("POST", old, sandbox("v1alpha1", "a", replicas=0))[1]["spec"]["replicas"] == 0
    stored = clients.request("GET", f"{new}/a")[1]
    assert (stored["apiVersion"], stored["spec"]["operatingMode"]) == ("agents.x-k8s.io/v1beta1", "Suspended")
    assert "replicas" not in stored["spec"]
    merge = "application/merge-patch+json"
    changed = clients.request("PATCH", f"{old}/a", {"spec": {"replicas": 1}}, merge)[1]
    assert changed["spec"]["replicas"] == 1
    assert clients.request("GET", f"{new}/a")[1]["spec"]["operatingMode"] == "Running"
    assert clients.request("POST", old, sandbox("v1alpha1", "b", replicas=2))[0] == 422
    assert clients.request("POST", new, sandbox("v1beta1", "b", operatingMode="Paused"))[0] == 422
    assert clients.request("POST", old, sandbox("v1beta1", "b"))[0] == 400


@pytest.mark.parametrize(("pool", "name"), [(None, "shadow-pool-t"), ("none", "shadow-pool-t"), ("warm", "warm")])
def test_claims_convert(clients: Clients, namespace: str, pool: str | None, name: str) -> None:
    old, new = (f"{EXTENSIONS}/{version}/namespaces/{namespace}/sandboxclaims" for version in ("v1alpha1", "v1beta1"))
    spec = {"sandboxTemplateRef": {"name": "t"}} | ({"warmpool": pool} if pool else {})
    body = {"apiVersion": "extensions.agents.x-k8s.io/v1alpha1", "kind": "SandboxClaim", "spec": spec}
    assert clients.request("POST", old, body | {"metadata": {"name": "a"}})[0] == 201
    assert clients.request("GET", f"{new}/a")[1]["spec"]["warmPoolRef"] == {"name": name}
    back = clients.request("GET", f"{old}/a")[1]
    assert {key: back["spec"].get(key) for key in ("sandboxTemplateRef", "warmpool")} == {"warmpool": pool} | spec
    assert "annotations" not in back["metadata"] or not back["metadata"]["annotations"]


def test_served_versions(tmp_path: Path) -> None:
    with start_cluster(tmp_path, crds={"agents.x-k8s.io": ["v1alpha1"]}) as cluster, Clients(cluster) as clients:
        groups = {group["name"]: group["versions"] for group in clients.request("GET", "/apis")[1]["groups"]}
        assert [one["version"] for one in groups["agents.x-k8s.io"]] == ["v1alpha1"]
        assert "podsnapshot.gke.io" not in groups
        path = f"{AGENTS}/v1alpha1/namespaces/default/sandboxes"
        assert clients.request("POST", path, sandbox("v1alpha1", "a"))[1]["spec"]["replicas"] == 1
        listing = clients.custom.list_cluster_custom_object
        assert refusal(lambda: listing("agents.x-k8s.io", "v1beta1", "sandboxes")) == (404, "")


def test_requests_fail_as_asked(clients: Clients, cluster: Cluster, namespace: str) -> None:
    def create(name: str) -> Any:
        return clients.core.create_namespaced_config_map(namespace, {"metadata": {"name": name}})

    cluster.faults(method="POST", path="/configmaps", status=503, times=2)
    assert [refusal(lambda: create("a")) for _ in range(3)] == [(503, "ServiceUnavailable")] * 2 + [(200, "")]
    cluster.faults(method="POST", path="/configmaps", status=500, after=True)
    assert refusal(lambda: create("b")) == (500, "InternalError")
    assert refusal(lambda: create("b")) == (409, "AlreadyExists")
    cluster.faults(path="/configmaps", status=429, retry_after=1)
    answer = clients.request("GET", f"/api/v1/namespaces/{namespace}/configmaps")
    assert (answer[0], answer[1]["reason"]) == (429, "TooManyRequests")
    cluster.faults(path="/configmaps", delay=0.01)
    assert len(clients.core.list_namespaced_config_map(namespace).items) == 2


def test_connections_can_be_lost_or_hang(clients: Clients, cluster: Cluster, namespace: str) -> None:
    path = f"{cluster.url}/api/v1/namespaces/{namespace}/configmaps"
    with urllib3.PoolManager(retries=False, headers={"Authorization": f"Bearer {cluster.token}"}) as pool:
        cluster.faults(path=f"{namespace}/configmaps", drop=True)
        with pytest.raises(urllib3.exceptions.ProtocolError):
            pool.request("GET", path)
        cluster.faults(path=f"{namespace}/configmaps", hang=True, times=None)
        with pytest.raises(urllib3.exceptions.TimeoutError):
            pool.request("GET", path, timeout=0.3)
        cluster.control("DELETE", "faults")
        assert pool.request("GET", path).status == 200


def test_requests_are_counted(clients: Clients, cluster: Cluster, namespace: str) -> None:
    cluster.control("DELETE", "requests")
    clients.core.list_namespaced_config_map(namespace)
    clients.core.list_namespaced_config_map(namespace)
    clients.core.create_namespaced_config_map(namespace, {"metadata": {"name": "a"}})
    counts = {(row["method"], row["verb"], row["resource"]): row["count"] for row in cluster.requests()["requests"]}
    assert counts == {("GET", "list", "configmaps"): 2, ("POST", "create", "configmaps"): 1}
