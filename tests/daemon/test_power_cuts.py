"""What was kept of snapshots and forks when the machine went down before all of it was on the disk."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.daemon.keeping import layers, sh, soon

pytestmark = pytest.mark.needs("bwrap")


@pytest.fixture
def client(running_daemon: RunningDaemon) -> Any:
    with running_daemon.connect() as client:
        yield client


@pytest.fixture
def snapshot_id(client: Any, source: str) -> str:
    box = client.sandbox.create(client.image.create(source).image_id).sandbox_id
    return str(client.snapshot.create(box).snapshot_id)


def layer(daemon: RunningDaemon, name: str) -> Path:
    """A layer, once it says that it is on the disk."""
    found = Path(daemon.state_dir, "layers", name)
    soon(lambda: (found / "boot").read_text() == "any\n")
    return found


def lose(found: Path) -> None:
    """As if the machine had gone down when it was not, and what had not come there were lost."""
    (found / "boot").write_text("00000000-0000-0000-0000-000000000000\n")
    os.truncate(found / "root" / "hello", 0)


def restored(client: Any, snapshot_id: str) -> str:
    return str(client.snapshot.restore(snapshot_id).sandbox_id)


def test_a_layer_that_may_have_holes_is_made_anew(client: Any, running_daemon: RunningDaemon, snapshot_id: str) -> None:
    restored(client, snapshot_id)
    found = layer(running_daemon, snapshot_id)
    lose(found)
    assert sh(client, restored(client, snapshot_id), "cat hello") == "hello\n"
    assert layer(running_daemon, snapshot_id) == found


def test_one_that_is_on_the_disk_is_used_again(client: Any, running_daemon: RunningDaemon, snapshot_id: str) -> None:
    restored(client, snapshot_id)
    found = layer(running_daemon, snapshot_id)
    before = os.stat(found / "root").st_ino
    restored(client, snapshot_id)
    assert os.stat(found / "root").st_ino == before


def test_nothing_begins_above_one_that_may_be_made_anew(
    client: Any, running_daemon: RunningDaemon, snapshot_id: str
) -> None:
    box = restored(client, snapshot_id)
    (layer(running_daemon, snapshot_id) / "boot").unlink()
    [fork] = client.sandbox.fork(box).sandboxes
    restored(client, snapshot_id)
    assert sh(client, fork.sandbox_id, "cat hello") == "hello\n"


def test_a_daemon_sees_to_what_the_one_before_it_did_not(
    client: Any, running_daemon: RunningDaemon, snapshot_id: str
) -> None:
    restored(client, snapshot_id)
    found = layer(running_daemon, snapshot_id)
    running_daemon.kill()
    (found / "boot").write_text(Path("/proc/sys/kernel/random/boot_id").read_text())
    (found / "boot.new").write_text("a")
    running_daemon.start()
    assert layer(running_daemon, snapshot_id) == found


def test_but_never_says_of_what_may_have_holes_that_it_is_whole(
    client: Any, running_daemon: RunningDaemon, snapshot_id: str
) -> None:
    box = restored(client, snapshot_id)
    lose(layer(running_daemon, snapshot_id))
    running_daemon.kill()
    running_daemon.start()
    with running_daemon.connect() as again:
        again.sandbox.fork(box)
        [forked] = set(layers(running_daemon)) - {snapshot_id}
        layer(running_daemon, forked)  # that it is seen to comes after the other was, or was not
        assert sh(again, restored(again, snapshot_id), "cat hello") == "hello\n"
