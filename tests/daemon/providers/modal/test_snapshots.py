"""Snapshots and forks of sandboxes at Modal, by a real daemon: archives, and Modal's own images besides."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.support.expect import refused, until
from tests.support.kubernetes.images import TOOLS
from tests.support.modal.service import Modal
from tests.support.snapshots import sh

from sandkeep.errors import SandkeepError

pytestmark = [pytest.mark.needs("root"), pytest.mark.needs("modal")]


class House:
    """A daemon with an account, and what tests do with it."""

    def __init__(self, daemon: RunningDaemon, modal: Modal, source: Path) -> None:
        self.daemon = daemon
        self.modal = modal
        self.client: Any = daemon.connect()
        self.image = self.client.image.create(str(source), base=TOOLS, provider="modal")

    def box(self, **options: Any) -> str:
        return str(self.client.sandbox.create(self.image.image_id, **options).sandbox_id)

    def sh(self, box: str, script: str) -> str:
        return sh(self.client, box, script)

    def changed(self) -> Any:
        """Make a sandbox, change its files, in and out of the workspace, and return a snapshot of it."""
        box = self.box(secrets={"KEY": "s3cret"})
        self.sh(box, "echo new >new; rm file; echo outside >/outside")
        return self.client.snapshot.create(box)

    def began_with(self, box: str) -> str:
        """Return the image at Modal of a sandbox."""
        modal_id = self.client.sandbox.get(box).modal_sandbox_id
        (found,) = (each for each in self.modal.sandboxes() if each["id"] == modal_id)
        return str(found["definition"]["image_id"])

    def count(self, call: str) -> int:
        return int(self.modal.calls()["counts"].get(call, 0))


@pytest.fixture
def house(new_daemon: Callable[[], RunningDaemon], modal: Modal, tmp_path: Path) -> Iterator[House]:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("from the image\n")
    source.chmod(0o755)
    daemon = new_daemon()
    daemon.env |= modal.environment
    daemon.start()
    made = House(daemon, modal, source)
    yield made
    modal.clear_faults()
    for sandbox in made.client.sandbox.list().sandboxes:
        made.client.sandbox.terminate(sandbox.sandbox_id)
    made.client.close()
    daemon.stop()


def test_records_have_the_ids_at_modal(house: House) -> None:
    box = house.box()
    found = house.client.sandbox.get(box)
    assert found.modal_sandbox_id in {each["id"] for each in house.modal.sandboxes()}
    assert house.client.image.get(house.image.image_id).modal_image_id == house.began_with(box)
    assert found.isolation.workspace == "/workspace"


def test_a_restore_begins_with_the_image_and_sends_nothing(house: House) -> None:
    snapshot = house.changed()
    assert snapshot.modal_image_id
    house.modal.forget_calls()
    box = house.client.snapshot.restore(snapshot.snapshot_id, secrets={"KEY": "another"}).sandbox_id
    assert house.began_with(box) == snapshot.modal_image_id
    layers = Path(house.daemon.state_dir, "layers")
    assert not layers.exists() or list(layers.iterdir()) == []
    assert house.sh(box, "cat new /outside; ls; echo $KEY") == "new\noutside\nnew\nanother\n"
    assert "s3cret" not in house.sh(box, "grep -r s3cret /run /tmp 2>/dev/null; :")


def test_an_image_that_is_gone_is_replaced_by_the_archive(house: House) -> None:
    snapshot = house.changed()
    house.modal.fault("ImageFromId", status="NOT_FOUND", times=None)
    box = house.client.snapshot.restore(snapshot.snapshot_id, secrets={"KEY": "k"}).sandbox_id
    assert house.began_with(box) == house.image.modal_image_id
    assert house.sh(box, "cat new; ls") == "new\nnew\n"


def test_an_image_that_goes_in_between_is_replaced_by_the_archive(house: House) -> None:
    snapshot = house.changed()
    house.modal.fault("SandboxCreateV2", status="NOT_FOUND")
    box = house.client.snapshot.restore(snapshot.snapshot_id, secrets={"KEY": "k"}).sandbox_id
    assert house.began_with(box) == house.image.modal_image_id
    assert house.sh(box, "cat new; ls") == "new\nnew\n"


def test_a_snapshot_without_an_image_is_a_snapshot(house: House) -> None:
    house.modal.fault("TaskSnapshotFilesystem", status="UNIMPLEMENTED", times=None)
    snapshot = house.changed()
    assert snapshot.modal_image_id is None
    box = house.client.snapshot.restore(snapshot.snapshot_id, secrets={"KEY": "k"}).sandbox_id
    assert house.sh(box, "cat new; ls") == "new\nnew\n"


def test_the_end_of_a_snapshot_is_that_of_its_image(house: House) -> None:
    snapshot = house.changed()
    house.modal.forget_calls()
    house.client.snapshot.delete(snapshot.snapshot_id)
    assert house.count("ImageDelete") == 1
    ended = house.client.snapshot.get(snapshot.snapshot_id)
    assert (ended.status, ended.modal_image_id) == ("deleted", None)


def test_a_deletion_waits_for_modal(house: House) -> None:
    snapshot = house.changed()
    house.modal.fault("ImageDelete", status="UNAVAILABLE", times=None)
    with pytest.raises(SandkeepError, match="is on record"):
        house.client.snapshot.delete(snapshot.snapshot_id)
    house.modal.forget_calls()
    house.modal.clear_faults()
    until(lambda: house.count("ImageDelete"))
    until(lambda: not [one for one in house.client.snapshot.list().snapshots if one.status != "deleted"])


def test_a_deletion_that_modal_refuses_ends(house: House) -> None:
    snapshot = house.changed()
    house.modal.fault("ImageDelete", status="INVALID_ARGUMENT", times=None)
    assert house.client.snapshot.delete(snapshot.snapshot_id).status == "deleted"


def test_a_snapshot_that_fails_leaves_no_image(house: House) -> None:
    house.daemon.stop()
    house.daemon.env |= {"SANDKEEP_QUOTA": "snapshots=4K", "SANDKEEP_QUOTA_ADMIN": "1"}
    house.daemon.start()
    box = house.box()
    house.sh(box, "head -c 65536 /dev/urandom >large")
    house.modal.forget_calls()
    refused("quota_exceeded", house.client.snapshot.create, box)
    assert (house.count("TaskSnapshotFilesystem"), house.count("ImageDelete")) == (1, 1)


def test_a_fork_is_a_copy(house: House) -> None:
    box = house.box()
    house.sh(box, "echo new >new; rm file")
    (fork,) = house.client.sandbox.fork(box).sandboxes
    house.sh(box, "echo later >new")
    assert house.sh(fork.sandbox_id, "cat new; ls") == "new\nnew\n"


def test_what_modal_does_not_have_is_refused(house: House) -> None:
    box = house.box()
    refused("not_supported", house.client.sandbox.suspend, box)
    refused("not_supported", house.client.snapshot.create, box, incremental=True)
    refused("not_supported", house.client.sandbox.create, house.image.image_id, disk_bytes=1 << 30)
