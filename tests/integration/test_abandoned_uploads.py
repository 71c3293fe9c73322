"""Uploads that a killed daemon left in a bucket, and `snapshot.gc`, which ends them: its own, and no others."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from threading import Thread
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.support.changed import program
from tests.support.expect import until
from tests.support.faults import FaultyLine
from tests.support.patience import patient

from sandkeep.errors import SandkeepError
from sandkeep.ids import SNAPSHOT, new_id
from sandkeep_store.locks.s3 import PROBE

pytestmark = pytest.mark.needs("bwrap")

AT_ONCE = program({"sandkeepd.snapshots.gc.ABANDONED_AFTER_S": -1.0})
"""A daemon that takes each upload that is not under way for an abandoned one."""


@pytest.fixture
def line(s3: Any) -> Iterator[FaultyLine]:
    with FaultyLine(s3.port) as made:
        yield made


@pytest.fixture
def daemon(new_daemon: Callable[[], RunningDaemon], s3_bucket: str, line: FaultyLine) -> RunningDaemon:
    made = new_daemon()
    made.env |= {"SANDBOX_S3_ENDPOINT_URL": line.url, "SANDBOX_S3_BUCKET": s3_bucket}
    made.start()
    return made


def new_box(daemon: RunningDaemon, source: Any) -> str:
    """Return a sandbox whose snapshots are sent in several parts."""
    with daemon.connect() as client:
        box = str(client.sandbox.create(client.image.create(str(source)).image_id).sandbox_id)
        client.sandbox.exec(box, "head -c 7000000 /dev/urandom >large")
    return box


def kill_in_upload(daemon: RunningDaemon, box: str, line: FaultyLine, part: str) -> Any:
    """Kill a daemon whose request of such a part of a snapshot is on the way; return what holds that."""
    sent = line.hold(lambda request: part in request.target)

    def snapshot() -> None:
        with suppress(SandkeepError), daemon.connect(patience_s=0) as client:  # which is killed
            client.snapshot.create(box)

    making = Thread(target=snapshot)
    making.start()
    assert sent.arrived.wait(patient(60))
    daemon.kill()
    making.join(patient(60))
    return sent


def test_of_a_killed_daemon_are_ended_and_no_others(
    daemon: RunningDaemon, s3: Any, s3_bucket: str, line: FaultyLine, source: Any
) -> None:
    box = new_box(daemon, source)
    sent = kill_in_upload(daemon, box, line, "partNumber=2")
    [abandoned] = s3.unfinished(s3_bucket)
    sent.let_go()
    line.mend()
    others = [f"{box}/{new_id(SNAPSHOT)}.tar.gz", "some/file", f"sandbox_images/{new_id(SNAPSHOT)}"]
    for key in others:
        s3.client().create_multipart_upload(Bucket=s3_bucket, Key=key)
    s3.client().put_object(Bucket=s3_bucket, Key=f"{PROBE}1", Body=b"1")
    s3.begun[abandoned] = datetime.now(UTC)
    daemon.start()
    with daemon.connect() as client:
        assert client.snapshot.gc().left == []
    assert sorted(s3.unfinished(s3_bucket)) == sorted([*others, abandoned]), "it is too young"
    assert len(s3.client().list_objects_v2(Bucket=s3_bucket)["Contents"]) == 1
    daemon.stop()
    daemon.program = AT_ONCE
    daemon.start()
    until(lambda: sorted(s3.unfinished(s3_bucket)) == sorted(others))
    until(lambda: "Contents" not in s3.client().list_objects_v2(Bucket=s3_bucket))
    s3.client().create_multipart_upload(Bucket=s3_bucket, Key=abandoned)
    with daemon.connect() as client:
        client.snapshot.gc(dry_run=True)
        assert abandoned in s3.unfinished(s3_bucket)
        assert client.snapshot.gc().left == []
    assert sorted(s3.unfinished(s3_bucket)) == sorted(others)


def test_what_is_under_way_goes_on(
    daemon: RunningDaemon, s3: Any, s3_bucket: str, line: FaultyLine, source: Any
) -> None:
    daemon.stop()
    daemon.program = AT_ONCE
    daemon.start()
    box = new_box(daemon, source)
    last = line.hold(lambda request: "partNumber=2" in request.target)
    made: list[Any] = []

    def snapshot() -> None:
        with daemon.connect() as client:
            made.append(client.snapshot.create(box))

    making = Thread(target=snapshot)
    making.start()
    assert last.arrived.wait(patient(60))
    with daemon.connect() as client:
        client.snapshot.gc()
    assert len(s3.unfinished(s3_bucket)) == 1
    last.let_go()
    making.join(patient(60))
    [kept] = made
    assert s3.client().head_object(Bucket=s3_bucket, Key=kept.places[0].path)["ContentLength"] == kept.size_bytes


@pytest.mark.needs("gcs")
def test_of_gcs_nothing_is_there_until_it_ends_by_itself(
    new_daemon: Callable[[], RunningDaemon], gcs: Any, gcs_bucket: str, source: Any
) -> None:
    """The service lists no sessions, bills none, and ends them after a week."""
    with FaultyLine(gcs.port) as line:
        daemon = new_daemon()
        daemon.env |= {"STORAGE_EMULATOR_HOST": line.url, "FILESYSTEM_SNAPSHOT_BUCKET": gcs_bucket}
        daemon.start()
        box = new_box(daemon, source)
        kill_in_upload(daemon, box, line, "upload_id")
        line.mend()
        daemon.program = AT_ONCE
        daemon.start()
        with daemon.connect() as client:
            until(lambda: client.snapshot.list(all=True).snapshots[0].status == "failed")
            report = client.snapshot.gc()
        assert (report.left, report.archives) == ([], [])
        assert len(gcs.unfinished(gcs_bucket)) == 1
