"""Pod snapshots of the double: a real gVisor container is saved, and another goes on from there."""

import functools
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.expect import until
from tests.support.kubernetes import images
from tests.support.kubernetes.clients import Clients
from tests.support.kubernetes.cluster import Cluster, start_cluster
from tests.support.kubernetes.customs import Customs, Object
from tests.support.kubernetes.sandbox_crds import SNAPSHOTS

pytestmark = [pytest.mark.needs(name) for name in ("root", "busybox", "tmux", "runsc")]

CHOSEN = "podsnapshot.gke.io/ps-name"
COUNTER = "mkfifo /data/go; exec 3<>/data/go; i=0; while read line <&3; do i=$((i + 1)); echo $i; done"
"""It counts the lines that it is sent: so each test knows where it is."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, roots: dict[str, str]) -> Iterator[Cluster]:
    with start_cluster(tmp_path_factory.mktemp("cluster"), roots) as cluster, Clients(cluster) as clients:
        spec = {"snapshotStorageConfig": {"gcs": {"bucket": "b"}}}
        body = {"apiVersion": f"{SNAPSHOTS}/v1", "kind": "PodSnapshotStorageConfig", "metadata": {"name": "storage"}}
        clients.custom.create_cluster_custom_object(SNAPSHOTS, "v1", "podsnapshotstorageconfigs", body | {"spec": spec})
        yield cluster


class Counters(Customs):
    """Pods that count, and their snapshots, under one policy."""

    def create_pod(
        self, name: str, chosen: str = "", group: str = "g", app: str = "counter", runtime: str = "gvisor"
    ) -> Any:
        """Create a pod, and wait until it runs; return it."""
        self.create_pending(name, chosen, group, app, runtime)
        until(lambda: self.pod(name).status.phase == "Running", seen=lambda: self.pod(name).status)
        return self.pod(name)

    def create_pending(
        self, name: str, chosen: str, group: str = "g", app: str = "counter", runtime: str = "gvisor"
    ) -> None:
        container: Object = {"name": "main", "image": images.BUSYBOX, "command": ["sh", "-c", COUNTER]}
        container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
        spec: Object = {"containers": [container], "volumes": [{"name": "data", "emptyDir": {}}]}
        spec |= {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "runtimeClassName": runtime or None}
        annotations = {CHOSEN: chosen} if chosen else {}
        meta = {"name": name, "labels": {"app": app, "group": group}, "annotations": annotations}
        self.clients.core.create_namespaced_pod(self.namespace, {"metadata": meta, "spec": spec})

    def pod(self, name: str) -> Any:
        return self.clients.core.read_namespaced_pod(name, self.namespace)

    def restored(self, name: str) -> tuple[str, str, str]:
        """Status, reason and message of the pod's condition PodRestored, which may be absent."""
        found = {c.type: (c.status, c.reason, c.message) for c in self.pod(name).status.conditions}
        return found.get("PodRestored", ("", "", ""))

    def count_to(self, name: str, number: int) -> None:
        """Send a counter lines until it is at a number; its last line is the proof that it counts one for each."""
        done = self.log(name)
        have = int(done[-1]) if done else 0
        self._send(name, number - have)
        until(lambda: self.log(name)[-1:] == [str(number)], seen=lambda: self.log(name))

    def next_count(self, name: str) -> int:
        """Send a restored counter one line; return the number that it comes to."""
        assert self.log(name) == []
        self._send(name, 1)
        return int(until(lambda: self.log(name))[0])

    def _send(self, name: str, lines: int) -> None:
        script = f"until test -p /data/go; do sleep 0.01; done; for i in $(seq {lines}); do echo >/data/go; done"
        self.exec(name, script)

    def exec(self, name: str, script: str) -> str:
        return self.clients.exec(name, "sh", "-c", script, namespace=self.namespace)

    def log(self, name: str) -> list[str]:
        return str(self.clients.core.read_namespaced_pod_log(name, self.namespace)).split()

    def trigger(self, name: str, pod: str) -> Object:
        """Create a trigger, and wait until it is handled; return it."""
        self.create("podsnapshotmanualtriggers", name, {"targetPod": pod})
        self.condition("podsnapshotmanualtriggers", name, "Triggered")
        return self.get("podsnapshotmanualtriggers", name)

    def save(self, trigger: str, pod: str) -> str:
        """Make a snapshot, and wait until it is ready; return its name."""
        done = self.trigger(trigger, pod)
        found = self.condition("podsnapshotmanualtriggers", trigger, "Triggered")
        assert found[:2] == ("True", "Complete"), found
        name = str(done["status"]["snapshotCreated"]["name"])
        self.until("podsnapshots", name, "True", "Complete")
        return name


@pytest.fixture
def counters(clients: Clients, namespace: str) -> Iterator[Counters]:
    counters = Counters(clients, namespace)
    groups = {"labels": ["group"], "groupRetentionPolicy": {"maxSnapshotCountPerGroup": 2}}
    policy = {
        "storageConfigName": "storage",
        "selector": {"matchLabels": {"app": "counter"}},
        "triggerConfig": {"type": "manual", "postCheckpoint": "resume"},
        "snapshotGroupingRules": {"groupByLabelValue": groups},
    }
    counters.create("podsnapshotpolicies", "policy", policy)
    yield counters
    clients.core.delete_namespace(namespace)


def test_a_counter_goes_on_from_the_latest_snapshot_and_from_an_older_one(counters: Counters) -> None:
    counters.create_pod("first")
    assert counters.restored("first") == ("", "", "")
    counters.count_to("first", 10)
    counters.exec("first", "echo root > /bin/kept; echo volume > /data/kept")
    old = counters.save("at-10", "first")
    counters.count_to("first", 20)
    new = counters.save("at-20", "first")
    counters.count_to("first", 25)
    assert counters.exec("first", "cat /bin/kept /data/kept") == "root\nvolume\n"
    for name, chosen, snapshot, number in (("latest", "", new, 21), ("older", old, old, 11), ("newer", new, new, 21)):
        counters.create_pod(name, chosen)
        assert counters.restored(name)[0] == "True"
        assert snapshot in counters.restored(name)[2]
        assert counters.next_count(name) == number
        assert counters.exec(name, "cat /bin/kept /data/kept") == "root\nvolume\n"
    assert counters.log("first")[-1] == "25", "the first one did not go on"
    assert counters.pod("first").status.container_statuses[0].restart_count == 0


def test_what_a_snapshot_is_labelled_with(counters: Counters) -> None:
    counters.create_pod("p", group="mine")
    name = counters.save("t", "p")
    assert str(uuid.UUID(name)) == name
    snapshot = counters.get("podsnapshots", name)
    assert snapshot["spec"]["policyName"] == "policy"
    labels = snapshot["metadata"]["labels"]
    assert labels["gke-pod-snapshot-triggered-by"] == "t"
    assert (labels["podsnapshot.gke.io/pod-name"], labels["group"]) == ("p", "mine")
    assert snapshot["metadata"]["annotations"]["podsnapshot.gke.io/origin-pod"] == "p"


def test_only_pods_of_the_group_and_policy_go_on(counters: Counters) -> None:
    counters.create_pod("p")
    counters.count_to("p", 3)
    counters.save("t", "p")
    for name, options in (("group", {"group": "other"}), ("policy", {"app": "other"}), ("runtime", {"runtime": ""})):
        counters.create_pod(name, **options)
        assert counters.restored(name) == ("", "", "")
        assert counters.next_count(name) == 1


def test_a_policy_keeps_so_many_snapshots_of_a_group(counters: Counters) -> None:
    counters.create_pod("p")
    counters.create_pod("other", group="other")
    names = [counters.save(f"t{number}", "p") for number in range(2)]
    others = counters.save("o", "other")
    names.append(counters.save("t2", "p"))
    until(lambda: counters.names("podsnapshots") == {others, *names[1:]})


def test_exec_does_not_keep_a_pod_from_being_saved(counters: Counters) -> None:
    counters.create_pod("p")
    running = counters.clients.open_exec("p", "sh", "-c", "sleep 1000000; true", namespace=counters.namespace)
    counters.count_to("p", 2)
    counters.save("t", "p")
    running.run_forever()
    counters.create_pod("q")
    assert counters.next_count("q") == 3


def test_a_pod_may_stop_when_it_is_saved(counters: Counters) -> None:
    spec = {"triggerConfig": {"postCheckpoint": "stop"}}
    counters.patch("podsnapshotpolicies", "policy", {"spec": spec})
    counters.create_pod("p")
    counters.count_to("p", 2)
    counters.save("t", "p")
    until(lambda: counters.pod("p").status.phase in ("Succeeded", "Failed"))
    counters.create_pod("q")
    assert counters.next_count("q") == 3


def test_why_a_trigger_fails(cluster: Cluster, counters: Counters) -> None:
    def failure(trigger: str, pod: str) -> tuple[str, str]:
        status = counters.trigger(trigger, pod)["status"]
        assert "snapshotCreated" not in status
        found = counters.condition("podsnapshotmanualtriggers", trigger, "Triggered")
        assert found[0] == "False"
        return found[1:]

    assert failure("a", "none") == ("Failed", 'pod "none" not found')
    counters.create_pod("unselected", app="other")
    assert "no PodSnapshotPolicy" in failure("b", "unselected")[1]
    counters.create_pod("plain", runtime="")
    assert "gVisor" in failure("c", "plain")[1]
    counters.create_pod("p")
    cluster.script(fail_triggers=[{"reason": "Error", "message": "scripted"}])
    assert failure("d", "p") == ("Error", "scripted")
    assert counters.names("podsnapshots") == set()
    counters.save("e", "p")


def test_snapshots_that_are_not_ready(cluster: Cluster, counters: Counters) -> None:
    counters.create_pod("p")
    counters.count_to("p", 5)
    cluster.script(hold_snapshots={"reason": "Failed", "message": "scripted"})
    try:
        name = counters.trigger("t", "p")["status"]["snapshotCreated"]["name"]
        counters.until("podsnapshots", name, "False", "Failed")
        counters.create_pod("fresh")
        assert counters.next_count("fresh") == 1
    finally:
        cluster.script(hold_snapshots=None)
    counters.until("podsnapshots", name, "True", "Complete")
    counters.create_pod("restored")
    assert counters.next_count("restored") == 6


def test_a_pod_that_cannot_be_restored_waits(cluster: Cluster, counters: Counters) -> None:
    counters.create_pod("p")
    cluster.script(fail_restores="scripted")
    try:
        name = counters.save("t", "p")
        for pod, chosen, reason in (("a", name, "RestoreFailed"), ("b", str(uuid.uuid4()), "SnapshotNotFound")):
            counters.create_pending(pod, chosen)
            until(functools.partial(_is_refused, counters, pod, reason))
            assert counters.pod(pod).status.phase == "Pending"
    finally:
        cluster.script(fail_restores="")
    until(lambda: counters.restored("a")[0] == "True")


def _is_refused(counters: Counters, pod: str, reason: str) -> bool:
    return counters.restored(pod)[:2] == ("False", reason)


def test_the_choice_can_be_ignored(cluster: Cluster, counters: Counters) -> None:
    counters.create_pod("p")
    counters.count_to("p", 1)
    old = counters.save("t1", "p")
    counters.count_to("p", 2)
    new = counters.save("t2", "p")
    cluster.script(ignore_ps_name=True)
    try:
        counters.create_pod("q", chosen=old)
    finally:
        cluster.script(ignore_ps_name=False)
    assert new in counters.restored("q")[2]
    assert counters.next_count("q") == 3


def test_a_deleted_snapshot_is_gone_with_its_files(cluster: Cluster, counters: Counters) -> None:
    counters.create_pod("p")
    name = counters.save("t", "p")
    files = cluster.directory / "snapshots" / name
    assert files.is_dir()
    cluster.script(snapshot_deletion_s=3)
    try:
        counters.delete("podsnapshots", name)
        assert counters.get("podsnapshots", name)["metadata"]["deletionTimestamp"]
    finally:
        cluster.script(snapshot_deletion_s=0)
    counters.until_gone("podsnapshots", name)
    assert not files.exists()


def test_the_controller_can_be_looked_for(cluster: Cluster, counters: Counters) -> None:
    def found() -> list[str]:
        pods = counters.clients.core.list_namespaced_pod("gps-system").items
        return [pod.metadata.name.startswith("gke-pod-snapshot-controller-") and pod.status.phase for pod in pods]

    assert found() == ["Running"]
    cluster.script(controller_present=False)
    try:
        assert found() == []
    finally:
        cluster.script(controller_present=True)
    assert found() == ["Running"]
