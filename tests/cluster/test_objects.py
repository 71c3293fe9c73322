"""Objects, as the official client sees them."""

import base64
import threading
from typing import Any

import pytest
from kubernetes import client
from tests.support.expect import until
from tests.support.kubernetes.clients import Clients, refusal
from tests.support.kubernetes.widgets import GROUP, PLURAL, VERSION, Widgets, pod, widget


def test_create_and_get(clients: Clients, namespace: str) -> None:
    made = clients.core.create_namespaced_pod(namespace, pod("a"))
    assert made.metadata.uid
    assert made.metadata.creation_timestamp
    assert made.status.phase == "Pending"
    assert made.spec.restart_policy == "Always"
    assert clients.core.read_namespaced_pod("a", namespace).metadata.uid == made.metadata.uid
    assert refusal(lambda: clients.core.create_namespaced_pod(namespace, pod("a"))) == (409, "AlreadyExists")
    assert refusal(lambda: clients.core.read_namespaced_pod("b", namespace)) == (404, "NotFound")
    assert refusal(lambda: clients.core.create_namespaced_pod("nowhere", pod("a"))) == (404, "NotFound")


def test_one_of_many_creates_wins(clients: Clients, namespace: str) -> None:
    barrier, found = threading.Barrier(16), []

    def create() -> None:
        barrier.wait()
        found.append(refusal(lambda: clients.core.create_namespaced_config_map(namespace, {"metadata": {"name": "a"}})))

    threads = [threading.Thread(target=create) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [(200, "")] + [(409, "AlreadyExists")] * 15


def test_generate_name(clients: Clients, namespace: str) -> None:
    body = {"metadata": {"generateName": "some-"}}
    names = {clients.core.create_namespaced_config_map(namespace, body).metadata.name for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("some-") and len(name) == 10 for name in names)


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("app=b", ["b"]),
        ("app!=b", ["a", "c"]),
        ("app in (a, c)", ["a", "c"]),
        ("app notin (a,c),app", ["b"]),
        ("extra", ["c"]),
        ("!extra,app==a", ["a"]),
    ],
)
def test_label_selectors(clients: Clients, namespace: str, selector: str, names: list[str]) -> None:
    for name in "abc":
        meta = {"name": name, "labels": {"app": name} | ({"extra": ""} if name == "c" else {})}
        clients.core.create_namespaced_config_map(namespace, {"metadata": meta})
    found = clients.core.list_namespaced_config_map(namespace, label_selector=selector).items
    ours = [item.metadata.name for item in found if item.metadata.name in "abc"]  # a controller makes one, too
    assert ours == names


def test_field_selectors(clients: Clients, namespace: str) -> None:
    for name in "ab":
        clients.core.create_namespaced_pod(namespace, pod(name))
    for selector, names in (("metadata.name=a", ["a"]), ("metadata.name!=a,spec.nodeName!=none", ["b"])):
        found = clients.core.list_namespaced_pod(namespace, field_selector=selector).items
        assert [item.metadata.name for item in found] == names
    wrong = refusal(lambda: clients.core.list_namespaced_pod(namespace, field_selector="spec.image=x"))
    assert wrong == (400, "BadRequest")


def test_pages_are_consistent(clients: Clients, namespace: str) -> None:
    for name in "abcde":
        clients.core.create_namespaced_secret(namespace, {"metadata": {"name": name}})
    first = clients.core.list_namespaced_secret(namespace, limit=2)
    assert first.metadata.remaining_item_count == 3
    clients.core.delete_namespaced_secret("d", namespace)
    token = first.metadata._continue
    rest = clients.core.list_namespaced_secret(namespace, limit=3, _continue=token)
    assert [item.metadata.name for item in (*first.items, *rest.items)] == list("abcde")
    assert rest.metadata.resource_version == first.metadata.resource_version
    assert not rest.metadata._continue


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": []},
        {"containers": [{"name": "BAD NAME", "image": "x"}]},
        {"containers": [{"name": "a", "image": "x"}, {"name": "a", "image": "x"}]},
        {"containers": [{"name": "a"}]},
        {"containers": [{"name": "a", "image": "x", "volumeMounts": [{"name": "none", "mountPath": "/a"}]}]},
        {"containers": [{"name": "a", "image": "x"}], "restartPolicy": "Sometimes"},
    ],
)
def test_invalid_pods(clients: Clients, namespace: str, spec: dict[str, Any]) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    status, answer = clients.request("POST", path, {"metadata": {"name": "a"}, "spec": spec})
    assert (status, answer["reason"]) == (422, "Invalid")
    assert answer["details"]["causes"][0]["field"].startswith("spec.")


def test_config_maps_have_a_size_limit(clients: Clients, namespace: str) -> None:
    most = base64.b64encode(bytes(1 << 20)).decode()
    clients.core.create_namespaced_config_map(namespace, {"metadata": {"name": "a"}, "binaryData": {"x": most}})
    more = {"metadata": {"name": "b"}, "binaryData": {"x": most}, "data": {"y": "1"}}
    assert refusal(lambda: clients.core.create_namespaced_config_map(namespace, more)) == (422, "Invalid")


def test_strategic_merge_patch(clients: Clients, namespace: str) -> None:
    before = clients.core.create_namespaced_pod(namespace, pod("a"))
    patch = {"metadata": {"labels": {"more": "1"}}, "spec": {"containers": [{"name": "main", "image": "other"}]}}
    after = clients.core.patch_namespaced_pod("a", namespace, patch)
    assert after.metadata.labels == {"app": "a", "more": "1"}
    assert [(one.image, one.command) for one in after.spec.containers] == [("other", ["sleep", "1"])]
    assert int(after.metadata.resource_version) > int(before.metadata.resource_version)
    stale = {"metadata": {"resourceVersion": before.metadata.resource_version, "labels": {"x": "y"}}}
    assert refusal(lambda: clients.core.patch_namespaced_pod("a", namespace, stale)) == (409, "Conflict")
    immutable = {"spec": {"terminationGracePeriodSeconds": 55}}
    assert refusal(lambda: clients.core.patch_namespaced_pod("a", namespace, immutable)) == (422, "Invalid")


def test_status_is_a_subresource(widgets: Widgets) -> None:
    assert widgets.create(widget("a"))["spec"] == {"size": 1, "mode": "a"}
    changed = widgets.patch("a", {"spec": {"size": 0}, "status": {"phase": "X"}})
    assert ("status" in changed, changed["spec"]["size"], changed["metadata"]["generation"]) == (False, 0, 2)
    changed = widgets.patch_status("a", {"spec": {"size": 1}, "status": {"phase": "Y"}})
    assert (changed["status"], changed["spec"]["size"]) == ({"phase": "Y"}, 0)
    assert changed["metadata"]["generation"] == 2


def test_schema_validation(clients: Clients, widgets: Widgets, namespace: str) -> None:
    path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}"
    assert refusal(lambda: widgets.create(widget("a", size=7))) == (422, "Invalid")
    assert clients.request("POST", path, widget("a", size="1"))[0] == 422
    assert clients.request("POST", path, widget("a", mode="c"))[0] == 422
    assert clients.request("POST", path, {**widget("a"), "spec": {}})[0] == 422
    assert "extra" not in clients.request("POST", path, {**widget("a"), "extra": 1})[1]
    strict = clients.request("POST", f"{path}?fieldValidation=Strict", {**widget("b"), "extra": 1})
    assert strict[0] == 400
    assert 'unknown field "extra"' in strict[1]["message"]


def test_merge_and_json_patch(widgets: Widgets) -> None:
    widgets.create(widget("a"))
    widgets.patch("a", {"metadata": {"annotations": {"a": "1", "b": "2"}}})
    assert widgets.patch("a", {"metadata": {"annotations": {"a": None}}})["metadata"]["annotations"] == {"b": "2"}
    operations = [{"op": "test", "path": "/spec/size", "value": 1}, {"op": "replace", "path": "/spec/size", "value": 0}]
    as_json_patch = {"_content_type": "application/json-patch+json"}
    assert widgets.patch("a", operations, **as_json_patch)["spec"]["size"] == 0
    assert refusal(lambda: widgets.patch("a", operations, **as_json_patch)) == (422, "Invalid")
    assert refusal(lambda: widgets.patch("a", operations)) == (400, "BadRequest")


def test_replace_needs_the_latest_version(widgets: Widgets) -> None:
    old = widgets.create(widget("a"))
    new = widgets.replace("a", {**old, "spec": {"size": 0}})
    assert new["metadata"]["generation"] == 2
    assert refusal(lambda: widgets.replace("a", {**old, "spec": {"size": 1}})) == (409, "Conflict")


def test_server_side_apply(clients: Clients, namespace: str) -> None:
    path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}/a?fieldManager="
    kind = "application/apply-patch+yaml"
    status, made = clients.request("PATCH", path + "one", widget("a", x=1, y=2), kind)
    assert status == 201
    assert made["metadata"]["managedFields"][0]["manager"] == "one"
    status, changed = clients.request("PATCH", path + "one", widget("a", x=1), kind)
    assert (status, changed["spec"]) == (200, {"size": 1, "x": 1, "mode": "a"})
    assert clients.request("PATCH", path + "two", widget("a", x=3), kind)[0] == 409
    forced = clients.request("PATCH", path + "two&force=true", widget("a", x=3), kind)
    assert forced[1]["spec"]["x"] == 3


def test_finalizers_delay_deletion(widgets: Widgets) -> None:
    body = widget("a")
    body["metadata"]["finalizers"] = ["example.com/wait"]
    widgets.create(body)
    widgets.delete("a")
    assert widgets.get("a")["metadata"]["deletionTimestamp"]
    widgets.patch("a", {"metadata": {"finalizers": None}})
    assert refusal(lambda: widgets.get("a")) == (404, "NotFound")


@pytest.mark.parametrize("policy", ["Background", "Foreground", "Orphan"])
def test_owned_objects(clients: Clients, widgets: Widgets, namespace: str, policy: str) -> None:
    owner = widgets.create(widget("owner"))
    reference = {"apiVersion": owner["apiVersion"], "kind": "Widget", "name": "owner", "blockOwnerDeletion": True}
    body = widget("owned")
    body["metadata"] |= {"ownerReferences": [reference | {"uid": owner["metadata"]["uid"]}], "finalizers": ["a.b/c"]}
    widgets.create(body)
    widgets.delete("owner", propagation_policy=policy)
    until(lambda: widgets.names() == (["owned", "owner"] if policy == "Foreground" else ["owned"]))
    until(lambda: policy == "Orphan" or "deletionTimestamp" in widgets.get("owned")["metadata"])
    owned = widgets.get("owned")["metadata"]
    assert ("deletionTimestamp" in owned, "ownerReferences" in owned) == (policy != "Orphan", policy != "Orphan")
    widgets.patch("owned", {"metadata": {"finalizers": None}})
    until(lambda: widgets.names() == (["owned"] if policy == "Orphan" else []))


def test_delete_preconditions_and_collections(clients: Clients, widgets: Widgets, namespace: str) -> None:
    clients.core.create_namespaced_pod(namespace, pod("a"))
    options = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="other"))
    assert refusal(lambda: clients.core.delete_namespaced_pod("a", namespace, body=options)) == (409, "Conflict")
    clients.core.delete_namespaced_pod("a", namespace, grace_period_seconds=0)
    assert refusal(lambda: clients.core.delete_namespaced_pod("a", namespace)) == (404, "NotFound")
    for name in "ab":
        widgets.create(widget(name))
    clients.custom.delete_collection_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL)
    assert widgets.names() == []


def test_namespaces_end_with_their_objects(clients: Clients, widgets: Widgets, namespace: str) -> None:
    body = widget("a")
    body["metadata"]["finalizers"] = ["example.com/wait"]
    widgets.create(body)
    clients.core.delete_namespace(namespace)
    assert clients.core.read_namespace(namespace).status.phase == "Terminating"
    assert refusal(lambda: widgets.create(widget("b"))) == (403, "Forbidden")
    widgets.patch("a", {"metadata": {"finalizers": []}})
    until(lambda: refusal(lambda: clients.core.read_namespace(namespace)) == (404, "NotFound"))


def test_definitions(clients: Clients, widgets: Widgets) -> None:
    found = clients.extensions.read_custom_resource_definition(f"{PLURAL}.{GROUP}")
    assert {one.type: one.status for one in found.status.conditions} == {"NamesAccepted": "True", "Established": "True"}
    assert [one.name for one in client.ApisApi(clients.api).get_api_versions().groups if one.name == GROUP] == [GROUP]
    resources = clients.request("GET", f"/apis/{GROUP}/{VERSION}")[1]["resources"]
    assert [one["name"] for one in resources] == [PLURAL, f"{PLURAL}/status"]
    unknown = refusal(lambda: clients.custom.list_cluster_custom_object(GROUP, VERSION, "gadgets"))
    assert unknown == (404, "")
    assert client.VersionApi(clients.api).get_code().git_version.startswith("v1.")
