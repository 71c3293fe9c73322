"""An API server that starts: it refuses what it will allow, and has forgotten what it has told."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.daemon.providers.kubernetes.conftest import SPEC, make, opened, output_of, planned
from tests.support.expect import refused_async
from tests.support.kubernetes import sandbox_crds
from tests.support.kubernetes.clients import Clients
from tests.support.kubernetes.cluster import start_cluster

from sandkeep.ids import SANDBOX, new_id
from sandkeepd.providers.kubernetes import cluster as kubernetes_cluster
from sandkeepd.providers.kubernetes import objects as kubernetes_objects
from sandkeepd.providers.kubernetes.provider import KubernetesProvider

pytestmark = pytest.mark.needs("root")

UNREADY = {"path": "^/readyz", "status": 500}
FORBIDDEN = {"status": 403, "message": "sandboxes is forbidden: RBAC: role.rbac.authorization.k8s.io not found"}
INITIALIZING = {"status": 429, "message": "storage is (re)initializing"}
EXPIRED = {"status": 410, "message": "too old resource version"}


@pytest.fixture(autouse=True)
def no_faults(kubernetes: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kubernetes_cluster, "AGAIN_S", 0.05)
    yield
    kubernetes.control("DELETE", "faults")


def inject(kubernetes: Any, *faults: dict[str, Any]) -> Any:
    return trio.to_thread.run_sync(lambda: [kubernetes.faults(**fault) for fault in faults])


@pytest.mark.parametrize("fault", [FORBIDDEN, INITIALIZING, EXPIRED], ids=["forbidden", "initializing", "expired"])
async def test_what_is_refused_while_it_starts_is_asked_again(
    fault: dict[str, Any], provider: KubernetesProvider, kubernetes: Any
) -> None:
    await provider.objects.forms()
    posts = {"method": "POST", "path": "/sandboxes$", "times": 3, **fault}
    await inject(kubernetes, posts, {**UNREADY, "times": 2})
    assert await output_of(await make(provider), "echo on") == "on\n"


@pytest.mark.parametrize("fault", [FORBIDDEN, INITIALIZING, EXPIRED], ids=["forbidden", "initializing", "expired"])
async def test_sandboxes_are_adopted_from_one_that_starts(
    fault: dict[str, Any], kubernetes: Any, tmp_path: Path
) -> None:
    log_id, sandbox_id = new_id("log"), new_id(SANDBOX)
    async with opened(kubernetes.kubeconfig, tmp_path / "state", log_id) as provider:
        plan = planned(provider, sandbox_id)
        made = await provider.create(sandbox_id, "img_1", SPEC, {}, plan)
    async with opened(kubernetes.kubeconfig, tmp_path / "state", log_id) as provider:
        lists = {"method": "GET", "path": "/(pods|sandboxes)\\?", "times": 4, **fault}
        await inject(kubernetes, lists, {**UNREADY, "times": 4})
        adopted = await provider.adopt(sandbox_id, SPEC, plan, made.isolation, made.handle)
        assert adopted is not None
        assert await output_of(adopted, "echo on") == "on\n"  # type: ignore[arg-type]
        await provider.terminate(sandbox_id, plan, made.handle)


async def test_a_role_that_lacks_something_is_told(provider: KubernetesProvider, kubernetes: Any) -> None:
    await inject(kubernetes, {"method": "POST", "path": "/sandboxes$", "times": None, **FORBIDDEN})
    error = await refused_async("not_configured", make(provider))
    assert "RBAC: role.rbac.authorization.k8s.io not found" in error.message


async def test_resources_that_are_installed_later_are_used(
    kubernetes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = {"busybox:latest": kubernetes.directory.parent / "images" / "busybox"}
    with start_cluster(tmp_path / "cluster", images, crds={}) as cluster, Clients(cluster) as clients:
        async with opened(cluster.kubeconfig, tmp_path / "state", new_id("log")) as provider:
            first = await make(provider)
            assert first.place.made.form == "pod"
            for manifest in sandbox_crds.manifests({"agents.x-k8s.io": ["v1beta1"]}):
                create = clients.extensions.create_custom_resource_definition
                await trio.to_thread.run_sync(create, manifest)
            assert (await provider.objects.forms()).sandboxes is None
            monkeypatch.setattr(kubernetes_objects, "CHECKED_S", -1.0)
            assert (await provider.objects.forms()).sandboxes == "v1beta1"
            await provider.terminate(first.sandbox_id, {}, first.handle)
