"""Execs in pods of a cluster, beside those of the official client: the same bytes and exit codes."""

import functools
import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from kubernetes.client import Configuration
from tests.support.expect import DEADLINE_S, until
from tests.support.kubernetes.clients import Clients
from tests.support.kubernetes.images import BUSYBOX

from sandkeep.errors import SandkeepError
from sandkeepd.providers.kubernetes import channels
from sandkeepd.providers.kubernetes.cluster import connect
from sandkeepd.providers.kubernetes.exec import open_exec

pytestmark = pytest.mark.needs("root")


@functools.cache
def much() -> bytes:
    """Return the same each time. It is made by the process that needs it, and not by all that collect tests."""
    return random.Random(24).randbytes(50_000_000)


NAME = "exec-peer"
SCRIPTS = [
    ("echo out; echo err >&2", 0), ("exit 3", 3), ("kill -9 $$", 137), ("seq 100000", 0), ("printf '\\377\\000\\n'", 0),
    ("printf '%s|' \"$0\" \"$@\"", 0),
]  # fmt: skip


@pytest.fixture(scope="module")
def clients(kubernetes: Any) -> Iterator[Clients]:
    with Clients(kubernetes) as made:
        container = {"name": "main", "image": BUSYBOX, "command": ["sleep", "100000"]}
        body = {"metadata": {"name": NAME}, "spec": {"containers": [container], "terminationGracePeriodSeconds": 0}}
        made.core.create_namespaced_pod("default", body)
        until(lambda: made.core.read_namespaced_pod(NAME, "default").status.phase == "Running")
        yield made
        made.core.delete_namespaced_pod(NAME, "default")


@pytest.fixture
def configuration(kubernetes: Any) -> Configuration:
    return connect(str(kubernetes.kubeconfig)).configuration


@pytest.fixture(params=[channels.V5, channels.V4])
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Offer the server one protocol alone."""
    monkeypatch.setattr(channels, "V5", request.param)
    return str(request.param)


@pytest.mark.parametrize(("script", "code"), SCRIPTS)
async def test_the_same_as_the_official_client(
    clients: Clients, configuration: Configuration, protocol: str, script: str, code: int
) -> None:
    words = ["sh", "-c", script, "", "a b", "é&=+%", ""]
    peer = clients.open_exec(NAME, *words, binary=True)
    await trio.to_thread.run_sync(lambda: peer.run_forever(timeout=DEADLINE_S))
    data = b""
    async with open_exec(configuration, "default", NAME, words, container="main", stdin=False) as stream:
        assert stream._socket.subprotocol == protocol
        while received := await stream.receive_some():
            data += received
        assert (await stream.wait(), peer.returncode) == (code, code)
        assert data == peer.read_stdout()
        assert stream.stderr == peer.read_stderr()


async def test_fifty_megabytes_each_way(clients: Clients, configuration: Configuration) -> None:
    digest = hashlib.sha256()
    async with (
        open_exec(configuration, "default", NAME, ["cat"]) as stream,
        trio.open_nursery() as nursery,
    ):

        async def feed() -> None:
            await stream.send_all(much())
            await stream.close_stdin()

        nursery.start_soon(feed)
        with trio.fail_after(DEADLINE_S):
            while received := await stream.receive_some():
                digest.update(received)
            assert await stream.wait() == 0
    assert digest.digest() == hashlib.sha256(much()).digest()


async def test_a_terminal(clients: Clients, configuration: Configuration) -> None:
    resized = 'until [ "$(stty size 2>&-)" = "33 77" ]; do :; done'  # until it has one, some report that as an error
    command = ["sh", "-c", f"stty -echo; echo ready; read line; {resized}; stty size"]
    with trio.fail_after(DEADLINE_S):
        async with open_exec(configuration, "default", NAME, command, tty=True) as stream:
            assert await stream.receive_some() == b"ready\r\n"
            await stream.resize(33, 77)
            await stream.send_all(b"\n")
            assert await stream.receive_some() == b"33 77\r\n"
            assert await stream.wait() == 0


@pytest.mark.parametrize(
    ("name", "command", "container", "code"),
    [("absent", ["true"], None, "not_found"), (NAME, ["true"], "absent", "not_ready")],
)
async def test_refusals(
    clients: Clients, configuration: Configuration, name: str, command: list[str], container: str | None, code: str
) -> None:
    with pytest.raises(SandkeepError) as caught:
        await open_exec(configuration, "default", name, command, container=container).__aenter__()
    assert caught.value.code == code
    assert "absent" in caught.value.message


async def test_a_token_without_the_right(clients: Clients, kubernetes: Any, tmp_path: Path) -> None:
    kubeconfig = kubernetes.write_kubeconfig(tmp_path / "kubeconfig", kubernetes.issue_token("nobody"))
    configuration = connect(str(kubeconfig)).configuration
    with pytest.raises(SandkeepError) as caught:
        await open_exec(configuration, "default", NAME, ["true"]).__aenter__()
    assert caught.value.code == "not_configured"
    assert "pods/exec" in caught.value.message
