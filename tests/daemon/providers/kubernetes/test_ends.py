"""Ends in a cluster that is slow: finalizers, pod snapshots that come late, and nodes that hang."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from kubernetes import watch
from tests.daemon.providers.kubernetes.conftest import kubeconfig, make, opened
from tests.daemon.providers.kubernetes.test_pod_snapshots import GROUP, install_policy
from tests.support.expect import refused_async
from tests.support.kubernetes import live
from tests.support.kubernetes.clients import Clients
from tests.support.ledgers import Owning
from tests.support.patience import patient

from sandkeep.ids import new_id
from sandkeepd.providers.common import relayed_instance
from sandkeepd.providers.kubernetes import exec as kubernetes_exec
from sandkeepd.providers.kubernetes import objects as kubernetes_objects
from sandkeepd.providers.kubernetes import pod_snapshots, pods
from sandkeepd.providers.kubernetes.cluster import Cluster
from sandkeepd.providers.kubernetes.pods import Pod
from sandkeepd.providers.kubernetes.provider import KubernetesProvider

pytestmark = pytest.mark.needs("root")

LISTED = (GROUP, "v1", "default", "podsnapshots")


@pytest.fixture(autouse=True)
def runtime(kubernetes: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    install_policy(kubernetes)
    if any("runsc" in mark.args for mark in request.node.iter_markers("needs")):
        live.require_saving()
        monkeypatch.setenv("SANDKEEP_KUBERNETES_RUNTIME_CLASS", "gvisor")


async def snapshots(kubernetes: Any) -> list[Any]:
    custom = Clients(kubernetes).custom
    listed = await trio.to_thread.run_sync(lambda: custom.list_namespaced_custom_object(*LISTED))
    return list(listed["items"])


async def comes(kubernetes: Any, count: int) -> list[Any]:
    with trio.fail_after(patient(120)):
        while len(found := await snapshots(kubernetes)) != count:
            await trio.sleep(0.05)
    return found


async def life(kubernetes: Any, version: str) -> tuple[Any, Any]:
    """Return the metadata of the pod snapshot that comes next after a version, and of the next one that goes. It may do
    both between two looks.
    """
    custom, watcher = Clients(kubernetes).custom, watch.Watch()  # type: ignore[no-untyped-call]

    def wait() -> tuple[Any, Any]:
        seen: dict[str, Any] = {}
        options = {"resource_version": version, "timeout_seconds": 120}
        for event in watcher.stream(custom.list_namespaced_custom_object, *LISTED, **options):  # type: ignore[no-untyped-call]
            seen.setdefault(event["type"], event["object"]["metadata"])
            if "DELETED" in seen:
                break
        return seen["ADDED"], seen["DELETED"]

    return await trio.to_thread.run_sync(wait)


def script(kubernetes: Any, **options: Any) -> Any:
    return trio.to_thread.run_sync(lambda: kubernetes.script(**options))


@pytest.mark.needs("runsc")
async def test_a_pod_snapshot_that_comes_late_is_removed(
    provider: KubernetesProvider, kubernetes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await make(provider)
    listed = await trio.to_thread.run_sync(partial(Clients(kubernetes).custom.list_namespaced_custom_object, *LISTED))
    await script(kubernetes, trigger_delay_s=2)
    monkeypatch.setattr(pod_snapshots, "SAVED_S", 0.5)
    monkeypatch.setattr(pod_snapshots.PodSaver, "_quietly_delete", nothing)  # as when the controller was faster
    try:
        (tmp_path / "ckp_1").mkdir()
        saving = provider.checkpoints.checkpoint(instance.sandbox_id, str(tmp_path / "ckp_1"), [], leave_running=True)
        error = await refused_async("provider_unavailable", saving)
        assert "was not ready" in error.message
        made, gone = await life(kubernetes, listed["metadata"]["resourceVersion"])
        assert made["labels"]["gke-pod-snapshot-triggered-by"].startswith("ckp-1")
        assert gone["uid"] == made["uid"]
    finally:
        await script(kubernetes, trigger_delay_s=0)
        await provider.checkpoints.discard("ckp_1")
    await provider.terminate(instance.sandbox_id, {}, instance.handle)


@pytest.mark.needs("runsc")
async def test_the_pod_goes_first_and_the_finalizer_of_its_snapshot_is_named(
    provider: KubernetesProvider, kubernetes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await make(provider)
    assert instance.pauses is not None
    await instance.pauses.suspend()
    await script(kubernetes, snapshot_deletion_s=3600)
    try:
        monkeypatch.setattr(kubernetes_objects, "DELETED_S", 4.0)
        error = await refused_async(
            "provider_unavailable", provider.terminate(instance.sandbox_id, {}, instance.handle)
        )
        assert "podsnapshot.gke.io/snapshot-cleanup" in error.message
        assert (await provider.found())[0] == [], "its pod waits for the snapshot"
    finally:
        await script(kubernetes, snapshot_deletion_s=0)
    monkeypatch.undo()
    with trio.fail_after(patient(60)):
        await provider.terminate(instance.sandbox_id, {}, instance.handle)
    assert await snapshots(kubernetes) == []


async def nothing(*_: object) -> None:
    pass


@pytest.mark.needs("runsc")
async def test_snapshots_of_sandboxes_that_have_ended_are_swept_and_those_of_others_are_not(
    provider: KubernetesProvider, kubernetes: Any
) -> None:
    instance = await make(provider)
    assert instance.pauses is not None
    await instance.pauses.suspend()
    made = instance.place.made
    of = "agents.x-k8s.io", "v1beta1", "default", "sandboxes", made.name
    custom = Clients(kubernetes).custom
    await trio.to_thread.run_sync(lambda: custom.delete_namespaced_custom_object(*of))
    with trio.fail_after(patient(60)):
        await instance.ended()
    await comes(kubernetes, 1)
    assert (await provider.clean_up(Owning())).removed == []
    assert len(await snapshots(kubernetes)) == 1
    swept = await provider.clean_up(Owning(ended=[instance.sandbox_id]))
    assert swept.removed == [f"pod snapshot of {instance.sandbox_id}"]
    assert await snapshots(kubernetes) == []


async def test_suspend_and_resume_have_time_for_a_snapshot_and_a_pod(provider: KubernetesProvider) -> None:
    instance = await make(provider)
    assert instance.pauses is not None
    assert instance.pauses.deadline_s > max(pod_snapshots.SAVED_S, kubernetes_objects.DELETED_S)


async def test_channels_of_a_node_that_hangs_hold_up_no_other(
    pod: Pod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr(pods, "TURN_S", 0.2)
    monkeypatch.setattr(kubernetes_exec, "CONNECT_S", 1000.0)
    [silent] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    opening, hanging = pod._cluster.opening, Cluster(kubeconfig(tmp_path / "h", silent.socket.getsockname()[1]))
    hanging.opening = opening

    async def hang() -> None:
        async with Pod(hanging, "ns", "hanging").channel(["true"]):
            pass

    async with silent:
        for _ in range(int(opening.total_tokens) + 4):
            nursery.start_soon(hang)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(patient(60)):
            async with pod.channel(["echo", "on"]) as stream:
                assert await stream.receive_some() == b"on\n"
            while opening.borrowed_tokens:
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


async def test_sandboxes_are_released_at_once(kubernetes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop that lets each wait for its node in turn takes minutes."""
    monkeypatch.setattr(relayed_instance, "RELAY_ENDS_S", 1000.0)
    waiting, others_wait = 0, trio.Event()

    async def end(_stream: object) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 2:  # a channel that is being opened just then has no stream to end
            others_wait.set()
        with trio.move_on_after(patient(30)):
            await others_wait.wait()

    log_id, state = new_id("log"), tmp_path / "state"
    with trio.fail_after(patient(60)):
        async with opened(kubernetes.kubeconfig, state, log_id) as provider:
            made = [await make(provider) for _ in range(3)]
            monkeypatch.setattr(relayed_instance, "_end", end)
    assert others_wait.is_set()
    async with opened(kubernetes.kubeconfig, state, log_id) as provider:
        for instance in made:
            await provider.terminate(instance.sandbox_id, {}, instance.handle)
