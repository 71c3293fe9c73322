"""What the making of kept files leaves when daemon and machine end meanwhile, and the next daemon removes."""

import os
from collections.abc import Callable

import pytest
from tests.conftest import RunningDaemon
from tests.support.expect import refused, until
from tests.support.patience import patient
from tests.support.snapshots import layers, sh

from sandkeep import failpoints

pytestmark = pytest.mark.needs("bwrap")


def leave_a_stage(layer: str) -> str:
    """As if nothing had removed it: the program that does so went down with the machine."""
    stage = f"{layer}/.sandkeep-abc"
    os.makedirs(f"{stage}/tree/deep")
    with open(f"{stage}/tree/deep/file", "w") as file:
        file.write("half")
    return stage


def test_beside_files_that_are_in_use(running_daemon: RunningDaemon, source: str) -> None:
    daemon = running_daemon
    with daemon.connect() as client:
        box = client.sandbox.create(client.image.create(source).image_id).sandbox_id
        snapshot = client.snapshot.create(box)
        restored = client.snapshot.restore(snapshot.snapshot_id).sandbox_id
    daemon.kill()
    stage = leave_a_stage(f"{daemon.state_dir}/layers/{snapshot.snapshot_id}")
    daemon.start()
    until(lambda: not os.path.exists(stage))
    with daemon.connect() as client:
        assert sh(client, restored, "cat hello") == "hello\n"
        assert layers(daemon) == [snapshot.snapshot_id]


@pytest.mark.parametrize("point", ["layer.made", "restore.opened", "restore.unpacked"])
def test_of_a_restore_that_was_interrupted(new_daemon: Callable[[], RunningDaemon], source: str, point: str) -> None:
    daemon = new_daemon()
    daemon.start()
    with daemon.connect() as client:
        box = client.sandbox.create(client.image.create(source).image_id).sandbox_id
        snapshot_id = client.snapshot.create(box).snapshot_id
    daemon.stop()
    daemon.start(**{failpoints.SETTING: point})
    with daemon.connect(patience_s=0) as client:
        refused("not_ready", lambda: client.sandbox.restore(box, snapshot_id))
    assert daemon.process is not None
    daemon.process.wait(patient(60))
    for name in layers(daemon):
        leave_a_stage(f"{daemon.state_dir}/layers/{name}")
    daemon.start()
    until(lambda: layers(daemon) == [])
    until(lambda: os.listdir(f"{daemon.state_dir}/trash") == [])
