"""Sixteen contenders for one lock, on a clock of the test's own: hours in seconds, and the same at each run.

Each has a wall clock that is off by some seconds. Requests take their time, some of them longer than a lease lasts, as
if their machine had been stopped: between the decision and the write, or between the write and its answer.
"""

import heapq
import itertools
import random
from functools import partial
from typing import Any

import msgspec
import pytest
from tests.support.actors import Actor
from tests.support.locking import SkewedClock, TestClock, contend, history
from tests.support.memory_locks import MemoryStore
from tests.support.soak import times

from sandkeep_store.locks import rules
from sandkeep_store.locks.lease import Lease
from sandkeep_store.locks.store import Stored, Written, path_of

LOCK = path_of("box")
CONTENDERS = 16


class Simulation(TestClock):
    """The clock, and the actors that sleep by it. Only the one that wakes first runs."""

    def __init__(self) -> None:
        super().__init__()
        self._sleeping: list[tuple[float, int, Actor]] = []
        self._numbers = itertools.count()

    def sleep(self, seconds: float) -> None:
        actor = Actor.current()
        assert actor is not None
        self._put_to_sleep(actor, seconds)
        actor.pause()

    def _put_to_sleep(self, actor: Actor, seconds: float) -> None:
        heapq.heappush(self._sleeping, (self.steady + seconds, next(self._numbers), actor))

    def run(self, actors: list[Actor]) -> None:
        """Run them to their ends. Raises the first error of any."""
        for actor in actors:
            self._put_to_sleep(actor, 0)
        try:
            while self._sleeping:
                until, _, actor = heapq.heappop(self._sleeping)
                super().sleep(until - self.steady)
                actor.go_on()
                if actor.error is not None:
                    raise actor.error
        finally:
            for actor in actors:
                actor.kill()


class Distant:
    """A store whose requests and answers are under way for a while. It sees that fences grow."""

    where = "memory"

    def __init__(self, store: MemoryStore, clock: Simulation, chance: random.Random) -> None:
        self._store = store
        self._clock = clock
        self._chance = chance

    def read(self, path: str, most: int = 65536) -> Stored | None:
        self._be_under_way()
        found = self._store.read(path, most)
        self._be_under_way()
        return found

    def write(self, path: str, content: bytes, over: str | None) -> Written | None:
        self._be_under_way()
        before = self._store.read(path)
        written = self._store.write(path, content, over)
        if written is not None and before is not None and path == LOCK:
            old, new = msgspec.json.decode(before.content), msgspec.json.decode(content)
            is_kept = old["ownerId"] == new["ownerId"]
            assert new["fence"] > old["fence"] or (is_kept and new["fence"] == old["fence"])
        self._be_under_way()
        return written

    def _be_under_way(self) -> None:
        is_stopped = self._chance.random() < 0.005
        self._clock.sleep(self._chance.uniform(40, 80) if is_stopped else self._chance.expovariate(20))


class Held:
    """All leases that anybody got: at no moment two of them are held by what their owners know."""

    def __init__(self) -> None:
        self.leases: list[Lease] = []

    def add(self, lease: Lease) -> None:
        self.leases = [each for each in self.leases if each.lost is None]
        assert lease.lost is not None or not self.leases, "two of them surely hold it"
        self.leases.append(lease)


def simulate(each: int, off_s: float, seed: int, on_acquired: Any = lambda lease: None) -> None:
    """Let them contend. No fence may be given twice, and none may write after a larger one."""
    clock, chance = Simulation(), random.Random(seed)
    memory = MemoryStore(clock)
    actors = []
    for number in range(CONTENDERS):
        store, mine = Distant(memory, clock, chance), SkewedClock(clock, chance.uniform(-off_s, off_s))
        actors.append(Actor(partial(contend, store, mine, each, number, on_acquired)))
    clock.run(actors)
    fences = [fence for actor in actors for fence in actor.result]
    written = history(memory)
    assert len(fences) == len(set(fences)) == CONTENDERS * each
    assert written == sorted(set(written))
    assert len(written) > len(fences) // 2


def test_with_clocks_within_the_bound_no_two_hold_it() -> None:
    simulate(20, rules.CLOCK_TOLERANCE_S, 1, Held().add)


def test_with_clocks_beyond_the_bound_no_smaller_fence_writes() -> None:
    """A thousand acquisitions, with clocks that are off by up to 20 s."""
    simulate(63, 20, 2)


@pytest.mark.soak
@pytest.mark.parametrize("off_s", [rules.CLOCK_TOLERANCE_S, 20])
def test_a_thousand_acquisitions_each(off_s: float) -> None:
    simulate(times(1000), off_s, 3, Held().add if off_s <= rules.CLOCK_TOLERANCE_S else lambda lease: None)
