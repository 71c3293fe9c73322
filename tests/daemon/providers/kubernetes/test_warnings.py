"""What the cluster says of pods that do not start is shown while one waits, and in the error."""

from collections.abc import Iterator
from typing import Any

import pytest
import trio
from tests.daemon.providers.kubernetes.conftest import make, output_of
from tests.support.expect import refused_async
from tests.support.patience import patient

from sandkeepd.contract.caller import STARTING
from sandkeepd.providers.kubernetes.provider import KubernetesProvider

pytestmark = pytest.mark.needs("root")

NO_NETWORK = "plugin type=bridge failed (add): no addresses left"
NO_NODE = "0/3 nodes are available: 3 Insufficient memory."


@pytest.fixture
def hindered(kubernetes: Any) -> Iterator[Any]:
    yield kubernetes
    kubernetes.script(sandbox_failure="", unschedulable="")


@pytest.mark.parametrize(
    ("why", "reason"), [({"sandbox_failure": NO_NETWORK}, "FailedCreatePodSandBox"), ({"unschedulable": NO_NODE}, "")]
)
async def test_a_warning_is_shown_while_one_waits(
    why: dict[str, str], reason: str, provider: KubernetesProvider, hindered: Any
) -> None:
    [words], told = why.values(), list[str]()

    async def progress(sentence: str) -> None:
        told.append(sentence)

    hindered.script(**why)
    async with trio.open_nursery() as nursery:
        made: list[Any] = []

        @nursery.start_soon
        async def start() -> None:
            STARTING.set(progress)
            made.append(await make(provider))

        with trio.fail_after(patient(60)):
            while not any(words in each and reason in each for each in told):
                await trio.sleep(0.05)
        await trio.to_thread.run_sync(lambda: hindered.script(sandbox_failure="", unschedulable=""))
    assert await output_of(made[0], "echo on") == "on\n"
    assert len(told) == len(set(told))


async def test_a_warning_is_in_the_error(
    provider: KubernetesProvider, hindered: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDKEEP_KUBERNETES_START_TIMEOUT", "3")
    hindered.script(sandbox_failure=NO_NETWORK)
    error = await refused_async("provider_unavailable", make(provider))
    assert f"FailedCreatePodSandBox: Failed to create pod sandbox: {NO_NETWORK}" in error.message


async def test_a_daemon_that_may_read_no_events_goes_without(
    provider: KubernetesProvider, hindered: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDKEEP_KUBERNETES_START_TIMEOUT", "3")
    hindered.script(sandbox_failure=NO_NETWORK)
    hindered.faults(method="GET", path="/events\\?", status=403, times=None)
    try:
        error = await refused_async("provider_unavailable", make(provider))
    finally:
        await trio.to_thread.run_sync(lambda: hindered.control("DELETE", "faults"))
    assert "did not run within 3 s: ContainerCreating" in error.message


@pytest.mark.parametrize(
    ("away", "why"), [("sandbox_delay_s", "agent-sandbox's controller runs"), ("pod_delay_s", "no scheduler")]
)
async def test_who_does_nothing_is_named(
    away: str, why: str, provider: KubernetesProvider, kubernetes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDKEEP_KUBERNETES_START_TIMEOUT", "1")
    kubernetes.script(**{away: 60})
    try:
        error = await refused_async("provider_unavailable", make(provider))
        assert why in error.message
    finally:
        kubernetes.script(**{away: 0})
