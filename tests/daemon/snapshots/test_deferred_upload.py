"""Snapshots whose bucket does not answer: the archive stays on this machine, and goes there when it does."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.snapshots.test_archive_paths import House, new_house  # noqa: F401  # a fixture
from tests.support.expect import refused, until

from sandkeep.ids import new_id

pytestmark = pytest.mark.needs("bwrap")


@pytest.fixture
def house(new_house: Callable[..., House]) -> House:  # noqa: F811
    """One whose mount is gone for now."""
    made = new_house(FILESYSTEM_SNAPSHOT_MOUNT_PATH="{root}/mount")
    os.rmdir(f"{made.daemon.root}/mount")
    return made


def come_back(house: House) -> None:
    """The mount is there again."""
    os.mkdir(f"{house.daemon.root}/mount", 0o700)


def kept_here(house: House) -> list[str]:
    return house.files(f"{house.daemon.state_dir}/archives")


def sent(house: House, snapshot_id: str) -> bool:
    return bool(house.client.snapshot.get(snapshot_id).places[0].where == "mount")


def test_it_is_made_and_sent_later(house: House) -> None:
    client = house.client
    snapshot = client.snapshot.create(house.box)
    assert snapshot.status == "ready"
    [place] = snapshot.places
    assert (place.where, [place.path]) == ("state", kept_here(house))
    assert f"{house.daemon.root}/mount" in snapshot.note
    assert house.restored(snapshot.snapshot_id) == "kept\n"
    assert client.snapshot.gc().archives == []
    come_back(house)
    until(lambda: sent(house, snapshot.snapshot_id))
    until(lambda: kept_here(house) == [])
    after = client.snapshot.get(snapshot.snapshot_id)
    assert (after.note, after.digest) == (None, snapshot.digest)
    assert house.files(f"{house.daemon.root}/mount") == [after.places[0].path]
    document = Path(f"{house.daemon.state_dir}/sandboxes/{house.box}/metadata.json")
    until(lambda: f"{house.daemon.root}/mount" in document.read_text())
    assert house.restored(snapshot.snapshot_id) == "kept\n"


def test_who_asked_for_a_bucket_is_told_and_the_command_given_again_waits_for_it(house: House) -> None:
    client, command_id = house.client, new_id("cmd")

    def create() -> Any:
        return client.snapshot.create(house.box, archive="bucket", command_id=command_id)

    first = refused("provider_unavailable", create)
    assert first.data["snapshot_id"] in first.message
    assert refused("provider_unavailable", create).data == first.data, "it is not made twice"
    come_back(house)
    until(lambda: sent(house, first.data["snapshot_id"]))
    assert create().snapshot_id == first.data["snapshot_id"]


def test_the_next_daemon_sends_it(house: House) -> None:
    snapshot = house.client.snapshot.create(house.box)
    house.daemon.kill()
    come_back(house)
    house.daemon.start()
    until(lambda: sent(house, snapshot.snapshot_id))
    assert house.restored(snapshot.snapshot_id) == "kept\n"


def test_one_that_is_deleted_is_not_sent(house: House) -> None:
    snapshot = house.client.snapshot.create(house.box)
    house.daemon.kill()
    house.daemon.start()
    refused("provider_unavailable", lambda: house.client.snapshot.delete(snapshot.snapshot_id))  # it is ordered
    come_back(house)
    until(lambda: house.client.snapshot.get(snapshot.snapshot_id).status == "deleted")
    assert kept_here(house) == house.files(f"{house.daemon.root}/mount") == []


def test_a_copy_that_is_kept_besides_stays(new_house: Callable[..., House]) -> None:  # noqa: F811
    house = new_house(FILESYSTEM_SNAPSHOT_MOUNT_PATH="{root}/mount", SANDBOX_SNAPSHOT_DIR="{root}/kept")
    os.rmdir(f"{house.daemon.root}/mount")
    snapshot = house.client.snapshot.create(house.box)
    assert [place.where for place in snapshot.places] == ["directory"]
    come_back(house)
    until(lambda: sent(house, snapshot.snapshot_id))
    places = house.client.snapshot.get(snapshot.snapshot_id).places
    assert [place.where for place in places] == ["mount", "directory"]
    assert house.files(f"{house.daemon.root}/kept") == [places[1].path]


def test_an_import_too(house: House) -> None:
    from tests.support.snapshots import archive, imported

    theirs = imported(house.client, archive(("a", "theirs\n")))
    assert [place.where for place in theirs.places] == ["state"]
    come_back(house)
    until(lambda: sent(house, theirs.snapshot_id))
    assert house.restored(theirs.snapshot_id) == "theirs\n"


@pytest.mark.needs("gcs")
def test_a_bucket_that_does_not_answer(new_house: Callable[..., House], gcs: Any, gcs_bucket: str) -> None:  # noqa: F811
    """What was on its way goes on from nothing; of a write whose answer was lost the object is known again."""
    from tests.store.buckets.test_services import gcs_client
    from tests.support.proxy import BreakingLine

    with BreakingLine(gcs.port) as line:
        house = new_house(FILESYSTEM_SNAPSHOT_BUCKET=gcs_bucket, STORAGE_EMULATOR_HOST=line.url)
        line.down = True
        snapshot = house.client.snapshot.create(house.box)
        assert [place.where for place in snapshot.places] == ["state"]
        archive = Path(snapshot.places[0].uri).read_bytes()
        gcs_client().bucket(gcs_bucket).blob(snapshot.places[0].path).upload_from_string(archive)
        line.mend()
        until(lambda: house.client.snapshot.get(snapshot.snapshot_id).places[0].where == "gcs")
        until(lambda: kept_here(house) == [])
        assert house.restored(snapshot.snapshot_id) == "kept\n"


def test_the_cli_says_so(house: House) -> None:
    made = house.daemon.cli("snapshot", "create", house.box)
    assert made.returncode == 0
    assert made.stdout.startswith(b"snp_")
    assert b"on this machine alone" in made.stderr
    failed = house.daemon.cli("snapshot", "create", house.box, "--bucket")
    assert failed.returncode != 0
    assert b"[provider_unavailable]" in failed.stderr
    come_back(house)
