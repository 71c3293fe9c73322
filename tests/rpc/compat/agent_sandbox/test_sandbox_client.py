"""Sandboxes by claims: from templates and pools, in both versions, and with an error that says why there is none."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from tests.rpc.compat.agent_sandbox.conftest import Resources
from tests.support.kubernetes.cluster import Cluster as Double
from tests.support.kubernetes.cluster import start_cluster

from sandkeep.compat.agent_sandbox import ExecutionResult, SandboxClient
from sandkeep.compat.agent_sandbox.cluster import PODS, Cluster
from sandkeep.errors import CallerError, ProviderError, SandkeepError, StateError
from sandkeep.kubernetes.names import label_value
from sandkeep.kubernetes.pod_snapshots import OWNER_LABEL

pytestmark = pytest.mark.needs("bwrap", "busybox")

Make = Callable[..., SandboxClient]

MINE = "sandbox.users.io/mine"
"""A label of the domain that agent-sandbox allows by default."""


@pytest.fixture
def make(api: client.ApiClient, namespace: str) -> Make:
    def new(template_name: str = "template", **options: Any) -> SandboxClient:
        return SandboxClient(template_name, namespace=namespace, api_client=api, **options)

    return new


@pytest.fixture
def scripted(double: Double) -> Iterator[Double]:
    yield double
    double.script(hold_claims=None, hold_sandboxes=None)


def test_a_sandbox_for_the_length_of_a_block(resources: Resources, make: Make, cluster: Cluster) -> None:
    resources.template("template")
    with make(labels={"app": "workload", MINE: "yes"}, owner="uid:1000") as sandbox:
        assert sandbox.is_ready()
        assert sandbox.run("echo $((6 * 7))") == ExecutionResult("42\n", "", 0)
        sandbox.write("/tmp/file", "text ü")
        assert sandbox.read("/tmp/file") == "text ü".encode()
        pod = cluster.read(PODS, sandbox.pod_name or "")
        assert pod is not None
        labels = pod["metadata"]["labels"]
        assert (labels["app"], labels[MINE], labels[OWNER_LABEL]) == ("workload", "yes", label_value("uid:1000"))
        [claim] = resources.claims()
        assert claim["metadata"]["name"] == sandbox.claim_name
        assert set(claim["metadata"]["labels"]) == {OWNER_LABEL, "sandkeep.session"}
        assert claim["spec"]["warmPoolRef"] == {"name": "template-pool"}
    assert resources.claims() == []
    assert not sandbox.is_ready()
    with pytest.raises(StateError, match="there is no sandbox: use its client in a `with` block"):
        sandbox.run("true")


def test_a_client_is_used_again_after_its_block(resources: Resources, make: Make) -> None:
    resources.template("template")
    sandbox = make()
    names = []
    for _ in range(2):
        with sandbox:
            names.append(sandbox.claim_name)
            assert sandbox.run("true").exit_code == 0
    assert names[0] != names[1]


def test_a_sandbox_of_a_warm_pool(resources: Resources, make: Make) -> None:
    resources.template("template", pool=1)
    with make() as sandbox:
        assert sandbox.run("echo it runs").stdout == "it runs\n"
        assert sandbox.sandbox_name


def test_a_template_without_a_pool_is_claimed_in_the_old_version(resources: Resources, make: Make) -> None:
    resources.template("template", pool=None)
    with make() as sandbox:
        assert sandbox.run("echo it runs").stdout == "it runs\n"
        [claim] = resources.objects("extensions.agents.x-k8s.io", "sandboxclaims", "v1alpha1")
        assert claim["spec"]["sandboxTemplateRef"] == {"name": "template"}


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1"])
def test_clusters_of_one_version(version: str, tmp_path: Path, images: dict[str, str | Path]) -> None:
    groups = {"agents.x-k8s.io": [version], "extensions.agents.x-k8s.io": [version]}
    with start_cluster(tmp_path, images, crds=groups) as double:
        configuration = client.Configuration(host=double.url, api_key={"authorization": f"Bearer {double.token}"})
        with client.ApiClient(configuration) as api:
            resources = Resources(api, "default")
            resources.template("template", pool=None, version=version)
            if version == "v1beta1":
                with pytest.raises(CallerError, match="no SandboxWarmPool is of template 'template': make one"):
                    SandboxClient("template", api_client=api).__enter__()
            resources.pool("template", version=version)
            with SandboxClient("template", api_client=api) as sandbox:
                assert sandbox.run("echo it runs").stdout == "it runs\n"


def test_what_is_not_there_is_an_error_at_once(make: Make, resources: Resources) -> None:
    with pytest.raises(CallerError, match="there is no SandboxTemplate 'none' in namespace") as missing:
        make("none").__enter__()
    assert missing.value.code == "not_found"
    assert resources.claims() == []


def test_a_terminal_reason_is_an_error_at_once(make: Make, resources: Resources) -> None:
    resources.template("template")
    with pytest.raises(CallerError, match='label "app" must have a domain prefix'):
        make(labels={"app": "other"}).__enter__()
    assert resources.claims() == []


@pytest.mark.parametrize(
    ("hold", "reason", "error"),
    [
        ("hold_claims", "ClaimExpired", StateError),
        ("hold_claims", "EnvVarsInjectionRejected", CallerError),
        ("hold_sandboxes", "SandboxExpired", StateError),
        ("hold_sandboxes", "PodFailed", ProviderError),
    ],
)
def test_terminal_reasons_of_claims_and_sandboxes(
    make: Make, resources: Resources, scripted: Double, hold: str, reason: str, error: type[SandkeepError]
) -> None:
    resources.template("template")
    scripted.script(**{hold: {"reason": reason, "message": "it is over"}})
    with pytest.raises(error, match="it is over"):
        make().__enter__()
    assert resources.claims() == []


def test_time_is_limited_and_the_last_message_told(make: Make, resources: Resources, scripted: Double) -> None:
    resources.template("template")
    scripted.script(hold_claims={"reason": "SandboxNotReady", "message": "no node is large enough"})
    for seconds in (1, 30):  # it may not be told in the first
        with pytest.raises(StateError, match=r"sandbox claim .* took too long") as late:
            make(sandbox_ready_timeout=seconds).__enter__()
        if "no node" in late.value.message:
            break
    assert "took too long: no node is large enough" in late.value.message
    assert late.value.code == "timeout"
    assert resources.claims() == []


def test_a_sandbox_that_fails_inside_the_block_is_deleted(make: Make, resources: Resources) -> None:
    resources.template("template")

    def fail() -> None:
        with make():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert resources.claims() == []


def test_a_claim_that_is_left_is_logged(
    make: Make, resources: Resources, double: Double, caplog: pytest.LogCaptureFixture
) -> None:
    resources.template("template")
    with make():
        double.faults(method="DELETE", path="sandboxclaims", status=500, times=1)
    assert [record.message for record in caplog.records if record.name.startswith("sandkeep")] == [
        "a sandbox claim is left"
    ]
    assert len(resources.claims()) == 1


def test_no_cluster_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    from kubernetes.config import kube_config

    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", "/nonexistent/config")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SandkeepError, match="no cluster is configured: set KUBECONFIG, or run in a pod") as missing:
        SandboxClient("template")
    assert missing.value.code == "not_configured"


def test_the_constructor_takes_what_the_original_does() -> None:
    parameters = inspect.signature(SandboxClient).parameters
    assert {"template_name", "namespace", "server_port", "sandbox_ready_timeout"} <= set(parameters)
