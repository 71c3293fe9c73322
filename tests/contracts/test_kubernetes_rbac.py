"""The role of the daemon in `examples/kubernetes/rbac.yaml` grants what the daemon uses, and nothing else."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import CoreV1Api
from tests.conftest import RunningDaemon
from tests.contracts.test_kubernetes_examples import EXAMPLES, NAMESPACE, connect, create, documents, granted, used
from tests.daemon.providers.kubernetes.test_pod_snapshots import POLICY, STORAGE
from tests.support.expect import refused, until
from tests.support.kubernetes.cluster import Cluster, start_cluster
from tests.support.kubernetes.images import BUSYBOX, TOOLS, unpack

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("runsc")]

DAEMON = "system:serviceaccount:sandbox-test:sandkeepd"
TEMPLATE = {
    "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxTemplate", "metadata": {"name": "busy"},
    "spec": {"podTemplate": {"spec": {
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": BUSYBOX, "command": ["sh", "-c", "while :; do sleep 1; done"]}],
    }}},
}  # fmt: skip
POOL = {
    "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool", "metadata": {"name": "busy"},
    "spec": {"replicas": 0, "sandboxTemplateRef": {"name": "busy"}},
}  # fmt: skip
CLAIM = {
    "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "metadata": {"name": "sandbox-taken"},
    "spec": {"warmPoolRef": {"name": "busy"}},
}  # fmt: skip


def everything(client: Any) -> None:
    """Do all that a daemon does in a cluster."""
    template = client.image.create("sandboxtemplate/busy", provider="kubernetes").image_id
    client.image.create("sandboxwarmpool/busy", provider="kubernetes")
    claimed = client.sandbox.create(template).sandbox_id
    refused("conflict", client.session.ensure, id="taken", image=template)
    assert client.sandbox.exec(claimed, ["true"]).exit_code == 0
    box = client.sandbox.create(client.image.create(TOOLS, provider="kubernetes").image_id).sandbox_id
    client.sandbox.write_file(box, path="file", data=b"data")
    client.sandbox.fork(box)
    checkpoint = client.checkpoint.create(box, leave_running=True).checkpoint_id
    client.checkpoint.restore(checkpoint)
    client.checkpoint.delete(checkpoint)
    client.sandbox.suspend(box)
    client.sandbox.resume(box)
    assert client.daemon.capabilities()


def test_the_role_of_the_daemon(places: str, new_daemon: Callable[[], RunningDaemon], tmp_path: Path) -> None:
    directory = Path(tempfile.mkdtemp(dir=places))
    directory.chmod(0o755)
    with start_cluster(directory / "cluster", unpack(directory / "images")) as cluster:
        prepare(cluster)
        cluster.script(snapshot_delay_s=3, pod_delay_s=2)  # else nothing may have to be waited for
        token = cluster.issue_token(DAEMON)
        daemon = new_daemon()
        daemon.env["KUBECONFIG"] = str(cluster.write_kubeconfig(tmp_path / "kubeconfig", token, NAMESPACE))
        daemon.env["SANDKEEP_KUBERNETES_RUNTIME_CLASS"] = "gvisor"
        daemon.start()
        with daemon.connect() as client:
            everything(client)
        daemon.kill()
        end_all(daemon)
        found = used(cluster, token)
    with start_cluster(directory / "plain", unpack(directory / "again"), crds={}) as cluster:
        found |= used_for_plain_pods(cluster, new_daemon(), tmp_path / "plain")
    assert (found - granted("rbac.yaml"), granted("rbac.yaml") - found) == (set(), set())


def end_all(daemon: RunningDaemon) -> None:
    daemon.start()
    with daemon.connect() as client:
        for sandbox in client.sandbox.list().sandboxes:
            until(lambda sandbox_id=sandbox.sandbox_id: client.sandbox.get(sandbox_id).note is None)
            client.sandbox.terminate(sandbox.sandbox_id)
    daemon.stop()


def used_for_plain_pods(cluster: Cluster, daemon: RunningDaemon, kubeconfig: Path) -> set[tuple[str, str, str]]:
    """Return what a daemon uses in a cluster that has none of the resources for sandboxes."""
    token = cluster.issue_token(DAEMON)
    with connect(cluster, cluster.token) as api:
        core = CoreV1Api(api)
        core.create_namespace({"metadata": {"name": NAMESPACE}})
        for document in documents(EXAMPLES / "rbac.yaml"):
            create(api, document)
        container = {"name": "c", "image": BUSYBOX, "command": ["sleep", "100"]}
        core.create_namespaced_pod(
            NAMESPACE, {"metadata": {"name": "sandbox-taken"}, "spec": {"containers": [container]}}
        )
    daemon.env["KUBECONFIG"] = str(cluster.write_kubeconfig(kubeconfig, token, NAMESPACE))
    daemon.start()
    with daemon.connect() as client:
        image = client.image.create(BUSYBOX, provider="kubernetes").image_id
        assert client.sandbox.exec(client.sandbox.create(image).sandbox_id, ["true"]).exit_code == 0
        refused("conflict", client.session.ensure, id="taken", image=image)
    daemon.stop()
    end_all(daemon)
    return used(cluster, token)


def prepare(cluster: Cluster) -> None:
    """Make the role, a policy, a template with its pool, and a claim whose name a session would like to have."""
    with connect(cluster, cluster.token) as api:
        CoreV1Api(api).create_namespace({"metadata": {"name": NAMESPACE}})
        here = {"namespace": NAMESPACE}
        for document in documents(EXAMPLES / "rbac.yaml"):
            create(api, document)
        create(api, STORAGE)
        for document in (POLICY, TEMPLATE, POOL, CLAIM):
            create(api, {**document, "metadata": {**document["metadata"], **here}})
