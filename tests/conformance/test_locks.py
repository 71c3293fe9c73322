"""What holds of locks wherever they are kept: each test runs over every store.

Time belongs to the test: a lease expires when the test's clock says so. Where processes are stopped over their expiry
there is a real clock, faster than the machine's, and nothing is asserted but the order of fencing numbers.
"""

import os
import random
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import pytest
from tests.support import template
from tests.support.expect import refused
from tests.support.locking import FastClock, LosesAnswers, TestClock, contend, history, record
from tests.support.memory_locks import MemoryStore
from tests.support.patience import patient
from tests.support.soak import times

from sandkeep_store.locks import rules
from sandkeep_store.locks.lease import Attempt, Lease, Locks
from sandkeep_store.locks.open import open_store
from sandkeep_store.locks.store import DocumentStore, path_of

LOCK = path_of("box")


class World:
    """One store, the clock of all who use it, and a hand that can reach into it."""

    def __init__(self, store: DocumentStore, put: Callable[[bytes | None], None]) -> None:
        self.store = LosesAnswers(store)
        self.clock = TestClock()
        self.put = put

    def locks(self, tolerance_s: float = float("inf")) -> Locks:
        """Another daemon's view of the locks."""
        return Locks(self.store, self.clock, clock_tolerance_s=tolerance_s)

    def document(self) -> dict[str, Any]:
        """What is in the store."""
        document: dict[str, Any] = msgspec.json.decode(self.content())
        return document

    def content(self) -> bytes:
        """The same, as bytes."""
        found = self.store.read(LOCK, 10**6)
        assert found is not None
        return found.content

    def put_document(self, **keys: Any) -> None:
        """Write the document as somebody else would."""
        usual = {"ownerId": "other", "expiresAt": self.clock.wall + 60, "waitingOwnerId": None}
        self.put(msgspec.json.encode({**usual, **keys}))


GCS = pytest.param("gcs", marks=pytest.mark.needs("gcs"))
S3 = pytest.param("s3", marks=pytest.mark.needs("s3"))
LOCALSTACK = pytest.param("localstack", marks=[pytest.mark.needs("localstack"), pytest.mark.soak])


@pytest.fixture(params=["memory", "directory", GCS, S3, LOCALSTACK])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world for each kind of store."""
    if request.param == "memory":
        memory = MemoryStore()
        return World(memory, lambda content: memory.put(LOCK, content))
    if request.param == "directory":
        return World(open_store(str(tmp_path)), lambda content: _put_file(tmp_path / LOCK, content))
    bucket = request.getfixturevalue(f"{request.param}_bucket")
    if request.param == "gcs":
        return World(open_store(f"gs://{bucket}"), lambda content: _put_blob(bucket, content))
    monkeypatch.setenv("SANDBOX_S3_BUCKET", bucket)
    if request.param == "localstack" and "huge" in request.node.callspec.params.values():
        pytest.skip("LocalStack hangs once an answer is not read to its end")
    if request.param == "localstack":  # a large program, which a busy machine may keep from answering for a while
        monkeypatch.setattr("sandkeep_store.locks.s3.ANSWER_S", patient(60.0))
    client = request.getfixturevalue("localstack_s3" if request.param == "localstack" else "s3").client()
    return World(open_store(f"s3://{bucket}"), lambda content: _put_object(client, bucket, content))


def _put_file(path: Path, content: bytes | None) -> None:
    if content is None:
        path.unlink()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _put_blob(bucket: str, content: bytes | None) -> None:
    from sandkeep_store.buckets.gcs_client import connect

    blob = connect().client.bucket(bucket).blob(LOCK)
    blob.delete() if content is None else blob.upload_from_string(content)


def _put_object(client: Any, bucket: str, content: bytes | None) -> None:
    where = {"Bucket": bucket, "Key": LOCK}
    client.delete_object(**where) if content is None else client.put_object(**where, Body=content)


# -- the store itself -------------------------------------------------------------------------------------------------


def test_of_those_who_write_over_the_same_version_one_succeeds(world: World) -> None:
    store, version = world.store.store, None
    with ThreadPoolExecutor(16) as pool:
        for turn in range(2):
            contents = [f'{{"of":{turn},"by":{number}}}'.encode() for number in range(16)]
            written = list(pool.map(store.write, [LOCK] * 16, contents, [version] * 16))
            (winner,) = [number for number, one in enumerate(written) if one is not None]
            found = store.read(LOCK)
            assert found is not None
            assert found.content == contents[winner]
            version = found.version
            assert written[winner].version == version


def test_a_version_that_is_not_there_is_not_written_over(world: World) -> None:
    store = world.store
    assert store.write(LOCK, b"{}", '"77"' if world.store.where.startswith("s3") else "77") is None
    first = store.write(LOCK, b"{}", None)
    assert first is not None
    assert abs(first.time - time.time()) < 60
    assert store.write(LOCK, b"{}", None) is None
    assert store.write(LOCK, b'{"a":1}', first.version) is not None
    assert store.write(LOCK, b"{}", first.version) is None
    found = store.read(LOCK)
    assert found is not None
    assert found.content == b'{"a":1}'


def test_no_more_of_a_document_is_read_than_asked_for(world: World) -> None:
    world.put(b"x" * 100)
    found = world.store.read(LOCK, 10)
    assert found is not None
    assert found.content == b"x" * 11
    world.put(b"")
    found = world.store.read(LOCK)
    assert found is not None
    assert found.content == b""


# -- taking, keeping, giving back -------------------------------------------------------------------------------------


def test_a_new_lock_is_a_document_of_the_usual_form(world: World) -> None:
    lease = world.locks().acquire("box")
    document = world.document()
    assert list(document) == ["ownerId", "expiresAt", "waitingOwnerId", "fence"]
    assert document == {
        "ownerId": lease.owner_id,
        "expiresAt": world.clock.wall + 60,
        "waitingOwnerId": None,
        "fence": lease.fence.number,
    }
    assert str(uuid.UUID(lease.owner_id)) == lease.owner_id
    assert lease.lost is None
    lease.require()


def test_a_lock_that_is_held_is_contended_and_it_says_by_whom_until_when(world: World) -> None:
    lease = world.locks().acquire("box")
    error = refused("lock_contended", lambda: world.locks().acquire("box"))
    assert error.data["held_by"] == lease.owner_id
    assert error.data["expires_at"].startswith(time.strftime("%Y-%m-%dT%H:", time.gmtime(world.clock.wall + 60)))
    assert error.data["fence"] == lease.fence.number
    assert lease.owner_id in error.message


def test_two_locks_have_nothing_to_do_with_each_other(world: World) -> None:
    world.locks().acquire("box")
    world.locks().acquire("other")


def test_what_was_given_back_is_free_at_once_and_its_document_stays(world: World) -> None:
    first = world.locks().acquire("box")
    assert first.release() is True
    assert first.lost == "released"
    assert world.document()["expiresAt"] == 0
    assert first.release() is True
    second = world.locks().acquire("box")
    assert second.fence.number > first.fence.number
    assert first.release() is True
    assert world.document()["ownerId"] == second.owner_id
    assert world.document()["expiresAt"] == world.clock.wall + 60


def test_one_who_takes_and_gives_back_again_and_again_needs_two_writes_each_time(world: World) -> None:
    locks = world.locks()
    locks.acquire("box").release()
    before = world.document()["fence"]
    reads: list[str] = []
    world.store.read = lambda path, most=0: reads.append(path)  # type: ignore[method-assign, assignment, func-returns-value]
    for _ in range(3):
        locks.acquire("box").release()
    assert reads == []
    del world.store.read
    assert world.document()["fence"] >= before + 3


def test_what_expired_can_be_taken_over_and_its_owner_is_told(world: World) -> None:
    first = world.locks().acquire("box")
    world.clock.sleep(60)
    refused("lock_contended", lambda: world.locks().acquire("box"))
    world.clock.sleep(0.001)
    second = world.locks().acquire("box")
    assert second.fence.number > first.fence.number
    assert refused("lock_lost", first.renew).data["reason"] == "expired"
    assert refused("lock_lost", first.fence.check).data["reason"] == "expired"
    assert first.release() is False
    assert world.document()["ownerId"] == second.owner_id
    second.renew()


def test_a_lease_that_is_renewed_lasts(world: World) -> None:
    lease = world.locks().acquire("box")
    for _ in range(5):
        world.clock.sleep(rules.RENEW_AFTER_S)
        lease.renew()
        assert world.document()["expiresAt"] == world.clock.wall + 60
        refused("lock_contended", lambda: world.locks().acquire("box"))
    assert world.document()["fence"] == lease.fence.number


def test_fences_grow_after_the_document_was_removed_by_hand(world: World) -> None:
    first = world.locks().acquire("box")
    world.put(None)
    assert refused("lock_lost", first.renew).data["reason"] == "taken"
    world.clock.sleep(0.001)
    second = world.locks().acquire("box")
    assert second.fence.number > first.fence.number
    world.put(None)
    third = world.locks().acquire("box", above=2**52)  # what the caller knows of
    assert third.fence.number > 2**52


def test_fences_grow_after_somebody_wrote_who_knows_none(world: World) -> None:
    first = world.locks().acquire("box")
    world.put_document(expiresAt=0)
    world.clock.sleep(0.001)
    assert world.locks().acquire("box").fence.number > first.fence.number


def test_fences_grow_though_a_later_owners_clock_is_behind(world: World) -> None:
    """The document was removed by hand between two machines whose clocks differ as far as they may."""
    world.locks().acquire("box").release()
    world.clock.sleep(2 * rules.CLOCK_TOLERANCE_S)
    world.clock.wall += rules.CLOCK_TOLERANCE_S
    first = world.locks().acquire("box")
    world.put(None)
    world.clock.wall -= 2 * rules.CLOCK_TOLERANCE_S
    world.clock.sleep(0.001)
    assert world.locks().acquire("box").fence.number > first.fence.number


def test_fences_grow_though_the_clock_goes_back(world: World) -> None:
    locks = world.locks()
    first = locks.acquire("box")
    first.release()
    world.clock.wall -= 86_400
    assert locks.acquire("box").fence.number == first.fence.number + 1


# -- by which clock it is lost ----------------------------------------------------------------------------------------


def held_for(lease: Lease, world: World) -> float:
    passed = 0.0
    while lease.lost is None:
        world.clock.sleep(0.5)
        passed += 0.5
    return passed


def test_its_owner_gives_it_up_before_it_can_expire_for_others(world: World) -> None:
    lease = world.locks().acquire("box")
    assert held_for(lease, world) == rules.LEASE_S - rules.MARGIN_S
    refused("lock_contended", lambda: world.locks().acquire("box"))


def test_setting_the_clock_back_makes_no_lease_longer(world: World) -> None:
    lease = world.locks().acquire("box")
    world.clock.wall -= 3600
    assert held_for(lease, world) == rules.LEASE_S - rules.MARGIN_S


def test_a_machine_that_slept_has_lost_its_lease(world: World) -> None:
    """Its steady clock may have stood still, as that of a virtual machine that was paused does."""
    lease = world.locks().acquire("box")
    world.clock.wall += 51
    assert lease.lost == "expired"


def test_what_was_lost_stays_lost(world: World) -> None:
    lease = world.locks().acquire("box")
    world.clock.wall += 51
    assert lease.lost == "expired"
    world.clock.wall -= 51
    refused("lock_lost", lease.require)
    refused("lock_lost", lease.renew)
    assert world.document()["expiresAt"] == world.clock.wall + 60
    assert lease.release() is True
    assert world.document()["expiresAt"] == 0


def test_a_lease_counts_from_before_it_was_written(world: World) -> None:
    """A write that took long must not make the lease look younger than it is."""
    write = world.store.write

    def slow(path: str, content: bytes, over: str | None) -> Any:
        world.clock.sleep(20)
        return write(path, content, over)

    world.store.write = slow  # type: ignore[method-assign]
    lease = world.locks().acquire("box")
    assert lease.remaining_s == pytest.approx(30)
    lease.renew()
    assert lease.remaining_s == pytest.approx(30)


def test_a_machine_whose_clock_is_ahead_takes_no_lock_that_is_held(world: World) -> None:
    if isinstance(world.store.store, MemoryStore):
        world.store.store = MemoryStore(TestClock())
    locks = world.locks(rules.CLOCK_TOLERANCE_S)
    held, before = locks.acquire("box"), world.document()
    world.clock.wall += 90
    assert refused("not_supported", lambda: locks.acquire("box")).data["clock_off_s"] > 0
    world.clock.wall -= 90
    held.renew()
    after = world.document()
    assert (after["ownerId"], after["fence"], after["waitingOwnerId"]) == (before["ownerId"], before["fence"], None)


@pytest.mark.parametrize("off_s", [-8, 8])
def test_a_machine_whose_clock_is_not_the_stores_gets_no_lock(world: World, off_s: float) -> None:
    if isinstance(world.store.store, MemoryStore):
        world.store.store = MemoryStore(TestClock())
    world.clock.wall += off_s
    error = refused("not_supported", lambda: world.locks(rules.CLOCK_TOLERANCE_S).acquire("box"))
    assert ("ahead of" if off_s > 0 else "behind") in error.message
    world.clock.wall -= off_s
    lease = world.locks(rules.CLOCK_TOLERANCE_S).acquire("box")
    world.clock.wall += off_s
    assert refused("lock_lost", lease.renew).data["reason"] == "clock"
    assert world.document()["expiresAt"] == 0


# -- waiting ----------------------------------------------------------------------------------------------------------


def test_who_waits_gets_it_when_it_is_given_back(world: World) -> None:
    first = world.locks().acquire("box")
    attempt = Attempt(world.locks(), "box", timeout_s=30)
    assert attempt.step() == rules.POLL_S
    assert attempt.step() == rules.POLL_S
    first.release()
    second = attempt.step()
    assert isinstance(second, Lease)
    assert second.fence.number > first.fence.number


def test_who_waits_in_vain_is_told_who_has_it(world: World) -> None:
    lease = world.locks().acquire("box")
    started = world.clock.wall
    error = refused("lock_timeout", lambda: world.locks().acquire("box", timeout_s=30))
    assert world.clock.wall - started == pytest.approx(30)
    assert error.data["held_by"] == lease.owner_id
    assert "30 s" in error.message


def test_who_waits_long_enough_takes_over_what_expires(world: World) -> None:
    world.locks().acquire("box")
    started = world.clock.wall
    world.locks().acquire("box", timeout_s=90)
    assert 60 < world.clock.wall - started <= 60 + 2 * rules.POLL_S


@pytest.mark.parametrize("expires_in", [60, -60])
def test_a_live_waiter_comes_first(world: World, expires_in: float) -> None:
    """Also for who has time to wait: another queue behind the first waiter there is not."""
    world.put_document(
        expiresAt=world.clock.wall + expires_in, waitingOwnerId="first", waiterExpiresAt=world.clock.wall + 9
    )
    error = refused("lock_contended", lambda: world.locks().acquire("box", timeout_s=90))
    assert error.data["waiting"] == "first"
    if expires_in < 0:
        lease = Attempt(world.locks(), "box", owner_id="first").step()
        assert isinstance(lease, Lease)
        assert world.document()["waitingOwnerId"] is None
        assert world.document()["waiterExpiresAt"] is None


def waiting(world: World, timeout_s: float = patient(30)) -> tuple[Lease, Attempt]:
    """An owner, and who waits for its lock."""
    lease = world.locks().acquire("box")
    attempt = Attempt(world.locks(), "box", owner_id="next", timeout_s=timeout_s)
    assert attempt.step() == rules.POLL_S
    return lease, attempt


def entry(world: World) -> tuple[Any, Any]:
    """The waiter's entry in the document."""
    document = world.document()
    return document["waitingOwnerId"], document.get("waiterExpiresAt")


def pass_on(world: World, seconds: int, *work: Callable[[], Any]) -> None:
    """Let time pass, and do that every second."""
    for _ in range(seconds):
        world.clock.sleep(1)
        for each in work:
            each()


def test_a_waiter_is_in_the_document_for_a_minute(world: World) -> None:
    world.put_document(expiresAt=0, theirs=[1])
    first = world.locks().acquire("box")
    before = world.document()
    Attempt(world.locks(), "box", owner_id="next", timeout_s=5).step()
    assert world.document() == {
        **before,
        "waitingOwnerId": "next",
        "waiterExpiresAt": world.clock.wall + 60,
    }
    assert list(world.document()) == ["ownerId", "expiresAt", "waitingOwnerId", "waiterExpiresAt", "fence", "theirs"]
    first.renew()


def test_who_has_no_time_to_wait_is_no_waiter(world: World) -> None:
    lease = world.locks().acquire("box")
    before = world.content()
    refused("lock_contended", lambda: world.locks().acquire("box"))
    assert world.content() == before
    assert lease.look() is None


def test_an_owner_hands_the_lock_over_to_its_waiter_and_to_nobody_else(world: World) -> None:
    lease, attempt = waiting(world)
    assert lease.waiter is None
    assert lease.look() == lease.waiter == "next"
    lease.renew()
    assert entry(world) == ("next", world.clock.wall + 60)
    assert refused("lock_contended", lambda: world.locks().acquire("box", timeout_s=30)).data["waiting"] == "next"
    assert lease.release() is True
    assert entry(world) == ("next", world.clock.wall + 60)
    assert refused("lock_contended", lambda: world.locks().acquire("box", timeout_s=30)).data["waiting"] == "next"
    later = attempt.step()
    assert isinstance(later, Lease)
    assert later.fence.number > lease.fence.number
    assert entry(world) == (None, None)
    assert later.look() is None
    refused("lock_lost", lease.look)


def test_an_owner_that_renews_learns_of_its_waiter(world: World) -> None:
    lease, _ = waiting(world)
    lease.renew()
    assert lease.waiter == "next"
    world.clock.sleep(30)
    lease.renew()
    world.clock.sleep(30.001)
    assert lease.waiter is None  # it has not renewed its entry


def test_an_owner_that_ignores_its_waiter_keeps_the_lock(world: World) -> None:
    lease = world.locks().acquire("box")
    attempt = Attempt(world.locks(), "box", owner_id="next", timeout_s=40)
    pass_on(world, 39, attempt.step, lease.renew)
    world.clock.sleep(1)
    error = refused("lock_timeout", attempt.step)
    assert (error.data["held_by"], error.data["waiting"]) == (lease.owner_id, None)
    assert entry(world) == (None, None)
    assert lease.look() is None
    lease.renew()


def test_who_waits_for_longer_than_an_entry_lasts_renews_it(world: World) -> None:
    lease, attempt = waiting(world, 1000)
    ahead = TestClock()  # another machine's, as far ahead as it may be
    third = Locks(world.store, ahead, clock_tolerance_s=float("inf"))

    def nobody_else() -> None:
        ahead.wall = world.clock.wall + rules.MARGIN_S
        assert refused("lock_contended", lambda: third.acquire("box", timeout_s=5)).data["waiting"] == "next"

    entries = {entry(world)}
    pass_on(
        world,
        100,
        attempt.step,
        nobody_else,
        lambda: entries.add(entry(world)),
        lambda: lease.renew() if lease.remaining_s < 20 else None,
    )
    assert len(entries) == 1 + 3
    lease.release()
    assert isinstance(attempt.step(), Lease)


def test_a_waiter_that_was_killed_does_not_count_after_a_minute(world: World) -> None:
    lease, _ = waiting(world)
    pass_on(world, 60, lease.renew)
    refused("lock_contended", lambda: world.locks().acquire("box", timeout_s=30))
    world.clock.sleep(0.001)
    assert Attempt(world.locks(), "box", owner_id="third", timeout_s=30).step() == rules.POLL_S
    assert lease.look() == "third"


def test_a_waiter_that_was_stopped_for_too_long_yields_to_the_next(world: World) -> None:
    lease, attempt = waiting(world, 300)
    pass_on(world, 61, lease.renew)
    Attempt(world.locks(), "box", owner_id="third", timeout_s=30).step()
    assert refused("lock_contended", attempt.step).data["waiting"] == "third"
    before = world.content()
    attempt.cancel()
    assert world.content() == before


@pytest.mark.parametrize("is_released", [False, True])
def test_who_gives_up_waits_no_more(world: World, is_released: bool) -> None:
    lease, attempt = waiting(world)
    if is_released:
        lease.release()
    attempt.cancel()
    assert entry(world) == (None, None)
    third = Attempt(world.locks(), "box", owner_id="third", timeout_s=30)
    assert isinstance(third.step(), Lease) == is_released
    before = world.content()
    attempt.cancel()
    assert world.content() == before


def test_who_was_interrupted_while_he_waited_waits_no_more(world: World) -> None:
    class Interrupted(TestClock):
        def sleep(self, seconds: float) -> None:
            raise KeyboardInterrupt

    lease = world.locks().acquire("box")
    locks = Locks(world.store, Interrupted(), clock_tolerance_s=float("inf"))
    with pytest.raises(KeyboardInterrupt):
        locks.acquire("box", timeout_s=30)
    assert entry(world) == (None, None)
    lease.renew()


def test_who_gives_up_what_he_has_taken_releases_it(world: World) -> None:
    attempt = Attempt(world.locks(), "box", timeout_s=30)
    lease = attempt.step()
    assert isinstance(lease, Lease)
    attempt.cancel()
    assert lease.lost == "released"
    assert world.document()["expiresAt"] == 0
    later = world.locks().acquire("box")
    attempt.cancel()
    later.renew()


def test_who_gives_up_before_he_wrote_asks_for_nothing(world: World) -> None:
    world.locks().acquire("box")
    attempt = Attempt(world.locks(), "box")
    refused("lock_contended", attempt.step)
    world.store.read = None  # type: ignore[assignment, method-assign]
    attempt.cancel()


def test_a_daemon_that_died_while_it_waited_waits_no_more_after_its_restart(world: World) -> None:
    lease, _ = waiting(world)
    assert world.locks().give_up("box", "another") is False
    assert lease.look() == "next"
    assert world.locks().give_up("box", "next") is False
    assert lease.look() is None
    lease.renew()


def in_between(world: World, work: Callable[[], Any]) -> None:
    """Do that before the next write, after its document was read."""
    write = world.store.write

    def slow(path: str, content: bytes, over: str | None) -> Any:
        world.store.write = write  # type: ignore[method-assign]
        work()
        return write(path, content, over)

    world.store.write = slow  # type: ignore[method-assign]


def test_of_two_who_would_wait_one_does(world: World) -> None:
    world.locks().acquire("box")
    in_between(world, Attempt(world.locks(), "box", owner_id="first", timeout_s=30).step)
    second = Attempt(world.locks(), "box", owner_id="second", timeout_s=30)
    assert refused("lock_contended", second.step).data["waiting"] == "first"
    assert entry(world)[0] == "first"


def test_a_waiter_and_an_owner_at_the_same_moment_both_come_to_write(world: World) -> None:
    lease = world.locks().acquire("box")
    world.clock.sleep(20)
    attempt = Attempt(world.locks(), "box", owner_id="next", timeout_s=30)
    in_between(world, lease.renew)
    attempt.step()
    assert (world.document()["expiresAt"], entry(world)[0]) == (world.clock.wall + 60, "next")
    in_between(world, attempt.cancel)
    world.clock.sleep(20)
    lease.renew()
    assert (world.document()["expiresAt"], entry(world)[0]) == (world.clock.wall + 60, None)
    attempt.step()
    in_between(world, lease.renew)
    world.clock.sleep(1)
    attempt.cancel()
    assert (world.document()["expiresAt"], entry(world)[0]) == (world.clock.wall + 60, None)
    attempt.step()
    in_between(world, lease.release)
    attempt.cancel()
    assert (world.document()["expiresAt"], entry(world)[0]) == (0, None)


def test_an_entry_that_is_gone_is_made_anew(world: World) -> None:
    """Somebody wrote the whole document, or it was removed and the lock taken anew."""
    _, attempt = waiting(world)
    world.put_document()
    attempt.step()
    assert entry(world)[0] == "next"
    world.put(None)
    assert isinstance(attempt.step(), Lease)


def test_a_waiter_whose_answer_was_lost_waits(world: World) -> None:
    lease = world.locks().acquire("box")
    attempt = Attempt(world.locks(), "box", owner_id="next", timeout_s=30)
    world.store.lose = 1
    assert attempt.step() == rules.POLL_S
    assert lease.look() == "next"
    world.store.lose = 1
    refused("provider_unavailable", attempt.cancel)
    attempt.cancel()
    assert lease.look() is None


def test_a_waiter_whose_store_fails_has_waited_when_it_is_told(world: World) -> None:
    lease = world.locks().acquire("box")
    attempt = Attempt(world.locks(), "box", owner_id="next", timeout_s=30)
    world.store.refuse, world.store.lose = 0, 2
    refused("provider_unavailable", attempt.step)
    attempt.cancel()
    assert lease.look() is None


def test_a_waiter_whose_clock_is_off_is_none(world: World) -> None:
    if isinstance(world.store.store, MemoryStore):
        world.store.store = MemoryStore(TestClock())
    lease = world.locks().acquire("box")
    world.clock.wall += 8
    attempt = Attempt(world.locks(rules.CLOCK_TOLERANCE_S), "box", timeout_s=30)
    assert "ahead of" in refused("not_supported", attempt.step).message
    assert entry(world) == (None, None)
    lease.renew()


def test_a_look_is_one_read_and_tells_of_a_loss(world: World) -> None:
    lease, _ = waiting(world)
    reads, read = [], world.store.read
    world.store.read = lambda *what: reads.append(what) or read(*what)  # type: ignore[method-assign, func-returns-value]
    world.store.refuse = 1000
    lease.look()
    assert len(reads) == 1
    world.put_document()
    assert refused("lock_lost", lease.look).data["reason"] == "taken"
    assert lease.lost == "taken"


@pytest.mark.parametrize("what", ["freed", "damaged"])
def test_a_look_tells_of_what_became_of_the_document(world: World, what: str) -> None:
    lease = world.locks().acquire("box")
    world.put(b"garbage") if what == "damaged" else world.locks().replace("box")
    assert refused("lock_lost", lease.look).data["reason"] == what


@pytest.mark.parametrize("what", ["renew", "release"])
def test_a_look_that_was_overtaken_takes_nothing_for_a_loss(world: World, what: str) -> None:
    """The document that it read is that before a renewal, or after a release, of the lease itself."""
    lease, read = world.locks().acquire("box"), world.store.read
    world.clock.sleep(1)

    def slow(path: str, most: int = 0) -> Any:
        world.store.read = read  # type: ignore[method-assign]
        found = read(path)
        getattr(lease, what)()
        return found if what == "renew" else read(path)

    world.store.read = slow  # type: ignore[method-assign]
    if what == "renew":
        assert lease.look() is None
        lease.require()
    else:
        assert refused("lock_lost", lease.look).data["reason"] == "released"


def test_another_programs_owner_and_waiter_are_understood(world: World) -> None:
    """As the projects write it that Sandkeep serves: without a fence, and at first without `waiterExpiresAt`."""
    world.put_document()
    attempt = Attempt(world.locks(), "box", owner_id="next", timeout_s=30)
    attempt.step()
    assert entry(world) == ("next", world.clock.wall + 60)
    signal_of_release = {**world.document(), "expiresAt": 0}
    del signal_of_release["fence"]
    world.put(msgspec.json.encode(signal_of_release))
    lease = attempt.step()
    assert isinstance(lease, Lease)
    theirs = {**world.document(), "waitingOwnerId": "theirs", "waiterExpiresAt": world.clock.wall + 60}
    world.put(msgspec.json.encode(theirs))
    assert lease.look() == "theirs"
    lease.release()
    assert (world.document()["expiresAt"], entry(world)[0]) == (0, "theirs")
    refused("lock_contended", lambda: world.locks().acquire("box"))


@pytest.mark.parametrize("until", [-1, None])
def test_a_waiter_whose_time_is_over_does_not_count(world: World, until: float | None) -> None:
    world.put_document(
        expiresAt=0, waitingOwnerId="first", waiterExpiresAt=None if until is None else world.clock.wall + until
    )
    world.locks().acquire("box")


def test_a_waiter_and_what_others_wrote_survive_every_write_of_the_owner(world: World) -> None:
    big = 12345678901234567890123456789
    world.put_document(expiresAt=0, fence=7, theirs={"deep": [1, None, {"ü": 1.10}]}, number=big)
    lease = world.locks().acquire("box")
    assert b'"theirs":{"deep":[1,null,{"\xc3\xbc":1.1' in world.content()
    keys = {**world.document(), "waitingOwnerId": "next", "waiterExpiresAt": world.clock.wall + 50}
    world.put(msgspec.json.encode(keys).replace(b"1.2345678901234568e28", str(big).encode()))
    lease.renew()
    lease.renew()
    lease.release()
    content = world.content()
    assert str(big).encode() in content
    assert world.document()["theirs"] == {"deep": [1, None, {"ü": 1.1}]}
    assert (world.document()["waitingOwnerId"], world.document()["expiresAt"]) == ("next", 0)
    assert world.document()["waiterExpiresAt"] == world.clock.wall + 50


# -- documents that are none ------------------------------------------------------------------------------------------

DAMAGED: dict[str, bytes] = {
    "empty": b"",
    "garbage": b"\x00\xff\xfe",
    "half": b'{"ownerId":"x","expiresAt":1',
    "a list": b"[]",
    "nothing": b"null",
    "no owner": b'{"expiresAt":0,"waitingOwnerId":null}',
    "an owner of another type": b'{"ownerId":7,"expiresAt":0}',
    "an endless owner": b'{"ownerId":"' + b"x" * 300 + b'","expiresAt":0}',
    "no time": b'{"ownerId":"x"}',
    "a time of another type": b'{"ownerId":"x","expiresAt":"soon"}',
    "a time that is true": b'{"ownerId":"x","expiresAt":true}',
    "a time before time": b'{"ownerId":"x","expiresAt":-1}',
    "a time that is no number": b'{"ownerId":"x","expiresAt":NaN}',
    "a time without end": b'{"ownerId":"x","expiresAt":1e999}',
    "the year 2100": b'{"ownerId":"x","expiresAt":4102444800}',
    "milliseconds": b'{"ownerId":"x","expiresAt":1678886400000}',
    "a waiter of the year 2100": b'{"ownerId":"x","expiresAt":0,"waitingOwnerId":"y","waiterExpiresAt":4102444800}',
    "a fence below 0": b'{"ownerId":"x","expiresAt":0,"fence":-1}',
    "a fence of another type": b'{"ownerId":"x","expiresAt":0,"fence":1.5}',
    "a fence that is too large": b'{"ownerId":"x","expiresAt":0,"fence":9007199254740992}',
    "a fence of more than 64 bits": b'{"ownerId":"x","expiresAt":0,"fence":%d}' % 2**70,
    "another program's lock": b'{"owner":"host-7","pid":4711,"acquired_at":"2026-01-01T00:00:00Z","ttl":30}',
    "a fence that none is larger than": b'{"ownerId":"x","expiresAt":0,"fence":9007199254740991}',
    "huge": b'{"ownerId":"x","expiresAt":0,"more":"' + b"x" * 200_000 + b'"}',
    "deep": b'{"ownerId":"x","expiresAt":0,"more":' + b"[" * 30_000 + b"]" * 30_000 + b"}",
}


@pytest.mark.parametrize("what", DAMAGED)
def test_what_is_no_lock_is_told_and_left_as_it_is(world: World, what: str) -> None:
    world.put(DAMAGED[what])
    error = refused("lock_damaged", lambda: world.locks().acquire("box", timeout_s=5))
    assert error.data["place"].endswith("sandboxes/box/lock.json")
    assert "release --force" in error.message
    assert len(error.message) < 600
    assert world.content() == DAMAGED[what]


@pytest.mark.parametrize("what", ["garbage", "huge", "the year 2100", "a fence that none is larger than"])
def test_an_administrator_can_have_it_replaced(world: World, what: str) -> None:
    world.put(DAMAGED[what])
    world.locks().replace("box")
    lease = world.locks().acquire("box")
    assert lease.fence.number >= int(world.clock.wall * 1e6)


def test_an_owner_whose_lock_was_damaged_has_lost_it_and_writes_no_more(world: World) -> None:
    lease, other = world.locks().acquire("box"), world.locks().acquire("other")
    world.put(b"garbage")
    assert refused("lock_lost", lease.renew).data["reason"] == "damaged"
    assert lease.release() is False
    assert world.content() == b"garbage"
    other.renew()


def test_a_lock_that_an_administrator_freed_is_lost_to_its_owner(world: World) -> None:
    first = world.locks().acquire("box")
    world.locks().replace("box")
    assert refused("lock_lost", first.renew).data["reason"] == "freed"
    second = world.locks().acquire("box")
    assert second.fence.number > first.fence.number


def test_there_is_nothing_to_replace_where_there_is_nothing(world: World) -> None:
    world.locks().replace("box")
    assert world.store.read(LOCK) is None


@pytest.mark.parametrize("name", ["../box", "..", "a/b", "", "a\n", "/etc", "x" * 65, ".hidden", "a\0b", "ü"])
def test_a_name_that_is_none_leads_nowhere(world: World, name: str) -> None:
    for call in (world.locks().acquire, world.locks().replace, world.locks().read):
        refused("invalid", partial(call, name))


# -- answers that are lost --------------------------------------------------------------------------------------------


def test_a_lock_whose_answer_was_lost_was_taken(world: World) -> None:
    world.store.lose = 1
    lease = world.locks().acquire("box")
    assert world.document()["ownerId"] == lease.owner_id
    assert 49 < lease.remaining_s <= 50
    lease.renew()


def test_a_lock_whose_answer_was_lost_long_ago_is_its_waiters(world: World) -> None:
    first, second = (Attempt(world.locks(), "box", owner_id=name, timeout_s=300) for name in ("first", "second"))
    world.store.lose = 2
    refused("provider_unavailable", first.step)
    world.clock.sleep(30)
    assert second.step() == rules.POLL_S
    world.clock.sleep(31)
    assert refused("lock_contended", first.step).data["waiting"] == "second"
    assert isinstance(second.step(), Lease)


def test_a_lock_that_could_not_be_written_was_not_taken(world: World) -> None:
    world.store.refuse = 2
    refused("provider_unavailable", lambda: world.locks().acquire("box"))
    world.store.refuse = 1
    world.locks().acquire("box")


def test_a_renewal_whose_answer_was_lost_is_made_good_by_the_next(world: World) -> None:
    lease = world.locks().acquire("box")
    world.clock.sleep(30)
    world.store.lose = 1
    refused("provider_unavailable", lease.renew)
    assert lease.remaining_s == pytest.approx(20)
    lease.renew()
    assert lease.remaining_s == pytest.approx(50)


def test_a_lease_outlives_a_store_that_does_not_answer_until_its_deadline(world: World) -> None:
    lease = world.locks().acquire("box")
    world.store.refuse = 1000
    for _ in range(49):
        world.clock.sleep(1)
        refused("provider_unavailable", lease.renew)
    world.clock.sleep(1)
    assert refused("lock_lost", lease.renew).data["reason"] == "expired"


def test_a_release_whose_answer_was_lost_is_known_when_it_is_repeated(world: World) -> None:
    lease = world.locks().acquire("box")
    world.store.lose = 1
    refused("provider_unavailable", lease.release)
    refused("lock_lost", lease.require)
    assert lease.release() is True
    world.locks().acquire("box")
    assert lease.release() is True


def test_a_lock_whose_answer_was_lost_is_not_had_by_a_clock_that_is_off(world: World) -> None:
    """What was read tells no time: it is asked for by another write."""
    if isinstance(world.store.store, MemoryStore):
        world.store.store = MemoryStore(TestClock())
    world.clock.wall -= 8
    world.store.lose = 1
    refused("not_supported", lambda: world.locks(rules.CLOCK_TOLERANCE_S).acquire("box"))
    assert world.document()["expiresAt"] == 0


# -- after a daemon's end ---------------------------------------------------------------------------------------------


def test_a_later_process_goes_on_with_a_lease(world: World) -> None:
    first = world.locks().acquire("box")
    world.clock.sleep(30)
    second = world.locks().adopt("box", first.owner_id, first.fence.number)
    assert second.fence.number == first.fence.number
    assert second.remaining_s == pytest.approx(50)
    second.renew()
    assert second.release() is True


def test_what_is_too_old_another_s_freed_or_gone_is_not_adopted(world: World) -> None:
    first = world.locks().acquire("box")
    owner, fence = first.owner_id, first.fence.number

    def reason() -> Any:
        return refused("lock_lost", lambda: world.locks().adopt("box", owner, fence)).data["reason"]

    world.clock.sleep(50)
    assert reason() == "expired"
    assert world.locks().give_up("box", owner) is True
    assert reason() == "freed"
    second = world.locks().acquire("box")
    assert reason() == "taken"
    assert world.locks().give_up("box", owner) is False
    second.renew()
    world.put(None)
    assert reason() == "taken"
    assert world.locks().give_up("box", owner) is False


def test_of_two_daemons_on_copies_of_one_state_directory_one_loses_the_lock(world: World) -> None:
    """Both know its owner and its number. The later one goes on with it, and the earlier one sees that it did."""
    first = world.locks().acquire("box")
    world.clock.sleep(30)
    twin = world.locks().adopt("box", first.owner_id, first.fence.number)
    world.clock.sleep(1)
    assert refused("lock_lost", first.renew).data["reason"] == "twin"
    refused("lock_lost", first.fence.check)
    before = world.content()
    assert first.release() is False
    assert world.content() == before
    twin.renew()


def test_a_renewal_that_arrives_twice_is_not_taken_for_a_twins(world: World) -> None:
    lease = world.locks().acquire("box")
    for _ in range(3):
        world.clock.sleep(10)
        world.store.lose = 1
        refused("provider_unavailable", lease.renew)
    lease.renew()
    assert lease.release() is True


# -- many at once -----------------------------------------------------------------------------------------------------


def assert_one_after_the_other(store: DocumentStore, fences: list[int], least: int) -> None:
    """No fence was given twice, and none was written after a larger one."""
    assert len(set(fences)) == len(fences)
    written = history(store)
    assert written == sorted(set(written))
    assert set(written) <= set(fences)
    assert len(written) >= least


def contend_in_threads(store: DocumentStore, count: int, each: int, speed: float) -> list[int]:
    clock = FastClock(speed, time.time())
    with ThreadPoolExecutor(count) as pool:
        found = pool.map(lambda seed: contend(store, clock, each, seed), range(count))
        return [fence for fences in found for fence in fences]


def test_threads_that_contend_for_a_lock_have_it_one_after_the_other(world: World) -> None:
    store = world.store.store
    count, each, speed = (4, 5, 100) if "://" in store.where else (8, 8, 400)
    fences = contend_in_threads(store, count, each, speed)
    assert len(fences) == count * each
    assert_one_after_the_other(store, fences, len(fences) // 2)


@pytest.fixture(params=["directory", GCS])
def shared_place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """What several processes can use."""
    return str(tmp_path) if request.param == "directory" else f"gs://{request.getfixturevalue('gcs_bucket')}"


class Contender(NamedTuple):
    """A process that contends for a lock, and what it writes."""

    process: template.Forked
    output: IO[bytes]


@pytest.fixture
def contenders() -> Iterator[Callable[..., list[Contender]]]:
    """Starts processes that contend for the lock; whatever came of them, none stays."""
    started: list[Contender] = []

    def start(place: str, count: int, times: int, speed: float, off_s: float = 0.0) -> list[Contender]:
        since = time.time()
        for seed in range(count):
            command = [
                sys.executable,
                "-m",
                "tests.support.locking",
                place,
                str(speed),
                str(since),
                str(times),
                str(seed),
                str(random.Random(seed).uniform(-off_s, off_s)),
            ]
            output = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
            started.append(Contender(template.start(command, output.fileno(), 2, dict(os.environ)), output))
        return started

    yield start
    for process, output in started:
        process.send_signal(signal.SIGKILL)
        process.wait()
        output.close()


def stop_over_expiry(processes: list[template.Forked], lease_s: float, seed: int) -> None:
    """Stop one or two of those that run, wherever they are, about as long as a lease lasts, until all have ended."""
    chance = random.Random(seed)
    while running := [process for process in processes if process.poll() is None]:
        stopped = chance.sample(running, min(len(running), chance.choice((1, 1, 2))))
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        time.sleep(lease_s * chance.uniform(0.7, 1.3))
        for process in stopped:
            process.send_signal(signal.SIGCONT)
        time.sleep(lease_s * chance.uniform(0, 0.3))


def run_contenders(place: str, contenders: list[Contender], lease_s: float, each: int) -> None:
    stop_over_expiry([contender.process for contender in contenders], lease_s, seed=each)
    fences: list[int] = []
    for process, output in contenders:
        assert process.wait() == 0
        output.seek(0)
        fences += msgspec.json.decode(output.read())
    assert len(fences) == len(contenders) * each
    assert_one_after_the_other(open_store(place), fences, len(fences) // 4)


def test_processes_that_are_stopped_over_their_expiry_overwrite_nothing(
    shared_place: str, contenders: Callable[..., Any]
) -> None:
    speed = 300.0
    run_contenders(shared_place, contenders(shared_place, 4, 6, speed), 60 / speed, 6)


@pytest.mark.soak
def test_sixteen_contenders_a_thousand_times(shared_place: str, contenders: Callable[..., Any]) -> None:
    """With clocks that differ by up to 40 s: no more is promised then than the order of fences."""
    speed = 60.0
    run_contenders(shared_place, contenders(shared_place, 16, times(63), speed, 20.0), 60 / speed, times(63))


@pytest.mark.soak
def test_sixteen_threads_a_thousand_times(world: World) -> None:
    fences = contend_in_threads(world.store.store, 16, 63, 100)
    assert_one_after_the_other(world.store.store, fences, 500)


def test_a_fence_that_is_smaller_comes_to_nothing(world: World) -> None:
    first = world.locks().acquire("box")
    world.clock.sleep(61)
    second = world.locks().acquire("box")
    assert record(world.store, first.fence.number) is True
    assert record(world.store, second.fence.number) is True
    assert record(world.store, first.fence.number) is False
