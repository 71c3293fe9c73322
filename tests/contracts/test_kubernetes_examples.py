"""The manifests and the program of `examples/kubernetes`, in a cluster with real gVisor sandboxes."""

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from kubernetes import client
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import DynamicApiError
from tests.support import rootfs
from tests.support.documents import ROOT
from tests.support.expect import until
from tests.support.kubernetes.cluster import Cluster, start_cluster
from tests.support.patience import patient

from sandkeep.compat.agent_sandbox import PodSnapshotSandboxClient
from sandkeep.kubernetes.pod_snapshots import OWNER_LABEL

pytestmark = pytest.mark.needs("runsc")

EXAMPLES = ROOT / "examples/kubernetes"
NAMESPACE = "sandbox-test"
TEMPLATE = "python-counter-template"
POOL = "warm-pool.yaml"
CLIENT = "system:serviceaccount:sandbox-test:sandbox-client"


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as directory:
        with tarfile.open(fileobj=io.BytesIO(rootfs.python())) as archive:
            archive.extractall(directory, filter="fully_trusted")
        yield directory


@pytest.fixture
def cluster(places: str, image: str) -> Iterator[Cluster]:
    """One with all manifests."""
    with start_cluster(Path(tempfile.mkdtemp(dir=places)), {"python:3.12-slim": image}) as cluster:
        with connect(cluster, cluster.token) as api:
            name = client.V1ObjectMeta(name=NAMESPACE)
            client.CoreV1Api(api).create_namespace(client.V1Namespace(metadata=name))
            for path in sorted(EXAMPLES.glob("*.yaml")):
                for document in documents(path):
                    create(api, document)
        yield cluster


def connect(cluster: Cluster, token: str) -> client.ApiClient:
    return client.ApiClient(client.Configuration(host=cluster.url, api_key={"authorization": f"Bearer {token}"}))


def create(api: client.ApiClient, document: dict[str, Any]) -> None:
    dynamic = DynamicClient(api)  # type: ignore[no-untyped-call]
    resource = dynamic.resources.get(api_version=document["apiVersion"], kind=document["kind"])
    namespace = NAMESPACE if resource.namespaced else None
    assert document["metadata"].get("namespace") == namespace
    resource.create(body=document, namespace=namespace)


def test_manifests_are_checked_by_the_cluster(cluster: Cluster) -> None:
    """All were created; one that is not right would not have been."""
    with connect(cluster, cluster.token) as api:
        spoiling: list[tuple[str, Callable[[dict[str, Any]], object]]] = [
            ("sandbox-template.yaml", lambda spec: spec["podTemplate"]["spec"].pop("containers")),
            (POOL, lambda spec: spec.update(replicas=-1)),
            ("pod-snapshot-policy.yaml", lambda spec: spec["triggerConfig"].update(type="sometimes")),
            ("pod-snapshot-storage-config.yaml", lambda spec: spec.pop("snapshotStorageConfig")),
        ]
        for name, spoil in spoiling:
            [document] = documents(EXAMPLES / name)
            document["metadata"]["name"] = "spoiled"
            spoil(document["spec"])
            with pytest.raises(DynamicApiError) as refused:
                create(api, document)
            assert refused.value.status == 422


def test_manifests_fit_each_other() -> None:
    [template], [pool] = documents(EXAMPLES / "sandbox-template.yaml"), documents(EXAMPLES / POOL)
    [policy], [storage] = (documents(EXAMPLES / f"pod-snapshot-{name}.yaml") for name in ("policy", "storage-config"))
    assert template["metadata"]["name"] == pool["spec"]["sandboxTemplateRef"]["name"] == TEMPLATE
    pod = template["spec"]["podTemplate"]
    assert policy["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert policy["spec"]["storageConfigName"] == storage["metadata"]["name"]
    assert OWNER_LABEL in policy["spec"]["snapshotGroupingRules"]["groupByLabelValue"]["labels"]
    assert pod["spec"]["runtimeClassName"] == "gvisor"


def test_the_counter_goes_on_from_each_snapshot(cluster: Cluster, tmp_path: Path) -> None:
    """As the account of client-rbac.yaml, with the arguments that its text shows."""
    token = cluster.issue_token(CLIENT)
    kubeconfig = cluster.write_kubeconfig(tmp_path / "kubeconfig", token, NAMESPACE)
    arguments = ["--labels", "app=agent-sandbox-workload", "--template-name", TEMPLATE, "--namespace", NAMESPACE]
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "test_podsnapshot_extension.py"), *arguments],
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patient(300),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(" is ")[0] for line in lines[1:3]] == ["test-snapshot-10", "test-snapshot-20"]
    first, second = (line.split(" is ")[1] for line in lines[1:3])
    assert lines[4].startswith(f"restored from {second}, it goes on with 2")
    assert lines[6].startswith(f"restored from {first}, it goes on with 1")
    assert lines[7] == "2 snapshots are deleted"
    assert left_of(cluster) == []


def left_of(cluster: Cluster) -> list[str]:
    """Return the claims, triggers and snapshots that there are."""
    with connect(cluster, cluster.token) as api:
        custom = client.CustomObjectsApi(api)
        answers: list[Any] = [
            custom.list_namespaced_custom_object("extensions.agents.x-k8s.io", "v1beta1", NAMESPACE, "sandboxclaims"),
            custom.list_namespaced_custom_object("podsnapshot.gke.io", "v1", NAMESPACE, "podsnapshotmanualtriggers"),
            custom.list_namespaced_custom_object("podsnapshot.gke.io", "v1", NAMESPACE, "podsnapshots"),
        ]
    return [item["metadata"]["name"] for answer in answers for item in answer["items"]]


def test_the_role_of_clients_grants_what_is_used_and_nothing_else(cluster: Cluster) -> None:
    """In a run with commands, a lost history of each watch, and a warm pod in the way of a restore."""
    token = cluster.issue_token(CLIENT)
    with connect(cluster, cluster.token) as admin:
        path = {"spec": {"replicas": 1}}
        client.CustomObjectsApi(admin).patch_namespaced_custom_object(
            "extensions.agents.x-k8s.io", "v1beta1", NAMESPACE, "sandboxwarmpools", "python-counter-pool", path
        )
    with connect(cluster, token) as api:
        for resource in ("sandboxclaims", "podsnapshotmanualtriggers"):
            cluster.faults(method="GET", path=f"{resource}.*watch", status=410, times=1)
        with PodSnapshotSandboxClient(TEMPLATE, None, NAMESPACE, api_client=api) as sandbox:
            assert sandbox.run("echo it runs").stdout == "it runs\n"
            core, pod = client.CoreV1Api(api), sandbox.pod_name or ""
            until(
                lambda: core.read_namespaced_pod_log(pod, NAMESPACE).startswith("0\n")
            )  # its program is just starting
            cluster.script(snapshot_delay_s=3, snapshot_deletion_s=3)  # else none may have to be waited for
            saved = sandbox.checkpoint("save")
            assert saved.exit_code == 0, saved.stderr
        with PodSnapshotSandboxClient(TEMPLATE, None, NAMESPACE, api_client=api) as sandbox:
            assert sandbox.restored_from == saved.snapshot_id
        assert sandbox.delete_snapshots(snapshot_id=saved.snapshot_id) == 1
    assert used(cluster, token) == granted("client-rbac.yaml")


def used(cluster: Cluster, token: str) -> set[tuple[str, str, str]]:
    """Return the group, resource and verb of each request that was let through, but for what everybody may ask."""
    return {
        (row["group"], "/".join(filter(None, (row["resource"], row["subresource"]))), row["verb"])
        for row in cluster.used()
        if row["token"] == token and row["resource"]
    }


def granted(manifest: str) -> set[tuple[str, str, str]]:
    [role] = [document for document in documents(EXAMPLES / manifest) if document["kind"] == "Role"]
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
