"""What a daemon writes of a sandbox that a lock guards: each archive carries the fence, and a lost lock ends it."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.conftest import RunningDaemon
from tests.support.expect import until

from sandkeep.errors import SandkeepError
from sandkeep_store.buckets.gcs_client import connect

pytestmark = [pytest.mark.needs("gcs"), pytest.mark.needs("bwrap")]


def test_archives_of_a_guarded_sandbox_carry_its_fence(
    gcs_bucket: str, new_daemon: Callable[[], RunningDaemon], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    tmp_path.chmod(0o755)
    daemon = new_daemon()
    daemon.env |= {"SANDBOX_LOCK_BUCKET": gcs_bucket, "FILESYSTEM_SNAPSHOT_BUCKET": gcs_bucket}
    daemon.start()
    bucket = connect().client.bucket(gcs_bucket)
    with daemon.connect() as client:
        image = client.image.create(str(tmp_path)).image_id
        client.sandbox.create(image, name="box")
        unguarded = client.snapshot.create("box")
        lock = client.lock.acquire("box")
        guarded = client.snapshot.create("box")
    found = {blob.name: blob.metadata.get("fence") for blob in bucket.list_blobs(prefix="filesystem_snapshots/")}
    of = {name.split("/")[1]: fence for name, fence in found.items()}
    assert of == {unguarded.snapshot_id: None, guarded.snapshot_id: str(lock.fence)}
    daemon.kill()
    taken = {"ownerId": "other", "expiresAt": 0, "waitingOwnerId": None, "fence": lock.fence + 1}
    bucket.blob("sandboxes/box/lock.json").upload_from_string(msgspec.json.encode(taken))
    daemon.start()
    with daemon.connect() as client:
        until(lambda: client.lock.get("box").status != "held")
        with pytest.raises(SandkeepError, match="lock_lost"):
            client.snapshot.create("box")
        assert len(list(bucket.list_blobs(prefix="filesystem_snapshots/"))) == 2
        client.lock.acquire("box")
        client.snapshot.create("box")
        client.lock.release("box")
