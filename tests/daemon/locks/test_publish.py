"""What other daemons read of a sandbox whose lock is held here: its document, with the fence, and never an old owner's.

The lock's time is the test's, and the document's store is a directory.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.daemon.locks.test_locks import ALICE, World, acquire
from tests.support.expect import refused_async, until_async
from tests.support.inside import Inside

from sandkeep import events
from sandkeep.model import Place
from sandkeep_store.eventlog.log import NewEvent
from sandkeep_store.views.folds.locks import can_be_archived
from sandkeep_store.views.locks import RECENT_LOCKS
from sandkeepd.snapshots.archives import SnapshotArchives


@pytest.fixture
def source(places: str) -> str:
    """What everybody may read."""
    place = tempfile.mkdtemp(dir=places)
    os.chmod(place, 0o755)
    return place


@pytest.fixture
def world(fakes_end: None, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where metadata is shared."""
    (tmp_path / "shared").mkdir()
    for name in ("SANDBOX_METADATA_MOUNT_PATH", "SANDBOX_LOCK_MOUNT_PATH"):
        monkeypatch.setenv(name, str(tmp_path / "shared"))
    return tmp_path / "shared"


def documents(shared: Path) -> list[Path]:
    """What is there of sandboxes."""
    return list(shared.glob("**/sandboxes/*/sandkeep.json"))


def told(shared: Path) -> dict[str, Any]:
    [document] = documents(shared)
    content: dict[str, Any] = msgspec.json.decode(document.read_bytes())
    return content


async def made(daemon: Inside, source: str, uid: int = 0) -> str:
    image = await daemon.call("image.create", uid=uid, source=source, provider="fake")
    return str((await daemon.call("sandbox.create", uid=uid, image_id=image.image_id, name="box")).sandbox_id)


async def test_what_a_lock_guards_is_published_with_its_fence(
    world: World, shared: Path, tmp_path: Path, source: str
) -> None:
    async with world.daemon(tmp_path / "state") as daemon:
        box = await made(daemon, source)
        await daemon.publishing.flush()
        assert documents(shared) == []
        lock = await acquire(daemon)
        await daemon.publishing.flush()
        first = told(shared)
        assert (first["sandbox_id"], first["fence"], first["status"]) == (box, lock.fence, "running")
        await daemon.call("sandbox.exec", sandbox_id="box", command=["true"])
        await daemon.call("lock.release", name="box")
        last = told(shared)
        assert (last["exec_count"], last["fence"]) == (1, lock.fence)
        await daemon.call("sandbox.exec", sandbox_id="box", command=["true"])
        await daemon.publishing.flush()
        assert told(shared) == last


async def test_a_later_daemon_goes_on_publishing(world: World, shared: Path, tmp_path: Path, source: str) -> None:
    async with world.daemon(tmp_path / "state") as daemon:
        await made(daemon, source)
        lock = await acquire(daemon)
    async with world.daemon(tmp_path / "state") as daemon:
        await until_async(lambda: daemon.leases.holds(daemon.id_of()))
        await world.settle()
        await daemon.publishing.flush()
        assert told(shared)["fence"] == lock.fence


async def test_an_old_owner_overwrites_nothing(world: World, shared: Path, tmp_path: Path, source: str) -> None:
    """Who lost the lock and knows it does not even try; who does not know it is told by the number that is there."""
    async with world.daemon(tmp_path / "state") as daemon:
        box = await made(daemon, source)
        lock = await acquire(daemon)
        await daemon.publishing.flush()
        theirs = msgspec.json.encode({"sandbox_id": box, "fence": lock.fence + 1})
        [document] = documents(shared)
        document.write_bytes(theirs)
        daemon.publishing.mark(box)
        await daemon.publishing.flush()
        assert document.read_bytes() == theirs
        document.unlink()
        world.clock.wall += 51  # it stood still
        daemon.publishing.mark(box)
        await daemon.publishing.flush()
        assert not document.exists()


async def test_a_store_that_does_not_answer_is_asked_again(
    world: World,
    shared: Path,
    tmp_path: Path,
    source: str,
) -> None:
    async with world.daemon(tmp_path / "state") as daemon:
        await made(daemon, source)
        lock = await acquire(daemon)
        shared.rename(tmp_path / "away")
        await daemon.publishing.flush()
        (tmp_path / "away").rename(shared)
        await daemon.publishing.flush()
        assert told(shared)["fence"] == lock.fence


async def test_an_archive_of_this_machine_does_not_appear_once_the_lock_is_lost(world: World, tmp_path: Path) -> None:
    lease = world.other().acquire("box")
    place = Place(where="directory", base=str(tmp_path / "kept"), path="box/a.tar.gz", uri="")
    archives = SnapshotArchives(str(tmp_path), "log")
    async with archives.making([place], lambda: lease.fence) as making:
        os.write(making.descriptor, b"x")
        world.clock.sleep(51)
        await refused_async("lock_lost", making.keep("", 1, lambda progress: None))
    assert not (tmp_path / "kept/box/a.tar.gz").exists()


# -- whose lock guards what -------------------------------------------------------------------------------------------


async def test_a_lock_that_an_administrator_took_guards_the_owners_sandbox(
    world: World,
    shared: Path,
    tmp_path: Path,
    source: str,
) -> None:
    async with world.daemon(tmp_path / "state") as daemon:
        await acquire(daemon, uid=1002)  # who uses the name for himself guards nothing of a stranger's sandbox
        box = await made(daemon, source, uid=ALICE)
        assert daemon.leases.fence(box, "uid:1001") is None
        lock = await acquire(daemon, box)
        fence = daemon.leases.fence(box, "uid:1001")
        assert fence is not None
        assert fence.number == lock.fence
        await daemon.publishing.flush()
        assert told(shared)["fence"] == lock.fence


async def test_a_lost_lock_is_remembered_as_long_as_its_sandbox(
    world: World, shared: Path, tmp_path: Path, source: str
) -> None:
    """However many others end after it, and whatever is moved to the archive: nothing may be written until it is taken
    again.
    """
    async with world.daemon(tmp_path / "state") as daemon:
        box = await made(daemon, source)
        lock = await acquire(daemon)
        world.other().replace("box")
        await world.pass_time(31)
        state = daemon.core.state
        await until_async(lambda: state.locks[lock.lock_id].status == "lost")
        for number in range(RECENT_LOCKS + 3):
            steal = events.LockStealRequested(owner="uid:0", name="other", where="/locks")
            told_of = [NewEvent(f"lck_{number}", steal), NewEvent(f"lck_{number}", events.LockStolen())]
            await daemon.core.record(told_of, None)
        assert len(state.ended_locks) == RECENT_LOCKS
        assert state.ended_locks[0] == lock.lock_id
        assert not can_be_archived(state, state.locks[lock.lock_id], 2**60)
        error = await refused_async("lock_lost", as_call(lambda: daemon.leases.fence(box, "uid:0")))
        assert error.data["reason"] == "taken"
        await acquire(daemon)
        assert can_be_archived(state, state.locks[lock.lock_id], 2**60)


async def as_call(work: Any) -> Any:
    return work()
