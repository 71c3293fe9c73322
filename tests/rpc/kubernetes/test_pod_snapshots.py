"""Triggers, snapshots and restores, as a controller tells of them."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandkeep.errors import CallerError, ProviderError
from sandkeep.kubernetes import pod_snapshots
from sandkeep.kubernetes.names import label_value
from sandkeep.kubernetes.objects import condition_of, is_ready

NAME = "0b7cf1b4-5a2e-4c7a-9f5e-0b8d5a1c2d3e"
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["metadata", "status", "conditions", "labels", "type", "name"]) | st.text(), inner
        )
    ),
)


def condition(type: str, status: str = "True", reason: str = "", message: str = "") -> dict[str, str]:
    return {"type": type, "status": status, "reason": reason, "message": message}


def trigger(*conditions: dict[str, str], created: str | None = NAME) -> dict[str, Any]:
    status: dict[str, Any] = {"conditions": list(conditions)}
    if created is not None:
        status["snapshotCreated"] = {"name": created}
    return {"metadata": {"name": "t-sk0123456789"}, "spec": {"targetPod": "p"}, "status": status}


def snapshot(
    name: str = NAME,
    *,
    created: str = "2026-01-01T00:00:00Z",
    policy: str = "policy",
    owner: str | None = "uid:1000",
    triggered_by: str | None = "ten-sk0123456789",
    ready: dict[str, str] | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    labels = {pod_snapshots.POD_NAME_LABEL: "pod-1"}
    if owner is not None:
        labels[pod_snapshots.OWNER_LABEL] = label_value(owner)
    if triggered_by is not None:
        labels[pod_snapshots.TRIGGERED_BY_LABEL] = triggered_by
    found = {"name": name, "uid": f"uid of {name}", "creationTimestamp": created, "labels": labels, **metadata}
    status = {"conditions": [ready or condition("Ready")]}
    return {"metadata": found, "spec": {"policyName": policy}, "status": status}


# -- triggers ---------------------------------------------------------------------------------------------------------


def test_the_body_of_a_trigger() -> None:
    name = pod_snapshots.trigger_object_name("ten", "0123456789")
    body = pod_snapshots.trigger_body("v1", name, "pod-1", "ten", {"sandkeep.session": "ses"})
    assert body == {
        "apiVersion": "podsnapshot.gke.io/v1",
        "kind": "PodSnapshotManualTrigger",
        "metadata": {"name": "ten-sk0123456789", "labels": {"sandkeep.session": "ses", "sandkeep.trigger": "ten"}},
        "spec": {"targetPod": "pod-1"},
    }


@pytest.mark.parametrize("asked", ["ten", "Ten_10", "a" * 50, "a" * 51, "a" * 300, "ten-sk0123456789"])
def test_a_trigger_name_is_found_again_in_the_label(asked: str) -> None:
    name = pod_snapshots.trigger_object_name(asked, "abcdef0123")
    assert re.fullmatch("[a-z][a-z0-9-]{0,62}", name)
    made = snapshot(triggered_by=name)
    assert pod_snapshots.was_triggered_by(made, asked)
    assert pod_snapshots.was_triggered_by(made, name)
    assert not pod_snapshots.was_triggered_by(made, asked[:-1])
    assert not pod_snapshots.was_triggered_by(snapshot(triggered_by=None), "")


def test_a_trigger_is_complete_once_it_names_its_snapshot() -> None:
    complete = condition("Triggered", "True", "Complete")
    assert pod_snapshots.created_snapshot(trigger(complete)) == NAME
    for pending in (
        trigger(),
        trigger(complete, created=None),
        trigger(condition("Triggered", "False", "InProgress")),
        trigger(condition("Triggered", "Unknown", "Failed")),
        trigger(condition("Other", "False", "Failed")),
    ):
        assert pod_snapshots.created_snapshot(pending) is None


@pytest.mark.parametrize("reason", ["Failed", "Error"])
def test_what_failed_is_an_error_with_the_cause(reason: str) -> None:
    with pytest.raises(ProviderError, match="trigger 't-sk0123456789' failed: no policy matches") as failed:
        pod_snapshots.created_snapshot(trigger(condition("Triggered", "False", reason, "no policy matches")))
    assert (failed.value.code, failed.value.data) == ("provider_unavailable", {"reason": reason})
    with pytest.raises(ProviderError, match=f"snapshot '{NAME}' failed: the bucket is full"):
        pod_snapshots.snapshot_is_ready(snapshot(ready=condition("Ready", "False", reason, "the bucket is full")))
    with pytest.raises(ProviderError, match=f"failed: {reason}"):
        pod_snapshots.snapshot_is_ready(snapshot(ready=condition("Ready", "False", reason)))


def test_a_snapshot_that_is_being_made_or_deleted_is_not_ready() -> None:
    assert pod_snapshots.snapshot_is_ready(snapshot())
    assert not pod_snapshots.snapshot_is_ready(snapshot(ready=condition("Ready", "False", "Uploading")))
    assert not pod_snapshots.snapshot_is_ready(snapshot(deletionTimestamp="2026-01-01T00:00:00Z"))


# -- selection --------------------------------------------------------------------------------------------------------


def test_a_list_item() -> None:
    assert pod_snapshots.list_item(snapshot()) == {
        "snapshot_id": NAME,
        "trigger_name": "ten",
        "source_pod": "pod-1",
        "uid": f"uid of {NAME}",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "status": "Ready",
        "policy_name": "policy",
    }
    assert tuple(pod_snapshots.list_item({})) == pod_snapshots.FILTERS


def test_a_list_item_of_a_snapshot_that_says_little() -> None:
    bare = snapshot(labels={}, annotations={"podsnapshot.gke.io/origin-pod": "namespace/pod-2"})
    assert pod_snapshots.list_item(bare)["source_pod"] == "pod-2"
    item = pod_snapshots.list_item(snapshot(labels={}, ready=condition("Ready", "False")))
    assert (item["trigger_name"], item["source_pod"], item["status"]) == ("Unknown", "Unknown", "NotReady")


def test_the_newest_is_first() -> None:
    times = ["2026-01-01T01:00:00+02:00", "2026-01-01T00:00:00Z", "2025-12-31T23:59:59", "yesterday"]
    made = [snapshot(str(place), created=time) for place, time in enumerate(times)]
    names = [item["metadata"]["name"] for item in pod_snapshots.newest_first(made)]
    assert names == ["1", "2", "0", "3"]


def test_within_a_second_the_last_change_counts() -> None:
    versions = ["9", "10", "x", "9" * 5000]
    made = [snapshot(str(place), resourceVersion=version) for place, version in enumerate(versions)]
    names = [item["metadata"]["name"] for item in pod_snapshots.newest_first(made)]
    assert names == ["1", "0", "3", "2"]


def test_filters_are_all_met() -> None:
    made = snapshot()
    for filters in ({"policy_name": "policy"}, {"trigger_name": "ten"}, {"trigger_name": "ten-sk0123456789"}):
        assert pod_snapshots.matches(made, **filters)
    assert pod_snapshots.matches(made, policy_name="policy", trigger_name="ten", source_pod="pod-1", status="Ready")
    assert not pod_snapshots.matches(made, policy_name="policy", trigger_name="twenty")
    assert not pod_snapshots.matches(made, policy_name="other", trigger_name="ten")
    pod_snapshots.check_filters({"policy_name": "policy", "trigger_name": "ten"})
    with pytest.raises(CallerError, match="'policy' is no property"):
        pod_snapshots.check_filters({"policy_name": "policy", "policy": "policy"})


def test_the_newest_to_restore_is_ready_and_of_the_same_owner_and_policy() -> None:
    def newest(*more: dict[str, Any]) -> str:
        old = snapshot("old", created="2020-01-01T00:00:00Z")
        found = pod_snapshots.newest_restorable([old, *more], {"policy", "another"}, "uid:1000")
        assert found is not None
        return str(found["metadata"]["name"])

    assert newest(snapshot("new")) == "new"
    assert newest(snapshot("new", owner="uid:1001")) == "old"
    assert newest(snapshot("new", owner=None)) == "old"
    assert newest(snapshot("new", policy="other")) == "old"
    assert newest(snapshot("new", ready=condition("Ready", "False"))) == "old"
    assert newest(snapshot("new", deletionTimestamp="2026-01-01T00:00:00Z")) == "old"
    assert pod_snapshots.newest_restorable([], {"policy"}, "uid:1000") is None
    assert not pod_snapshots.is_owned_by(snapshot(owner=None), "")


def test_a_snapshot_is_found_by_its_name_or_the_owners_trigger_name() -> None:
    mine = snapshot("mine"), snapshot("newer", created="2026-02-01T00:00:00Z")
    other = snapshot("other", created="2026-03-01T00:00:00Z", owner="uid:1001")
    nobodys = snapshot("nobodys", created="2026-03-01T00:00:00Z", owner=None)

    def found(snapshot_id: str) -> str:
        return str(pod_snapshots.find_snapshot([*mine, other, nobodys], snapshot_id, "uid:1000")["metadata"]["name"])

    assert (found("mine"), found("other"), found("ten")) == ("mine", "other", "newer")
    for unknown in ("twenty", "", "min"):
        with pytest.raises(CallerError, match="there is no PodSnapshot"):
            found(unknown)


def test_another_owners_are_known_by_their_label() -> None:
    assert pod_snapshots.is_of_another(snapshot(owner="uid:1001"), "uid:1000")
    assert not pod_snapshots.is_of_another(snapshot(owner=None), "uid:1000")
    assert not pod_snapshots.is_of_another(snapshot(), "uid:1000")


def test_a_policy_selects_pods_by_labels() -> None:
    def selects(labels: Any = None, expressions: Any = None, **pod: str) -> bool:
        selector = {"matchLabels": labels, "matchExpressions": expressions}
        return pod_snapshots.policy_selects({"spec": {"selector": selector}}, pod)

    def expression(operator: str, *values: str) -> list[dict[str, Any]]:
        return [{"key": "app", "operator": operator, "values": list(values)}]

    assert selects({"app": "a"}, app="a", other="b")
    assert not selects({"app": "a", "other": "b"}, app="a")
    assert not selects({"app": "a"}, app="b")
    assert not selects(app="a")
    assert not pod_snapshots.policy_selects({}, {"app": "a"})
    for operator, of_a, of_b, of_none in (
        ("In", True, False, False),
        ("NotIn", False, True, True),
        ("Exists", True, True, False),
        ("DoesNotExist", False, False, True),
        ("Unknown", False, False, False),
    ):
        expressions = expression(operator, "a")
        assert (selects(None, expressions, app="a"), selects(None, expressions, app="b")) == (of_a, of_b)
        assert selects(None, expressions) is of_none
    assert not selects({"app": "a"}, ["no mapping"], app="a")


# -- restoring --------------------------------------------------------------------------------------------------------


def pod(*conditions: dict[str, str], phase: str = "Running") -> dict[str, Any]:
    return {"metadata": {"name": "pod-1"}, "status": {"phase": phase, "conditions": list(conditions)}}


def test_a_restore_is_proven_by_the_condition() -> None:
    ready, restored = condition("Ready"), condition("PodRestored", message=f"restored from {NAME}.")
    assert pod_snapshots.restore_state(pod(ready, restored), NAME) == "restored"
    assert pod_snapshots.restore_state(pod(restored), NAME) == "restored"
    assert pod_snapshots.restore_state(pod(ready), NAME) == "fresh"
    assert pod_snapshots.restore_state(pod(), NAME) == "pending"
    assert pod_snapshots.restore_state(pod(ready, condition("PodRestored", "Unknown")), NAME) == "pending"
    assert pod_snapshots.restore_state(pod(condition("PodRestored", "False", "Downloading")), NAME) == "pending"


@pytest.mark.parametrize("other", ["other", f"{NAME}0", f"{NAME}-1", f"1{NAME}", f"a-{NAME}", ""])
def test_a_restore_from_another_snapshot_is_an_error(other: str) -> None:
    restored = condition("PodRestored", message=f"restored from {other}")
    with pytest.raises(ProviderError, match=f"pod 'pod-1' was not restored from '{NAME}'"):
        pod_snapshots.restore_state(pod(restored), NAME)


@pytest.mark.parametrize(("reason", "phase"), [("Failed", "Running"), ("Error", "Running"), ("Downloading", "Failed")])
def test_a_failed_restore_is_an_error(reason: str, phase: str) -> None:
    failed = condition("PodRestored", "False", reason, "no such image")
    with pytest.raises(ProviderError, match=r"could not be restored from .*: no such image"):
        pod_snapshots.restore_state(pod(failed, phase=phase), NAME)


def test_the_origin_of_a_pod_is_the_snapshot_that_it_names() -> None:
    restored = pod(condition("PodRestored", message="restored from b-1"))
    names = [snapshot("b"), snapshot("b-1"), snapshot("")]
    assert pod_snapshots.origin_of(restored, names) == names[1]
    assert pod_snapshots.origin_of(restored, names[::2]) is None
    assert pod_snapshots.says_restored(restored)
    for fresh in (pod(), pod(condition("PodRestored", "False", message="restored from b-1"))):
        assert pod_snapshots.origin_of(fresh, names) is None
        assert not pod_snapshots.says_restored(fresh)


@given(ANYTHING)
def test_objects_of_any_shape_are_read(value: Any) -> None:
    obj = {"metadata": value, "spec": value, "status": value}
    assert condition_of(obj, "None") is None
    for function in (
        pod_snapshots.list_item,
        is_ready,
        pod_snapshots.created_snapshot,
        pod_snapshots.snapshot_is_ready,
    ):
        function(obj)
    pod_snapshots.restore_state(obj, NAME)
    pod_snapshots.newest_first([obj, {}])
    assert not pod_snapshots.is_owned_by(obj, "uid:1000")
    assert not pod_snapshots.policy_selects(obj, {"a": "b"})
