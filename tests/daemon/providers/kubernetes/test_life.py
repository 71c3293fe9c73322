"""Sandboxes of a real daemon in a cluster, from making to end, by the socket."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kubernetes.watch import Watch
from tests.conftest import RunningDaemon
from tests.support.counting import counting
from tests.support.expect import refused, until
from tests.support.kubernetes.clients import Clients
from tests.support.kubernetes.images import BUSYBOX, TOOLS
from tests.support.snapshots import sh

from sandkeep.kubernetes.names import label_value
from sandkeep.kubernetes.pod_snapshots import OWNER_LABEL

pytestmark = pytest.mark.needs("root")


class House:
    """A daemon with a namespace of a cluster, and what tests do with it."""

    def __init__(self, daemon: RunningDaemon, cluster: Any) -> None:
        self.daemon = daemon
        self.cluster = cluster
        self.client = daemon.connect()
        self.api = Clients(cluster)
        self.templates: list[tuple[str, str]] = []

    def image(self, reference: str = BUSYBOX) -> str:
        return str(self.client.image.create(reference, provider="kubernetes").image_id)

    def box(self, reference: str = BUSYBOX, **options: Any) -> str:
        return str(self.client.sandbox.create(self.image(reference), **options).sandbox_id)

    def sh(self, box: str, script: str) -> str:
        return sh(self.client, box, script)

    def pods(self, **labels: str) -> list[Any]:
        """The pods with these labels, as the official client has them."""
        selector = ",".join(f"sandbox.users.io/sandkeep-{name}={value}" for name, value in labels.items())
        found: list[Any] = self.api.core.list_namespaced_pod("default", label_selector=selector).items
        return found

    def made_after(self, pod: Any, sandbox: str) -> list[str]:
        """The uids of pods with the label of a sandbox that were made since the cluster showed one of them."""
        events = Watch().stream(
            self.api.core.list_namespaced_pod, "default",
            label_selector=f"sandbox.users.io/sandkeep-sandbox={sandbox}",
            resource_version=pod.metadata.resource_version, timeout_seconds=1,
        )  # fmt: skip
        return [event["object"].metadata.uid for event in events if event["type"] == "ADDED"]


@pytest.fixture
def house(new_daemon: Callable[[], RunningDaemon], kubernetes: Any) -> Iterator[House]:
    daemon = new_daemon()
    daemon.env["KUBECONFIG"] = str(kubernetes.kubeconfig)
    daemon.start()
    made = House(daemon, kubernetes)
    yield made
    made.client.close()
    for plural, name in made.templates:
        made.api.custom.delete_namespaced_custom_object(EXTENSIONS, "v1beta1", "default", plural, name)
    daemon.kill()
    daemon.start()
    with daemon.connect() as client:
        for sandbox in client.sandbox.list().sandboxes:
            client.sandbox.terminate(sandbox.sandbox_id)
    daemon.stop()


def test_a_sandbox_is_a_pod_with_our_labels_limits_and_no_rights(house: House) -> None:
    limits: dict[str, Any] = {"cpus": 0.5, "memory_bytes": 64 << 20}
    box = house.box(labels={"team": "blue"}, env={"WORD": "one"}, secrets={"TOKEN": "hush-8c1f"}, **limits)
    assert house.sh(box, "echo $WORD $TOKEN; id -u; pwd") == "one hush-8c1f\n1000\n/workspaces\n"
    [pod] = house.pods(sandbox=box)
    owner = house.client.sandbox.get(box).owner
    assert pod.metadata.labels[OWNER_LABEL] == label_value(owner)
    assert (pod.metadata.labels["team"], pod.metadata.annotations["sandkeep.owner"]) == ("blue", owner)
    container, spec = pod.spec.containers[0], pod.spec
    assert container.resources.limits == {"cpu": "500m", "memory": str(64 << 20)}
    assert (spec.automount_service_account_token, spec.security_context.run_as_non_root) == (False, True)
    context = container.security_context
    assert (context.read_only_root_filesystem, context.allow_privilege_escalation) == (True, False)
    assert context.capabilities.drop == ["ALL"]
    assert "hush-8c1f" not in str(pod)
    assert house.client.sandbox.exec(box, ["sh", "-c", "echo x >/file"]).exit_code != 0
    house.client.sandbox.terminate(box)
    assert house.pods(sandbox=box) == []


def test_a_disk_limit_is_refused_as_a_cluster_only_measures(house: House) -> None:
    assert "only measures" in refused("not_supported", house.box, disk_bytes=1 << 30).message


def test_a_process_that_the_kernel_ends_for_its_memory_is_told_so(house: House) -> None:
    """Its pod goes on. The kernel's count is that of the pod's own control group."""
    box = house.box(memory_bytes=48 << 20)
    eats = "x=$(head -c 200000000 /dev/zero | tr '\\0' x)"
    ended = house.client.sandbox.exec(box, eats)
    assert (ended.exit_code, ended.oom_killed) == (137, True)
    ended = house.client.sandbox.exec(box, "kill -9 $$")
    assert (ended.exit_code, ended.oom_killed) == (137, False)
    house.daemon.kill()
    house.daemon.start()
    assert house.client.sandbox.exec(box, "kill -9 $$").oom_killed is False  # earlier ones are no news
    assert house.client.sandbox.exec(box, eats).oom_killed is True
    assert house.client.sandbox.get(box).status == "running"


def test_work_goes_on_while_the_daemon_is_dead(house: House) -> None:
    box = house.box()
    process = house.client.process.launch(box, ["sh", "-c", counting("n", pause_s=0.02)], name="counter")
    until(lambda: bytes(house.client.process.read(box, "counter").stdout).count(b"\n") > 3)
    house.daemon.kill()
    house.daemon.start()
    with house.daemon.connect() as client:
        until(lambda: client.sandbox.get(box).note is None)
        before = bytes(client.process.read(box, "counter").stdout).count(b"\n")
        until(lambda: bytes(client.process.read(box, "counter").stdout).count(b"\n") > before + 3)
        values = bytes(client.process.read(box, process.process_id).stdout).split()
        assert [int(value) for value in values] == list(range(1, len(values) + 1))


def test_a_pod_that_is_deleted_outside_is_lost(house: House) -> None:
    box = house.box()
    [pod] = house.pods(sandbox=box)
    house.api.custom.delete_namespaced_custom_object(
        "agents.x-k8s.io", "v1beta1", "default", "sandboxes", pod.metadata.name
    )
    until(lambda: house.client.sandbox.get(box).status == "lost")
    assert "outside Sandkeep" in house.client.sandbox.get(box).error


def test_what_cannot_run_fails_at_once_with_the_clusters_reason(house: House) -> None:
    image = house.image("nothing:1")
    message = refused("provider_unavailable", house.client.sandbox.create, image).message
    assert "ImagePullBackOff" in message
    assert house.pods(image="nothing") == []
    refused("not_supported", house.client.sandbox.create, house.image(), network="host")
    refused("not_supported", house.client.sandbox.create, house.image(), pids=10)
    refused("not_found", house.client.image.create, "sandboxtemplate/none", provider="kubernetes")


def test_files_go_in_and_out_and_into_forks_and_snapshots(house: House) -> None:
    box = house.box(TOOLS)
    house.sh(box, "mkdir -p a/b; echo one >a/b/one; ln -s one a/b/two; head -c 3000000 /dev/urandom >big")
    digest = house.sh(box, "sha256sum <big")
    snapshot = house.client.snapshot.create(box).snapshot_id
    house.sh(box, "echo changed >a/b/one")
    [fork] = house.client.sandbox.fork(box).sandboxes
    assert house.sh(fork.sandbox_id, "cat a/b/two; sha256sum <big") == f"changed\n{digest}"
    restored = house.client.snapshot.restore(snapshot)
    assert house.sh(restored.sandbox_id, "cat a/b/one; sha256sum <big; id -u") == f"one\n{digest}1000\n"
    diff = house.client.sandbox.diff(box, snapshot)
    assert [file.path for file in diff.files] == ["a/b/one"]


def test_a_session_in_the_mode_k8s(house: House) -> None:
    ensured = house.client.session.ensure(id="pinned", image=TOOLS, mode="k8s")
    assert ensured.created
    assert ensured.session.ref == "k8s://default/sandbox-pinned"
    assert ensured.session.spec.mode == "k8s"
    house.sh("pinned", "echo kept >file")
    [pod] = house.pods(session="pinned")
    assert pod.metadata.name == "sandbox-pinned"
    again = house.client.session.ensure(id="pinned", image=TOOLS, mode="k8s")
    assert (again.created, again.session.sandbox_id) == (False, ensured.session.sandbox_id)
    house.client.session.close("pinned")
    assert house.pods(session="pinned") == []
    assert house.sh("pinned", "cat file") == "kept\n"
    assert house.client.session.get("pinned").ref == "k8s://default/sandbox-pinned"


def test_terminals_are_attached_by_exec(house: House) -> None:
    box = house.box(TOOLS)
    house.client.process.launch(box, ["sh", "-c", "read -r line; echo got $line; exit 4"], name="shell", tty=True)
    house.client.process.write_stdin(box, "shell", b"word\n")
    assert house.client.process.wait(box, "shell").exit_code == 4
    assert b"got word" in bytes(house.client.process.read(box, "shell").stdout)


def test_the_daemon_watches_and_does_not_poll(house: House) -> None:
    box = house.box()
    house.sh(box, "true")

    def count(verb: str) -> int:
        return sum(each["count"] for each in house.cluster.requests()["requests"] if each["verb"] == verb)

    before = {verb: count(verb) for verb in ("get", "list", "watch")}
    for _ in range(20):
        house.sh(box, "true")
    assert {verb: count(verb) for verb in before} == before


EXTENSIONS = "extensions.agents.x-k8s.io"


def make_template(house: House, name: str, *, replicas: int) -> None:
    container = {
        "name": "main", "image": BUSYBOX, "command": ["sh", "-c", "while :; do sleep 1; done"],
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }  # fmt: skip
    spec = {"containers": [container], "volumes": [{"name": "tmp", "emptyDir": {}}]}
    spec |= {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    api = {"apiVersion": f"{EXTENSIONS}/v1beta1"}
    template = {**api, "kind": "SandboxTemplate", "metadata": {"name": name}, "spec": {"podTemplate": {"spec": spec}}}
    pool = {
        **api, "kind": "SandboxWarmPool", "metadata": {"name": f"{name}-pool"},
        "spec": {"replicas": replicas, "sandboxTemplateRef": {"name": name}},
    }  # fmt: skip
    for plural, body in (("sandboxtemplates", template), ("sandboxwarmpools", pool)):
        made = house.api.custom.create_namespaced_custom_object(EXTENSIONS, "v1beta1", "default", plural, body)
        house.templates.append((plural, made["metadata"]["name"]))


@pytest.mark.parametrize("replicas", [0, 1])
def test_a_claim_on_a_template_whose_container_runs_already(house: House, replicas: int) -> None:
    """The keeper is no pid 1 there: it is copied in, and orphans of its processes are reaped all the same."""
    name = f"busy{replicas}"
    make_template(house, name, replicas=replicas)
    source = f"sandboxwarmpool/{name}-pool" if replicas else f"sandboxtemplate/{name}"
    box = house.box(source, secrets={"TOKEN": "hush-8c1f"})
    assert house.sh(box, "echo $TOKEN; tr '\\0' ' ' </proc/1/cmdline") == "hush-8c1f\nsh -c while :; do sleep 1; done "
    house.sh(box, "(sleep 0.2; echo orphan >/tmp/orphan) >/dev/null 2>&1 &")
    until(lambda: house.sh(box, "cat /tmp/orphan 2>/dev/null || true") == "orphan\n")
    [pod] = house.pods(sandbox=box)
    assert pod.metadata.labels["sandbox.users.io/sandkeep-log"]
    house.daemon.kill()
    house.daemon.start()
    with house.daemon.connect() as client:
        assert bytes(client.sandbox.exec(box, ["echo", "again"]).stdout) == b"again\n"
        refused("not_supported", client.sandbox.create, house.image(source), cpus=1)
        client.sandbox.terminate(box)
    assert house.pods(sandbox=box) == []
    assert house.made_after(pod, box) == []  # as a controller makes one in place of a pod that alone is deleted
