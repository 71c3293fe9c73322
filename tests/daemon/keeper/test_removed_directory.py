"""Sandboxes whose directory on the host is removed, as by somebody who clears a state directory away: they end by
themselves, since no daemon finds them any more.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.conftest import ENGINES, RunningDaemon, daemon_in
from tests.support.expect import until
from tests.support.patience import patient
from tests.support.users import let_in

from sandkeep.demo import traces

pytestmark = pytest.mark.needs("root")


def launch(daemon: RunningDaemon, source: Path, kinds: Sequence[dict[str, Any]]) -> None:
    """Make sandboxes of these kinds, each with a process that would run for long, and kill the daemon."""
    let_in(source)
    daemon.start()
    with daemon.connect() as client:
        for kind in kinds:
            image = client.image.create(source, **kind.get("image", {})).image_id
            box = client.sandbox.create(image, isolation=kind.get("isolation", "default")).sandbox_id
            client.process.launch(box, ["sleep", "100000"])
    daemon.kill()


def processes_of(daemon: RunningDaemon) -> set[int]:
    """The processes of all sandboxes: `sleep` of one that is not isolated is told by its environment alone."""
    mark = daemon.state_dir.encode()
    pids = set(traces.processes(daemon.state_dir))
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark in Path(f"/proc/{pid}/environ").read_bytes() or mark in os.readlink(f"/proc/{pid}/cwd").encode():
                pids.add(int(pid))
        except OSError:
            continue
    return pids


def remove_state(daemon: RunningDaemon) -> set[int]:
    """Move the state directory, which ends nothing, and remove it. Return the processes of the sandboxes."""
    before = processes_of(daemon)
    assert before
    elsewhere = f"{daemon.root}/elsewhere"
    os.rename(daemon.state_dir, elsewhere)
    shutil.rmtree(elsewhere)
    return before


def wait_until_ended(pids: set[int]) -> None:
    until(lambda: not pids & set(map(int, filter(str.isdigit, os.listdir("/proc")))), patient(120), seen=lambda: pids)


class Removed(NamedTuple):
    """Sandboxes of a removed directory: their processes on the host, and their containers."""

    pids: set[int]
    containers: list[str]


@pytest.fixture(scope="module")
def removed(
    places: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[dict[str, Removed]]:
    """Removed sandboxes by the engine. All wait at the same time, as a keeper looks every 20 s."""
    kinds: dict[str, list[dict[str, Any]]] = {
        "bwrap": [{}, {"isolation": "none"}], "runsc": [{"image": {"provider": "gvisor"}}],
    }  # fmt: skip
    dockerd = None if ENGINES["docker"]() else request.getfixturevalue("dockerd")
    environment = {"DOCKER_HOST": dockerd.host} if dockerd else {}
    if dockerd:
        kinds["docker"] = [{"image": {"provider": "docker", "base": dockerd.tools()}}]

    def containers() -> list[str]:
        return [each["Id"] for each in dockerd.get("/containers/json?all=1")] if dockerd else []

    with ExitStack() as daemons:
        made = {}
        for engine in filter(lambda name: ENGINES[name]() is None, kinds):
            daemon, others = daemons.enter_context(daemon_in(places, **environment)), containers()
            launch(daemon, tmp_path_factory.mktemp(engine), kinds[engine])
            made[engine] = Removed(remove_state(daemon), [each for each in containers() if each not in others])
        yield made


@pytest.mark.needs("bwrap")
def test_local_ones_end(removed: dict[str, Removed]) -> None:
    wait_until_ended(removed["bwrap"].pids)


@pytest.mark.needs("runsc")
def test_those_of_gvisor_end(removed: dict[str, Removed]) -> None:
    wait_until_ended(removed["runsc"].pids)


@pytest.mark.needs("docker")
def test_containers_end(removed: dict[str, Removed], dockerd: Any) -> None:
    pids, containers = removed["docker"]
    wait_until_ended(pids)
    assert containers
    until(lambda: all(dockerd.get(f"/containers/{each}/json")["State"]["Status"] == "exited" for each in containers))
    dockerd.remove_containers()
