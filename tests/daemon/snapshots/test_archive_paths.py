"""Where snapshots lie: mounts, buckets and directories, one or two at once, there, gone, damaged or silent."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.expect import refused, until
from tests.support.inside import inside
from tests.support.snapshots import exported, names, sh

from sandkeep.model import Volume
from sandkeep.settings.daemon import UID_BASE
from sandkeepd.providers.local.provider import open_local

pytestmark = pytest.mark.needs("bwrap")


class House:
    """A daemon with some settings, a client of it, and a sandbox in which something was written."""

    def __init__(self, daemon: Any) -> None:
        self.daemon = daemon
        source = f"{daemon.root}/source"
        os.mkdir(source)
        os.chmod(source, 0o755)
        daemon.start()
        self.client = daemon.connect()
        self.box = self.client.sandbox.create(self.client.image.create(source).image_id).sandbox_id
        sh(self.client, self.box, "echo kept >kept")

    def restored(self, snapshot_id: str) -> str:
        """The files of a sandbox that is restored from it."""
        made = self.client.snapshot.restore(snapshot_id).sandbox_id
        content = sh(self.client, made, "cat *")
        self.client.sandbox.terminate(made)
        until(lambda: snapshot_id not in os.listdir(f"{self.daemon.state_dir}/layers"))
        return content

    def files(self, place: str) -> list[str]:
        """What lies in a directory, in which others may be at work."""
        return sorted(
            os.path.relpath(os.path.join(directory, name), place)
            for directory, _, names in os.walk(place)
            for name in names
        )


@pytest.fixture
def new_house(new_daemon: Callable[[], Any]) -> Iterator[Callable[..., House]]:
    houses: list[House] = []

    def make(**env: str) -> House:
        daemon = new_daemon()
        for name, value in env.items():
            daemon.env[name] = value.format(root=daemon.root)
            if value.startswith("{root}"):
                os.mkdir(daemon.env[name], 0o700)
        houses.append(House(daemon))
        return houses[-1]

    yield make
    for house in houses:
        house.client.close()


def test_a_mount_and_a_copy_on_disk(new_house: Callable[..., House]) -> None:
    house = new_house(FILESYSTEM_SNAPSHOT_MOUNT_PATH="{root}/mount", SANDBOX_SNAPSHOT_DIR="{root}/kept")
    client, mount, kept = house.client, f"{house.daemon.root}/mount", f"{house.daemon.root}/kept"
    snapshot = client.snapshot.create(house.box, archive="bucket")
    name = snapshot.snapshot_id
    assert [(place.where, place.path) for place in snapshot.places] == [
        ("mount", f"filesystem_snapshots/{name}/{name}.tar.gz"), ("directory", f"{house.box}/{name}.tar.gz"),
    ]  # fmt: skip
    assert house.files(mount) == [snapshot.places[0].path]
    assert house.files(kept) == [snapshot.places[1].path]
    assert house.restored(name) == "kept\n"
    Path(snapshot.places[0].uri).write_bytes(b"damaged")
    assert house.restored(name) == "kept\n"
    Path(snapshot.places[0].uri).unlink()
    assert house.restored(name) == "kept\n"
    client.snapshot.delete(name)
    assert house.files(mount) == house.files(kept) == []


def test_what_has_to_be_in_a_bucket_is_refused_without_one(new_house: Callable[..., House]) -> None:
    house = new_house(SANDBOX_SNAPSHOT_DIR="{root}/kept")
    position = house.client.sandbox.get(house.box).position
    error = refused("not_configured", lambda: house.client.snapshot.create(house.box, archive="bucket"))
    assert "FILESYSTEM_SNAPSHOT_BUCKET" in error.message
    assert house.client.sandbox.get(house.box).position == position
    [place] = house.client.snapshot.create(house.box).places
    assert (place.where, place.base) == ("directory", f"{house.daemon.root}/kept")


def test_a_malformed_setting_is_told_and_nothing_else_fails(new_house: Callable[..., House]) -> None:
    house = new_house(FILESYSTEM_SNAPSHOT_MOUNT_PATH="no/path")
    assert "FILESYSTEM_SNAPSHOT_MOUNT_PATH" in refused(
        "not_configured", lambda: house.client.snapshot.create(house.box)
    ).message  # fmt: skip
    assert house.client.sandbox.fork(house.box).sandboxes[0].status == "running"


@pytest.mark.needs("gcs")
def test_gcs(new_house: Callable[..., House], gcs_bucket: str) -> None:
    house = new_house(FILESYSTEM_SNAPSHOT_BUCKET=gcs_bucket)
    _check_bucket(house, f"gs://{gcs_bucket}/filesystem_snapshots/{{name}}/{{name}}.tar.gz", gcs_bucket)


@pytest.mark.needs("s3")
def test_s3(new_house: Callable[..., House], s3_bucket: str) -> None:
    house = new_house(SANDBOX_S3_BUCKET=s3_bucket)
    _check_bucket(house, f"s3://{s3_bucket}/{{box}}/{{name}}.tar.gz", s3_bucket)


def _check_bucket(house: House, uri: str, bucket: str) -> None:
    """A full snapshot, an increment and one from elsewhere, in a bucket alone."""
    client = house.client
    full = client.snapshot.create(house.box, archive="bucket")
    assert [place.uri for place in full.places] == [uri.format(name=full.snapshot_id, box=house.box)]
    sh(client, house.box, "echo more >more")
    later = client.snapshot.create(house.box, incremental=True)
    assert house.restored(later.snapshot_id) == "kept\nmore\n"
    assert house.files(f"{house.daemon.state_dir}/archives") == []
    path = Path(house.daemon.state_dir, "sandboxes", house.box, "metadata.json")
    until(lambda: path.exists() and f'"bucket": "{bucket}"' in path.read_text())
    with client.with_descriptors("snapshot.export", later.snapshot_id) as handed:
        [descriptor] = handed.receive()
        os.close(descriptor)
        assert handed.answer().size_bytes > 0
    client.snapshot.delete(full.snapshot_id)
    client.snapshot.delete(later.snapshot_id)
    refused("snapshot_not_ready", lambda: client.snapshot.restore(later.snapshot_id))
    assert client.snapshot.gc().archives == []


@pytest.mark.needs("gcs")
def test_a_bucket_that_is_not_there(new_house: Callable[..., House], gcs_bucket: str) -> None:
    house = new_house(FILESYSTEM_SNAPSHOT_BUCKET=f"{gcs_bucket}-not")
    refused("not_configured", lambda: house.client.snapshot.create(house.box))
    assert house.files(f"{house.daemon.state_dir}/archives") == []
    assert sh(house.client, house.box, "cat kept") == "kept\n"


@pytest.mark.needs("gcs")
def test_orphans_of_others_stay(new_house: Callable[..., House], gcs_bucket: str) -> None:
    """Two daemons share a bucket: neither removes what is the other's."""
    one, other = (new_house(FILESYSTEM_SNAPSHOT_BUCKET=gcs_bucket) for _ in range(2))
    snapshot = one.client.snapshot.create(one.box)
    report = other.client.snapshot.gc()
    assert (report.archives, len(report.left)) == ([], 1)
    assert "log" in report.left[0]
    assert one.restored(snapshot.snapshot_id) == "kept\n"


@pytest.mark.needs("gcs")
def test_what_is_longer_than_the_archive_was_is_not_downloaded(
    new_house: Callable[..., House], gcs: Any, gcs_bucket: str
) -> None:
    """Others may write to a bucket: what they put there could have no end."""
    from tests.store.buckets.test_services import gcs_client

    house = new_house(FILESYSTEM_SNAPSHOT_BUCKET=gcs_bucket)
    snapshot = house.client.snapshot.create(house.box)
    blob = gcs_client().bucket(gcs_bucket).blob(snapshot.places[0].path)
    blob.upload_from_string(bytes(snapshot.size_bytes + 1))
    gcs.requests.clear()
    error = refused("snapshot_corrupt", lambda: house.client.snapshot.restore(snapshot.snapshot_id))
    assert f"and not {snapshot.size_bytes}" in error.message
    assert [line for line in gcs.requests if "/download/" in line] == []


@pytest.mark.parametrize("kind", ["a file", "open to all"])
def test_a_directory_that_is_none_or_not_ours_is_told_before_anything_happens(
    new_house: Callable[..., House], kind: str
) -> None:
    house = new_house(SANDBOX_SNAPSHOT_DIR="{root}/kept")
    kept = Path(house.daemon.env["SANDBOX_SNAPSHOT_DIR"])
    if kind == "a file":
        kept.rmdir()
        kept.write_text("mine")
    else:
        kept.chmod(0o777)
    error = refused("not_configured", lambda: house.client.snapshot.create(house.box))
    assert "SANDBOX_SNAPSHOT_DIR" in error.message
    assert house.client.snapshot.list(all=True).snapshots == []


@pytest.mark.parametrize("provider", ["local", pytest.param("docker", marks=pytest.mark.needs("docker"))])
@pytest.mark.parametrize("setting", ["SANDBOX_SNAPSHOT_DIR", "FILESYSTEM_SNAPSHOT_MOUNT_PATH"])
def test_the_directory_of_archives_is_in_none_of_them_though_it_lies_in_their_source(
    new_daemon: Callable[[], Any], provider: str, setting: str, request: pytest.FixtureRequest
) -> None:
    daemon = new_daemon()
    source = Path(daemon.root, "source")
    source.mkdir(mode=0o755)
    kept = source / "kept"
    kept.mkdir(mode=0o700)
    (source / "file").write_text("file")
    daemon.env[setting] = str(kept)
    options: dict[str, Any] = {}
    volumes: dict[str, Any] = {}
    if provider == "docker":
        dockerd = request.getfixturevalue("dockerd")
        daemon.env["DOCKER_HOST"] = dockerd.host
        options = {"provider": "docker", "base": dockerd.guest()}
        volumes = {"volumes": [Volume(source=str(source), target="/data")]}
    daemon.start()
    with daemon.connect() as client:
        for _ in range(2):  # the second has archives of the first beside it
            image = client.image.create(str(source), **options).image_id
            box = client.sandbox.create(image, **volumes).sandbox_id
            assert "kept" not in sh(client, box, "ls -a; echo more >more")
            snapshot = client.snapshot.create(box)
            assert snapshot.places[0].uri.startswith(f"{kept}/")
            found = names(exported(client, snapshot.snapshot_id))
            assert [name for name in found if "kept" in name or "snp_" in name or ".partial" in name] == []
            assert any(name.endswith("more") for name in found)
            client.sandbox.terminate(box)


async def test_archives_of_a_session_lie_below_its_id_and_owners_do_not_meet_there(
    tmp_path: Path, state_dir: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``{session_id}/{snapshot_id}.tar.gz``, as AstraForge has them."""
    kept = tmp_path / "kept"
    monkeypatch.setenv("SANDBOX_SNAPSHOT_DIR", str(kept))
    async with inside(
        state_dir,
        opened=lambda place, log_id: open_local(place, uid_base=UID_BASE(), disk_limit=1 << 30, log_id=log_id),
    ) as daemon:
        image = await daemon.image(source)
        found = []
        for session_id in ("theirs", "theirs", "sbx_1", "imported", "a..b", "A.-_"):
            box = (await daemon.call("sandbox.create", image_id=image)).sandbox_id
            sandbox = daemon.core.state.sandboxes[box]
            sandbox.requested = replace(sandbox.requested, spec=replace(sandbox.spec, session_id=session_id))
            snapshot = await daemon.call("snapshot.create", sandbox_id=box)
            assert [place.path for place in snapshot.places] == [f"{session_id}/{snapshot.snapshot_id}.tar.gz"]
            assert (kept / session_id).stat().st_mode & 0o077 == 0
            await daemon.call("sandbox.terminate", sandbox_id=box)
            found.append(snapshot)
        assert (await daemon.call("snapshot.gc")).left == []
        for snapshot in found:
            restored = await daemon.call("snapshot.restore", snapshot_id=snapshot.snapshot_id)
            await daemon.call("sandbox.terminate", sandbox_id=restored.sandbox_id)
            await daemon.call("snapshot.delete", snapshot_id=snapshot.snapshot_id)
    assert [path for path in kept.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("setting", ["SANDBOX_S3_USE_SSL", "SANDBOX_S3_ENDPOINT_URL", "SANDBOX_S3_REGION"])
def test_a_service_that_is_wrongly_named_is_told_before_anything_happens(
    new_house: Callable[..., House], setting: str
) -> None:
    house = new_house(SANDBOX_S3_BUCKET="shots", **{setting: "ftp://?"})
    assert setting in refused("not_configured", lambda: house.client.snapshot.create(house.box)).message
    assert house.client.snapshot.list(all=True).snapshots == []
