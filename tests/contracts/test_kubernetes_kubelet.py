"""The node of the double runs pods as a real one does: users, volumes, exit codes, deletion; with both runtimes."""

import asyncio
import base64
import contextlib
import functools
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.expect import until
from tests.support.kubernetes import builtin, images
from tests.support.kubernetes.clients import Clients, refusal
from tests.support.kubernetes.cluster import Cluster, start_cluster
from tests.support.kubernetes.informer import follow
from tests.support.kubernetes.store import Store

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("busybox"), pytest.mark.needs("tmux")]

RUNTIMES = [pytest.param(None, id="namespaces"), pytest.param("gvisor", marks=pytest.mark.needs("runsc"))]
FOREVER = ["sleep", "1000000"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, roots: dict[str, str]) -> Iterator[Cluster]:
    with start_cluster(tmp_path_factory.mktemp("cluster"), roots, crds={}) as cluster:
        yield cluster


class Pods:
    """The pods of a namespace of its own."""

    def __init__(self, clients: Clients) -> None:
        self.clients = clients
        self.namespace = str(clients.core.create_namespace({"metadata": {"generateName": "pods-"}}).metadata.name)

    def create(self, name: str, *command: str, container: dict[str, Any] | None = None, **spec: Any) -> None:
        main = {"name": "main", "image": images.BUSYBOX, "command": list(command), **(container or {})}
        spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [main], **spec}
        self.clients.core.create_namespaced_pod(self.namespace, {"metadata": {"name": name}, "spec": spec})

    def get(self, name: str) -> Any:
        return self.clients.core.read_namespaced_pod(name, self.namespace)

    def until(self, name: str, phase: str) -> Any:
        until(lambda: self.get(name).status.phase == phase, seen=lambda: self.get(name).status)
        return self.get(name)

    def until_waiting(self, name: str, reason: str) -> str:
        """Wait until the container waits for that reason; return the message."""

        def found() -> str | None:
            states = [status.state.waiting for status in self.get(name).status.container_statuses or ()]
            return next((state.message or "-" for state in states if state and state.reason == reason), None)

        return str(until(found, seen=lambda: self.get(name).status))

    def delete(self, name: str) -> None:
        self.clients.core.delete_namespaced_pod(name, self.namespace)

    def until_gone(self, name: str) -> None:
        until(lambda: refusal(lambda: self.get(name)) == (404, "NotFound"))

    def exec(self, name: str, script: str) -> str:
        return self.clients.exec(name, "sh", "-c", script, namespace=self.namespace)

    def log(self, name: str, **options: Any) -> str:
        return str(self.clients.core.read_namespaced_pod_log(name, self.namespace, **options))


@pytest.fixture
def pods(clients: Clients) -> Pods:
    return Pods(clients)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_user_root_and_volumes(pods: Pods, runtime: str | None) -> None:
    secret = {"metadata": {"name": "s"}, "stringData": {"password": "open sesame"}}
    pods.clients.core.create_namespaced_secret(pods.namespace, secret)
    binary = base64.b64encode(b"#!/bin/sh\necho program\n").decode()
    config = {"metadata": {"name": "c"}, "data": {"text": "words"}, "binaryData": {"program": binary}}
    pods.clients.core.create_namespaced_config_map(pods.namespace, config)
    volumes = [
        {"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "config", "configMap": {"name": "c", "defaultMode": 0o555}},
        {"name": "secret", "secret": {"secretName": "s", "items": [{"key": "password", "path": "a/b", "mode": 0o440}]}},
    ]
    paths = {"scratch": "/scratch", "config": "/config", "secret": "/secret"}
    container = {
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in paths.items()],
        "env": [
            {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "s", "key": "password"}}},
            {"name": "TWICE", "value": "$(PASSWORD), $(PASSWORD), $(NOTHING)"},
        ],
        "workingDir": "/scratch",
        "securityContext": {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False},
    }
    security = {"runAsUser": 1234, "runAsGroup": 1234, "fsGroup": 2000, "runAsNonRoot": True}
    pods.create("p", *FOREVER, container=container, volumes=volumes, securityContext=security, runtimeClassName=runtime)
    pods.until("p", "Running")
    assert pods.exec("p", "id -u; id -g; id -G; pwd; hostname").split() == [
        "1234",
        "1234",
        "1234",
        "2000",
        "/scratch",
        "p",
    ]
    assert pods.exec("p", "echo $HOME $TWICE") == "/home/guest open sesame, open sesame, $(NOTHING)\n"
    assert pods.exec("p", "echo new > file && cat file; stat -c %g file") == "new\n2000\n"
    assert pods.exec("p", "cat /config/text /secret/a/b; /config/program") == "wordsopen sesameprogram\n"
    assert pods.exec("p", "stat -L -c %a /config/program") == "555\n"
    assert pods.exec("p", "tr '\\0' ' ' < /proc/1/cmdline") == "sleep 1000000 "


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_limits_of_root(pods: Pods, runtime: str | None) -> None:
    pods.clients.core.create_namespaced_config_map(
        pods.namespace, {"metadata": {"name": "c"}, "data": {"text": "words"}}
    )
    volumes = [{"name": "config", "configMap": {"name": "c", "defaultMode": 0o500}}]
    mounts = [{"name": "config", "mountPath": "/config"}]
    limits = {"readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    for name, security in (("limited", limits), ("usual", {})):
        container = {"volumeMounts": mounts, "securityContext": security}
        pods.create(name, *FOREVER, container=container, volumes=volumes, runtimeClassName=runtime)
        pods.until(name, "Running")
        assert pods.exec(name, "touch /config/file 2>/dev/null || echo refused") == "refused\n"
        assert pods.exec(name, "stat -L -c %a /config/text") == "500\n"
    assert pods.exec("limited", "touch /workspace/file 2>/dev/null || echo refused") == "refused\n"
    assert pods.exec("usual", "cd /workspace && touch file && chown 1234 file && stat -c %u file") == "1234\n"
    assert int(pods.exec("limited", "grep CapBnd /proc/self/status").split()[1], 16) == 0
    assert pods.exec("usual", "mount -t tmpfs none /tmp 2>/dev/null || echo refused") == "refused\n"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_writes_stay_in_the_container(pods: Pods, roots: dict[str, str], runtime: str | None) -> None:
    for name in ("one", "two"):
        pods.create(name, "sh", "-c", "echo $HOSTNAME > /bin/written; sleep 1000000", runtimeClassName=runtime)
        pods.until(name, "Running")
        assert until(functools.partial(pods.exec, name, "cat /bin/written")) == f"{name}\n"
    assert not os.path.exists(f"{roots[images.BUSYBOX]}/bin/written")


def test_status_of_a_running_pod(pods: Pods) -> None:
    pods.create("p", *FOREVER)
    pod = pods.until("p", "Running")
    assert {found.type: found.status for found in pod.status.conditions} == dict.fromkeys(
        ("PodScheduled", "Initialized", "ContainersReady", "Ready"), "True"
    )
    status = pod.status.container_statuses[0]
    assert (status.name, status.ready, status.restart_count) == ("main", True, 0)
    assert status.state.running.started_at
    assert pod.status.pod_ip
    assert pod.spec.node_name == pods.clients.core.list_node().items[0].metadata.name


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_exit_codes(pods: Pods, runtime: str | None) -> None:
    pods.create("good", "true", runtimeClassName=runtime)
    pods.create("bad", "sh", "-c", "echo out; echo err >&2; exit 3", runtimeClassName=runtime)
    assert pods.until("good", "Succeeded").status.container_statuses[0].state.terminated.exit_code == 0
    assert pods.until("bad", "Failed").status.container_statuses[0].state.terminated.exit_code == 3
    assert pods.log("bad") == "out\nerr\n"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_program_that_cannot_be_started(pods: Pods, runtime: str | None) -> None:
    pods.create("p", "nonsense", runtimeClassName=runtime)
    ended = pods.until("p", "Failed").status.container_statuses[0].state.terminated
    assert (ended.exit_code, ended.reason) == (128, "StartError")
    assert "nonsense" in ended.message


def test_restarts(pods: Pods) -> None:
    scratch = {"volumeMounts": [{"name": "v", "mountPath": "/v"}]}
    volumes = [{"name": "v", "emptyDir": {}}]
    once = "test -e /v/seen && exit 0; touch /v/seen; exit 1"
    pods.create("once", "sh", "-c", once, container=scratch, volumes=volumes, restartPolicy="OnFailure")
    status = pods.until("once", "Succeeded").status.container_statuses[0]
    assert (status.restart_count, status.last_state.terminated.exit_code) == (1, 1)
    pods.create("always", "true", restartPolicy="Always")
    assert "back-off 10s" in pods.until_waiting("always", "CrashLoopBackOff")
    assert pods.get("always").status.phase == "Running"


def test_init_containers_come_first_and_in_order(pods: Pods) -> None:
    mounts = [{"name": "v", "mountPath": "/v"}]

    def init(name: str, script: str) -> dict[str, Any]:
        command = ["sh", "-c", script]
        return {"name": name, "image": images.BUSYBOX, "command": command, "volumeMounts": mounts}

    both = [init("a", "echo a >> /v/f"), init("b", "echo b >> /v/f")]
    common: dict[str, Any] = {"volumes": [{"name": "v", "emptyDir": {}}], "container": {"volumeMounts": mounts}}
    pods.create("good", "cat", "/v/f", initContainers=both, **common)
    pods.until("good", "Succeeded")
    assert pods.log("good") == "a\nb\n"
    pods.create("bad", "true", initContainers=[init("a", "exit 4")], **common)
    status = pods.until("bad", "Failed").status
    assert status.init_container_statuses[0].state.terminated.exit_code == 4
    assert status.container_statuses[0].state.waiting


def test_why_a_pod_waits(pods: Pods) -> None:
    pods.create("image", *FOREVER, container={"image": "missing:1"})
    assert "missing:1" in pods.until_waiting("image", "ImagePullBackOff")
    pods.create("root", *FOREVER, securityContext={"runAsNonRoot": True})
    assert "will run as root" in pods.until_waiting("root", "CreateContainerConfigError")
    volumes = [{"name": "v", "configMap": {"name": "late"}}]
    pods.create("volume", *FOREVER, volumes=volumes)
    until(lambda: "late" in str(pods.get("volume").status.container_statuses))
    pods.clients.core.create_namespaced_config_map(pods.namespace, {"metadata": {"name": "late"}})
    pods.until("volume", "Running")


def test_terminals_are_those_of_the_container(pods: Pods) -> None:
    pods.create("p", *FOREVER)
    pods.until("p", "Running")
    command = ("sh", "-c", "tty; test -w $(tty) && echo $TERM")
    running = pods.clients.open_exec("p", *command, namespace=pods.namespace, tty=True)
    running.run_forever()
    assert running.read_all() == "/dev/pts/0\r\nxterm\r\n"


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_deletion_asks_first(pods: Pods, runtime: str | None) -> None:
    script = "trap 'echo asked; exit 5' TERM; echo ready; while :; do sleep 0.1; done"
    pods.create("p", "sh", "-c", script, terminationGracePeriodSeconds=600, runtimeClassName=runtime)
    pods.until("p", "Running")
    until(lambda: pods.log("p") == "ready\n")
    follower = pods.clients.core.read_namespaced_pod_log("p", pods.namespace, follow=True, _preload_content=False)
    pods.delete("p")
    assert follower.read() == b"ready\nasked\n"
    pods.until_gone("p")


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_deletion_kills_what_does_not_listen(pods: Pods, runtime: str | None) -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    pods.create("p", "sh", "-c", script, terminationGracePeriodSeconds=1, runtimeClassName=runtime)
    pods.until("p", "Running")
    until(lambda: pods.log("p") == "ready\n")
    running = pods.clients.open_exec("p", *FOREVER, namespace=pods.namespace)
    pods.delete("p")
    running.run_forever()
    pods.until_gone("p")


def test_a_deadline_and_an_eviction(cluster: Cluster, pods: Pods) -> None:
    pods.create("deadline", *FOREVER, activeDeadlineSeconds=1)
    assert pods.until("deadline", "Failed").status.reason == "DeadlineExceeded"
    pods.create("evicted", *FOREVER)
    pods.until("evicted", "Running")
    cluster.script(evict=["evicted"])
    status = pods.until("evicted", "Failed").status
    assert status.reason == "Evicted"
    assert until(lambda: pods.get("evicted").status.container_statuses[0].state.terminated).exit_code == 137


def test_pods_that_cannot_be_scheduled(cluster: Cluster, pods: Pods) -> None:
    cluster.script(unschedulable="0/1 nodes are available")
    try:
        pods.create("p", *FOREVER)
        found = until(lambda: pods.get("p").status.conditions)[0]
        assert (found.type, found.status, found.reason) == ("PodScheduled", "False", "Unschedulable")
        assert pods.get("p").spec.node_name is None
        pods.create("deleted", *FOREVER)
        pods.delete("deleted")
        pods.until_gone("deleted")
    finally:
        cluster.script(unschedulable="")
    pods.until("p", "Running")


def test_followers_survive_lost_events() -> None:
    async def story() -> list[tuple[str, str]]:
        store = Store()
        builtin.install(store)
        store.create("configmaps", "default", {"metadata": {"name": "lost"}})
        followed = follow(store, "configmaps")
        seen = [await anext(followed)]
        store.delete("configmaps", "default", "lost")
        store.create("configmaps", "default", {"metadata": {"name": "new"}})
        store.compact()
        seen += [await anext(followed) for _ in range(2)]
        return [(kind, found["metadata"]["name"]) for kind, found in seen]

    assert asyncio.run(story()) == [("ADDED", "lost"), ("DELETED", "lost"), ("ADDED", "new")]


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_cluster(
    tmp_path: Path, roots: dict[str, str], number: signal.Signals, runtime: str | None
) -> None:
    with start_cluster(tmp_path / "cluster", roots, crds={}) as cluster, Clients(cluster) as clients:
        pods = Pods(clients)
        pods.create("p", *FOREVER, runtimeClassName=runtime)
        pods.until("p", "Running")
        pid = _pid_of(tmp_path)
        below = [os.pidfd_open(child) for child in _below(pid)]
        assert len(below) >= 2, "neither the launcher nor a container"
        os.kill(pid, number)
        for handle in below:
            assert select.select([handle], [], [], 60)[0], "it still runs"
            os.close(handle)
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text(encoding="utf-8")


def _pid_of(directory: Path) -> int:
    """Find the process of the cluster whose files are below a directory."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            argv = (entry / "cmdline").read_bytes().split(b"\0")
            if b"tests.support.kubernetes.cluster" in argv and os.fsencode(directory / "cluster") in argv:
                return int(entry.name)
    raise AssertionError("the cluster does not run")


def _below(pid: int) -> list[int]:
    """Return all descendants of a process."""
    children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return children + [found for child in children for found in _below(child)]
