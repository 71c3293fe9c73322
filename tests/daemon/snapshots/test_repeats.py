"""A repeated command is answered by what became of it, also after others were given for the same sandbox."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import RunningDaemon
from tests.support.expect import refused, until
from tests.support.patience import patient
from tests.support.snapshots import sh

from sandkeep import failpoints

pytestmark = pytest.mark.needs("bwrap")

COMMAND = "cmd_00000000000000000000000001"


def test_a_restore_that_a_death_undid_is_carried_out_by_its_repeat(
    new_daemon: Callable[[], RunningDaemon], source: str
) -> None:
    daemon = new_daemon()
    daemon.start(**{failpoints.SETTING: "replace.aside"})
    with daemon.connect(patience_s=0) as client:
        box = client.sandbox.create(client.image.create(source).image_id).sandbox_id
        snapshot_id = client.snapshot.create(box).snapshot_id
        sh(client, box, "echo later >hello")
        refused("not_ready", lambda: client.sandbox.restore(box, snapshot_id, command_id=COMMAND))
    assert daemon.process is not None
    daemon.process.wait(patient(60))
    daemon.start()
    with daemon.connect() as client:
        until(lambda: client.sandbox.get(box).status == "failed")
        client.sandbox.resume(box)
        assert sh(client, box, "cat hello") == "later\n"
        client.sandbox.restore(box, snapshot_id, command_id=COMMAND)
        assert sh(client, box, "cat hello") == "hello\n"


def test_a_restore_that_failed_has_failed_also_after_another_order(running_daemon: RunningDaemon, source: str) -> None:
    with running_daemon.connect() as client:
        box = client.sandbox.create(client.image.create(source).image_id).sandbox_id
        snapshot = client.snapshot.create(box)
        (archive,) = Path(running_daemon.state_dir).rglob(f"{snapshot.snapshot_id}.tar.gz")
        os.truncate(archive, 100)
        first = refused(
            "snapshot_corrupt", lambda: client.sandbox.restore(box, snapshot.snapshot_id, command_id=COMMAND)
        )
        client.sandbox.suspend(box)
        client.sandbox.resume(box)
        again = refused(
            "snapshot_corrupt", lambda: client.sandbox.restore(box, snapshot.snapshot_id, command_id=COMMAND)
        )
        assert again.message == first.message
