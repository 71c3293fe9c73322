"""What tests of locks share: a clock of their own, stores that lose answers, and contenders for one lock."""

import os
import random
import sys
import time
from collections.abc import Callable

import msgspec

from sandkeep.errors import ProviderError, SandkeepError, StateError
from sandkeep_store.locks.clock import Clock, Instant
from sandkeep_store.locks.fence import fence_in
from sandkeep_store.locks.lease import Lease, Locks
from sandkeep_store.locks.open import open_store
from sandkeep_store.locks.store import DocumentStore, Stored, Written

RESULT = "sandboxes/box/result.json"


class TestClock(Clock):
    """Stands still until it is moved; who sleeps moves it."""

    __test__ = False

    def __init__(self) -> None:
        self.wall = time.time()
        self.steady = 1000.0

    def now(self) -> Instant:
        return Instant(self.wall, self.steady)

    def sleep(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


class SkewedClock(Clock):
    """One machine's clock: off by some seconds, and it may be set."""

    def __init__(self, true: TestClock, off_s: float = 0.0) -> None:
        self.true = true
        self.off_s = off_s

    def now(self) -> Instant:
        now = self.true.now()
        return now._replace(wall=now.wall + self.off_s)

    def sleep(self, seconds: float) -> None:
        self.true.sleep(seconds)


class FastClock(Clock):
    """The machine's, so many times as fast since a moment, which all have to agree on, and off by some seconds."""

    def __init__(self, speed: float, since: float, off_s: float = 0.0) -> None:
        self.speed = speed
        self.since = since
        self.off_s = off_s

    def now(self) -> Instant:
        wall = self.since + (time.time() - self.since) * self.speed + self.off_s
        return Instant(wall, time.monotonic() * self.speed)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / self.speed)


class LosesAnswers:
    """A store that carries out a write and fails then, as often as `lose` says; or fails before, as `refuse` says."""

    def __init__(self, store: DocumentStore) -> None:
        self.store = store
        self.where = store.where
        self.lose = 0
        self.refuse = 0

    def read(self, path: str, most: int = 65536) -> Stored | None:
        return self.store.read(path, most)

    def write(self, path: str, content: bytes, over: str | None) -> Written | None:
        if self.refuse:
            self.refuse -= 1
            raise ProviderError("provider_unavailable", "it does not answer")
        written = self.store.write(path, content, over)
        if self.lose:
            self.lose -= 1
            raise ProviderError("provider_unavailable", "its answer was lost")
        return written


# -- contenders -------------------------------------------------------------------------------------------------------


def record(store: DocumentStore, fence: int) -> bool:
    """Add a fence to the document that the lock guards, unless a larger one is there: whether it was added.

    It goes by numbers alone, as if no owner had a clock that could be trusted.
    """
    while True:
        found = store.read(RESULT, 1024**2)
        history = msgspec.json.decode(found.content)["fences"] if found else []
        if found and (fence_in(found.content, RESULT) or 0) > fence:
            return False
        content = msgspec.json.encode({"fence": fence, "fences": [*history, fence]})
        if store.write(RESULT, content, found.version if found else None) is not None:
            return True


def history(store: DocumentStore) -> list[int]:
    """The fences in the document that the lock guards, in the order in which they were written there."""
    found = store.read(RESULT, 1024**2)
    fences: list[int] = msgspec.json.decode(found.content)["fences"] if found else []
    return fences


def contend(
    store: DocumentStore,
    clock: Clock,
    times: int,
    seed: int,
    on_acquired: Callable[[Lease], object] = lambda lease: None,
) -> list[int]:
    """Take a lock so many times, dawdle, sometimes for longer than a lease lasts, and write what it guards; answer the
    fences.
    """
    chance, locks = random.Random(seed), Locks(store, clock, clock_tolerance_s=float("inf"))
    fences = []
    while len(fences) < times:
        try:
            lease = locks.acquire("box", timeout_s=600)
        except StateError as error:
            if error.code not in ("lock_timeout", "lock_contended"):
                raise
            clock.sleep(chance.uniform(0.5, 10))
            continue
        fences.append(lease.fence.number)
        on_acquired(lease)
        _dawdle(lease, clock, chance)
        record(store, lease.fence.number)
        if chance.random() < 0.95:  # else it goes without a word
            _give_back(lease)
    return fences


def _give_back(lease: Lease) -> None:
    """What cannot be given back, as somebody was stopped while he wrote, expires."""
    try:
        lease.release()
    except ProviderError as error:
        if error.code != "provider_unavailable":
            raise


def _dawdle(lease: Lease, clock: Clock, chance: random.Random) -> None:
    kind = chance.random()
    if kind < 0.05:
        clock.sleep(chance.uniform(45, 90))  # past its deadline, or past its end
    elif kind < 0.2:
        clock.sleep(chance.uniform(0, 20))
        try:
            lease.renew()
        except SandkeepError as error:
            if error.code not in ("lock_lost", "provider_unavailable"):
                raise


if __name__ == "__main__":
    place, speed, since, times, seed, off_s = sys.argv[1:]
    clock = FastClock(float(speed), float(since), float(off_s))
    found = contend(open_store(place), clock, int(times), int(seed))
    os.write(1, msgspec.json.encode(found))
