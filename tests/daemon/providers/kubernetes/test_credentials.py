"""Credentials that are renewed while the daemon runs, that expire, and that go with their namespace."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.conftest import RunningDaemon
from tests.daemon.providers.kubernetes.conftest import make, opened, output_of
from tests.support.expect import refused, refused_async, until
from tests.support.kubernetes.clients import Clients
from tests.support.kubernetes.images import BUSYBOX
from tests.support.patience import patient

from sandkeep.ids import new_id
from sandkeepd.providers.kubernetes.provider import KubernetesProvider

pytestmark = pytest.mark.needs("root")


class Renewed:
    """A kubeconfig whose token is replaced, in it or in the file that it names."""

    def __init__(self, kubernetes: Any, directory: Path, *, in_file: bool) -> None:
        self._kubernetes = kubernetes
        self._in_file = in_file
        self.path, self._token_file = directory / "kubeconfig", directory / "token"
        self.token = kubernetes.issue_token("admin", "system:masters")
        self._write()

    def renew(self) -> None:
        self.token = self._kubernetes.issue_token("admin", "system:masters")
        self._write()

    def revoke(self) -> None:
        self._kubernetes.revoke_token(self.token)

    def _write(self) -> None:
        self._token_file.write_text(self.token)
        if not self._in_file:
            self._kubernetes.write_kubeconfig(self.path, self.token)
        elif not self.path.exists():
            document = json.loads(self._kubernetes.write_kubeconfig(self.path, "").read_text())
            document["users"][0]["user"] = {"tokenFile": "token"}
            self.path.write_text(json.dumps(document))


@pytest.fixture(params=[True, False], ids=["token file", "kubeconfig"])
def renewed(request: pytest.FixtureRequest, kubernetes: Any, tmp_path: Path) -> Renewed:
    return Renewed(kubernetes, tmp_path, in_file=request.param)


@pytest.fixture
async def provider(renewed: Renewed, tmp_path: Path) -> AsyncIterator[KubernetesProvider]:
    async with opened(renewed.path, tmp_path / "state", new_id("log")) as made:
        yield made
        for sandbox_id in (await made.found())[0]:
            await made.terminate(sandbox_id, {}, {})


async def test_renewed_credentials_are_used_from_the_next_request_on(
    provider: KubernetesProvider, renewed: Renewed
) -> None:
    first = await make(provider)
    await trio.to_thread.run_sync(renewed.revoke)
    await trio.to_thread.run_sync(renewed.renew)
    second = await make(provider)
    for instance in (first, second):
        assert await output_of(instance, "echo on") == "on\n"


async def test_credentials_that_were_revoked_are_told_as_what_they_are(
    provider: KubernetesProvider, renewed: Renewed
) -> None:
    await make(provider)
    await trio.to_thread.run_sync(renewed.revoke)
    error = await refused_async("not_configured", make(provider))
    assert "401" in error.message
    assert "roles" not in error.message
    await trio.to_thread.run_sync(renewed.renew)
    assert await output_of(await make(provider), "echo on") == "on\n"


async def test_another_cluster_is_not_taken_for_this_one(
    provider: KubernetesProvider, renewed: Renewed, kubernetes: Any, caplog: pytest.LogCaptureFixture
) -> None:
    instance = await make(provider)
    elsewhere = json.loads(renewed.path.read_text())
    elsewhere["clusters"][0]["cluster"]["server"] = "http://127.0.0.1:9"
    before = renewed.path.read_text()
    renewed.path.write_text(json.dumps(elsewhere))
    provider.cluster._look_at = 0.0
    assert await output_of(await make(provider), "echo on") == "on\n"
    assert "http://127.0.0.1:9" in caplog.text
    assert not instance.is_closed
    renewed.path.write_text(before)


def test_the_end_of_a_sandbox_says_that_the_daemon_is_refused(
    renewed: Renewed, new_daemon: Callable[[], RunningDaemon]
) -> None:
    daemon = new_daemon()
    daemon.env["KUBECONFIG"] = str(renewed.path)
    daemon.start()
    with daemon.connect() as client:
        box = client.sandbox.create(client.image.create(BUSYBOX, provider="kubernetes").image_id).sandbox_id
        renewed.revoke()
        assert "401" in refused("not_configured", client.sandbox.terminate, box).message
        renewed.renew()
        until(lambda: client.sandbox.get(box).status == "stopped")
    daemon.stop()


async def test_a_namespace_that_was_deleted_takes_its_role_and_sandboxes_along(kubernetes: Any, tmp_path: Path) -> None:
    with Clients(kubernetes) as clients:
        token = kubernetes.issue_token("system:serviceaccount:doomed:sandkeepd")
        await trio.to_thread.run_sync(lambda: prepare(clients))
        path = kubernetes.write_kubeconfig(tmp_path / "doomed", token, "doomed")
        async with opened(path, tmp_path / "state", new_id("log")) as provider:
            instance, other = await make(provider), await make(provider)
            await trio.to_thread.run_sync(lambda: clients.core.delete_namespace("doomed"))
            with trio.fail_after(patient(60)):
                assert (await instance.ended()).kind == "lost"
                await provider.terminate(instance.sandbox_id, {}, instance.handle)
                await provider.terminate(other.sandbox_id, {}, other.handle)


def prepare(clients: Clients) -> None:
    clients.core.create_namespace({"metadata": {"name": "doomed"}})
    rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    role = {"metadata": {"name": "sandkeepd"}, "rules": rules}
    subject = {"kind": "ServiceAccount", "name": "sandkeepd", "namespace": "doomed"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "sandkeepd"}
    clients.rbac.create_namespaced_role("doomed", role)
    binding = {"metadata": {"name": "sandkeepd"}, "roleRef": reference, "subjects": [subject]}
    clients.rbac.create_namespaced_role_binding("doomed", binding)
