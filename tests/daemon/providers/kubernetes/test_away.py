"""A cluster that goes away and comes back: what is asked meanwhile is told why, and goes on by itself afterwards."""

from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio
from tests.conftest import RunningDaemon
from tests.daemon.providers.kubernetes.conftest import make, opened, output_of
from tests.support import changed
from tests.support.counting import counting
from tests.support.expect import refused, refused_async, until, until_async
from tests.support.kubernetes.images import TOOLS
from tests.support.patience import patient
from tests.support.proxy import BreakingLine

from sandkeep.errors import ProviderError
from sandkeep.ids import PROCESS, new_id
from sandkeepd.contract.processes import Launch
from sandkeepd.providers.common import relayed_instance
from sandkeepd.providers.kubernetes import websocket
from sandkeepd.providers.kubernetes.cluster import PODS
from sandkeepd.providers.kubernetes.provider import KubernetesProvider

pytestmark = pytest.mark.needs("root")

NODE_AWAY = {"path": "/exec\\?", "status": 500, "message": "error dialing backend: dial tcp: connection refused"}


@pytest.fixture
def line(kubernetes: Any, tmp_path: Path) -> Iterator[BreakingLine]:
    """The way to the API server; the kubeconfig is beside it."""
    with BreakingLine(urlsplit(kubernetes.url).port or 0) as made:
        path = kubernetes.write_kubeconfig(tmp_path / "kubeconfig", kubernetes.token)
        path.write_text(path.read_text().replace(kubernetes.url, made.url))
        yield made


@pytest.fixture
async def provider(line: BreakingLine, tmp_path: Path) -> AsyncIterator[KubernetesProvider]:
    async with opened(tmp_path / "kubeconfig", tmp_path / "state", new_id("log")) as made:
        yield made
        for sandbox_id in (await made.found())[0]:
            await made.terminate(sandbox_id, {}, {})


async def works_again(instance: Any) -> None:
    with trio.fail_after(patient(60)):
        await instance.relay.connected.wait()
    assert await output_of(instance, "echo on") == "on\n"


async def test_a_command_is_told_that_the_server_is_away(
    provider: KubernetesProvider, line: BreakingLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await make(provider)
    process_id = new_id(PROCESS)
    await instance.launch(Launch(process_id=process_id, command=["sh", "-c", counting("n", pause_s=0.02)]))
    line.down = True
    line.break_all()
    await until_async(lambda: "does not answer" in (instance.why_disconnected or ""))
    monkeypatch.setattr(relayed_instance, "REOPENED_S", 0.1)
    launch = Launch(process_id=new_id(PROCESS), command=["true"])
    for ask in (partial(instance.launch, launch), partial(instance.run_command, ["true"])):
        error = await refused_async("provider_unavailable", ask())
        assert "does not answer" in error.message
    size = instance.read(process_id, "stdout", 0, 0).size
    line.down = False
    await works_again(instance)
    with trio.fail_after(patient(60)):
        await instance.wait_output(process_id, size, 0)  # what ran, ran on
    assert instance.exit_of(launch.process_id) is None


async def test_a_short_interruption_is_not_noticed(provider: KubernetesProvider, line: BreakingLine) -> None:
    instance = await make(provider)
    for _ in range(3):
        line.break_all()
        assert await output_of(instance, "echo on") == "on\n"


async def test_a_command_is_told_that_its_node_is_away(
    provider: KubernetesProvider, kubernetes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = await make(provider)
    monkeypatch.setattr(relayed_instance, "REOPENED_S", 0.1)
    kubernetes.faults(**NODE_AWAY, times=None)
    kubernetes.faults(cut_exec={"pod": instance.place.pod})
    try:
        await until_async(lambda: instance in [*_broken(instance)])
        error = await refused_async("provider_unavailable", instance.run_command(["true"]))
        assert "error dialing backend" in error.message
    finally:
        await trio.to_thread.run_sync(lambda: kubernetes.control("DELETE", "faults"))
    await works_again(instance)
    assert len(provider.cluster.broken) == 0


def _broken(instance: Any) -> list[Any]:
    return [instance] if instance.pod in instance.pod._cluster.broken else []


async def test_a_server_that_falls_silent_is_noticed_by_what_it_does_not_answer(
    provider: KubernetesProvider, line: BreakingLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes connections, and answers nothing, as one that was stopped does."""
    monkeypatch.setattr(websocket, "PROBED_S", 0.2)
    monkeypatch.setattr(websocket, "ANSWERED_S", 0.2)
    instance = await make(provider)
    connected, broke = instance.relay.connected, instance.broke
    assert connected.is_set()
    line.silent_after = 0

    async with trio.open_nursery() as nursery:
        nursery.start_soon(output_of, instance, "echo on")
        with trio.fail_after(patient(60)):
            await broke.wait()
        line.mend()
        line.break_all()


async def test_a_command_under_way_is_told_so_and_not_carried_out_later(
    provider: KubernetesProvider, line: BreakingLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether it began, as the answer is lost: it is ended once the server is there again."""
    instance = await make(provider)
    monkeypatch.setattr(relayed_instance, "REOPENED_S", 0.1)
    launch = Launch(process_id=new_id(PROCESS), command=["sleep", "1000"])
    line.silent_after = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_break_when_sent, instance, line)
        error = await refused_async("provider_unavailable", instance.launch(launch))
    assert "cannot be reached" in error.message
    assert "whether the command began is not known" in error.message
    line.mend()
    await works_again(instance)
    with trio.fail_after(patient(60)):
        await output_of(instance, "while cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -q 'sl[e]ep 1000'; do :; done")


async def test_the_system_says_why_a_server_is_not_there(line: BreakingLine, tmp_path: Path) -> None:
    line.close()
    async with opened(tmp_path / "kubeconfig", tmp_path / "state", new_id("log")) as provider:
        error = await refused_async("provider_unavailable", provider.cluster.call(lambda api: api.get(PODS, "any")))
    assert "does not answer: Connection refused: see" in error.message


async def _break_when_sent(instance: Any, line: BreakingLine) -> None:
    await until_async(lambda: instance.relay.first_unconfirmed is not None)
    line.down = True
    line.break_all()


def test_what_is_asked_of_a_process_meanwhile_is_refused_and_not_done_later(
    new_daemon: Callable[[], RunningDaemon], line: BreakingLine, tmp_path: Path
) -> None:
    daemon = new_daemon()
    daemon.program = changed.program({"sandkeepd.providers.common.relayed_instance.REOPENED_S": 0.1})
    daemon.env["KUBECONFIG"] = str(tmp_path / "kubeconfig")
    daemon.start()
    with daemon.connect() as client:
        image = client.image.create(TOOLS, provider="kubernetes")
        box = client.sandbox.create(image.image_id).sandbox_id
        client.process.launch(box, "cat", name="reader", stdin=True)
        client.process.launch(box, "cat", name="shell", tty=True)

        def refusal(call: Callable[[], Any]) -> str:
            """Why it was refused; empty if it was done."""
            try:
                call()
            except ProviderError as error:
                return error.message
            return ""

        line.down = True
        line.break_all()
        noticed = "does not answer"  # what it says before that is that the connection broke
        until(lambda: noticed in refusal(lambda: client.process.signal(box, "reader", "WINCH")))
        for call in (
            lambda: client.process.signal(box, "reader", "TERM"),
            lambda: client.process.write_stdin(box, "reader", b"lost\n"),
            lambda: client.process.write_stdin(box, "shell", b"lost\n"),
            lambda: client.process.resize(box, "shell", rows=10, cols=10),
        ):
            assert noticed in refused("provider_unavailable", call).message
        line.down = False
        until(lambda: not refusal(lambda: client.sandbox.exec(box, "true")))
        client.process.write_stdin(box, "reader", b"kept\n", eof=True)
        assert client.process.wait(box, "reader").exit_code == 0
        assert client.process.read(box, "reader").stdout == b"kept\n"
        signals = [
            event.data["signal"] for event in client.sandbox.history(box).events if event.type.endswith("signalled")
        ]
        assert "TERM" not in signals
        client.sandbox.terminate(box)
