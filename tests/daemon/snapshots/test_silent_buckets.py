"""Restores beside a bucket that takes requests and says nothing, or stops in the middle of an archive."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from tests.daemon.snapshots.test_archive_paths import House, new_house  # noqa: F401  # a fixture
from tests.support.expect import refused
from tests.support.inside import inside
from tests.support.patience import patient
from tests.support.proxy import BreakingLine
from tests.support.snapshots import sh

from sandkeep.errors import ProviderError
from sandkeep.settings.daemon import UID_BASE
from sandkeepd.providers.local.provider import open_local
from sandkeepd.snapshots import archives

pytestmark = [pytest.mark.needs("bwrap"), pytest.mark.needs("s3")]

LONG = "head -c 300000 /dev/urandom >long"


@pytest.mark.parametrize("silent_after", [0, 100_000], ids=["first byte", "middle"])
def test_a_silent_bucket_does_not_delay_a_restore_of_the_copy_on_disk(
    new_house: Callable[..., House],  # noqa: F811
    s3: Any,
    s3_bucket: str,
    silent_after: int,
) -> None:
    with BreakingLine(s3.port) as line:
        house = new_house(
            SANDBOX_S3_BUCKET=s3_bucket, SANDBOX_SNAPSHOT_DIR="{root}/kept", SANDBOX_S3_ENDPOINT_URL=line.url
        )
        sh(house.client, house.box, LONG)
        snapshot = house.client.snapshot.create(house.box)
        assert [place.where for place in snapshot.places] == ["s3", "directory"]
        line.break_all()
        line.mend()
        line.silent_after = silent_after
        made = house.client.snapshot.restore(snapshot.snapshot_id).sandbox_id
        assert line.connections == 1, "the bucket had not been given up"
        assert sh(house.client, made, "cat kept") == "kept\n"


def test_a_bucket_is_used_while_it_answers_in_time(
    new_house: Callable[..., House],  # noqa: F811
    s3_bucket: str,
) -> None:
    """The bucket was chosen on purpose: a damaged copy on disk is not even asked, or does no harm."""
    house = new_house(SANDBOX_S3_BUCKET=s3_bucket, SANDBOX_SNAPSHOT_DIR="{root}/kept")
    snapshot = house.client.snapshot.create(house.box)
    Path(snapshot.places[1].uri).write_bytes(b"damaged")
    assert house.restored(snapshot.snapshot_id) == "kept\n"


def test_a_damaged_copy_on_disk_is_not_taken_when_the_bucket_is_down(
    new_house: Callable[..., House],  # noqa: F811
    s3: Any,
    s3_bucket: str,
) -> None:
    """The first whole one counts, not the first."""
    with BreakingLine(s3.port) as line:
        house = new_house(
            SANDBOX_S3_BUCKET=s3_bucket, SANDBOX_SNAPSHOT_DIR="{root}/kept", SANDBOX_S3_ENDPOINT_URL=line.url
        )
        snapshot = house.client.snapshot.create(house.box)
        Path(snapshot.places[1].uri).write_bytes(b"damaged")
        line.down = True
        line.break_all()
        refused("snapshot_corrupt", lambda: house.client.snapshot.restore(snapshot.snapshot_id))
        line.mend()
        assert house.restored(snapshot.snapshot_id) == "kept\n"


async def test_a_bucket_with_the_only_copy_has_a_deadline_for_the_first_byte(
    state_dir: str, source: str, s3: Any, s3_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "FIRST_BYTE_S", 0.5)
    with BreakingLine(s3.port) as line:
        monkeypatch.setenv("SANDBOX_S3_BUCKET", s3_bucket)
        monkeypatch.setenv("SANDBOX_S3_ENDPOINT_URL", line.url)
        async with inside(
            state_dir,
            opened=lambda place, log_id: open_local(place, uid_base=UID_BASE(), disk_limit=1 << 30, log_id=log_id),
        ) as daemon:
            box = (await daemon.call("sandbox.create", image_id=await daemon.image(source))).sandbox_id
            snapshot = await daemon.call("snapshot.create", sandbox_id=box)
            line.break_all()
            line.mend()
            line.silent_after = 0
            with trio.fail_after(patient(60)):
                with pytest.raises(ProviderError, match=r"did not begin to answer within 0.5 s") as caught:
                    await daemon.call("snapshot.restore", snapshot_id=snapshot.snapshot_id)
            assert caught.value.code == "provider_unavailable"
            assert line.connections == 1, "the SDK itself had not given it up"
            line.break_all()
            line.mend()
            restored = await daemon.call("snapshot.restore", snapshot_id=snapshot.snapshot_id)
            assert restored.status == "running"
