"""A sandbox of real processes of this machine, and a server that runs commands beside them, as if in its pod; and the
provider on our double of a cluster.
"""

import json
import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.support import relayed
from tests.support.exec_server import ExecServer, exec_server
from tests.support.kubernetes.images import BUSYBOX
from tests.support.patience import patient

from sandkeep.ids import PROCESS, SANDBOX, new_id
from sandkeep.model import Isolation, SandboxSpec
from sandkeepd.contract.caller import Caller
from sandkeepd.contract.processes import Launch
from sandkeepd.host.hostile_files import HostileRoot
from sandkeepd.keeper.client import KeeperInstance
from sandkeepd.keeper.pipes import Piped
from sandkeepd.keeper.viewers import Viewers
from sandkeepd.keeper.watcher import Watcher
from sandkeepd.providers.common.piped import run_piped
from sandkeepd.providers.common.remote_viewers import RemoteViewers
from sandkeepd.providers.kubernetes.cluster import Cluster
from sandkeepd.providers.kubernetes.instance import KubernetesInstance
from sandkeepd.providers.kubernetes.pods import Pod
from sandkeepd.providers.kubernetes.provider import KubernetesProvider, open_kubernetes

IMAGE = {"image": BUSYBOX}
CALLER = Caller(uid=0, gid=0)
SPEC = SandboxSpec()


class ExecInstance(KeeperInstance):
    """An instance whose helper commands with pipes, and viewers, run over execs."""

    def __init__(self, keeper: relayed.Pod, pod: Pod, nursery: trio.Nursery, watcher: Watcher, **more: Any) -> None:
        self._pod = pod
        self._program = keeper.program
        self._nursery = nursery
        super().__init__("sbx_1", HostileRoot(str(keeper.mirror)).tree(), watcher, **more)

    def _make_viewers(self) -> Viewers:
        return RemoteViewers(self, self._channel, self._shared, self._pod, self._nursery)

    def run_piped(
        self, command: Sequence[str], *, incoming: bool, working_dir: str | None = None
    ) -> AbstractAsyncContextManager[Piped]:
        return run_piped(self, self._pod, self._program, command, incoming=incoming, working_dir=working_dir)


TOKEN = "hush-51ab"


def kubeconfig(path: Path, port: int, token: str = TOKEN) -> str:
    """Write a kubeconfig of a server at a port of this machine; return its path."""
    document = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "current-context": "c",
    }
    path.write_text(json.dumps(document))
    return str(path)


def opened(kubeconfig: object, state: Path, log_id: str) -> AbstractAsyncContextManager[KubernetesProvider]:
    return open_kubernetes(str(state), log_id=log_id, cluster=Cluster(str(kubeconfig)))


def planned(provider: KubernetesProvider, sandbox_id: str, spec: SandboxSpec = SPEC) -> dict[str, Any]:
    return provider.plan(sandbox_id, "img_1", spec, CALLER, [], details=IMAGE, owner="uid:0")


async def make(
    provider: KubernetesProvider, sandbox_id: str = "", secrets: Mapping[str, str] | None = None, **fields: Any
) -> KubernetesInstance:
    """Make a sandbox."""
    sandbox_id, spec = sandbox_id or new_id(SANDBOX), SandboxSpec(**fields)
    return await provider.create(sandbox_id, "img_1", spec, secrets or {}, planned(provider, sandbox_id, spec))


async def output_of(instance: KubernetesInstance, script: str) -> str:
    process_id = new_id(PROCESS)
    await instance.launch(Launch(process_id=process_id, command=["sh", "-c", script]))
    with trio.fail_after(patient(60)):
        await instance.wait(process_id)
    return instance.read(process_id, "stdout", 0, 1000).data.decode()


@pytest.fixture
async def provider(kubernetes: Any, tmp_path: Path) -> AsyncIterator[KubernetesProvider]:
    """The provider; its sandboxes end with the test."""
    async with opened(kubernetes.kubeconfig, tmp_path / "state", new_id("log")) as made:
        yield made
        for sandbox_id in (await made.found())[0]:
            await made.terminate(sandbox_id, {}, {})


@pytest.fixture
async def server() -> AsyncIterator[ExecServer]:
    async with exec_server() as made:
        yield made


@pytest.fixture
def pod(server: ExecServer, tmp_path: Path) -> Pod:
    return Pod(Cluster(kubeconfig(tmp_path / "kubeconfig", server.port)), "ns", "pod")


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[relayed.Pod]:
    made = relayed.Pod(tmp_path)
    yield made
    made.close()


@pytest.fixture
async def instance(keeper: relayed.Pod, pod: Pod) -> AsyncIterator[ExecInstance]:
    with Watcher() as watcher:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watcher.run)
            relay = keeper.relay()
            made = ExecInstance(
                keeper, pod, nursery, watcher, isolation=Isolation(mechanism="none", files="copy"), handle={},
                env={"PATH": os.environ["PATH"]}, working_dir="/", inside=str(keeper.directory), fed=True,
            )  # fmt: skip
            async with relayed.connected(keeper, relay):
                yield made
                for process_id in list(made._channel.processes):
                    await made.signal(process_id, signal.SIGKILL)
            nursery.cancel_scope.cancel()
