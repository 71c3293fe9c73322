"""The daemon's locks: taken, renewed, given back, lost, adopted; beside others who want the same.

Other daemons are other users of the same store. Time is the test's: trio's clock and the leases' are one.
"""

import os
import re
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from tests.support.expect import refused_async, until_async
from tests.support.inside import Inside, inside
from tests.support.locking import LosesAnswers, TestClock
from tests.support.memory_locks import MemoryStore
from tests.support.patience import patient

from sandkeep import events
from sandkeep.errors import ProviderError, SandkeepError
from sandkeep.events import Meta
from sandkeep_store.eventlog.log import EventLog, NewEvent
from sandkeep_store.eventlog.writer import Writer
from sandkeep_store.locks.lease import Attempt, Lease, Locks
from sandkeep_store.locks.store import path_of
from sandkeepd.locks.leases import Leases

LOCK = path_of("box")
ALICE, BOB = 1001, 1002


class World(trio.abc.Clock):
    """The store, and the clock of all: also trio's own, as the test asks for it by its name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SANDBOX_LOCK_MOUNT_PATH", "/locks")
        for owner, name in ((trio.to_thread, "run_sync"), (EventLog, "_through_writer")):
            monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))
        self.clock = TestClock()
        self.memory = MemoryStore(self.clock)
        self.store = LosesAnswers(self.memory)
        self._working = 0  # calls in threads, and appends to logs, that have not returned

    def start_clock(self) -> None:
        """See `trio.abc.Clock`, as with the next two."""

    def current_time(self) -> float:
        return self.clock.steady

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return 0.0 if deadline <= self.clock.steady else 1e6

    def other(self) -> Locks:
        """Another daemon."""
        return Locks(self.memory, self.clock)

    async def pass_time(self, seconds: float) -> None:
        """Move the clock, a second at a time, and let everybody act."""
        while seconds > 0:
            self.clock.sleep(min(seconds, 1))
            seconds -= 1
            await self.settle()

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def counted(*arguments: Any, **options: Any) -> Any:
            if getattr(arguments[0], "__func__", None) is Writer.serve:  # as long as the log is open
                return await call(*arguments, **options)
            self._working += 1
            try:
                return await call(*arguments, **options)
            finally:
                self._working -= 1

        return counted

    async def settle(self) -> None:
        """Let tasks and threads do what they can do now. One that hangs is given up after a while."""
        for _ in range(30):
            await trio.testing.wait_all_tasks_blocked()
            if not self._working:
                return
            await trio.to_thread.run_sync(time.sleep, 0.001)

    def document(self, path: str = LOCK) -> dict[str, Any]:
        found = self.memory.read(path)
        assert found is not None
        document: dict[str, Any] = msgspec.json.decode(found.content)
        return document

    @asynccontextmanager
    async def daemon(self, state_dir: Path) -> AsyncIterator[Inside]:
        """A daemon that keeps its locks there."""

        def leases(core: Any) -> Leases:
            return Leases(core, self.clock, lambda where: self.store)

        async with inside(str(state_dir), leases) as made:
            await made.core.nursery.start(made.leases.run)
            yield made


@pytest.fixture
def world(fakes_end: None, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


async def acquire(daemon: Inside, name: str = "box", **params: Any) -> Any:
    return await daemon.call("lock.acquire", **{"name": name, "timeout_s": 0, **params})


async def types(daemon: Inside) -> list[str]:
    page = await daemon.call("event.list")
    return [event.type for event in page.events if event.type.startswith("lock.")]


def status(daemon: Inside, lock_id: str) -> str:
    return daemon.core.state.locks[lock_id].status


def not_to_be_written(daemon: Inside) -> str | None:
    """Why nothing may be written that the lock guards; None when it may be."""
    try:
        fence = daemon.leases.fence("box", "uid:0")
    except SandkeepError as error:
        return error.code
    assert fence is not None
    fence.check()
    return None


# -- taking and giving back -------------------------------------------------------------------------------------------


async def test_a_lock_is_taken_shown_and_given_back(world: World, tmp_path: Path) -> None:
    async with world.daemon(tmp_path) as daemon:
        lock = await acquire(daemon, uid=ALICE)
        place = "/locks/owners/uid-1001"
        assert (lock.name, lock.status, lock.owner, lock.where) == ("box", "held", "uid:1001", place)
        document = world.document(f"owners/uid-1001/{LOCK}")
        assert (lock.owner_id, lock.fence) == (document["ownerId"], document["fence"])
        assert await daemon.call("lock.get", uid=ALICE, name="box") == lock
        assert await daemon.call("lock.get", uid=ALICE, name=lock.lock_id) == lock
        assert (await daemon.call("lock.list", uid=ALICE)).locks == [lock]
        fence = daemon.leases.fence("box", "uid:1001")
        assert fence is not None
        assert fence.number == lock.fence
        fence.check()
        given = await daemon.call("lock.release", uid=ALICE, name="box")
        assert (given.status, given.lock_id) == ("released", lock.lock_id)
        assert world.document(f"owners/uid-1001/{LOCK}")["expiresAt"] == 0
        assert daemon.leases.fence("box", "uid:1001") is None
        await refused_async("lock_lost", trio.to_thread.run_sync(fence.check))
        assert (await daemon.call("lock.release", uid=ALICE, name="box")) == given
        assert (await daemon.call("lock.list", uid=ALICE)).locks == []
        assert (await daemon.call("lock.list", uid=ALICE, all=True)).locks == [given]
        told = ["lock.acquire_requested", "lock.acquired", "lock.release_requested", "lock.released"]
        assert await types(daemon) == told


async def test_without_a_place_for_locks_nothing_happens(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SANDBOX_LOCK_MOUNT_PATH")
    async with world.daemon(tmp_path) as daemon:
        error = await refused_async("not_configured", acquire(daemon))
        assert "SANDBOX_LOCK_BUCKET" in error.message
        monkeypatch.setenv("SANDBOX_LOCK_BUCKET", "no bucket")
        error = await refused_async("not_configured", acquire(daemon))
        assert "SANDBOX_LOCK_BUCKET" in error.message
        await refused_async("not_configured", daemon.call("lock.release", name="box", force=True))
        assert await types(daemon) == []
        assert world.memory.read(LOCK) is None


async def test_a_lock_that_somebody_else_has_is_contended_at_once(world: World, tmp_path: Path) -> None:
    async with world.daemon(tmp_path) as daemon:
        other = world.other().acquire("box")
        error = await refused_async("lock_contended", acquire(daemon))
        assert error.data["held_by"] == other.owner_id
        assert error.data["expires_at"].endswith("Z")
        shown = await daemon.call("lock.get", name="box")
        assert (shown.status, shown.held_by, shown.fence) == ("contended", other.owner_id, None)
        assert await types(daemon) == ["lock.acquire_requested", "lock.contended"]


async def test_who_waits_has_it_when_it_is_free(world: World, tmp_path: Path) -> None:
    async with world.daemon(tmp_path) as daemon, trio.open_nursery() as nursery:
        other = world.other().acquire("box")
        answers: list[Any] = []

        async def wait() -> None:
            answers.append(await acquire(daemon, timeout_s=30))

        nursery.start_soon(wait)
        await world.pass_time(5)
        assert answers == []
        other.release()
        await world.pass_time(1)
        await until_async(lambda: bool(answers))
        assert answers[0].fence > other.fence.number


async def test_who_waits_in_vain_is_told_so(world: World, tmp_path: Path) -> None:
    async with world.daemon(tmp_path) as daemon, trio.open_nursery() as nursery:
        other = world.other().acquire("box")
        errors: list[Any] = []

        async def wait() -> None:
            errors.append(await refused_async("lock_timeout", acquire(daemon, timeout_s=10)))

        nursery.start_soon(wait)
        await world.settle()
        await world.pass_time(9)
        assert [lock.status for lock in daemon.core.state.locks.values()] == ["acquiring"]
        await refused_async("not_ready", daemon.call("lock.release", name="box"))
        await world.pass_time(2)
        await until_async(lambda: [lock.status for lock in daemon.core.state.locks.values()] == ["contended"])
        await until_async(lambda: bool(errors))
        assert "box" in errors[0].message
        assert errors[0].message.endswith("and was not released within 10 s")
        assert world.document()["waitingOwnerId"] is None
        other.renew()


async def test_who_goes_while_he_waits_has_taken_nothing(world: World, tmp_path: Path) -> None:
    async with world.daemon(tmp_path) as daemon:
        other = world.other().acquire("box")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(acquire, daemon, timeout_s=30, command_id="mine"))
            await until_async(lambda: world.document()["waitingOwnerId"] is not None)
            nursery.cancel_scope.cancel()
        await until_async(lambda: [lock.status for lock in daemon.core.state.locks.values()] == ["failed"])
        assert world.document()["waitingOwnerId"] is None
        other.release()
        await world.pass_time(5)
        assert world.document()["ownerId"] == other.owner_id
        again = await acquire(daemon, timeout_s=30, command_id="mine")
        assert again.status == "held"


async def test_who_goes_in_the_moment_in_which_he_gets_it_gives_it_back(world: World, tmp_path: Path) -> None:
    async with world.daemon(tmp_path) as daemon:
        write, written, go_on = world.store.write, threading.Event(), threading.Event()

        def slow(path: str, content: bytes, over: str | None) -> Any:
            answer = write(path, content, over)
            written.set()
            go_on.wait(patient(30))
            return answer

        world.store.write = slow  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(acquire, daemon)
            await until_async(written.is_set)
            nursery.cancel_scope.cancel()
        go_on.set()
        await until_async(lambda: [lock.status for lock in daemon.core.state.locks.values()] == ["failed"])
        assert world.document()["expiresAt"] == 0
        assert daemon.leases.fence("box", "uid:0") is None


async def test_what_was_taken_and_not_known_to_be_is_freed(world: World, tmp_path: Path) -> None:
    """Its store took the write, did not say so, and did not answer when it was asked."""
    async with world.daemon(tmp_path) as daemon:
        read, reads = world.store.read, iter(range(100))

        def silent_once(path: str, most: int = 65536) -> Any:
            if next(reads) == 1:
                raise ProviderError("provider_unavailable", "it does not answer")
            return read(path, most)

        world.store.read, world.store.lose = silent_once, 1  # type: ignore[method-assign]
        await refused_async("provider_unavailable", acquire(daemon))
        await until_async(lambda: world.document()["expiresAt"] == 0)


async def test_a_command_given_again_takes_no_second_lock(world: World, tmp_path: Path) -> None:
    async with world.daemon(tmp_path) as daemon:
        first = await acquire(daemon, command_id="take")
        assert await acquire(daemon, command_id="take") == first
        await refused_async("conflict", acquire(daemon, name="other", command_id="take"))
        given = await daemon.call("lock.release", name="box", command_id="give")
        await refused_async("conflict", daemon.call("lock.release", name="other", command_id="give"))
        second = await acquire(daemon)
        assert await daemon.call("lock.release", name="box", command_id="give") == given
        assert status(daemon, second.lock_id) == "held"
        await refused_async("lock_contended", acquire(daemon, command_id="third"))
        error = await refused_async("lock_contended", acquire(daemon, command_id="third"))
        assert error.data["held_by"] == second.owner_id
        assert (await types(daemon)).count("lock.contended") == 1


async def test_a_late_release_by_id_does_not_take_a_later_lock_away(world: World, tmp_path: Path) -> None:
    async with world.daemon(tmp_path) as daemon:
        first = await acquire(daemon)
        await daemon.call("lock.release", name=first.lock_id)
        second = await acquire(daemon)
        assert (await daemon.call("lock.release", name=first.lock_id)).status == "released"
        assert status(daemon, second.lock_id) == "held"


async def test_the_name_is_that_of_the_lock_that_was_held(world: World, tmp_path: Path) -> None:
    """And not of a later one that never was."""
    async with world.daemon(tmp_path) as daemon:
        held = await acquire(daemon)
        await refused_async("lock_contended", acquire(daemon))
        await daemon.call("lock.release", name="box")
        assert (await daemon.call("lock.release", name="box")).lock_id == held.lock_id
        assert (await daemon.call("lock.get", name="box")).status == "released"


async def test_a_lock_is_its_owners(world: World, tmp_path: Path) -> None:
    async with world.daemon(tmp_path) as daemon:
        lock = await acquire(daemon, uid=ALICE)
        for name in ("box", lock.lock_id):
            await refused_async("not_found", daemon.call("lock.release", uid=BOB, name=name))
            with pytest.raises(SandkeepError, match="not_found"):
                await daemon.call("lock.get", uid=BOB, name=name)
        assert (await daemon.call("lock.list", uid=BOB)).locks == []
        assert [event.type for event in (await daemon.call("event.list", uid=BOB)).events] == []
        assert len((await daemon.call("event.list", uid=ALICE)).events) == 2
        await refused_async("permission_denied", daemon.call("lock.release", uid=BOB, name="box", force=True))
        assert daemon.leases.fence("box", "uid:1002") is None
        assert status(daemon, lock.lock_id) == "held"
        assert (await daemon.call("lock.release", name="box")).status == "released"  # an administrator


async def test_what_another_owner_has_is_as_if_it_were_not(world: World, tmp_path: Path) -> None:
    """All that a user may ask of locks is answered alike, whether somebody else has that name or nobody."""
    (tmp_path / "source").mkdir()
    async with world.daemon(tmp_path / "state") as daemon:
        image = await daemon.image(str(tmp_path / "source"))
        box = (await daemon.call("sandbox.create", image_id=image)).sandbox_id
        await acquire(daemon, "of_root")
        await acquire(daemon, "of_alice", uid=ALICE)
        await acquire(daemon, "was_alices", uid=ALICE)
        await daemon.call("lock.release", uid=ALICE, name="was_alices")
        said = {name: await told(daemon, name) for name in ("nobodys", "of_root", "of_alice", "was_alices", box)}
        assert said["nobodys"][-1] == "released"
        for name, heard in said.items():
            assert heard == said["nobodys"], name
        await daemon.call("sandbox.terminate", sandbox_id=box)


async def told(daemon: Inside, name: str) -> list[Any]:
    """What Bob hears of a lock, from his first question to when he has given it back; but for what is new each time."""
    calls = (
        ("lock.get", {}), ("lock.release", {}), ("lock.release", {"force": True}), ("lock.acquire", {"timeout_s": 0}),
        ("lock.get", {}), ("lock.acquire", {"timeout_s": 0}), ("lock.list", {}), ("lock.release", {}),
    )  # fmt: skip
    said: list[Any] = []
    for method, params in calls:
        try:
            answer = await daemon.call(method, uid=BOB, **({} if method == "lock.list" else {"name": name}), **params)
            locks = answer.locks if method == "lock.list" else [answer]
            said += [part for lock in locks for part in (msgspec.structs.replace(lock, **NEW), lock.status)]
        except SandkeepError as error:
            data = {key: value for key, value in error.data.items() if key not in ("lock_id", "expires_at", "held_by")}
            said.append((error.code, UUID.sub("", error.message.replace(name, "")), {**data, "name": ""}))
    return said


NEW: dict[str, Any] = dict.fromkeys(("lock_id", "name", "requested_at", "owner_id", "acquired_at", "ended_at"), "")
UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


async def test_a_name_that_another_owner_has_is_free(world: World, tmp_path: Path) -> None:
    """Of one owner two daemons see the same lock; of two owners neither sees the other's."""
    async with world.daemon(tmp_path / "one") as one, world.daemon(tmp_path / "two") as two:
        locks = [await acquire(one, uid=uid) for uid in (0, ALICE, BOB)]
        assert [lock.where for lock in locks] == ["/locks", "/locks/owners/uid-1001", "/locks/owners/uid-1002"]
        for uid in (0, ALICE, BOB):
            await refused_async("lock_contended", acquire(two, uid=uid))
        assert world.document()["ownerId"] == locks[0].owner_id
        await one.call("lock.release", uid=ALICE, name="box")
        assert (await acquire(two, uid=ALICE)).status == "held"
        for uid in (0, BOB):
            await refused_async("lock_contended", acquire(two, uid=uid))


async def test_who_takes_the_lock_of_anothers_sandbox_guards_it_if_he_may(
    world: World, tmp_path: Path, places: str
) -> None:
    """An administrator competes with the sandbox's owner; whoever else knows its id has a lock of that name, and no
    more.
    """
    source = tempfile.mkdtemp(dir=places)
    os.chmod(source, 0o755)
    async with world.daemon(tmp_path / "state") as daemon:
        image = await daemon.image(source, uid=ALICE)
        box = (await daemon.call("sandbox.create", uid=ALICE, image_id=image)).sandbox_id
        await acquire(daemon, box, uid=BOB)
        assert daemon.leases.fence(box, f"uid:{ALICE}") is None
        lock = await acquire(daemon, box)
        guard = daemon.leases.fence(box, f"uid:{ALICE}")
        assert guard is not None
        assert guard.number == lock.fence
        await refused_async("lock_contended", acquire(daemon, box, uid=ALICE))
        await daemon.call("lock.release", name=box)
        assert (await acquire(daemon, box, uid=ALICE)).where == lock.where
        await daemon.call("sandbox.terminate", sandbox_id=box)


async def test_a_lock_that_an_older_daemon_took_goes_on_where_it_is(world: World, tmp_path: Path) -> None:
    """There it is also contended for its owner, and given back; the next one is where it belongs."""
    async with world.daemon(tmp_path) as daemon:
        with pytest.MonkeyPatch.context() as older:
            older.setattr("sandkeepd.locks.locks.part_of", lambda where, owner: where)
            lock = await acquire(daemon, uid=ALICE)
        assert lock.where == "/locks"
    async with world.daemon(tmp_path) as daemon:
        await until_async(lambda: daemon.leases.holds("box"))
        await world.pass_time(40)
        assert status(daemon, lock.lock_id) == "held"
        await refused_async("lock_contended", acquire(daemon, uid=ALICE))
        assert (await daemon.call("lock.release", uid=ALICE, name="box")).status == "released"
        assert (await acquire(daemon, uid=ALICE)).where == "/locks/owners/uid-1001"


async def test_an_administrator_frees_a_users_lock_where_it_is(world: World, tmp_path: Path) -> None:
    async with world.daemon(tmp_path / "one") as one, world.daemon(tmp_path / "two") as two:
        await acquire(one, uid=ALICE)
        await refused_async("lock_contended", acquire(two, uid=ALICE))
        freed = await two.call("lock.release", name="box", force=True)
        assert (freed.status, freed.where) == ("stolen", "/locks/owners/uid-1001")
        assert (await acquire(two, uid=ALICE)).status == "held"


async def test_freeing_the_lock_of_a_sandbox_is_whole_in_its_history(world: World, tmp_path: Path, places: str) -> None:
    """Also by its name, which is not its id: the intent is not filed apart from what came of it."""
    source = tempfile.mkdtemp(dir=places)
    os.chmod(source, 0o755)
    async with world.daemon(tmp_path / "state") as daemon:
        image = await daemon.image(source)
        box = (await daemon.call("sandbox.create", image_id=image, name="box")).sandbox_id
        await daemon.call("lock.release", name="box", force=True)
        found = [type for type in await daemon.types(box) if type.startswith("lock.")]
        assert found == ["lock.steal_requested", "lock.stolen"]


async def test_names_that_lead_out_or_look_like_ids_are_refused(world: World, tmp_path: Path) -> None:
    async with world.daemon(tmp_path) as daemon:
        for name in ("../box", "..", "a/b", ".hidden", "lck_x"):
            await refused_async("invalid", acquire(daemon, name=name))
        assert await types(daemon) == []


# -- keeping ----------------------------------------------------------------------------------------------------------


async def test_what_is_held_is_renewed(world: World, tmp_path: Path) -> None:
    async with world.daemon(tmp_path) as daemon:
        lock = await acquire(daemon)
        for _ in range(4):
            await world.pass_time(31)
            await until_async(lambda: world.document()["expiresAt"] > world.clock.wall + 50)
        assert status(daemon, lock.lock_id) == "held"
        assert await types(daemon) == ["lock.acquire_requested", "lock.acquired"]
        fence = daemon.leases.fence("box", "uid:0")
        assert fence is not None
        fence.check()


async def test_a_renewal_that_fails_is_tried_again_at_once(world: World, tmp_path: Path) -> None:
    async with world.daemon(tmp_path) as daemon:
        lock = await acquire(daemon)
        world.store.refuse = 8
        await world.pass_time(42)
        await until_async(lambda: world.document()["expiresAt"] > world.clock.wall + 50)
        assert status(daemon, lock.lock_id) == "held"


async def test_a_store_that_does_not_answer_costs_the_lock_before_others_can_take_it(
    world: World, tmp_path: Path
) -> None:
    async with world.daemon(tmp_path) as daemon:
        lock = await acquire(daemon)
        world.store.refuse = 10_000
        await world.pass_time(49)
        fence = daemon.leases.fence("box", "uid:0")
        assert fence is not None
        await world.pass_time(2)
        await until_async(lambda: status(daemon, lock.lock_id) == "expired")
        await refused_async("lock_lost", trio.to_thread.run_sync(fence.check))
        assert not_to_be_written(daemon) == "lock_lost"
        await refused_async("lock_contended", trio.to_thread.run_sync(world.other().acquire, "box"))
        assert (await types(daemon))[-1] == "lock.expired"
        shown = await daemon.call("lock.release", name="box")
        assert shown.status == "expired"
        assert "not renewed in time" in shown.error


async def test_a_store_that_hangs_costs_the_lock_all_the_same(world: World, tmp_path: Path) -> None:
    async with world.daemon(tmp_path) as daemon:
        lock = await acquire(daemon)
        hangs, write = [True], world.store.write

        def stuck(path: str, content: bytes, over: str | None) -> Any:
            while hangs:
                time.sleep(0.001)
            return write(path, content, over)

        world.store.write = stuck  # type: ignore[method-assign]
        await world.pass_time(51)
        await until_async(lambda: status(daemon, lock.lock_id) == "expired")
        hangs.clear()
        await until_async(lambda: world.document()["expiresAt"] == 0)  # given back as soon as it can be


async def test_a_lock_that_is_lost_before_it_is_on_record_is_on_record_in_that_order(
    world: World, tmp_path: Path
) -> None:
    """The disk took no events for a minute; meanwhile the lock was renewed until its store did not answer."""
    async with world.daemon(tmp_path) as daemon, trio.open_nursery() as nursery:
        append, mended = daemon.core.log.append, trio.Event()

        async def full(new: Any, meta: Any, **options: Any) -> Any:
            if isinstance(new[0].event, events.LockAcquired):
                await mended.wait()
            return await append(new, meta, **options)

        daemon.core.log.append = full  # type: ignore[method-assign]
        nursery.start_soon(acquire, daemon)
        await world.pass_time(62)
        await until_async(lambda: world.document()["expiresAt"] > world.clock.wall + 50)
        world.store.refuse = 10_000
        await world.pass_time(60)
        mended.set()
        await until_async(lambda: [lock.status for lock in daemon.core.state.locks.values()] == ["expired"])
        assert await types(daemon) == ["lock.acquire_requested", "lock.acquired", "lock.expired"]


async def test_no_fence_is_smaller_than_one_that_the_daemon_knows(world: World, tmp_path: Path) -> None:
    """The document was removed by hand, and the clock was set back."""
    async with world.daemon(tmp_path) as daemon:
        first = await acquire(daemon)
        await daemon.call("lock.release", name="box")
        world.memory.put(LOCK, None)
        world.clock.wall -= 86_400
        assert (await acquire(daemon)).fence == first.fence + 1


@pytest.mark.parametrize("what", ["taken", "freed", "damaged"])
async def test_a_lock_that_is_lost_is_told_at_the_next_renewal(world: World, tmp_path: Path, what: str) -> None:
    async with world.daemon(tmp_path) as daemon:
        lock = await acquire(daemon)
        if what == "taken":
            world.memory.put(LOCK, msgspec.json.encode({"ownerId": "other", "expiresAt": world.clock.wall + 60}))
        elif what == "freed":
            world.other().replace("box")
        else:
            world.memory.put(LOCK, b"garbage")
        before = world.memory.read(LOCK)
        await world.pass_time(31)
        await until_async(lambda: status(daemon, lock.lock_id) == "lost")
        assert world.memory.read(LOCK) == before
        (event,) = [e for e in (await daemon.call("event.list")).events if e.type == "lock.lost"]
        assert msgspec.json.decode(event.data)["reason"] == what
        assert not_to_be_written(daemon) == "lock_lost"
        await daemon.call("lock.release", name="box", force=True)
        await acquire(daemon)
        assert not_to_be_written(daemon) is None


async def test_a_lock_that_was_lost_meanwhile_is_not_given_back_for_somebody_else(world: World, tmp_path: Path) -> None:
    async with world.daemon(tmp_path) as daemon:
        await acquire(daemon)
        world.other().replace("box")
        other = world.other().acquire("box")
        given = await daemon.call("lock.release", name="box")
        assert given.status == "lost"
        other.renew()


async def test_a_release_that_is_not_answered_is_repeated_until_it_is(world: World, tmp_path: Path) -> None:
    async with world.daemon(tmp_path) as daemon, trio.open_nursery() as nursery:
        lock = await acquire(daemon)
        world.store.refuse = 2
        nursery.start_soon(partial(daemon.call, "lock.release", name="box"))
        await until_async(lambda: status(daemon, lock.lock_id) == "releasing")
        assert not_to_be_written(daemon) == "lock_lost"
        await world.pass_time(4)
        await until_async(lambda: status(daemon, lock.lock_id) == "released")


# -- an administrator's force -----------------------------------------------------------------------------------------


async def test_an_administrator_frees_what_another_daemon_holds(world: World, tmp_path: Path) -> None:
    async with world.daemon(tmp_path) as daemon:
        other = world.other().acquire("box")
        await refused_async("not_found", daemon.call("lock.release", name="box"))
        freed = await daemon.call("lock.release", name="box", force=True, command_id="force")
        assert (freed.status, freed.name) == ("stolen", "box")
        assert await daemon.call("lock.release", name="box", force=True, command_id="force") == freed
        lock = await acquire(daemon)
        assert lock.fence > other.fence.number
        with pytest.raises(SandkeepError, match="lock_lost"):
            other.renew()
        assert (await types(daemon))[:2] == ["lock.steal_requested", "lock.stolen"]


async def test_an_administrator_mends_a_damaged_document(world: World, tmp_path: Path) -> None:
    world.memory.put(LOCK, b"garbage")
    async with world.daemon(tmp_path) as daemon:
        await refused_async("lock_damaged", acquire(daemon))
        assert (await daemon.call("lock.get", name="box")).status == "failed"
        await daemon.call("lock.release", name="box", force=True)
        assert (await acquire(daemon)).status == "held"


async def test_what_cannot_be_freed_is_told(world: World, tmp_path: Path) -> None:
    world.memory.put(LOCK, b"garbage")
    async with world.daemon(tmp_path) as daemon:
        world.store.refuse = 1
        await refused_async("provider_unavailable", daemon.call("lock.release", name="box", force=True))
        assert (await types(daemon))[-1] == "lock.steal_failed"


# -- after an earlier daemon's end ------------------------------------------------------------------------------------


async def test_a_later_daemon_goes_on_with_what_is_held(world: World, tmp_path: Path) -> None:
    async with world.daemon(tmp_path) as daemon:
        lock = await acquire(daemon)
    world.clock.sleep(30)
    async with world.daemon(tmp_path) as daemon:
        await until_async(lambda: not_to_be_written(daemon) is None)
        assert world.document()["expiresAt"] == world.clock.wall + 60
        await world.pass_time(31)
        await until_async(lambda: world.document()["expiresAt"] > world.clock.wall + 50)
        assert await daemon.call("lock.get", name="box") == lock
        assert (await daemon.call("lock.release", name="box")).status == "released"


@pytest.mark.parametrize(("away_s", "taken", "told"), [(51, False, "expired"), (61, True, "lost")])
async def test_what_was_lost_while_no_daemon_ran_is_told(
    world: World, tmp_path: Path, away_s: float, taken: bool, told: str
) -> None:
    async with world.daemon(tmp_path) as daemon:
        lock = await acquire(daemon)
    world.clock.sleep(away_s)
    other = world.other().acquire("box") if taken else None
    async with world.daemon(tmp_path) as daemon:
        await until_async(lambda: status(daemon, lock.lock_id) == told)
        assert not_to_be_written(daemon) == "lock_lost"
        if other is not None:
            other.renew()


async def test_a_lock_whose_store_is_silent_at_the_start_is_lost_after_a_minute(world: World, tmp_path: Path) -> None:
    async with world.daemon(tmp_path) as daemon:
        lock = await acquire(daemon)
    world.store.refuse = 10_000
    async with world.daemon(tmp_path) as daemon:
        await world.pass_time(30)
        assert status(daemon, lock.lock_id) == "held"
        assert not_to_be_written(daemon) == "not_ready"
        await world.pass_time(31)
        await until_async(lambda: status(daemon, lock.lock_id) == "expired")


async def left(world: World, tmp_path: Path, *recorded: events.Event) -> tuple[str, Lease]:
    """A daemon that died in the middle: so much is on record, and the lock was taken as it says."""
    lease = world.other().acquire("box")
    async with world.daemon(tmp_path) as daemon:
        wanted = events.LockAcquireRequested(owner="uid:0", name="box", where="/locks", owner_id=lease.owner_id)
        meta = Meta(command_id="take", owner="uid:0")
        for event in (wanted, *recorded):
            await daemon.core.log.append([NewEvent("lck_left", event)], meta)
            meta = Meta()
    return "lck_left", lease


async def test_a_lock_that_was_being_taken_is_freed_and_the_command_takes_it_anew(world: World, tmp_path: Path) -> None:
    lock_id, lease = await left(world, tmp_path)
    async with world.daemon(tmp_path) as daemon:
        await until_async(lambda: status(daemon, lock_id) == "failed")
        assert world.document()["expiresAt"] == 0
        assert daemon.core.state.locks[lock_id].interrupted
        assert (await acquire(daemon)).fence > lease.fence.number


async def test_who_waited_when_his_daemon_died_waits_no_more(world: World, tmp_path: Path) -> None:
    held = world.other().acquire("box")
    attempt = Attempt(world.other(), "box", timeout_s=60)
    attempt.step()
    waiter = held.look()
    async with world.daemon(tmp_path) as daemon:
        wanted = events.LockAcquireRequested(owner="uid:0", name="box", where="/locks", owner_id=waiter, timeout_s=60)
        await daemon.core.log.append([NewEvent("lck_left", wanted)], Meta(command_id="take", owner="uid:0"))
    async with world.daemon(tmp_path) as daemon:
        await until_async(lambda: status(daemon, "lck_left") == "failed")
        assert held.look() is None
        held.renew()


async def test_a_release_that_was_ordered_is_finished(world: World, tmp_path: Path) -> None:
    fence = int(world.clock.wall * 1e6)
    lock_id, _ = await left(world, tmp_path, events.LockAcquired(fence=fence), events.LockReleaseRequested())
    async with world.daemon(tmp_path) as daemon:
        await until_async(lambda: status(daemon, lock_id) == "released")
        assert world.document()["expiresAt"] == 0


async def test_what_is_held_can_be_given_back_before_it_is_adopted(world: World, tmp_path: Path) -> None:
    async with world.daemon(tmp_path) as daemon:
        lock = await acquire(daemon)
    world.store.refuse = 3
    async with world.daemon(tmp_path) as daemon, trio.open_nursery() as nursery:
        await world.settle()
        assert not_to_be_written(daemon) == "not_ready"
        nursery.start_soon(partial(daemon.call, "lock.release", name="box"))
        await world.pass_time(10)
        await until_async(lambda: status(daemon, lock.lock_id) == "released")
        assert world.document()["expiresAt"] == 0


async def test_what_is_given_back_while_it_is_adopted_is_not_held_afterwards(world: World, tmp_path: Path) -> None:
    async with world.daemon(tmp_path) as daemon:
        lock = await acquire(daemon)
    write, written, go_on = world.store.write, threading.Event(), threading.Event()

    def slow_once(path: str, content: bytes, over: str | None) -> Any:
        answer = write(path, content, over)
        if not written.is_set():
            written.set()
            go_on.wait(patient(30))
        return answer

    world.store.write = slow_once  # type: ignore[method-assign]
    async with world.daemon(tmp_path) as daemon:
        await until_async(written.is_set)
        assert (await daemon.call("lock.release", name="box")).lock_id == lock.lock_id
        go_on.set()
        await world.settle()
        assert status(daemon, lock.lock_id) == "released"
        assert daemon.leases.fence("box", "uid:0") is None


async def test_freeing_that_was_interrupted_is_told(world: World, tmp_path: Path) -> None:
    async with world.daemon(tmp_path) as daemon:
        steal = events.LockStealRequested(owner="uid:0", name="box", where="/locks")
        await daemon.core.log.append([NewEvent("lck_left", steal)], Meta())
    async with world.daemon(tmp_path) as daemon:
        await until_async(lambda: status(daemon, "lck_left") == "failed")


# -- in the history of what it guards ---------------------------------------------------------------------------------


async def test_a_lock_is_in_the_history_of_its_sandbox(world: World, tmp_path: Path) -> None:
    """Whether it goes by the sandbox's id or by its name, also taken before it was made; for the lock's owner alone."""
    (tmp_path / "source").mkdir()
    async with world.daemon(tmp_path / "state") as daemon:
        image = await daemon.image(str(tmp_path / "source"))
        await acquire(daemon, uid=ALICE)
        await daemon.call("lock.release", uid=ALICE, name="box")
        await acquire(daemon)
        box = (await daemon.call("sandbox.create", image_id=image, name="box")).sandbox_id
        assert daemon.leases.fence(box, "uid:0") is not None
        await daemon.call("lock.release", name="box")
        assert daemon.leases.fence(box, "uid:0") is None
        for name in (box, "box"):
            lock = await acquire(daemon, name)
            fence = daemon.leases.fence(box, "uid:0")
            assert fence is not None
            assert (fence.name, fence.number) == (lock.name, lock.fence) == (name, lock.fence)
            await daemon.call("lock.release", name=name)
        page = await daemon.call("sandbox.history", sandbox_id="box")
        given_back = ["lock.release_requested", "lock.released"]
        taken = ["lock.acquire_requested", "lock.acquired", *given_back]
        made = ["sandbox.create_requested", "sandbox.created"]
        assert [event.type for event in page.events] == [*made, *given_back, *taken, *taken]
        await daemon.call("sandbox.terminate", sandbox_id="box")
        await daemon.core.files.flush()


async def test_a_lock_of_somebody_else_is_in_nobodys_history(world: World, tmp_path: Path, places: str) -> None:
    """Neither one that goes by the sandbox's name nor one that goes by its id, whoever reads the history."""
    source = tempfile.mkdtemp(dir=places)
    os.chmod(source, 0o755)
    async with world.daemon(tmp_path / "state") as daemon:
        image = await daemon.image(source, uid=ALICE)
        await acquire(daemon, uid=BOB)
        await daemon.call("lock.release", uid=BOB, name="box")
        box = (await daemon.call("sandbox.create", uid=ALICE, image_id=image, name="box")).sandbox_id
        await acquire(daemon, box, uid=BOB)
        for uid in (ALICE, 0):
            page = await daemon.call("sandbox.history", uid=uid, sandbox_id=box)
            assert {event.type.split(".")[0] for event in page.events} == {"sandbox"}
        await daemon.call("lock.release", uid=BOB, name=box)
        await daemon.call("sandbox.terminate", uid=ALICE, sandbox_id="box")
