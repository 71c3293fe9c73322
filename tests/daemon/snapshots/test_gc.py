"""Archives that no snapshot owns: found, put on record and removed, also by a daemon that died meanwhile."""

import os
from collections.abc import Callable
from typing import Any

import pytest
from tests.conftest import RunningDaemon
from tests.support.disks import mount, umount
from tests.support.expect import until
from tests.support.patience import patient

from sandkeep import failpoints
from sandkeep.errors import SandkeepError
from sandkeep.ids import SNAPSHOT, new_id


def orphans(daemon: RunningDaemon, count: int) -> list[str]:
    """Archives that lie where this daemon puts archives."""
    folder = f"{daemon.state_dir}/archives/sbx_gone"
    os.makedirs(folder, mode=0o700)
    made = [f"{folder}/{new_id(SNAPSHOT)}.tar.gz" for _ in range(count)]
    for path in made:
        with open(path, "wb") as file:
            file.write(b"x" * 100)
    return sorted(made)


def told(client: Any) -> list[Any]:
    """What is on record of removals."""
    return [event for event in client.event.list(limit=1000).events if event.type.startswith("archive.")]


def still_removing(client: Any) -> set[int]:
    """The orders to remove something of which no outcome is on record."""
    events = told(client)
    ordered = {event.position for event in events if event.type == "archive.remove_requested"}
    return ordered - {event.data["position"] for event in events if event.type != "archive.remove_requested"}


def test_what_is_removed_is_on_record_before(running_daemon: RunningDaemon) -> None:
    paths = orphans(running_daemon, 45)
    with running_daemon.connect() as client:
        report = client.snapshot.gc(dry_run=True)
        assert (sorted(report.archives), report.freed_bytes, told(client)) == (paths, 4500, [])
        assert sorted(client.snapshot.gc().archives) == paths
        events = told(client)
        assert client.snapshot.gc().archives == []
        assert told(client) == events, "what removes nothing leaves no trace"
    assert [event.type for event in events] == ["archive.remove_requested", "archive.removed"] * 3
    assert sorted(place["uri"] for event in events[::2] for place in event.data["places"]) == paths
    assert [event.data["position"] for event in events[1::2]] == [event.position for event in events[::2]]
    assert sum(event.data["size_bytes"] for event in events[::2]) == 4500
    assert not any(os.path.exists(path) for path in paths)


@pytest.mark.parametrize("side", [failpoints.BEFORE, failpoints.AFTER])
@pytest.mark.parametrize("kind", ["archive.remove_requested", "archive.removed"])
def test_a_daemon_that_dies_meanwhile(new_daemon: Callable[[], RunningDaemon], kind: str, side: str) -> None:
    daemon = new_daemon()
    daemon.start(**{failpoints.SETTING: f"{kind}:{side}"})
    paths = orphans(daemon, 1)
    with daemon.connect(patience_s=0) as client, pytest.raises(SandkeepError):
        client.snapshot.gc()
    assert daemon.process is not None
    daemon.process.wait(patient(60))
    daemon.start()
    with daemon.connect() as client:
        client.snapshot.gc()
        until(lambda: not still_removing(client))  # the earlier daemon's order is settled beside what this one is asked
    assert not any(os.path.exists(path) for path in paths)


@pytest.mark.needs("root")
def test_what_cannot_be_removed_is_told(running_daemon: RunningDaemon) -> None:
    archives = f"{running_daemon.state_dir}/archives"
    os.mkdir(archives, 0o700)
    mount("-t", "tmpfs", "-o", "mode=0700", "tmpfs", archives)
    try:
        [path] = orphans(running_daemon, 1)
        mount("-o", "remount,ro", archives)
        with running_daemon.connect() as client:
            report = client.snapshot.gc()
            requested, failed = told(client)
        assert (report.archives, report.freed_bytes) == ([], 0)
        assert [why for why in report.left if "Read-only file system" in why] == report.left != []
        assert (failed.type, failed.data["position"]) == ("archive.remove_failed", requested.position)
        assert failed.data["code"] == "storage_unavailable"
        assert os.path.exists(path)
    finally:
        umount(archives)
