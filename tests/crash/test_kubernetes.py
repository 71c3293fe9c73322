"""The same story in a cluster: the daemon dies at each step of making, suspending and ending a pod."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.crash.story import Story, Told, asked_for, check, side_by_side, story_in
from tests.daemon.providers.kubernetes.test_pod_snapshots import GROUP, install_policy
from tests.support.kubernetes import live
from tests.support.kubernetes.clients import Clients
from tests.support.kubernetes.images import BUSYBOX

from sandkeep import failpoints
from sandkeep_store.upkeep import offline

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("runsc")]

SAVES = not live.is_wanted()
"""Of a real cluster it is unknown whether it saves pods."""
SAVING = ("kubernetes.triggered", "kubernetes.suspended", "sandbox.suspended", "sandbox.resumed")
POINTS = [
    point
    for point in ["launch.answered", *(each for each in failpoints.POINTS if each.startswith("kubernetes."))]
    if SAVES or point not in SAVING
]
OUTCOMES = [
    outcome
    for outcome in ("sandbox.created", "sandbox.suspended", "sandbox.resumed", "sandbox.terminated")
    if SAVES or outcome not in SAVING
]
COMMITS = [f"{outcome}:{failpoints.BEFORE}" for outcome in OUTCOMES]
"""The cluster has done something that is not on record."""


IN_ORDER = [
    "kubernetes.made", "kubernetes.secrets", "sandbox.created:before", "launch.answered", "kubernetes.triggered",
    "kubernetes.suspended", "sandbox.suspended:before", "sandbox.resumed:before", "kubernetes.deleted",
    "sandbox.terminated:before",
]  # fmt: skip
"""The points of stories in which the daemon dies more than once."""

AGENTS = ("agents.x-k8s.io", "v1beta1", "sandboxes")
TRIGGERS = (GROUP, "v1", "podsnapshotmanualtriggers")


def dies_at(points: Sequence[str], places: str, source: str, cluster: Any) -> Story:
    """Tell the story to a daemon that dies at these points."""
    settings = {"KUBECONFIG": str(cluster.kubeconfig)}
    settings |= {"SANDKEEP_KUBERNETES_RUNTIME_CLASS": "gvisor"} if SAVES else {}
    with story_in(places, points, **settings) as story:
        story.start()
        story.tell(source, suspends=SAVES, updates=False, reference=BUSYBOX, provider="kubernetes")
        story.stop()
        check(story)
        assert left_in(cluster, story.daemon.state_dir) == []
    return story


def left_in(cluster: Any, state_dir: str) -> list[str]:
    """What the cluster still has that is of the daemon's log, and its pod snapshots."""
    log = offline.open_log(state_dir)
    log_id = log.log_id
    log.close()
    clients, of = Clients(cluster), {"label_selector": f"sandbox.users.io/sandkeep-log={log_id}"}
    found = [pod.metadata.name for pod in clients.core.list_namespaced_pod("default", **of).items]
    for group, version, plural in (AGENTS, TRIGGERS) if SAVES else (AGENTS,):
        items = clients.custom.list_namespaced_custom_object(group, version, "default", plural, **of)["items"]
        found += [f"{plural}/{each['metadata']['name']}" for each in items]
    if not SAVES:
        return found
    ours = {path.name for path in Path(state_dir, "sandboxes").iterdir()}
    saved = clients.custom.list_namespaced_custom_object(GROUP, "v1", "default", "podsnapshots")["items"]
    label = "sandbox.users.io/sandkeep-sandbox"
    return found + [each["metadata"]["name"] for each in saved if each["metadata"]["labels"][label] in ours]


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest, kubernetes: Any, places: str, source: str) -> Iterator[Told]:
    if SAVES:
        install_policy(kubernetes)
    tell = partial(dies_at, places=places, source=source, cluster=kubernetes)
    with side_by_side(tell, asked_for(request), 2, in_order=IN_ORDER) as told:
        yield told


@pytest.mark.parametrize("point", [*POINTS, *COMMITS])
def test_a_death_at_every_point(told: Told, point: str) -> None:
    assert point in told(point=point).died_at
