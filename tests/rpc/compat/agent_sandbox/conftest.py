"""A cluster for these tests, with a namespace for each of them, and the official client as its administrator."""

import io
import itertools
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from tests.support import rootfs
from tests.support.kubernetes.cluster import Cluster as Double
from tests.support.kubernetes.cluster import start_cluster
from tests.support.patience import patient

from sandkeep.compat.agent_sandbox.cluster import PODS, Cluster
from sandkeep.kubernetes.objects import Object, is_ready

BUSYBOX = "busybox:1.36"
PYTHON = "python:3.12-slim"
DEADLINE_S = patient(60.0)
_NAMES = (f"test-{number}" for number in itertools.count())


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | Path]:
    made: dict[str, str | Path] = {}
    for name, archive in ((BUSYBOX, rootfs.busybox), (PYTHON, rootfs.python)):
        made[name] = tmp_path_factory.mktemp("image")
        with tarfile.open(fileobj=io.BytesIO(archive())) as tar:
            tar.extractall(made[name], filter="fully_trusted")
    return made


@pytest.fixture(scope="session")
def double(places: str, images: dict[str, str | Path]) -> Iterator[Double]:
    # Of a short name: there are sockets in it.
    with start_cluster(Path(tempfile.mkdtemp(dir=places)), images) as cluster:
        yield cluster


@pytest.fixture
def api(double: Double) -> Iterator[client.ApiClient]:
    made = client.ApiClient(client.Configuration(host=double.url, api_key={"authorization": f"Bearer {double.token}"}))
    yield made
    made.rest_client.pool_manager.clear()
    made.close()  # type: ignore[no-untyped-call]
    double.control("DELETE", "faults")


@pytest.fixture
def namespace(api: client.ApiClient) -> Iterator[str]:
    name = next(_NAMES)
    client.CoreV1Api(api).create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=name)))
    yield name
    client.CoreV1Api(api).delete_namespace(name)


@pytest.fixture
def cluster(api: client.ApiClient, namespace: str) -> Cluster:
    """Of the code under test, in the test's namespace."""
    return Cluster(namespace, api)


def pod_spec(image: str = BUSYBOX, *command: str) -> dict[str, Any]:
    container = {"name": "main", "image": image, "command": list(command or ("sleep", "1000000"))}
    return {"containers": [container], "terminationGracePeriodSeconds": 0, "restartPolicy": "Never"}


@pytest.fixture
def start_pod(api: client.ApiClient, cluster: Cluster) -> Callable[..., Object]:
    def start(name: str, spec: dict[str, Any] | None = None) -> Object:
        body: Any = {"metadata": {"name": name}, "spec": spec or pod_spec()}
        client.CoreV1Api(api).create_namespaced_pod(cluster.namespace, body)
        for pod in cluster.states(PODS, name, time.monotonic() + DEADLINE_S, f"pod {name}"):
            if pod is not None and is_ready(pod):
                return pod
        raise AssertionError

    return start


class Resources:
    """What an administrator makes in the namespace of a test."""

    def __init__(self, api: client.ApiClient, namespace: str) -> None:
        self._custom = client.CustomObjectsApi(api)
        self.namespace = namespace

    def create(self, body: dict[str, Any]) -> None:
        group, _, version = body["apiVersion"].partition("/")
        plural = PLURALS.get(body["kind"], f"{body['kind'].lower()}s")
        if body["kind"] == "PodSnapshotStorageConfig":
            self._custom.create_cluster_custom_object(group, version, plural, body)
        else:
            self._custom.create_namespaced_custom_object(group, version, self.namespace, plural, body)

    def template(
        self, name: str, *, pool: int | None = 0, version: str = "v1beta1", is_workload: bool = True, **spec: Any
    ) -> None:
        """Make a SandboxTemplate, and a pool of so many sandboxes. The pods of a workload have a label of it."""
        pod = {"metadata": {"labels": {"app": "workload"} if is_workload else {}}, "spec": {**pod_spec(), **spec}}
        self.create(_extension(version, "SandboxTemplate", name, podTemplate=pod))
        if pool is not None:
            self.pool(name, pool, version)

    def pool(self, template: str, replicas: int = 0, version: str = "v1beta1") -> None:
        spec = {"replicas": replicas, "sandboxTemplateRef": {"name": template}}
        self.create(_extension(version, "SandboxWarmPool", f"{template}-pool", **spec))

    def claims(self) -> list[Any]:
        return self.objects("extensions.agents.x-k8s.io", "sandboxclaims")

    def objects(self, group: str, plural: str, version: str = "v1beta1") -> list[Any]:
        answer: Any = self._custom.list_namespaced_custom_object(group, version, self.namespace, plural)
        return list(answer["items"])


PLURALS = {"PodSnapshotPolicy": "podsnapshotpolicies"}


def _extension(version: str, kind: str, name: str, **spec: Any) -> dict[str, Any]:
    api_version = f"extensions.agents.x-k8s.io/{version}"
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def resources(api: client.ApiClient, namespace: str) -> Resources:
    return Resources(api, namespace)
