"""Locks against a model: whatever owners, waiters, administrators, clocks and lost answers do, in whatever order, the
model says who has the lock, and no two ever believe that they do.
"""

from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.locking import LosesAnswers, SkewedClock, TestClock
from tests.support.memory_locks import MemoryStore
from tests.support.soak import times

from sandkeep.errors import SandkeepError
from sandkeep_store.locks import rules
from sandkeep_store.locks.lease import Lease, Locks
from sandkeep_store.locks.store import path_of

LOCK = path_of("box")
OWNERS = st.integers(0, 3)


def expect(error: SandkeepError, code: str) -> None:
    if error.code != code:
        raise error


class Daemon:
    """Somebody who may have the lock: `lease` is the last one it took; `lost` says that it was told of its loss."""

    def __init__(self, store: LosesAnswers, true: TestClock) -> None:
        self.clock = SkewedClock(true)
        self.locks = Locks(store, self.clock)
        self.lease: Lease | None = None


class LockMachine(RuleBasedStateMachine):
    """The model is `owner`, whose the document is, `until` when, and `waiter`: who has registered, until when."""

    @initialize()
    def begin(self) -> None:
        self.true = TestClock()
        self.memory = MemoryStore(self.true)
        self.store = LosesAnswers(self.memory)
        self.daemons = [Daemon(self.store, self.true) for _ in range(4)]
        self.owner: int | None = None
        self.until = 0.0
        self.waiter: tuple[str, float] | None = None
        self.last_fence = 0
        self.gone = False
        self.robbed: set[int] = set()
        """The fences of those whose lock an administrator took, of which they hear when they renew it."""

    # -- what may happen ----------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.5, 5.0, 29.0, 45.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.true.sleep(seconds)

    @rule(who=OWNERS, off_s=st.floats(-4.9, 4.9))
    def a_clock_is_set(self, who: int, off_s: float) -> None:
        self.daemons[who].clock.off_s = off_s

    @rule(who=OWNERS)
    def acquire(self, who: int) -> None:
        daemon, now = self.daemons[who], self.daemons[who].clock.now().wall
        waits = self.waiter is not None and self.waiter[1] >= now
        try:
            lease = daemon.locks.acquire("box")
        except SandkeepError as error:
            expect(error, "lock_contended")
            assert waits or self.until >= now, "it was free, and nobody waited"
        else:
            assert not waits, "it was taken before the eyes of who waited"
            assert self.until < now, "it was taken while it was held"
            self._taken(who, lease, now)

    @rule(who=OWNERS)
    def acquire_without_an_answer(self, who: int) -> None:
        self.store.lose = 1
        try:
            self.acquire(who)
        finally:
            self.store.lose = 0

    def _taken(self, who: int, lease: Lease, now: float) -> None:
        assert lease.fence.number > self.last_fence
        self.last_fence = lease.fence.number
        self.daemons[who].lease = lease
        self.owner, self.until, self.waiter, self.gone = who, now + rules.LEASE_S, None, False

    @rule(who=OWNERS)
    def renew(self, who: int) -> None:
        daemon = self.daemons[who]
        if daemon.lease is None:
            return
        now, believed = daemon.clock.now().wall, daemon.lease.lost is None
        try:
            daemon.lease.renew()
        except SandkeepError as error:
            expect(error, "lock_lost")
            assert not believed or self.owner != who or self.gone or self.until < now, "it was surely held"
        else:
            assert believed
            assert self.owner == who
            self.until = now + rules.LEASE_S

    @rule(who=OWNERS, lose=st.booleans())
    def release(self, who: int, lose: bool) -> None:
        lease = self.daemons[who].lease
        if lease is None:
            return
        self.store.lose = int(lose)
        try:
            given = lease.release()
        except SandkeepError as error:
            expect(error, "provider_unavailable")
            self.store.lose = 0
            given = lease.release()
        self.store.lose = 0
        mine = self.owner == who and not self.gone and lease.fence.number == self.last_fence
        assert given or not mine
        if mine:
            self.until = 0.0
        assert lease.lost is not None

    @rule(who=OWNERS)
    def the_daemon_starts_anew(self, who: int) -> None:
        daemon = self.daemons[who]
        old, now = daemon.lease, daemon.clock.now().wall
        daemon.locks = Locks(self.store, daemon.clock)
        if old is None or old.lost == "released":
            daemon.lease = None
            return
        try:
            daemon.lease = daemon.locks.adopt("box", old.owner_id, old.fence.number)
        except SandkeepError as error:
            expect(error, "lock_lost")
            daemon.lease = None
        else:
            assert self.owner == who
            assert self.until - rules.MARGIN_S > now
            self.until = now + rules.LEASE_S

    @precondition(lambda self: self.memory.read(LOCK) is not None)
    @rule(lasts=st.sampled_from([-1.0, 20.0]))
    def somebody_registers_as_waiter(self, lasts: float) -> None:
        keys = self._keys()
        self.waiter = ("waiter", self.true.wall + lasts)
        keys.update(waitingOwnerId="waiter", waiterExpiresAt=self.waiter[1])
        self.memory.put(LOCK, msgspec.json.encode(keys))

    @rule()
    def an_administrator_frees_it(self) -> None:
        Locks(self.memory, self.true).replace("box")
        self.until = 0.0
        self.robbed.add(self.last_fence)

    @precondition(lambda self: self.memory.read(LOCK) is not None)
    @rule()
    def its_document_is_removed_by_hand(self) -> None:
        self.memory.put(LOCK, None)
        self.until, self.waiter, self.gone = 0.0, None, True
        self.robbed.add(self.last_fence)
        self.true.sleep(10.0)  # clocks are right by that

    # -- what always holds --------------------------------------------------------------------------------------------

    @invariant()
    def no_two_believe_in_it(self) -> None:
        leases = [(who, daemon.lease) for who, daemon in enumerate(self.daemons) if daemon.lease is not None]
        believers = [who for who, of in leases if of.lost is None and of.fence.number not in self.robbed]
        assert believers in ([], [self.owner]), believers

    @invariant()
    def the_document_is_that_of_the_model(self) -> None:
        if self.memory.read(LOCK) is None:
            return
        keys = self._keys()
        assert keys["expiresAt"] == self.until
        waiter = (keys["waitingOwnerId"], keys.get("waiterExpiresAt")) if keys["waitingOwnerId"] else None
        assert waiter == self.waiter
        assert keys["fence"] >= 0

    def _keys(self) -> dict[str, Any]:
        found = self.memory.read(LOCK)
        assert found is not None
        keys: dict[str, Any] = msgspec.json.decode(found.content)
        return keys


class TestLocks(LockMachine.TestCase):  # type: ignore[name-defined]  # hypothesis makes it
    settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@pytest.mark.soak
class TestLocksForLong(LockMachine.TestCase):  # type: ignore[name-defined]  # hypothesis makes it
    settings = settings(max_examples=times(2000), stateful_step_count=40, deadline=None)
