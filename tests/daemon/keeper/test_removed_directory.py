"""Sandboxes whose directory on the host is removed, as by somebody who clears a state directory away: they end by
themselves, since no daemon finds them any more.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon
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


def end_by_themselves(daemon: RunningDaemon) -> None:
    """Move the state directory, which ends nothing, and remove it."""
    before = processes_of(daemon)
    assert before
    elsewhere = f"{daemon.root}/elsewhere"
    os.rename(daemon.state_dir, elsewhere)
    shutil.rmtree(elsewhere)
    until(
        lambda: not before & set(map(int, filter(str.isdigit, os.listdir("/proc")))), patient(120), seen=lambda: before
    )


@pytest.mark.needs("bwrap")
def test_local_ones_end(new_daemon: Any, tmp_path: Path) -> None:
    daemon = new_daemon()
    launch(daemon, tmp_path, [{}, {"isolation": "none"}])
    end_by_themselves(daemon)


@pytest.mark.needs("docker")
def test_containers_end(new_daemon: Any, tmp_path: Path, dockerd: Any) -> None:
    daemon = new_daemon()
    daemon.env["DOCKER_HOST"] = dockerd.host
    others = {each["Id"] for each in dockerd.get("/containers/json?all=1")}
    launch(daemon, tmp_path, [{"image": {"provider": "docker", "base": dockerd.tools()}}])
    end_by_themselves(daemon)
    made = [each for each in dockerd.get("/containers/json?all=1") if each["Id"] not in others]
    assert made
    until(lambda: all(dockerd.get(f"/containers/{each['Id']}/json")["State"]["Status"] == "exited" for each in made))
    dockerd.remove_containers()


@pytest.mark.needs("runsc")
def test_those_of_gvisor_end(new_daemon: Any, tmp_path: Path) -> None:
    daemon = new_daemon()
    launch(daemon, tmp_path, [{"image": {"provider": "gvisor"}}])
    end_by_themselves(daemon)
