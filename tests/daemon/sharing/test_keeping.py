"""The keeper of shared sandboxes, whose lock another daemon takes: a user of the same store, which publishes nothing.

The lock's time is the test's, and metadata are shared in a directory.
"""

import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.daemon.locks.test_locks import World
from tests.support.expect import DEADLINE_S, refused_async
from tests.support.inside import Inside

from sandkeep import events
from sandkeep_store.eventlog.log import NewEvent
from sandkeep_store.locks.lease import Lease
from sandkeep_store.views.shared_metadata import Refused
from sandkeepd.sharing.keeping import LOST_LOOK_S

NAME = "shared-1"


class Kept:
    """A daemon with a shared sandbox, and a keeper that looks at it when the test says."""

    def __init__(self, world: World, daemon: Inside) -> None:
        self.world, self.daemon = world, daemon
        self.looks = 0

    async def create(self, source: str, *names: str) -> None:
        image = await self.daemon.image(source)
        for name in names or (NAME,):
            await self.daemon.call("sandbox.create", image_id=image, gcs_sandbox_id=name)

    def robbed(self) -> Lease:
        """Have another daemon take the lock by force, and return its lease."""
        other = self.world.other()
        other.replace(NAME)
        return other.acquire(NAME)

    def attempts(self) -> int:
        """Return how often the lock was wanted again, and another daemon had it."""
        return [lock.status for lock in self.daemon.core.state.locks.values()].count("contended")

    async def looks_until(self, true: Callable[[], bool], lease: Lease | None = None) -> None:
        """Let the keeper look, and time pass, until something is true. Meanwhile a lease is renewed."""
        began = time.monotonic()
        while not true():
            assert time.monotonic() - began < DEADLINE_S, list(self.daemon.core.state.locks.values())
            if lease is not None:
                lease.renew()
            self.daemon.sharing.keeping.look()
            self.looks += 1
            await self.world.pass_time(LOST_LOOK_S + 1)


@pytest.fixture
def world(fakes_end: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    made = World(monkeypatch)
    for name in ("SANDBOX_METADATA_MOUNT_PATH", "SANDBOX_LOCK_MOUNT_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    return made


@pytest.fixture
def source(places: str) -> str:
    place = tempfile.mkdtemp(dir=places)
    os.chmod(place, 0o755)
    return place


@asynccontextmanager
async def kept(world: World, state: Path) -> AsyncIterator[Kept]:
    async with world.daemon(state) as daemon:
        yield Kept(world, daemon)


async def test_a_sandbox_whose_lock_cannot_be_taken_again_is_kept(world: World, tmp_path: Path, source: str) -> None:
    """Whoever has the lock has not told of it yet. Given back, it is taken again, and the sandbox goes on."""
    async with kept(world, tmp_path / "state") as one:
        await one.create(source)
        lease = one.robbed()
        await one.looks_until(lambda: one.attempts() >= 3, lease)
        looks = one.looks
        await one.looks_until(lambda: one.looks >= looks + 12, lease)
        assert one.attempts() < 6  # each is on record
        assert one.daemon.box(NAME).status == "suspended"
        await refused_async("not_ready", one.daemon.call("sandbox.exec", sandbox_id=NAME, command=["true"]))
        lease.release()
        await one.looks_until(lambda: one.daemon.box(NAME).status == "running")


async def test_a_waiter_is_told_why_its_own_sandbox_is_kept(world: World, tmp_path: Path, source: str) -> None:
    """And not of another sandbox, whose lock has the same fencing token."""
    async with kept(world, tmp_path / "state") as one:
        await one.create(source, NAME, "shared-2")
        core = one.daemon.core
        mine, other = core.state.locks.values()
        assert mine.fence == other.fence
        ordered = events.LockHandoverRequested(reason="handed_over", waiter="them")
        failed = events.LockHandoverFailed(code="provider_unavailable", message="no answer")
        await core.record([NewEvent(mine.lock_id, event, mine.sandbox_id) for event in (ordered, failed)], None)
        refusals = []
        for lock in (mine, other):
            await one.daemon.publishing.publish(lock.sandbox_id or "")
            found = await one.daemon.publishing.read("uid:0", lock.name)
            assert found is not None
            assert found.shared is not None
            refusals.append(found.shared.refused)
        assert refusals == [Refused(waiter="them", code="provider_unavailable", message="no answer"), None]
