"""Objects in a cluster: their versions, names, watches that break, and deletions that others hold."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.daemon.providers.kubernetes.conftest import CALLER, IMAGE, make, opened, output_of
from tests.support.expect import refused_async
from tests.support.kubernetes import sandbox_crds
from tests.support.kubernetes.clients import Clients
from tests.support.kubernetes.cluster import start_cluster
from tests.support.patience import patient

from sandkeep.errors import ProviderError, SetupError
from sandkeep.ids import SANDBOX, new_id
from sandkeep.model import SandboxSpec
from sandkeepd.contract.processes import Launch
from sandkeepd.providers.kubernetes import objects as kubernetes_objects
from sandkeepd.providers.kubernetes.cluster import PODS, Cluster
from sandkeepd.providers.kubernetes.provider import KubernetesProvider, open_kubernetes

pytestmark = pytest.mark.needs("root")


async def runs(instance: Any) -> bool:
    return await output_of(instance, "echo on") == "on\n"


GROUPS = {
    "v1alpha1": {group: ["v1alpha1"] for group in sandbox_crds.ALL},
    "plain pods": {},
}


@pytest.fixture(scope="module", params=GROUPS)
def older(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, kubernetes: Any) -> Iterator[Any]:
    directory = tmp_path_factory.mktemp("older")
    images = {"busybox:latest": kubernetes.directory.parent / "images" / "busybox"}
    with start_cluster(directory, images, crds=GROUPS[request.param]) as cluster:
        yield cluster


async def test_older_versions_and_clusters_without_the_resources(older: Any, tmp_path: Path) -> None:
    async with opened(older.kubeconfig, tmp_path / "state", "log_older") as provider:
        forms = await provider.objects.forms()
        assert forms.sandboxes == ("v1alpha1" if forms.claims else None)
        instance = await make(provider, max_lifetime_s=300)
        assert instance.place.made.form == ("sandbox" if forms.sandboxes else "pod")
        assert await runs(instance)
        [(kind, listed), *_] = await provider.objects.listed()
        found = await provider.objects.document(kind, listed.metadata.name) or {}
        ends = found["spec"].get("shutdownTime") or found["spec"].get("activeDeadlineSeconds")
        assert ends, "a dead daemon would leave it for good"
        features = (await provider.capabilities()).features
        assert features["sandboxes"].works is bool(forms.sandboxes)
        await provider.terminate(instance.sandbox_id, {}, {})
        assert await provider.found() == ([], [])


async def test_a_watch_that_is_cut_goes_on_and_one_that_is_too_old_begins_anew(
    provider: KubernetesProvider, kubernetes: Any
) -> None:
    first = await make(provider)
    await trio.to_thread.run_sync(lambda: kubernetes.faults(cut_watches={}))
    second = await make(provider)
    assert await runs(first)
    assert await runs(second)
    await trio.to_thread.run_sync(lambda: kubernetes.faults(compact=True))
    await trio.to_thread.run_sync(lambda: kubernetes.faults(cut_watches={}))
    third = await make(provider)
    assert await runs(third)
    pods = await provider.objects.watch(PODS)
    assert {first.sandbox_id, second.sandbox_id, third.sandbox_id} <= pods.all()
    assert not any(instance.is_closed for instance in (first, second, third))


async def test_an_api_server_that_fails_is_told_and_comes_back(provider: KubernetesProvider, kubernetes: Any) -> None:
    await make(provider)
    fault = {"method": "POST", "path": ".*/sandboxes$", "status": 500, "times": 1}
    await trio.to_thread.run_sync(lambda: kubernetes.faults(**fault))
    error = await refused_async("provider_unavailable", make(provider))
    assert error.data["engine"] == "kubernetes"
    with trio.fail_after(patient(30)):
        await provider.cluster.recovered()
    assert await runs(await make(provider))


async def test_a_name_that_somebody_else_has_is_a_conflict(provider: KubernetesProvider, kubernetes: Any) -> None:
    custom = Clients(kubernetes).custom
    body = {
        "apiVersion": "agents.x-k8s.io/v1beta1", "kind": "Sandbox", "metadata": {"name": "sandbox-taken"},
        "spec": {"podTemplate": {"spec": {"containers": [{"name": "c", "image": "busybox:latest"}]}}},
    }  # fmt: skip
    of = ("agents.x-k8s.io", "v1beta1", "default", "sandboxes")
    await trio.to_thread.run_sync(lambda: custom.create_namespaced_custom_object(*of, body))
    try:
        await refused_async("conflict", make(provider, session_id="taken"))
        found = await trio.to_thread.run_sync(lambda: custom.get_namespaced_custom_object(*of, "sandbox-taken"))
        assert "deletionTimestamp" not in found["metadata"]
    finally:
        await trio.to_thread.run_sync(lambda: custom.delete_namespaced_custom_object(*of, "sandbox-taken"))


async def test_names_fit_and_differ(provider: KubernetesProvider) -> None:
    long = "n" * 64
    plans: list[dict[str, Any]] = []
    for session_id in (long, long + "x", "Upper_Case", "upper-case"):
        spec = SandboxSpec(session_id=session_id[:64])
        plans.append(provider.plan(new_id(SANDBOX), "img", spec, CALLER, plans, details=IMAGE, owner="uid:0"))
    names = [plan["name"] for plan in plans]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 for name in names)


async def test_a_deletion_that_a_finalizer_holds_is_seen_to_its_end(
    provider: KubernetesProvider, kubernetes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await make(provider)
    custom, of = Clients(kubernetes).custom, ("agents.x-k8s.io", "v1beta1", "default", "sandboxes")

    async def hold(finalizers: list[str] | None) -> None:
        body = {"metadata": {"finalizers": finalizers}}
        name = instance.place.made.name
        await trio.to_thread.run_sync(lambda: custom.patch_namespaced_custom_object(*of, name, body))

    await hold(["example.org/hold"])
    monkeypatch.setattr(kubernetes_objects, "DELETED_S", 2.0)
    error = await refused_async("provider_unavailable", provider.terminate(instance.sandbox_id, {}, {}))
    assert "example.org/hold" in error.message
    monkeypatch.undo()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(provider.terminate, instance.sandbox_id, {}, {})
        await trio.sleep(0.1)
        assert (await provider.found())[0] == [instance.sandbox_id]
        await hold(None)
    assert (await provider.found())[0] == []


async def test_channels_that_are_cut_lose_and_repeat_nothing(provider: KubernetesProvider, kubernetes: Any) -> None:
    instance = await make(provider)
    names = [new_id("prc") for _ in range(60)]
    script = "echo $0 >>/workspaces/all; echo $0; exit 3"

    async def one(name: str) -> None:
        await instance.launch(Launch(process_id=name, command=["sh", "-c", script, name]))
        assert (await instance.wait(name)).exit_code == 3
        assert instance.read(name, "stdout", 0, 100).data.decode() == f"{name}\n"

    with trio.fail_after(patient(60)):
        async with trio.open_nursery() as nursery:
            for number, name in enumerate(names):
                nursery.start_soon(one, name)
                await trio.sleep(0.01)
                if number % 15 == 7:
                    await trio.to_thread.run_sync(lambda: kubernetes.faults(cut_exec={"pod": instance.place.pod}))
    _, output, _ = await instance.run_command(["cat", "/workspaces/all"])
    assert sorted(output.decode().split()) == sorted(names)


async def test_no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    async with open_kubernetes(str(tmp_path / "state"), log_id="log_1") as provider:
        found = await provider.capabilities()
        assert not found.works
        assert "KUBECONFIG" in str(found.why)
        with pytest.raises(SetupError, match="not_configured"):
            await provider.found()


async def test_a_cluster_that_is_down_is_told_at_once(tmp_path: Path, kubernetes: Any) -> None:
    text = kubernetes.kubeconfig.read_text().replace(kubernetes.url, "http://127.0.0.1:9")
    (tmp_path / "config").write_text(text)
    async with open_kubernetes(str(tmp_path / "s"), log_id="l", cluster=Cluster(str(tmp_path / "config"))) as provider:
        with trio.fail_after(patient(60)), pytest.raises(ProviderError) as caught:
            await provider.found()
        assert caught.value.data["engine"] == "kubernetes"


async def test_what_was_found_out_stays_known_while_the_cluster_fails(
    provider: KubernetesProvider, kubernetes: Any
) -> None:
    instance = await make(provider)
    fault = {"method": "GET", "path": "^/apis/?$", "status": 500, "times": 1}
    await trio.to_thread.run_sync(lambda: kubernetes.faults(**fault))
    assert not (await provider.capabilities()).works
    assert (await provider.objects.forms()).sandboxes == "v1beta1"
    assert await runs(instance)


async def test_a_refusal_is_an_answer(kubernetes: Any, tmp_path: Path) -> None:
    kubeconfig = kubernetes.write_kubeconfig(tmp_path / "kubeconfig", "no-such-token")
    async with open_kubernetes(str(tmp_path / "s"), log_id="l", cluster=Cluster(str(kubeconfig))) as provider:
        await refused_async("not_configured", provider.found())
        with trio.fail_after(patient(60)):
            await provider.cluster.recovered()
