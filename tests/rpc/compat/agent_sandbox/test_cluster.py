"""Requests and watches: every change is seen, whatever happens to the connection."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes import client
from tests.support.kubernetes.cluster import Cluster as Double
from tests.support.patience import patient

from sandkeep.compat.agent_sandbox.cluster import PODS, Cluster, Resource
from sandkeep.errors import CallerError, ProviderError, SandkeepError, SetupError, StateError
from sandkeep.kubernetes import versions
from sandkeep.kubernetes.objects import Object, label_of, name_of

pytestmark = pytest.mark.needs("bwrap")

# No controller changes a template.
TEMPLATES = Resource(versions.EXTENSIONS.name, "v1beta1", "sandboxtemplates")
DEADLINE_S = patient(60.0)


def template(name: str = "template") -> dict[str, Any]:
    return {
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1",
        "kind": "SandboxTemplate",
        "metadata": {"name": name, "labels": {"count": "0"}},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "main", "image": "none"}]}}},
    }


def number(count: int) -> dict[str, Any]:
    return {"metadata": {"labels": {"count": str(count)}}}


def count_to(cluster: Cluster, last: int) -> None:
    """Change the object once for each number, and then delete it."""
    for count in range(1, last + 1):
        cluster.patch(TEMPLATES, "template", number(count))
    cluster.delete(TEMPLATES, "template")


def counts(states: Iterator[Object | None]) -> Iterator[int | None]:
    for state in states:
        yield None if state is None else int(label_of(state, "count"))
        if state is None:
            return


def follow(cluster: Cluster, first: Object | None = None) -> Iterator[int | None]:
    return counts(cluster.states(TEMPLATES, "template", time.monotonic() + DEADLINE_S, "the template", first))


def test_requests(cluster: Cluster) -> None:
    assert cluster.read(TEMPLATES, "template") is None
    made = cluster.create(TEMPLATES, template())
    cluster.create(TEMPLATES, template("other"))
    assert cluster.read(TEMPLATES, "template") == made
    assert sorted(map(name_of, cluster.objects(TEMPLATES))) == ["other", "template"]
    assert label_of(cluster.patch(TEMPLATES, "template", number(7)), "count") == "7"
    assert cluster.delete(TEMPLATES, "template")
    assert not cluster.delete(TEMPLATES, "template")
    assert cluster.objects(PODS) == []


def test_refusals_are_errors(cluster: Cluster, double: Double) -> None:
    cluster.create(TEMPLATES, template())
    with pytest.raises(StateError, match=r"creating sandboxtemplates: .*already exists"):
        cluster.create(TEMPLATES, template())
    with pytest.raises(CallerError, match="is invalid"):
        cluster.create(TEMPLATES, {**template("bad"), "spec": {}})
    with pytest.raises(CallerError, match=r"changing sandboxtemplates 'none': .*not found"):
        cluster.patch(TEMPLATES, "none", {})
    token = double.issue_token("nobody")
    configuration = client.Configuration(host=double.url, api_key={"authorization": f"Bearer {token}"})
    with pytest.raises(SetupError, match=r"listing pods: .*forbidden.*: grant it"):
        Cluster(cluster.namespace, client.ApiClient(configuration)).objects(PODS)


def test_a_cluster_that_is_not_there_is_an_error() -> None:
    configuration = client.Configuration(host="http://127.0.0.1:9")
    configuration.retries = False
    with pytest.raises(ProviderError, match="the cluster does not answer"):
        Cluster("default", client.ApiClient(configuration)).objects(PODS)


def test_the_version_of_a_group_is_found(cluster: Cluster) -> None:
    assert cluster.resource(versions.EXTENSIONS, "sandboxtemplates") == TEMPLATES
    assert cluster.version(versions.Group("no.such.group", ("v1",))) is None
    with pytest.raises(SetupError, match=r"the cluster has no no\.such\.group: install"):
        cluster.resource(versions.Group("no.such.group", ("v1",)), "things")


def test_all_states_of_an_object_are_seen(cluster: Cluster) -> None:
    """From the one that was created on, also those before the watch began."""
    made = cluster.create(TEMPLATES, template())
    count_to(cluster, 5)
    assert list(follow(cluster, made)) == [0, 1, 2, 3, 4, 5, None]


def test_an_object_may_come_later(cluster: Cluster) -> None:
    states = cluster.states(TEMPLATES, "template", time.monotonic() + DEADLINE_S, "the template")
    assert next(states) is None
    cluster.create(TEMPLATES, template("other"))
    cluster.create(TEMPLATES, template())
    found = next(states)
    assert found is not None
    assert name_of(found) == "template"


@pytest.mark.parametrize("fault", [{"status": 503}, {"status": 429}, {"drop": True}, {"status": 410}])
def test_a_watch_that_fails_is_begun_anew(cluster: Cluster, double: Double, fault: dict[str, Any]) -> None:
    made = cluster.create(TEMPLATES, template())
    double.faults(method="GET", path="watch", times=2, **fault)
    count_to(cluster, 3)
    seen = list(follow(cluster, made))
    assert (seen[0], seen[-1]) == (0, None)
    if fault != {"status": 410}:
        assert seen == [0, 1, 2, 3, None]


@pytest.mark.parametrize("final", ["", "drop", "gone"])
def test_a_watch_that_is_cut_goes_on_where_it_was(cluster: Cluster, double: Double, final: str) -> None:
    states = follow(cluster, cluster.create(TEMPLATES, template()))
    seen = [next(states)]
    changing = threading.Thread(target=count_to, args=(cluster, 20))
    changing.start()
    for place, state in enumerate(states):
        seen.append(state)
        if place in (0, 3, 6):
            double.faults(cut_watches={"final": final})
    changing.join()
    if final != "gone":  # after which it is read anew
        assert seen == [*range(21), None]
    numbers = [count for count in seen if count is not None]
    assert numbers == sorted(numbers)
    assert seen[-1] is None


def test_states_that_are_not_kept_any_more_are_skipped(cluster: Cluster, double: Double) -> None:
    """410 Gone: the object is read anew."""
    states = follow(cluster, cluster.create(TEMPLATES, template()))
    assert next(states) == 0
    for count in (1, 2, 3):
        cluster.patch(TEMPLATES, "template", number(count))
    double.faults(compact=True)
    assert next(states) == 3
    cluster.delete(TEMPLATES, "template")
    assert list(states) == [None]


def test_the_deadline_is_an_error_with_the_last_condition(cluster: Cluster) -> None:
    made = {**cluster.create(TEMPLATES, template())}
    made["status"] = {"conditions": [{"type": "Ready", "status": "False", "message": "no node is large enough"}]}
    states = cluster.states(TEMPLATES, "template", time.monotonic() + 0.5, "the template", made)
    with pytest.raises(StateError, match=r"^the template took too long: no node is large enough") as late:
        list(states)
    assert late.value.code == "timeout"


def test_what_may_not_be_watched_is_an_error_at_once(cluster: Cluster, double: Double) -> None:
    made = cluster.create(TEMPLATES, template())
    double.faults(method="GET", path="watch", times=1, status=403, message="not for you")
    with pytest.raises(SandkeepError, match="not for you") as refused:
        list(follow(cluster, made))
    assert refused.value.code == "not_configured"
