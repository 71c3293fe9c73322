"""Pod snapshots of real gVisor sandboxes: taken, listed, deleted, and restored, each owner's for himself."""

import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kubernetes import client
from tests.rpc.compat.agent_sandbox.conftest import Resources
from tests.support.expect import until
from tests.support.kubernetes.cluster import Cluster as Double

from sandkeep.compat.agent_sandbox import ExecutionResult, PodSnapshotSandboxClient
from sandkeep.errors import CallerError, ProviderError, SandkeepError, StateError
from sandkeep.kubernetes.pod_snapshots import OWNER_LABEL
from sandkeep.kubernetes.versions import POD_SNAPSHOTS

pytestmark = pytest.mark.needs("runsc", "bwrap", "busybox")

Make = Callable[..., PodSnapshotSandboxClient]
GROUP = POD_SNAPSHOTS.name
POLICY = "policy"


@pytest.fixture
def make(api: client.ApiClient, namespace: str) -> Make:
    def new(template_name: str = "template", **options: Any) -> PodSnapshotSandboxClient:
        options = {"namespace": namespace, "owner": "uid:1000", "api_client": api, **options}
        return PodSnapshotSandboxClient(template_name, **options)

    return new


@pytest.fixture
def scripted(double: Double) -> Iterator[Double]:
    yield double
    double.script(
        controller_present=True, hold_snapshots=None, ignore_ps_name=False, fail_restores="", snapshot_deletion_s=0,
        snapshot_delay_s=0, trigger_delay_s=0,
    )  # fmt: skip


@pytest.fixture
def workload(resources: Resources, double: Double) -> Resources:
    """A template in gVisor, and a policy that groups by owner."""
    resources.template("template", runtimeClassName="gvisor")
    policy(resources, POLICY, [OWNER_LABEL])
    return resources


def policy(resources: Resources, name: str, group_by: list[str], **labels: str) -> None:
    storage = f"{resources.namespace}-{name}"
    config = {"snapshotStorageConfig": {"gcs": {"bucket": "bucket"}}}
    resources.create(body("PodSnapshotStorageConfig", storage, config))
    spec = {
        "storageConfigName": storage,
        "selector": {"matchLabels": labels or {"app": "workload"}},
        "triggerConfig": {"type": "manual", "postCheckpoint": "resume"},
        "snapshotGroupingRules": {"groupByLabelValue": {"labels": group_by}},
    }
    resources.create(body("PodSnapshotPolicy", name, spec))


def body(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def save(sandbox: PodSnapshotSandboxClient, trigger: str = "save") -> str:
    done = sandbox.checkpoint(trigger)
    assert done.stderr == ""
    assert done == type(done)(f"PodSnapshotManualTrigger '{trigger}' created successfully.", "", 0, done.snapshot_id)
    return done.snapshot_id


def triggers(resources: Resources) -> list[Any]:
    return resources.objects(GROUP, "podsnapshotmanualtriggers", "v1")


def names(items: list[dict[str, str]]) -> list[str]:
    return [item["snapshot_id"] for item in items]


# -- checkpoints ------------------------------------------------------------------------------------------------------


def test_memory_and_files_go_on_from_any_snapshot(workload: Resources, make: Make) -> None:
    with make() as sandbox:
        assert sandbox.restored_from is None
        sandbox.write("/tmp/state", "1")
        first = save(sandbox, "first")
        sandbox.write("/tmp/state", "2")
        second = save(sandbox, "second")
        assert sandbox.read("/tmp/state") == b"2"
    for snapshot_id, expected, state in ((None, second, b"2"), (first, first, b"1"), ("first", first, b"1")):
        with make(snapshot_id=snapshot_id) as sandbox:
            assert sandbox.restored_from == expected
            assert sandbox.read("/tmp/state") == state


def test_a_client_is_used_again_once_there_is_no_snapshot(workload: Resources, make: Make) -> None:
    with make() as sandbox:
        saved = save(sandbox)
    with sandbox as restored:
        assert restored.restored_from == saved
    assert sandbox.delete_snapshots(policy_name=POLICY) == 1
    with sandbox as fresh:
        assert fresh.restored_from is None


def test_a_trigger_name_is_used_again(workload: Resources, make: Make) -> None:
    with make() as sandbox:
        made = [save(sandbox, "same"), save(sandbox, "same")]
        assert len(set(made)) == 2
        found = triggers(workload)
        assert {trigger["metadata"]["labels"]["sandkeep.trigger"] for trigger in found} == {"same"}
        assert {item["trigger_name"] for item in sandbox.list_snapshots(POLICY)} == {"same"}


def test_the_triggers_of_a_session_end_with_it_and_snapshots_stay(workload: Resources, make: Make) -> None:
    other = body("PodSnapshotManualTrigger", "others", {"targetPod": "none"})
    workload.create(other)
    with make() as sandbox:
        made = save(sandbox)
        assert len(triggers(workload)) == 2
    assert [trigger["metadata"]["name"] for trigger in triggers(workload)] == ["others"]
    assert names(sandbox.list_snapshots(POLICY)) == [made]


def test_triggers_that_are_left_are_logged_after_three_tries(
    workload: Resources, make: Make, double: Double, caplog: pytest.LogCaptureFixture
) -> None:
    with make() as sandbox:
        save(sandbox)
        double.faults(method="DELETE", path="podsnapshotmanualtriggers", status=500, times=3)
    messages = [record.message for record in caplog.records if record.name.startswith("sandkeep")]
    assert messages.count("a trigger was not deleted") == 3
    assert "triggers of pod snapshots are left" in messages
    assert workload.claims() == []


@pytest.mark.parametrize("reason", ["Failed", "Error"])
def test_a_trigger_that_fails_is_told_at_once(workload: Resources, make: Make, scripted: Double, reason: str) -> None:
    with make() as sandbox:
        scripted.script(fail_triggers=[{"reason": reason, "message": "the disk is full"}])
        done = sandbox.checkpoint("save")
        assert (done.stdout, done.exit_code, done.snapshot_id) == ("", 1, "")
        assert done.stderr.endswith("failed: the disk is full")
        assert isinstance(done, ExecutionResult)
        save(sandbox)


def test_a_snapshot_that_fails_is_told_at_once(workload: Resources, make: Make, scripted: Double) -> None:
    with make() as sandbox:
        scripted.script(hold_snapshots={"reason": "Failed", "message": "the bucket is gone"})
        done = sandbox.checkpoint("save")
        assert (done.exit_code, done.stderr.endswith("failed: the bucket is gone")) == (1, True)
        assert sandbox.list_snapshots(POLICY) == []
        assert [item["status"] for item in sandbox.list_snapshots(POLICY, ready_only=False)] == ["NotReady"]


def test_a_checkpoint_waits_until_its_snapshot_is_ready(workload: Resources, make: Make, scripted: Double) -> None:
    with make() as sandbox:
        scripted.script(trigger_delay_s=0.3, snapshot_delay_s=0.7)
        made = save(sandbox)
        assert names(sandbox.list_snapshots(POLICY)) == [made]


def test_time_is_limited(workload: Resources, make: Make, scripted: Double) -> None:
    with make() as sandbox:
        scripted.script(hold_snapshots={"reason": "Uploading", "message": "the network is slow"})
        for seconds in (4, 30):  # it may not be told in the first
            sandbox.podsnapshot_timeout = seconds
            done = sandbox.checkpoint("save")
            if "network" in done.stderr:
                break
        assert (done.exit_code, done.stderr.endswith("took too long: the network is slow")) == (1, True)


def test_a_pod_without_a_policy_is_told(resources: Resources, make: Make) -> None:
    resources.template("template", runtimeClassName="gvisor")
    with make() as sandbox:
        done = sandbox.checkpoint("save")
        assert (done.exit_code, "no PodSnapshotPolicy" in done.stderr) == (1, True)


def test_refusals_of_the_cluster_are_results(workload: Resources, make: Make, double: Double) -> None:
    with make() as sandbox:
        double.faults(method="POST", path="podsnapshotmanualtriggers", status=500, message="no disk", times=1)
        done = sandbox.checkpoint("save")
        assert (done.exit_code, "no disk" in done.stderr) == (1, True)
    done = make().checkpoint("save")
    assert (done.exit_code, "there is no sandbox" in done.stderr) == (1, True)


def test_the_controller_is_looked_for(workload: Resources, make: Make, scripted: Double) -> None:
    with make() as sandbox:
        assert sandbox.snapshot_controller_ready()
        scripted.script(controller_present=False)
        assert not sandbox.snapshot_controller_ready()
        done = sandbox.checkpoint("save")
        assert done.stderr == "Snapshot controller is not ready. Ensure it is installed and running."
        assert triggers(workload) == []


def test_a_controller_that_may_not_be_seen_counts_by_its_resources(make: Make, double: Double) -> None:
    double.faults(method="GET", path="gps-system", status=403, times=1)
    assert make().snapshot_controller_ready()
    double.faults(method="GET", path="gps-system", status=500, times=1)
    with pytest.raises(ProviderError):
        make().snapshot_controller_ready()


# -- lists and deletions ----------------------------------------------------------------------------------------------


def test_lists_are_newest_first(workload: Resources, make: Make) -> None:
    assert make().list_snapshots(POLICY) == []
    with make() as sandbox:
        first = save(sandbox, "first")
        time.sleep(1.1)  # times of creation count seconds
        second = save(sandbox, "second")
        items = sandbox.list_snapshots(POLICY)
        assert names(items) == [second, first]
        assert [item["trigger_name"] for item in items] == ["second", "first"]
        assert {item["source_pod"] for item in items} == {sandbox.pod_name}
        assert set(items[0]) == {
            "snapshot_id", "trigger_name", "source_pod", "uid", "creationTimestamp", "status", "policy_name"
        }  # fmt: skip
        assert sandbox.list_snapshots("other") == []


def test_what_cannot_be_listed_is_an_error(make: Make, double: Double) -> None:
    double.faults(method="GET", path="podsnapshots", status=500, times=1)
    with pytest.raises(ProviderError, match="listing podsnapshots: injected fault"):
        make().list_snapshots(POLICY)


def test_deletions_by_name_and_by_filters(workload: Resources, make: Make, scripted: Double) -> None:
    with make() as sandbox:
        one, two, three = save(sandbox, "one"), save(sandbox, "two"), save(sandbox, "two")
        assert sandbox.delete_snapshots(snapshot_id=one) == 1
        assert sandbox.delete_snapshots(snapshot_id=one) == 0
        assert sandbox.delete_snapshots(policy_name="other", trigger_name="two") == 0
        assert sorted(names(sandbox.list_snapshots(POLICY))) == sorted([two, three])
        scripted.script(hold_snapshots={"reason": "Failed", "message": "no"})
        assert sandbox.checkpoint("two").exit_code == 1
        assert sandbox.delete_snapshots(policy_name=POLICY, trigger_name="two") == 3
        assert sandbox.list_snapshots(POLICY, ready_only=False) == []
        assert sandbox.delete_snapshots(policy_name=POLICY) == 0


def test_deletions_need_a_policy(make: Make, double: Double, caplog: pytest.LogCaptureFixture) -> None:
    for filters in ({}, {"trigger_name": "two"}, {"snapshot_id": "a", "status": "Ready"}):
        caplog.clear()
        assert make().delete_snapshots(**filters) == 0
        assert "give snapshot_id alone, or policy_name" in caplog.text
    with pytest.raises(CallerError, match="'trigger' is no property"):
        make().delete_snapshots(policy_name=POLICY, trigger="two")


def test_a_deletion_is_over_once_it_is_seen(workload: Resources, make: Make, scripted: Double) -> None:
    with make() as sandbox:
        save(sandbox)
        scripted.script(snapshot_deletion_s=1.5)
        assert sandbox.delete_snapshots(policy_name=POLICY) == 1
        assert workload.objects(GROUP, "podsnapshots", "v1") == []


def test_one_deadline_is_for_all_deletions(
    workload: Resources, make: Make, scripted: Double, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that a finalizer holds do not count, and are logged."""
    with make() as sandbox:
        made = [save(sandbox), save(sandbox)]
        scripted.script(snapshot_deletion_s=60)
        sandbox.podsnapshot_timeout = 1
        assert sandbox.delete_snapshots(policy_name=POLICY) == 0
        assert caplog.text.count("a snapshot is not gone yet") == 2
        left = workload.objects(GROUP, "podsnapshots", "v1")
        deleting = [each["metadata"]["name"] for each in left if each["metadata"]["deletionTimestamp"]]
        assert sorted(deleting) == sorted(made)


# -- owners -----------------------------------------------------------------------------------------------------------


def test_the_latest_is_the_owners_own(workload: Resources, make: Make) -> None:
    with make(owner="uid:1000") as mine:
        mine.write("/tmp/secret", "of 1000")
        saved = save(mine, "same")
    with make(owner="uid:1001") as other:
        assert other.restored_from is None
        assert other.run("cat /tmp/secret").exit_code != 0
        assert other.list_snapshots(POLICY) == []
        assert other.delete_snapshots(policy_name=POLICY) == 0
        save(other, "same")
    with make(owner="uid:1000") as mine:
        assert (mine.restored_from, mine.read("/tmp/secret")) == (saved, b"of 1000")
    with make(owner="uid:1000", snapshot_id="same") as mine:
        assert mine.restored_from == saved


def test_anothers_is_had_by_its_name_alone(workload: Resources, make: Make) -> None:
    """A trigger name may be the same by accident; the name of a snapshot is not."""
    with make(owner="uid:1000") as mine:
        mine.write("/tmp/gift", "for 1001")
        saved = save(mine, "gift")
    with pytest.raises(CallerError, match="there is no PodSnapshot 'gift', and uid:1001 has none"):
        make(owner="uid:1001", snapshot_id="gift").__enter__()
    with make(owner="uid:1001", snapshot_id=saved) as other:
        assert (other.restored_from, other.read("/tmp/gift")) == (saved, b"for 1001")


def test_the_latest_is_of_a_policy_that_selects_the_pod(workload: Resources, make: Make) -> None:
    with make() as sandbox:
        save(sandbox)
    with make(labels={"sandbox.users.io/tier": "x"}) as sandbox:
        assert sandbox.restored_from is not None
    workload.template("unlabelled", is_workload=False, runtimeClassName="gvisor")
    with make("unlabelled") as sandbox:
        assert sandbox.restored_from is None


def test_a_policy_that_mixes_owners_is_refused(resources: Resources, make: Make) -> None:
    """Its controller restores the latest of anybody's, though none was asked for."""
    resources.template("template", runtimeClassName="gvisor")
    policy(resources, POLICY, [])
    with make(owner="uid:1000") as mine:
        save(mine)
    with pytest.raises(StateError, match=r"restored from a snapshot that is not uid:1001's: have its .* group by"):
        make(owner="uid:1001").__enter__()
    assert resources.claims() == []


# -- restores ---------------------------------------------------------------------------------------------------------


def test_a_warm_pod_makes_room_for_one_that_is_restored(resources: Resources, make: Make) -> None:
    resources.template("template", runtimeClassName="gvisor", pool=1)
    policy(resources, POLICY, [OWNER_LABEL])
    with make() as sandbox:
        sandbox.write("/tmp/state", "kept")
        saved = save(sandbox)
    with make(snapshot_id=saved) as sandbox:
        assert (sandbox.restored_from, sandbox.read("/tmp/state")) == (saved, b"kept")


def test_a_restore_that_does_not_happen_is_an_error(workload: Resources, make: Make, scripted: Double) -> None:
    with make() as sandbox:
        first, _ = save(sandbox, "first"), save(sandbox, "second")
    scripted.script(ignore_ps_name=True)
    with pytest.raises(ProviderError, match=f"was not restored from '{first}'"):
        make(snapshot_id=first).__enter__()
    assert workload.claims() == []


def test_a_snapshot_that_cannot_be_restored_is_an_error(workload: Resources, make: Make, scripted: Double) -> None:
    with make() as sandbox:
        saved = save(sandbox)
        with pytest.raises(CallerError, match="there is no PodSnapshot 'none'"):
            make(snapshot_id="none").__enter__()
        scripted.script(hold_snapshots={"reason": "Uploading"})
        sandbox.podsnapshot_timeout = 3
        assert sandbox.checkpoint("unfinished").exit_code == 1
        until(lambda: len(sandbox.list_snapshots(POLICY, ready_only=False)) == 2)
    with pytest.raises(StateError, match=r"PodSnapshot '.*' is not in Ready state\.") as early:
        make(snapshot_id="unfinished").__enter__()
    assert early.value.code == "snapshot_not_ready"
    scripted.script(fail_restores="the bucket is gone")
    with pytest.raises(SandkeepError):
        make(snapshot_id=saved, podsnapshot_timeout=2).__enter__()
    assert workload.claims() == []


# -- the interface ----------------------------------------------------------------------------------------------------


def test_the_constructor_and_the_methods_are_the_originals() -> None:
    parameters = list(inspect.signature(PodSnapshotSandboxClient).parameters.items())
    assert [(name, parameter.default) for name, parameter in parameters[1:6]] == [
        ("labels", None),
        ("namespace", "default"),
        ("podsnapshot_timeout", 180),
        ("server_port", 8080),
        ("snapshot_id", None),
    ]
    assert parameters[0][0] == "template_name"
    listing = inspect.signature(PodSnapshotSandboxClient.list_snapshots).parameters
    assert (list(listing), listing["ready_only"].default) == (["self", "policy_name", "ready_only"], True)
