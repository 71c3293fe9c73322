"""Watches of the double: resumed by resourceVersion, ended by timeouts, compaction and faults."""

import json
from typing import Any

import pytest
import urllib3
from kubernetes import watch
from tests.support.expect import until
from tests.support.kubernetes.clients import Clients, refusal
from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.widgets import GROUP, PLURAL, VERSION, Widgets, widget


class Stream:
    """A watch as it comes over the wire."""

    def __init__(self, cluster: Cluster, namespace: str, query: str) -> None:
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}?watch=1&{query}"
        headers = {"Authorization": f"Bearer {cluster.token}"}
        self._response = urllib3.PoolManager().request(
            "GET", cluster.url + path, headers=headers, preload_content=False
        )
        self._buffer = b""

    def next(self) -> dict[str, Any] | None:
        """The next event; None at the end of the stream."""
        while b"\n" not in self._buffer:
            data = self._response.read1(65536)
            if not data:
                assert not self._buffer
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        event: dict[str, Any] = json.loads(line)
        return event

    def brief(self) -> tuple[str, str]:
        """Type and name of the next event."""
        event = self.next()
        assert event is not None
        return event["type"], event["object"]["metadata"]["name"]


def revision(clients: Clients, namespace: str) -> str:
    found = clients.custom.list_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL)
    return str(found["metadata"]["resourceVersion"])


def test_changes_since_a_version(cluster: Cluster, clients: Clients, widgets: Widgets, namespace: str) -> None:
    widgets.create(widget("a"))
    since = revision(clients, namespace)
    widgets.create(widget("b"))
    stream = Stream(cluster, namespace, f"resourceVersion={since}")
    assert stream.brief() == ("ADDED", "b")
    widgets.patch("a", {"spec": {"size": 0}})
    widgets.delete("b")
    changed, deleted = stream.next(), stream.next()
    assert changed
    assert deleted
    assert (changed["type"], changed["object"]["spec"]["size"]) == ("MODIFIED", 0)
    assert (deleted["type"], deleted["object"]["metadata"]["name"]) == ("DELETED", "b")
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in (changed, deleted)]
    assert int(since) < versions[0] < versions[1] == int(revision(clients, namespace))


def test_without_a_version_all_objects_come_first(cluster: Cluster, widgets: Widgets, namespace: str) -> None:
    for name in "ba":
        widgets.create(widget(name))
    stream = Stream(cluster, namespace, "resourceVersion=0")
    assert [stream.brief(), stream.brief()] == [("ADDED", "a"), ("ADDED", "b")]


def test_selected_objects_come_and_go(cluster: Cluster, widgets: Widgets, namespace: str) -> None:
    stream = Stream(cluster, namespace, "labelSelector=kind%3Dred")
    widgets.create(widget("a"))
    widgets.create(widget("b"))
    for value in ("red", "red", "blue"):
        widgets.patch("a", {"metadata": {"labels": {"kind": value}}, "spec": {"size": int(value == "blue")}})
    widgets.patch("b", {"metadata": {"labels": {"kind": "red"}}})
    widgets.delete("b")
    found = [stream.brief() for _ in range(4)]
    assert found == [("ADDED", "a"), ("DELETED", "a"), ("ADDED", "b"), ("DELETED", "b")]


def test_a_change_of_nothing_is_no_event(cluster: Cluster, clients: Clients, widgets: Widgets, namespace: str) -> None:
    widgets.create(widget("a"))
    stream = Stream(cluster, namespace, f"resourceVersion={revision(clients, namespace)}")
    widgets.patch("a", {"spec": {"size": 1}})
    widgets.delete("a")
    assert stream.brief() == ("DELETED", "a")


def test_timeout_ends_with_a_bookmark(cluster: Cluster, clients: Clients, namespace: str) -> None:
    since = revision(clients, namespace)
    stream = Stream(cluster, namespace, f"resourceVersion={since}&timeoutSeconds=1&allowWatchBookmarks=true")
    event = stream.next()
    assert event
    assert (event["type"], event["object"]["metadata"]["resourceVersion"]) == ("BOOKMARK", since)
    assert stream.next() is None
    assert Stream(cluster, namespace, "timeoutSeconds=1").next() is None


def test_bookmarks_follow_events(cluster: Cluster, widgets: Widgets, namespace: str) -> None:
    stream = Stream(cluster, namespace, "allowWatchBookmarks=true")
    made = widgets.create(widget("a"))
    assert stream.brief() == ("ADDED", "a")
    cluster.faults(bookmark=True)
    event = stream.next()
    assert event
    assert event["object"]["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


def test_compacted_versions_are_gone(cluster: Cluster, clients: Clients, widgets: Widgets, namespace: str) -> None:
    since = revision(clients, namespace)
    open_before = Stream(cluster, namespace, f"resourceVersion={since}")
    widgets.create(widget("a"))
    assert open_before.brief() == ("ADDED", "a")
    cluster.faults(compact=True)
    stream = Stream(cluster, namespace, f"resourceVersion={since}")
    error = stream.next()
    assert error
    assert (error["type"], error["object"]["code"], error["object"]["reason"]) == ("ERROR", 410, "Expired")
    assert stream.next() is None
    later = Stream(cluster, namespace, f"resourceVersion={revision(clients, namespace)}")
    widgets.delete("a")
    assert open_before.brief() == later.brief() == ("DELETED", "a")


@pytest.mark.parametrize("final", ["", "gone", "drop"])
def test_watches_can_be_cut(cluster: Cluster, namespace: str, final: str) -> None:
    stream = Stream(cluster, namespace, "")
    cut = cluster.faults(cut_watches={"resource": f"{PLURAL}.{GROUP}", "final": final})
    assert cut["cut"] >= 1
    if final == "drop":
        with pytest.raises(urllib3.exceptions.ProtocolError):
            stream.next()
        return
    if final == "gone":
        error = stream.next()
        assert error
        assert error["object"]["code"] == 410
    assert stream.next() is None


def test_the_official_watch(clients: Clients, widgets: Widgets, namespace: str) -> None:
    widgets.create(widget("a"))
    watcher: Any = watch.Watch  # without types
    listing = clients.custom.list_namespaced_custom_object
    events = watcher().stream(listing, GROUP, VERSION, namespace, PLURAL, timeout_seconds=1)
    assert [(event["type"], event["object"]["metadata"]["name"]) for event in events] == [("ADDED", "a")]


def test_open_watches_are_counted(cluster: Cluster, namespace: str) -> None:
    stream = Stream(cluster, namespace, "labelSelector=a%3Db")
    found = [row for row in cluster.requests()["watches"] if row["namespace"] == namespace]
    assert found == [
        {
            "user": "kubernetes-admin",
            "resource": f"{PLURAL}.{GROUP}",
            "namespace": namespace,
            "labelSelector": "a=b",
            "fieldSelector": "",
        }
    ]
    cut = cluster.faults(cut_watches={})
    assert cut["cut"] >= 1
    assert stream.next() is None
    until(lambda: cluster.requests()["watches"] == [])


def test_a_list_that_was_begun_before_a_compaction_expires(clients: Clients, namespace: str, cluster: Cluster) -> None:
    for name in "abc":
        clients.core.create_namespaced_config_map(namespace, {"metadata": {"name": name}})
    token = clients.core.list_namespaced_config_map(namespace, limit=2).metadata._continue
    cluster.faults(compact=True)
    expired = refusal(lambda: clients.core.list_namespaced_config_map(namespace, limit=2, _continue=token))
    assert expired == (410, "Expired")
