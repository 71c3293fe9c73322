"""The same story in a cluster: the daemon dies at each step of making, suspending and ending a pod."""

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.crash.story import Story, check
from tests.daemon.providers.kubernetes.test_pod_snapshots import GROUP, install_policy
from tests.support.kubernetes.clients import Clients
from tests.support.kubernetes.images import BUSYBOX

from sandkeep import failpoints
from sandkeep_store.upkeep import offline

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("runsc")]

SIDE_BY_SIDE = 2

POINTS = ["launch.answered", *(point for point in failpoints.POINTS if point.startswith("kubernetes."))]
OUTCOMES = ("sandbox.created", "sandbox.suspended", "sandbox.resumed", "sandbox.terminated")
COMMITS = [f"{outcome}:{failpoints.BEFORE}" for outcome in OUTCOMES]
"""The cluster has done something that is not on record."""


AGENTS = ("agents.x-k8s.io", "v1beta1", "sandboxes")
TRIGGERS = (GROUP, "v1", "podsnapshotmanualtriggers")


def dies_at(point: str, root: str, source: str, cluster: Any) -> Story:
    """Tell the story to a daemon that dies at that point."""
    daemon = RunningDaemon(root)
    os.chmod(root, 0o711)
    story = Story(daemon)
    daemon.env |= {failpoints.SETTING: point, "KUBECONFIG": str(cluster.kubeconfig)}
    daemon.env["SANDKEEP_KUBERNETES_RUNTIME_CLASS"] = "gvisor"
    try:
        story.start()
        story.tell(source, suspends=True, grows=False, reference=BUSYBOX, provider="kubernetes")
        story.stop()
        check(story)
        assert left_in(cluster, daemon.state_dir) == []
    finally:
        daemon.env.pop(failpoints.SETTING, None)
        daemon.clear()
    return story


def left_in(cluster: Any, state_dir: str) -> list[str]:
    """What the cluster still has that is of the daemon's log, and its pod snapshots."""
    log = offline.open_log(state_dir)
    log_id = log.log_id
    log.close()
    clients, of = Clients(cluster), {"label_selector": f"sandkeep.log={log_id}"}
    found = [pod.metadata.name for pod in clients.core.list_namespaced_pod("default", **of).items]
    for group, version, plural in (AGENTS, TRIGGERS):
        items = clients.custom.list_namespaced_custom_object(group, version, "default", plural, **of)["items"]
        found += [f"{plural}/{each['metadata']['name']}" for each in items]
    ours = {path.name for path in Path(state_dir, "sandboxes").iterdir()}
    saved = clients.custom.list_namespaced_custom_object(GROUP, "v1", "default", "podsnapshots")["items"]
    return found + [
        each["metadata"]["name"] for each in saved if each["metadata"]["labels"]["sandkeep.sandbox"] in ours
    ]


@pytest.fixture(scope="module")
def stories(
    kubernetes: Any, places: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, "Future[Story]"]]:
    """All of them, told side by side: most of the time each waits for something."""
    install_policy(kubernetes)
    source = tmp_path_factory.mktemp("source")
    Path(source, "file").write_text("content\n")
    source.chmod(0o755)
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        yield {
            point: pool.submit(dies_at, point, tempfile.mkdtemp(dir=places), str(source), kubernetes)
            for point in (*POINTS, *COMMITS)
        }
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("point", [*POINTS, *COMMITS])
def test_a_death_at_every_point(stories: dict[str, "Future[Story]"], point: str) -> None:
    assert stories[point].result(300).deaths == 1
