"""Two daemons that share a sandbox's lock and metadata; one is stopped over the expiry of its lease, and goes on."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conftest import RunningDaemon
from tests.support.expect import until

from sandkeep.blocking import Client
from sandkeep.errors import SandkeepError
from sandkeep_store.locks.rules import LEASE_S

pytestmark = [pytest.mark.soak, pytest.mark.needs("bwrap")]


@pytest.fixture
def start(new_daemon: Callable[[], RunningDaemon], tmp_path: Path) -> Callable[[], RunningDaemon]:
    """Starts daemons that share what is shared."""
    for name in ("locks", "shared", "source"):
        (tmp_path / name).mkdir()

    def start() -> RunningDaemon:
        daemon = new_daemon()
        daemon.env["SANDBOX_LOCK_MOUNT_PATH"] = str(tmp_path / "locks")
        for name in ("SANDBOX_METADATA_MOUNT_PATH", "FILESYSTEM_SNAPSHOT_MOUNT_PATH"):
            daemon.env[name] = str(tmp_path / "shared")
        daemon.start()
        with daemon.connect() as client:
            client.sandbox.create(client.image.create(str(tmp_path / "source")).image_id, name="box")
        return daemon

    return start


def published(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "shared/sandboxes/box/sandkeep.json"
    found: dict[str, Any] = msgspec.json.decode(path.read_bytes()) if path.exists() else {}
    return found


def archives(tmp_path: Path) -> set[str]:
    return {path.name for path in tmp_path.glob("shared/filesystem_snapshots/*/*.gz")}


def told(tmp_path: Path, fence: int | None) -> None:
    until(lambda: published(tmp_path).get("fence") == fence)


def write_as_owner(client: Client, tmp_path: Path) -> int:
    """Take the lock, make a snapshot, and see that others are told of it; answer the fence."""
    lock = client.lock.acquire("box", timeout_s=LEASE_S)
    client.snapshot.create("box")
    told(tmp_path, lock.fence)
    return lock.fence or 0


def test_who_was_stopped_over_his_expiry_writes_no_more(start: Callable[[], RunningDaemon], tmp_path: Path) -> None:
    one, other = start(), start()
    with one.connect() as mine, other.connect() as theirs:
        first = write_as_owner(mine, tmp_path)
        one.process.send_signal(signal.SIGSTOP)
        try:
            second = write_as_owner(theirs, tmp_path)
            there = archives(tmp_path)
        finally:
            one.process.send_signal(signal.SIGCONT)
        assert second > first
        with pytest.raises(SandkeepError, match="lock_lost"):
            mine.snapshot.create("box")
        mine.sandbox.exec("box", ["true"])
        until(lambda: mine.lock.get("box").status != "held")
        assert mine.lock.get("box").status == "contended"  # as another has it by now
        assert archives(tmp_path) == there
        assert published(tmp_path)["fence"] == second
        theirs.lock.release("box")
