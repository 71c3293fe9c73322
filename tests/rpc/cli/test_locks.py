"""`sandkeep lock`: real daemons that share a directory or a bucket."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conftest import RunningDaemon
from tests.support.expect import until
from tests.support.patience import patient
from tests.support.printed import said

from sandkeep import connect
from sandkeep.errors import SandkeepError
from sandkeep_store.locks.lease import Locks
from sandkeep_store.locks.open import open_store


@pytest.fixture(params=["directory", pytest.param("gcs", marks=[pytest.mark.needs("gcs"), pytest.mark.soak])])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Where locks are, as a setting."""
    if request.param == "directory":
        return {"SANDBOX_LOCK_MOUNT_PATH": str(tmp_path)}
    return {"SANDBOX_LOCK_BUCKET": request.getfixturevalue("gcs_bucket")}


@pytest.fixture
def start(place: dict[str, str], new_daemon: Callable[[], RunningDaemon]) -> Callable[[], RunningDaemon]:
    """Starts daemons that share it."""

    def start() -> RunningDaemon:
        daemon = new_daemon()
        daemon.env.update(place)
        daemon.start()
        return daemon

    return start


def out(daemon: RunningDaemon, *words: str) -> str:
    return said(daemon.cli("lock", *words))


def told(daemon: RunningDaemon, *words: str) -> Any:
    return msgspec.json.decode(out(daemon, *words, "--json"))


def test_two_daemons_have_a_lock_one_after_the_other(start: Callable[[], RunningDaemon]) -> None:
    one, other = start(), start()
    lock_id = out(one, "acquire", "box")
    assert lock_id.startswith("lck_")
    held = told(one, "get", "box")
    assert (held["lock_id"], held["status"], held["name"]) == (lock_id, "held", "box")
    assert held["lock_id"] in out(one, "ls")
    assert str(held["fence"]) in out(one, "get", lock_id)
    done = other.cli("lock", "acquire", "box", "--timeout", "0")
    assert (done.returncode, done.stdout) == (1, b"")
    assert f"is held by '{held['owner_id']}' until".encode() in done.stderr
    assert b"[lock_contended]" in done.stderr
    assert told(other, "ls") == []
    (refused,) = told(other, "ls", "--all")
    assert (refused["status"], refused["held_by"]) == ("contended", held["owner_id"])
    assert b"[lock_timeout]" in other.cli("lock", "acquire", "box", "--timeout", "0.1").stderr
    assert out(one, "release", lock_id) == lock_id
    taken = told(other, "acquire", "box")
    assert taken["fence"] > held["fence"]
    assert b"[not_found]" in one.cli("lock", "release", "nobodys").stderr
    assert told(one, "release", "box", "--force")["status"] == "stolen"
    assert told(one, "acquire", "box")["fence"] > taken["fence"]
    assert told(other, "release", "box")["status"] == "lost"


def test_who_waits_gets_it_and_who_is_interrupted_does_not(
    start: Callable[[], RunningDaemon], place: dict[str, str]
) -> None:
    daemon = start()
    where = place.get("SANDBOX_LOCK_MOUNT_PATH") or f"gs://{place['SANDBOX_LOCK_BUCKET']}"
    other = Locks(open_store(where)).acquire("box")
    command = [*daemon.command, "lock", "acquire", "box"]
    with daemon.connect() as client:
        interrupted = subprocess.Popen(command, env=daemon.env, stdout=subprocess.PIPE)
        until(lambda: other.look() is not None)
        done = daemon.cli("lock", "acquire", "box")
        assert b"waits for it already" in done.stderr
        interrupted.send_signal(signal.SIGINT)
        assert interrupted.communicate() == (b"", None)
        until(lambda: client.lock.list().locks == [])
        assert other.look() is None
        waiting = subprocess.Popen(command, env=daemon.env, stdout=subprocess.PIPE)
        until(lambda: other.look() is not None)
        other.release()
        output, _ = waiting.communicate(timeout=patient(30))
        (held,) = client.lock.list().locks
        assert held.status == "held"
        assert output.decode().strip() == held.lock_id
        assert sorted(lock.status for lock in client.lock.list(all=True).locks) == ["contended", "failed", "held"]


@pytest.mark.needs("gcs")
def test_a_daemon_keeps_locks_in_a_bucket(gcs_bucket: str, new_daemon: Callable[[], RunningDaemon]) -> None:
    daemon = new_daemon()
    daemon.env["SANDBOX_LOCK_BUCKET"] = gcs_bucket
    daemon.start()
    with daemon.connect() as client:
        lock = client.lock.acquire("box", timeout_s=0)
        assert lock.where == f"gs://{gcs_bucket}"
        with pytest.raises(SandkeepError, match="lock_contended"):
            Locks(open_store(lock.where)).acquire("box")
        assert client.lock.release("box").status == "released"
        daemon.kill()
        daemon.env["SANDBOX_LOCK_BUCKET"] = "never-made"
        daemon.start()
        with pytest.raises(SandkeepError, match="create it, or correct the setting"):
            client.lock.acquire("box")


def test_without_a_setting_it_says_which(new_daemon: Callable[[], RunningDaemon]) -> None:
    daemon = new_daemon()
    daemon.start()
    done = daemon.cli("lock", "acquire", "box")
    assert done.returncode == 1
    assert b"SANDBOX_LOCK_BUCKET" in done.stderr
    assert b"[not_configured]" in done.stderr
    assert told(daemon, "ls", "--all") == []


async def test_the_other_client_does_the_same(start: Callable[[], RunningDaemon]) -> None:
    daemon = start()
    async with connect(daemon.socket) as client:
        lock = await client.lock.acquire("box", timeout_s=0)
        assert (await client.lock.get(lock.lock_id)).status == "held"
        assert (await client.lock.release("box")).status == "released"
        assert (await client.lock.list()).locks == []
