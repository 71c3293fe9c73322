"""The daemon dies once at every point of a lock's life; then it is started again, and the commands are repeated."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conftest import RunningDaemon
from tests.crash.story import Story
from tests.support.patience import patient

from sandkeep import failpoints
from sandkeep.events import EVENTS
from sandkeep_store.locks.lease import Locks
from sandkeep_store.locks.open import open_store

TOLD = ("acquire_requested", "acquired", "release_requested", "released", "steal_requested", "stolen")
COMMITS = [f"lock.{kind}:{side}" for kind in TOLD for side in (failpoints.BEFORE, failpoints.AFTER)]
POINTS = [point for point in failpoints.POINTS if point.startswith("lock.")]
FAILURES = {"contended", "acquire_failed", "expired", "lost", "steal_failed"}
APART = {"handover_requested", "handover_failed"}
"""Of `test_operations` and `tests/integration`."""


def test_every_event_of_a_lock_is_here_or_comes_of_a_failure() -> None:
    assert {kind.partition(".")[2] for kind in EVENTS if kind.startswith("lock.")} == {*TOLD, *FAILURES, *APART}


def document(places: Path) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode((places / "sandboxes/box/lock.json").read_bytes())
    return found


@pytest.mark.parametrize("point", [*POINTS, *(pytest.param(point, marks=pytest.mark.soak) for point in COMMITS)])
def test_a_death_at_every_point(new_daemon: Callable[[], RunningDaemon], tmp_path: Path, point: str) -> None:
    daemon = new_daemon()
    daemon.env["SANDBOX_LOCK_MOUNT_PATH"] = str(tmp_path)
    story = Story(daemon, [point])
    story.start()
    taken = story.ask("lock.acquire", "box", timeout_s=patient(60))
    assert taken.status == "held"
    assert (document(tmp_path)["ownerId"], document(tmp_path)["fence"]) == (taken.owner_id, taken.fence)
    given = story.ask("lock.release", taken.lock_id)
    assert given.status == "released"
    assert document(tmp_path)["expiresAt"] == 0
    other = Locks(open_store(str(tmp_path))).acquire("box")
    assert other.fence.number > taken.fence
    stolen = story.ask("lock.release", "box", force=True)
    assert stolen.status in ("stolen", "released")
    assert document(tmp_path)["expiresAt"] == 0
    again = story.ask("lock.acquire", "box", timeout_s=patient(60))
    assert again.fence > other.fence.number
    assert story.died_at == [point]
    locks = story.look(lambda client: client.lock.list(all=True).locks)
    assert [lock.lock_id for lock in locks if lock.status == "held"] == [again.lock_id]
    assert {lock.status for lock in locks} <= {"held", "released", "stolen", "failed"}


def test_a_daemon_that_was_killed_goes_on_with_its_lock(
    new_daemon: Callable[[], RunningDaemon], tmp_path: Path
) -> None:
    daemon = new_daemon()
    daemon.env["SANDBOX_LOCK_MOUNT_PATH"] = str(tmp_path)
    daemon.start()
    with daemon.connect() as client:
        taken = client.lock.acquire("box")
    before = document(tmp_path)
    daemon.kill()
    daemon.start()
    with daemon.connect() as client:
        assert client.lock.get("box") == taken
        while document(tmp_path)["expiresAt"] == before["expiresAt"]:
            os.sched_yield()
        assert document(tmp_path)["fence"] == taken.fence
        assert client.lock.release("box").status == "released"
