"""Locks request by request: three daemons acquire, wait, renew, look, release and give up, all at once, and between any
two requests to the store anything may happen: other requests, lost ones, lost answers, crashes, time, clocks set.

The model knows no more than what must hold of each write and of all leases at each moment.
"""

from collections.abc import Iterable
from typing import Any, Final

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.support.actors import Actor, Killed
from tests.support.locking import SkewedClock, TestClock
from tests.support.memory_locks import MemoryStore
from tests.support.soak import times

from sandkeep.errors import ProviderError, SandkeepError
from sandkeep_store.locks import rules
from sandkeep_store.locks.lease import Attempt, Lease, Locks
from sandkeep_store.locks.store import Stored, Written, path_of

LOCK: Final = path_of("box")
FOREIGN: Final = {"deep": [1, None, {"ü": 1.5}]}
WHO = st.integers(0, 2)
ALL: Final = 30
OFF = st.sampled_from([rules.CLOCK_TOLERANCE_S, 0.0, -rules.CLOCK_TOLERANCE_S])


def fates(count: int, at: int, kind: str) -> list[str]:
    """The outcomes of the next requests: one of them may fail, and after the last the call stands still."""
    return [kind if number == at else "carried out" for number in range(count)]


FATES = st.builds(
    fates,
    st.sampled_from([ALL, ALL, 1, 2, 3, 4, 6]),
    st.integers(0, 4),
    st.sampled_from(["carried out", "carried out", "refused", "not answered"]),
)


class Watched:
    """A daemon's view of the store: it pauses before each request and each answer, and each write is judged."""

    where = "memory"

    def __init__(self, store: MemoryStore, daemon: "Daemon") -> None:
        self._store = store
        self._daemon = daemon

    def read(self, path: str, most: int = 65536) -> Stored | None:
        fate = _pause()
        found = self._store.read(path, most)
        _pause()
        if fate not in (None, "carried out"):
            raise ProviderError("provider_unavailable", fate)
        return found

    def write(self, path: str, content: bytes, over: str | None) -> Written | None:
        fate = _pause()
        if fate == "refused":
            raise ProviderError("provider_unavailable", fate)
        before = self._store.read(path)
        written = self._store.write(path, content, over)
        if written is not None:
            self._judge(msgspec.json.decode(before.content) if before else None, msgspec.json.decode(content))
        _pause()
        if fate == "not answered":
            raise ProviderError("provider_unavailable", fate)
        return written

    def _judge(self, old: dict[str, Any] | None, new: dict[str, Any]) -> None:
        """See that this write was this daemon's to make, by its own clock at the moment of its decision."""
        assert old is not None
        assert new["theirs"] == FOREIGN, "somebody else's keys were lost"
        mine, waiter = self._daemon.owner_ids, old["waitingOwnerId"]
        if (new["ownerId"], new["fence"]) != (old["ownerId"], old["fence"]):
            now = new["expiresAt"] - rules.LEASE_S
            assert new["ownerId"] in mine
            assert new["fence"] > old["fence"]
            assert old["expiresAt"] < now, "it was taken while it was held"
            assert waiter in (None, *mine) or old["waiterExpiresAt"] < now, "it was taken before the eyes of who waited"
            return
        assert new["expiresAt"] == old["expiresAt"] or old["ownerId"] in mine, "another's lease was changed"
        if new["waitingOwnerId"] is None:
            assert waiter in (None, *mine), "another's entry was removed"
        elif new["waitingOwnerId"] != waiter:
            now = new["waiterExpiresAt"] - rules.WAITER_S
            assert new["waitingOwnerId"] in mine
            assert waiter in (None, *mine) or old["waiterExpiresAt"] < now, "another's entry was replaced"


def _pause() -> Any:
    actor = Actor.current()
    return actor.pause() if actor is not None else None


class Daemon:
    """One daemon: its clock, the one call that it has under way, and what it has got so far."""

    def __init__(self, memory: MemoryStore, true: TestClock, name: int) -> None:
        self.clock = SkewedClock(true)
        self.name = name
        self.owner_ids: list[str] = []
        self.store = Watched(memory, self)
        self.actor: Actor | None = None
        self.crash()

    def crash(self) -> None:
        """Lose whatever is not in the store."""
        if self.actor is not None:
            self.actor.kill()
            assert isinstance(self.actor.error, Killed | None)
        self.locks = Locks(self.store, self.clock)
        self.actor = None
        self.attempt: Attempt | None = None
        self.lease: Lease | None = None

    def begin(self, timeout_s: float) -> None:
        self.owner_ids.append(f"{self.name}-{len(self.owner_ids)}")
        self.attempt = Attempt(self.locks, "box", owner_id=self.owner_ids[-1], timeout_s=timeout_s)

    def step(self) -> None:
        assert self.attempt is not None
        try:
            step = self.attempt.step()
        except SandkeepError as error:
            if error.code not in ("lock_contended", "lock_timeout", "provider_unavailable"):
                raise
            if error.code != "provider_unavailable":
                self.attempt = None
            return
        if isinstance(step, Lease):
            self.attempt, self.lease = None, step

    def cancel(self) -> None:
        attempt, self.attempt = self.attempt, None
        assert attempt is not None
        _whatever_the_store_says(attempt.cancel)

    def renew(self) -> None:
        assert self.lease is not None
        _whatever_the_store_says(self.lease.renew)

    def look(self) -> None:
        assert self.lease is not None
        _whatever_the_store_says(self.lease.look)

    def release(self) -> None:
        assert self.lease is not None
        _whatever_the_store_says(self.lease.release)
        self.lease = None

    def recover(self) -> None:
        """Start anew, and go on with what the last process had on record: its lease, or else its acquisition."""
        lease, attempt = self.lease, self.attempt
        self.lease = self.attempt = None
        if lease is not None and lease.lost is None:
            _whatever_the_store_says(lambda: self._adopt(lease))
        elif attempt is not None:
            _whatever_the_store_says(lambda: self.locks.give_up("box", self.owner_ids[-1]))

    def _adopt(self, lease: Lease) -> None:
        self.lease = self.locks.adopt("box", lease.owner_id, lease.fence.number)


def _whatever_the_store_says(call: Any) -> None:
    try:
        call()
    except SandkeepError as error:
        if error.code not in ("lock_lost", "provider_unavailable"):
            raise


class Interleavings(RuleBasedStateMachine):
    """See the module."""

    @initialize(offs=st.tuples(OFF, OFF, OFF))
    def begin(self, offs: tuple[float, ...]) -> None:
        self.true = TestClock()
        self.memory = MemoryStore(self.true)
        document = {"ownerId": "them", "expiresAt": 0, "waitingOwnerId": None, "fence": 7, "theirs": FOREIGN}
        self.memory.put(LOCK, msgspec.json.encode(document))
        self.daemons = [Daemon(self.memory, self.true, name) for name in range(3)]
        for daemon, off_s in zip(self.daemons, offs, strict=True):
            daemon.clock.off_s = off_s
        self.daemons[0].begin(0)
        self.daemons[0].step()

    @rule(seconds=st.sampled_from([0.5, 2.0, 5.0, 29.0, 53.0]))
    def time_passes(self, seconds: float) -> None:
        self.true.sleep(seconds)

    @rule(who=WHO, off_s=OFF)
    def a_clock_is_set(self, who: int, off_s: float) -> None:
        self.daemons[who].clock.off_s = off_s

    @rule(who=WHO, timeout_s=st.sampled_from([0, 20, 90, 90]), fates=FATES)
    def who_has_no_lock_wants_it(self, who: int, timeout_s: float, fates: list[str]) -> None:
        seeking = [daemon for daemon in self.daemons if daemon.lease is None or daemon.lease.lost]
        daemon = seeking[who % len(seeking)]
        if daemon.actor is None:
            daemon.lease = None
            if daemon.attempt is None:
                daemon.begin(timeout_s)
            self._start(daemon, "step")
        self._go_on(daemon, fates)

    @rule(what=st.sampled_from(["renew", "look", "look", "release"]), fates=FATES)
    def who_has_it_acts(self, what: str, fates: list[str]) -> None:
        for daemon in self.daemons:
            if daemon.lease is not None and daemon.actor is None:
                self._start(daemon, what)
            if daemon.lease is not None:
                self._go_on(daemon, fates)

    @rule(who=WHO, how=st.sampled_from(["", "", "cancel", "cancel", "recover", "crash"]), fates=FATES)
    def somebody_goes(self, who: int, how: str, fates: list[str]) -> None:
        """Or goes on: else nobody would hold it for long."""
        daemon = self.daemons[who]
        if how == "cancel" and daemon.actor is None and daemon.attempt is not None:
            self._start(daemon, "cancel")
        elif how == "recover":
            lease, attempt = daemon.lease, daemon.attempt
            daemon.crash()
            daemon.lease, daemon.attempt = lease, attempt
            self._start(daemon, "recover")
        elif how == "crash":
            daemon.crash()
        self._go_on(daemon, fates)

    def _start(self, daemon: Daemon, what: str) -> None:
        daemon.actor = Actor(getattr(daemon, what))
        self._go_on(daemon, [None])

    def _go_on(self, daemon: Daemon, fates: Iterable[str | None]) -> None:
        for fate in fates:
            actor = daemon.actor
            if actor is None:
                return
            actor.go_on(fate)
            if actor.ended:
                daemon.actor = None
                actor.join()
                if actor.error is not None:
                    raise actor.error

    @invariant()
    def no_two_believe_in_it(self) -> None:
        leases = [(daemon.name, daemon.lease) for daemon in self.daemons if daemon.lease is not None]
        believers = [name for name, lease in leases if lease.lost is None]
        assert len(believers) < 2, believers

    def teardown(self) -> None:
        """See that somebody gets it in the end: those who wait, after whoever has it is gone."""
        try:
            for daemon in self.daemons:
                while daemon.actor is not None:
                    self._go_on(daemon, ["carried out"])
                daemon.lease = None
            for _ in range(15):
                if any(daemon.lease for daemon in self.daemons):
                    break
                self.true.sleep(10)
                for daemon in self.daemons:
                    if daemon.attempt is None:
                        daemon.begin(300)
                    daemon.step()
            assert any(daemon.lease for daemon in self.daemons), "nobody gets it any more"
        finally:
            for daemon in self.daemons:
                daemon.crash()


class TestInterleavings(Interleavings.TestCase):  # type: ignore[name-defined]  # hypothesis makes it
    settings = settings(max_examples=150, stateful_step_count=50, deadline=None)


@pytest.mark.soak
class TestInterleavingsForLong(Interleavings.TestCase):  # type: ignore[name-defined]  # hypothesis makes it
    settings = settings(max_examples=times(5000), stateful_step_count=80, deadline=None)
