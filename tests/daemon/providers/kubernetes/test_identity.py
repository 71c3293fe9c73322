"""Objects of others: pods with copied labels, names that are taken, other clusters, and groups that nobody serves."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.daemon.providers.kubernetes.conftest import SPEC, kubeconfig, make, opened, output_of, planned
from tests.daemon.providers.kubernetes.test_hostile_server import Server, http, serving
from tests.support.expect import refused_async
from tests.support.kubernetes.clients import Clients
from tests.support.patience import patient

from sandkeep.ids import SANDBOX, new_id
from sandkeep.model import Isolation
from sandkeepd.providers.kubernetes import objects as kubernetes_objects
from sandkeepd.providers.kubernetes.cluster import CONFIG_MAPS, NETWORK_POLICIES, PODS
from sandkeepd.providers.kubernetes.manifests import CLOSED_POLICY
from sandkeepd.providers.kubernetes.marks import LOG_LABEL, SANDBOX_LABEL
from sandkeepd.providers.kubernetes.provider import KubernetesProvider

pytestmark = pytest.mark.needs("root")

ISOLATION = Isolation(mechanism="pod", files="image")


def copied(provider: KubernetesProvider, sandbox_id: str, name: str, **more: Any) -> dict[str, Any]:
    """A pod of somebody else's with the labels of a sandbox."""
    container = {"name": "sandbox", "image": "busybox:latest", "command": ["sh", "-c", "while :; do sleep 1; done"]}
    labels = {SANDBOX_LABEL: sandbox_id, LOG_LABEL: provider.log_id}
    spec = {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    return {"metadata": {"name": name, "labels": labels, **more}, "spec": spec}


async def seen(provider: KubernetesProvider, sandbox_id: str, uid: str, *, there: bool) -> None:
    pods = await provider.objects.watch(PODS)
    with trio.fail_after(patient(60)):
        while (pods.get(sandbox_id, uid) is not None) is not there:
            await trio.sleep(0.01)


async def test_a_pod_with_copied_labels_gets_no_secret_and_ends_no_sandbox(
    provider: KubernetesProvider, kubernetes: Any
) -> None:
    api, sandbox_id = Clients(kubernetes), new_id(SANDBOX)
    early = await trio.to_thread.run_sync(
        lambda: api.core.create_namespaced_pod("default", copied(provider, sandbox_id, "early"))
    )
    await seen(provider, sandbox_id, early.metadata.uid, there=True)
    instance = await make(provider, sandbox_id, {"TOKEN": "hush-8c1f"})
    assert instance.place.pod != "early"
    assert await output_of(instance, "echo $TOKEN") == "hush-8c1f\n"
    late = await trio.to_thread.run_sync(
        lambda: api.core.create_namespaced_pod("default", copied(provider, sandbox_id, "late"))
    )
    await seen(provider, sandbox_id, late.metadata.uid, there=True)
    for pod in (early, late):
        await trio.to_thread.run_sync(lambda name=pod.metadata.name: api.core.delete_namespaced_pod(name, "default"))
        await seen(provider, sandbox_id, pod.metadata.uid, there=False)
    assert not instance.is_closed
    assert await output_of(instance, "echo on") == "on\n"


async def test_the_end_of_a_sandbox_waits_for_no_object_of_others(
    provider: KubernetesProvider, kubernetes: Any
) -> None:
    api, sandbox_id = Clients(kubernetes), new_id(SANDBOX)
    instance = await make(provider, sandbox_id)
    body = copied(provider, sandbox_id, "other", finalizers=["example.org/hold"])
    await trio.to_thread.run_sync(lambda: api.core.create_namespaced_pod("default", body))
    try:
        with trio.fail_after(patient(60)):
            await provider.terminate(sandbox_id, {}, instance.handle)
        found = await trio.to_thread.run_sync(lambda: api.core.read_namespaced_pod("other", "default"))
        assert found.metadata.deletion_timestamp is None
    finally:
        free = {"metadata": {"finalizers": None}}
        await trio.to_thread.run_sync(lambda: api.core.patch_namespaced_pod("other", "default", free))
        await trio.to_thread.run_sync(lambda: api.core.delete_namespaced_pod("other", "default"))


async def test_an_object_of_its_name_with_its_labels_is_replaced(provider: KubernetesProvider, kubernetes: Any) -> None:
    """Whoever guesses a name and labels must not choose the program that gets the secrets."""
    sandbox_id = new_id(SANDBOX)
    name = planned(provider, sandbox_id)["name"]
    of = "agents.x-k8s.io", "v1beta1", "default", "sandboxes"
    template = copied(provider, sandbox_id, name)
    body = {
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": template["metadata"],
        "spec": {"podTemplate": template},
    }  # fmt: skip
    del template["metadata"]["name"]
    body["metadata"] = {**template["metadata"], "name": name}
    custom = Clients(kubernetes).custom
    theirs = await trio.to_thread.run_sync(lambda: custom.create_namespaced_custom_object(*of, body))
    instance = await make(provider, sandbox_id, {"TOKEN": "hush-8c1f"})
    assert instance.place.made.uid != theirs["metadata"]["uid"]
    assert await output_of(instance, "tr '\\0' ' ' </proc/1/cmdline") == "/sandkeep/bin/keeper -p /sandkeep/io "


async def test_a_sandbox_of_another_cluster_is_unavailable_and_not_lost(
    kubernetes: Any, tmp_path: Path, server: Server
) -> None:
    """The other one is the same under another address, seen through a server that knows no object."""
    log_id, sandbox_id, state, url = new_id("log"), new_id(SANDBOX), tmp_path / "state", kubernetes.url
    async with opened(kubernetes.kubeconfig, state, log_id) as provider:
        instance = await make(provider, sandbox_id)
        plan, handle = planned(provider, sandbox_id), instance.handle
    server.reply = no_objects(["agents.x-k8s.io"])
    other = Path(kubeconfig(tmp_path / "other", server.port))
    async with opened(other, state, log_id) as provider:
        for work in (
            provider.adopt(sandbox_id, SPEC, plan, ISOLATION, handle),
            provider.terminate(sandbox_id, plan, handle),
        ):
            error = await refused_async("provider_unavailable", work)
            assert url in error.message
            assert f"127.0.0.1:{server.port}" in error.message
    async with opened(kubernetes.kubeconfig, state, log_id) as provider:
        again = await provider.adopt(sandbox_id, SPEC, plan, ISOLATION, handle)
        assert await output_of(again, "echo on") == "on\n"
        await provider.terminate(sandbox_id, plan, handle)
        assert await provider.found() == ([], [])


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as made:
        yield made


def no_objects(groups: list[str]) -> Any:
    """Return replies of a server that has these groups, and no objects."""
    discovery = {"groups": [{"name": name, "versions": [{"version": "v1beta1"}]} for name in groups]}

    def reply(line: str) -> bytes:
        if "/apis/ " in line:
            return http(discovery)
        if "watch=true" in line or "?" in line:
            return http({"metadata": {"resourceVersion": "1"}, "items": []})
        return http({"message": "not found"}, "404 Not Found")

    return reply


async def test_a_group_that_is_not_served_is_no_loss(kubernetes: Any, tmp_path: Path, server: Server) -> None:
    log_id, sandbox_id, state = new_id("log"), new_id(SANDBOX), tmp_path / "state"
    async with opened(kubernetes.kubeconfig, state, log_id) as provider:
        instance = await make(provider, sandbox_id)
        plan, handle = planned(provider, sandbox_id), instance.handle
        handle["cluster"] = ""  # as an earlier version wrote it
        server.reply = no_objects([])
        async with opened(kubeconfig(tmp_path / "other", server.port), tmp_path / "o", log_id) as partial:
            for work in (
                partial.adopt(sandbox_id, SPEC, plan, ISOLATION, handle),
                partial.terminate(sandbox_id, plan, handle),
            ):
                error = await refused_async("provider_unavailable", work)
                assert "does not serve agents.x-k8s.io" in error.message
        await provider.terminate(sandbox_id, plan, handle)


REPLACEMENTS = {
    "configmaps": (CONFIG_MAPS, {"binaryData": {"keeper": base64.b64encode(b"#!/bin/sh\nenv").decode()}}),
    "networkpolicies": (
        NETWORK_POLICIES,
        {"spec": {"podSelector": {"matchLabels": {"sandbox.users.io/sandkeep-network": "none"}}, "egress": [{}]}},
    ),
}


@pytest.mark.parametrize("plural", REPLACEMENTS)
async def test_a_keeper_or_policy_of_somebody_else_is_refused(
    plural: str, provider: KubernetesProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox_id = new_id(SANDBOX)
    keeper = await provider.objects.keeper(planned(provider, sandbox_id)["machine"])
    kind, content = REPLACEMENTS[plural]
    name = keeper if plural == "configmaps" else CLOSED_POLICY
    version = "v1" if plural == "configmaps" else "networking.k8s.io/v1"
    body = {
        "apiVersion": version, "kind": "ConfigMap" if plural == "configmaps" else "NetworkPolicy",
        "metadata": {"name": name}, **json.loads(json.dumps(content)),
    }  # fmt: skip
    await provider.cluster.call(lambda api: api.delete(kind, name, propagation="Background"))
    await provider.cluster.call(lambda api: api.create(kind, body))
    monkeypatch.setattr(kubernetes_objects, "CHECKED_S", 0.0)
    try:
        error = await refused_async("provider_unavailable", make(provider, sandbox_id))
        assert name in error.message
    finally:
        await provider.cluster.call(lambda api: api.delete(kind, name, propagation="Background"))
    assert await output_of(await make(provider), "echo on") == "on\n"


async def test_an_instance_has_so_few_attributes_that_all_share_their_names(provider: KubernetesProvider) -> None:
    assert len(vars(await make(provider))) < 30, "see `RelayedInstance`"
