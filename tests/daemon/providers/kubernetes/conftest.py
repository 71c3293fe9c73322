"""A sandbox of real processes of this machine, and a server that runs commands beside them, as if in its pod."""

import json
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.support import relayed
from tests.support.exec_server import ExecServer, exec_server

from sandkeep.model import Isolation
from sandkeepd.host.hostile_files import HostileRoot
from sandkeepd.keeper.client import KeeperInstance
from sandkeepd.keeper.pipes import Piped
from sandkeepd.keeper.viewers import Viewers
from sandkeepd.keeper.watcher import Watcher
from sandkeepd.providers.common.piped import run_piped
from sandkeepd.providers.common.remote_viewers import RemoteViewers
from sandkeepd.providers.kubernetes.cluster import Cluster
from sandkeepd.providers.kubernetes.pods import Pod


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


@pytest.fixture
async def server() -> AsyncIterator[ExecServer]:
    async with exec_server() as made:
        yield made


@pytest.fixture
def pod(server: ExecServer, tmp_path: Path) -> Pod:
    path = tmp_path / "kubeconfig"
    document = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.port}"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "current-context": "c",
    }
    path.write_text(json.dumps(document))
    return Pod(Cluster(str(path)), "ns", "pod")


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
