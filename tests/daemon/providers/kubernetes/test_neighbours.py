"""Pods that other people's programs in the cluster change, refuse and delete."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.daemon.providers.kubernetes.conftest import CALLER, SPEC, make, opened, output_of, planned
from tests.support.expect import refused_async
from tests.support.kubernetes.clients import Clients
from tests.support.kubernetes.images import BUSYBOX
from tests.support.patience import patient

from sandkeep.ids import SANDBOX, new_id
from sandkeepd.providers.kubernetes.provider import KubernetesProvider

pytestmark = pytest.mark.needs("root")

SIDECAR = {"name": "mesh", "image": BUSYBOX, "command": ["sleep", "1000000"]}
AGENTS = "agents.x-k8s.io", "v1beta1", "default", "sandboxes"
EXTENSIONS = "extensions.agents.x-k8s.io", "v1beta1", "default"
AWAY = 'failed calling webhook "mesh.example.com": failed to call webhook: Post "https://mesh": connection refused'
DENIED = 'admission webhook "policy.example.com" denied the request: no team label'


@pytest.fixture
def clients(kubernetes: Any) -> Iterator[Clients]:
    with Clients(kubernetes) as made:
        yield made
    kubernetes.script(sidecar={}, refuse_pods="", sandbox_delay_s=0)


def pods(clients: Clients, sandbox_id: str) -> list[Any]:
    label = f"sandbox.users.io/sandkeep-sandbox={sandbox_id}"
    return list(clients.core.list_namespaced_pod("default", label_selector=label).items)


def sandboxes(clients: Clients, sandbox_id: str) -> list[Any]:
    label = f"sandbox.users.io/sandkeep-sandbox={sandbox_id}"
    return list(clients.custom.list_namespaced_custom_object(*AGENTS, label_selector=label)["items"])


async def nothing_is_left(clients: Clients, sandbox_id: str) -> None:
    with trio.fail_after(patient(60)):
        while await trio.to_thread.run_sync(lambda: pods(clients, sandbox_id) + sandboxes(clients, sandbox_id)):
            await trio.sleep(0.05)


async def test_a_container_that_others_put_into_the_pod_is_not_ours(
    provider: KubernetesProvider, kubernetes: Any, clients: Clients
) -> None:
    kubernetes.script(sidecar=SIDECAR)
    instance = await make(provider)
    assert await output_of(instance, "tr '\\0' ' ' </proc/1/cmdline") == "/sandkeep/bin/keeper -p /sandkeep/io "
    code, said, _ = await instance.run_command(["cat"], b"in and out")
    assert (code, said) == (0, b"in and out")
    assert [each.name for each in pods(clients, instance.sandbox_id)[0].spec.containers] == ["mesh", "sandbox"]


async def test_our_container_ends_and_that_of_others_goes_on(
    provider: KubernetesProvider, kubernetes: Any, clients: Clients
) -> None:
    """The pod's phase is Running then."""
    kubernetes.script(sidecar=SIDECAR)
    instance = await make(provider, user="0")
    await trio.to_thread.run_sync(lambda: kubernetes.script(starve=[instance.place.pod]))
    with trio.fail_after(patient(60)):
        await instance.ended()
    assert "container sandbox: exit code 137 (OOMKilled): give it more memory" in (await instance.ended()).message
    await nothing_is_left(clients, instance.sandbox_id)


async def test_a_template_of_several_containers_has_a_main_one(
    provider: KubernetesProvider, kubernetes: Any, clients: Clients
) -> None:
    kubernetes.script(sidecar=SIDECAR)
    main = {"name": "main", "image": BUSYBOX, "command": ["sh", "-c", "echo main >/tmp/which; sleep 1000000"]}
    spec = {"terminationGracePeriodSeconds": 0, "containers": [{**SIDECAR, "name": "first"}, main]}
    about = {"annotations": {"kubectl.kubernetes.io/default-container": "main"}}
    bodies = {
        "sandboxtemplates": {"podTemplate": {"metadata": about, "spec": spec}},
        "sandboxwarmpools": {"replicas": 0, "sandboxTemplateRef": {"name": "several"}},
    }
    kinds = {"sandboxtemplates": "SandboxTemplate", "sandboxwarmpools": "SandboxWarmPool"}
    for plural, body in bodies.items():
        made = {"apiVersion": "/".join(EXTENSIONS[:2]), "kind": kinds[plural], "metadata": {"name": "several"}}
        clients.custom.create_namespaced_custom_object(*EXTENSIONS, plural, {**made, "spec": body})
    sandbox_id, details = new_id(SANDBOX), {"template": "several", "warm_pool": "several"}
    plan = provider.plan(sandbox_id, "img_1", SPEC, CALLER, [], details=details, owner="uid:0")
    instance = await provider.create(sandbox_id, "img_1", SPEC, {}, plan)
    assert await output_of(instance, "cat /tmp/which") == "main\n"


@pytest.mark.parametrize("how", ["deleted", "evicted"])
async def test_what_the_cluster_makes_in_place_of_a_pod_is_removed(
    how: str, provider: KubernetesProvider, clients: Clients
) -> None:
    """An empty pod is no sandbox of ours, and costs as much as one."""
    instance = await make(provider)
    name, eviction = instance.place.pod, {"metadata": {"name": instance.place.pod, "namespace": "default"}}
    if how == "deleted":
        await trio.to_thread.run_sync(lambda: clients.core.delete_namespaced_pod(name, "default"))
    else:
        create = clients.core.create_namespaced_pod_eviction
        await trio.to_thread.run_sync(lambda: create(name, "default", eviction))
    with trio.fail_after(patient(60)):
        ending = await instance.ended()
    assert (ending.kind, "outside Sandkeep" in ending.message) == ("lost", True)
    await nothing_is_left(clients, instance.sandbox_id)


async def test_the_same_while_no_daemon_runs(kubernetes: Any, clients: Clients, tmp_path: Path) -> None:
    log_id, state = new_id("log"), tmp_path / "state"
    async with opened(kubernetes.kubeconfig, state, log_id) as provider:
        sandbox_id = new_id(SANDBOX)
        plan = planned(provider, sandbox_id)
        instance = await provider.create(sandbox_id, "img_1", SPEC, {}, plan)
    await trio.to_thread.run_sync(lambda: clients.core.delete_namespaced_pod(instance.place.pod, "default"))
    async with opened(kubernetes.kubeconfig, state, log_id) as provider:
        assert await provider.adopt(sandbox_id, SPEC, plan, instance.isolation, instance.handle) is None
        await nothing_is_left(clients, sandbox_id)


async def test_what_a_controller_tries_again_is_waited_for(
    provider: KubernetesProvider, kubernetes: Any, nursery: trio.Nursery
) -> None:
    kubernetes.script(refuse_pods=AWAY)

    async def heal() -> None:
        sandboxes = await provider.objects.watch(await provider.objects.kind("sandbox"))
        with trio.fail_after(patient(60)):
            while not any("ReconcilerError" in str(each) for each in sandboxes._objects.values()):
                await trio.sleep(0.02)
        await trio.to_thread.run_sync(lambda: kubernetes.script(refuse_pods=""))

    nursery.start_soon(heal)
    assert await output_of(await make(provider), "echo on") == "on\n"


async def test_what_a_policy_refuses_is_told_at_once(
    provider: KubernetesProvider, kubernetes: Any, clients: Clients
) -> None:
    kubernetes.script(refuse_pods=DENIED)
    error = await refused_async("provider_unavailable", make(provider))
    assert DENIED in error.message
