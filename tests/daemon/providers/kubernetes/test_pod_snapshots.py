"""Checkpoints and suspension of real gVisor pods by the cluster's pod snapshots, through a real daemon."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from tests.conftest import RunningDaemon
from tests.daemon.providers.kubernetes.test_life import House
from tests.support.counting import counting
from tests.support.expect import refused, until
from tests.support.kubernetes import live
from tests.support.kubernetes.clients import Clients

from sandkeep.kubernetes.pod_snapshots import OWNER_LABEL

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("runsc")]

GROUP = "podsnapshot.gke.io"
POLICY = {
    "apiVersion": f"{GROUP}/v1", "kind": "PodSnapshotPolicy", "metadata": {"name": "policy"},
    "spec": {
        "storageConfigName": "storage",
        "selector": {"matchExpressions": [{"key": "sandbox.users.io/sandkeep-sandbox", "operator": "Exists"}]},
        "triggerConfig": {"type": "manual", "postCheckpoint": "resume"},
        "snapshotGroupingRules": {"groupByLabelValue": {"labels": [OWNER_LABEL, "sandbox.users.io/sandkeep-sandbox"]}},
    },
}  # fmt: skip
STORAGE = {
    "apiVersion": f"{GROUP}/v1", "kind": "PodSnapshotStorageConfig", "metadata": {"name": "storage"},
    "spec": {"snapshotStorageConfig": {"gcs": {"bucket": "b", "path": "p"}}},
}  # fmt: skip


def install_policy(cluster: Any) -> None:
    """Have pods of daemons saved, each in a group of its own. Safe to repeat."""
    custom = Clients(cluster).custom
    with suppress(ApiException):
        custom.create_cluster_custom_object(GROUP, "v1", "podsnapshotstorageconfigs", STORAGE)
        custom.create_namespaced_custom_object(GROUP, "v1", "default", "podsnapshotpolicies", POLICY)


@pytest.fixture(scope="module")
def policy(kubernetes: Any) -> None:
    live.require_saving()
    install_policy(kubernetes)


@pytest.fixture
def house(new_daemon: Callable[[], RunningDaemon], kubernetes: Any, policy: None) -> Iterator[House]:
    daemon = new_daemon()
    daemon.env |= {"KUBECONFIG": str(kubernetes.kubeconfig), "SANDKEEP_KUBERNETES_RUNTIME_CLASS": "gvisor"}
    daemon.start()
    made = House(daemon, kubernetes)
    yield made
    made.client.close()
    daemon.stop()


def values(house: House, box: str) -> list[int]:
    return [int(line) for line in bytes(house.client.process.read(box, "counter").stdout).split()]


def comes_to(house: House, box: str, value: int) -> list[int]:
    return until(lambda: (v := values(house, box)) and v[-1] >= value and v)  # type: ignore[no-any-return]


def snapshots(house: House) -> list[Any]:
    found: list[Any] = house.api.custom.list_namespaced_custom_object(GROUP, "v1", "default", "podsnapshots")["items"]
    return found


def counted(house: House) -> str:
    box = house.box()
    house.client.process.launch(box, ["sh", "-c", counting("n", pause_s=0.05)], name="counter")
    return box


def test_checkpoints_go_on_from_where_they_were_the_older_one_too(house: House) -> None:
    box = counted(house)
    comes_to(house, box, 10)
    house.sh(box, "echo first >mark")
    first = house.client.checkpoint.create(box, name="first", leave_running=True)
    house.sh(box, "echo second >mark")
    comes_to(house, box, 20)
    second = house.client.checkpoint.create(box, name="second", leave_running=True)
    went_on = comes_to(house, box, values(house, box)[-1] + 3)
    assert went_on == list(range(1, len(went_on) + 1))
    assert len(snapshots(house)) == 2
    for checkpoint, least in ((second, 20), (first, 10)):
        [made] = house.client.checkpoint.restore(checkpoint.checkpoint_id).sandboxes
        restored = comes_to(house, made.sandbox_id, least + 1)
        assert restored == list(range(1, len(restored) + 1)), "there is a gap, or something twice"
        [pod] = house.pods(sandbox=made.sandbox_id)
        [condition] = [each for each in pod.status.conditions if each.type == "PodRestored"]
        assert condition.status == "True"
        assert house.sh(made.sandbox_id, "cat mark") == f"{checkpoint.name}\n"
        house.client.sandbox.terminate(made.sandbox_id)
    house.client.checkpoint.delete(first.checkpoint_id)
    house.client.checkpoint.delete(second.checkpoint_id)
    assert snapshots(house) == []
    house.client.sandbox.terminate(box)


def test_a_sandbox_is_suspended_without_a_pod_and_goes_on_after_the_daemon_died(house: House) -> None:
    box = counted(house)
    comes_to(house, box, 5)
    house.client.sandbox.suspend(box)
    until(lambda: house.pods(sandbox=box) == [])
    assert house.client.sandbox.get(box).status == "suspended"
    before = values(house, box)
    house.daemon.kill()
    house.daemon.start()
    with house.daemon.connect() as client:
        until(lambda: client.sandbox.get(box).note is None)
        assert client.sandbox.get(box).status == "suspended"
        client.sandbox.resume(box)
        went_on = until(lambda: (v := values(house, box)) and v[-1] >= before[-1] + 3 and v)
        assert went_on == list(range(1, len(went_on) + 1))
        house.daemon.kill()
        house.daemon.start()
    with house.daemon.connect() as client:
        until(lambda: client.sandbox.get(box).note is None)
        assert bytes(client.sandbox.exec(box, ["echo", "alive"]).stdout) == b"alive\n"
        client.sandbox.suspend(box)
        client.sandbox.terminate(box)
    assert (house.pods(sandbox=box), snapshots(house)) == ([], [])


def test_a_snapshot_that_fails_says_why_and_the_sandbox_goes_on(house: House) -> None:
    box = counted(house)
    comes_to(house, box, 3)
    house.cluster.script(fail_triggers=[{"reason": "Error", "message": "the bucket is full"}])
    refusal = refused("provider_unavailable", house.client.checkpoint.create, box, leave_running=True)
    assert "the bucket is full" in refusal.message
    comes_to(house, box, values(house, box)[-1] + 3)
    assert house.client.sandbox.get(box).status == "running"
    house.client.sandbox.terminate(box)


def test_a_pod_that_the_cluster_restored_by_itself_is_refused(house: House) -> None:
    """It has the memory of another, since the policy's group has both."""
    box = counted(house)
    comes_to(house, box, 3)
    grouping = {"spec": {"snapshotGroupingRules": {"groupByLabelValue": {"labels": [OWNER_LABEL]}}}}
    custom = house.api.custom
    custom.patch_namespaced_custom_object(GROUP, "v1", "default", "podsnapshotpolicies", "policy", grouping)
    try:
        checkpoint = house.client.checkpoint.create(box, leave_running=True)
        message = refused("provider_unavailable", house.box).message
        assert "sandbox.users.io/sandkeep-sandbox" in message
        house.client.checkpoint.delete(checkpoint.checkpoint_id)
        assert house.sh(house.box(), "echo fresh") == "fresh\n"
    finally:
        custom.patch_namespaced_custom_object(
            GROUP, "v1", "default", "podsnapshotpolicies", "policy", {"spec": POLICY["spec"]}
        )
    for sandbox in house.client.sandbox.list().sandboxes:
        house.client.sandbox.terminate(sandbox.sandbox_id)


def test_no_checkpoint_is_restored_over_its_sandbox(house: House) -> None:
    box = counted(house)
    comes_to(house, box, 3)
    checkpoint = house.client.checkpoint.create(box, leave_running=True)
    refused("not_supported", house.client.sandbox.restore, box, checkpoint_id=checkpoint.checkpoint_id)
    refused("not_supported", house.client.checkpoint.create, box, leave_running=False)
    comes_to(house, box, values(house, box)[-1] + 3)
    house.client.checkpoint.delete(checkpoint.checkpoint_id)
    house.client.sandbox.terminate(box)
