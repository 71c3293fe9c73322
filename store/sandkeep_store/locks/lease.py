"""Leases: acquisition, renewal, release and hand-over of locks.

`Locks` acquires, each time with a new owner id. A `Lease` is an acquired lock. It is either surely held, or lost for
good: past its deadline it is never renewed, even if it is still free, because its users were told that it is lost.

An owner hands a lock over by its release: a waiter has registered in the document, the owner sees that by `Lease.look`,
and only the waiter can take what is released. An owner that never looks keeps the lock.

Everything blocks, and several threads may use one object. A caller that must not block uses an `Attempt`, and waits
between its steps.
"""

import threading
import uuid
from collections import OrderedDict
from contextlib import suppress
from typing import Final, Literal, TypeAlias

from sandkeep.errors import DataError, ProviderError, SandkeepError, SetupError, StateError
from sandkeep_store.locks import rules
from sandkeep_store.locks.clock import SYSTEM, Clock, Instant
from sandkeep_store.locks.document import LockDocument, decode, encode
from sandkeep_store.locks.fence import Fence, write_conflict
from sandkeep_store.locks.store import DocumentStore, Written, path_of

WRITES_AT_ONCE: Final = 5
"""Attempts at a write that finds another version each time, before `conflict`."""

REMEMBERED: Final = 1000
"""Number of released locks whose document is remembered, so that the next acquisition needs no read. A write over an
outdated version does nothing.
"""

Reason: TypeAlias = Literal["expired", "taken", "freed", "damaged", "clock", "twin", "released"]
REASONS: Final[dict[Reason, str]] = {
    "expired": "it was not renewed in time",
    "taken": "another owner has it, or its document is gone",
    "freed": "an administrator released it by force",
    "damaged": "its document is damaged",
    "clock": "this machine's clock is unreliable: synchronize it, for example by NTP",
    "twin": "another daemon renews it with the same fencing token: no two may run on copies of one state directory",
    "released": "it was released",
}

Version: TypeAlias = str | None
Look: TypeAlias = tuple[LockDocument | None, Version]


def lost(place: str, reason: Reason) -> StateError:
    """The error for a lock that was held and is no more."""
    return StateError("lock_lost", f"{place} is no longer held: {REASONS[reason]}", reason=reason)


def _busy(place: str) -> StateError:
    return StateError("lock_contended", write_conflict(place), waiting=None)


class Locks:
    """The locks in one store. `clock_tolerance_s` is how far the machine's clock may be from the store's."""

    def __init__(
        self, store: DocumentStore, clock: Clock = SYSTEM, *, clock_tolerance_s: float = rules.CLOCK_TOLERANCE_S
    ) -> None:
        self.store = store
        self.clock = clock
        self.clock_tolerance_s = clock_tolerance_s
        self._freed: OrderedDict[str, Look | None] = OrderedDict()
        self._mutex = threading.Lock()

    def acquire(self, name: str, *, timeout_s: float = 0.0, above: int = 0) -> "Lease":
        """Take a lock, waiting for it up to `timeout_s`. Raises as `Attempt.step` does, and waits no more then."""
        attempt = Attempt(self, name, timeout_s=timeout_s, above=above)
        try:
            while True:
                step = attempt.step()
                if isinstance(step, Lease):
                    return step
                self.clock.sleep(step)
        except BaseException:
            with suppress(SandkeepError):
                attempt.cancel()
            raise

    def adopt(self, name: str, owner_id: str, fence: int) -> "Lease":
        """Go on with a lease that an earlier process had, and renew it.

        Raises `lock_lost` when it is another's by now, was freed, or is too old to be relied on; `lock_damaged`;
        `provider_unavailable`.
        """
        found, version = self.read(name)
        now = self.clock.now()
        if found is None or not found.is_of(owner_id, fence):
            raise lost(self.place(name), "taken")
        if not found.expires_at:
            raise lost(self.place(name), "freed")
        lease = Lease(self, name, found, version, _since(found, now))
        lease.renew()
        return lease

    def give_up(self, name: str, owner_id: str) -> bool:
        """Undo what `owner_id`, maybe in an earlier process, did: free the lock, and remove its own entry as a waiter.

        Answers whether the lock was that owner's. Raises `lock_damaged`, `provider_unavailable`: then call it again, or
        let both expire.
        """
        for _ in range(WRITES_AT_ONCE):
            found, version = self.read(name)
            if found is None:
                return False
            wanted = rules.given_up(found, owner_id)
            if wanted is found or self.write(name, wanted, version) is not None:
                return found.owner_id == owner_id
        raise _unsettled(self.place(name))

    def replace(self, name: str) -> None:
        """Free a lock held by any owner, and repair its document. For administrators: its owner loses it."""
        place = self.place(name)
        for _ in range(WRITES_AT_ONCE):
            stored, now = self.store.read(path_of(name)), self.clock.now()
            if stored is None:
                return
            try:
                found = decode(stored.content, place, now.wall)
            except DataError:
                found = None
            if self.write(name, rules.replaced(found, now.wall, place), stored.version) is not None:
                return
        raise _busy(place)

    def place(self, name: str) -> str:
        """Return the display name of a lock's document."""
        return f"{self.store.where}/{path_of(name)}"

    def read(self, name: str) -> Look:
        """A lock's document and its version. Raises `lock_damaged`, `provider_unavailable`."""
        stored = self.store.read(path_of(name))
        if stored is None:
            return None, None
        return decode(stored.content, self.place(name), self.clock.now().wall), stored.version

    def write(self, name: str, document: LockDocument, over: Version) -> Written | None:
        """Write a document; see `DocumentStore.write`."""
        written = self.store.write(path_of(name), encode(document), over)
        if written is not None and not document.expires_at and document.waiting_owner_id is None:
            self._remember(name, document, written.version)
        return written

    def clock_off_s(self, written: Written, since: Instant) -> float:
        """Return the seconds by which the wall clock is ahead of the store's (negative: behind); 0 if tolerable.

        `since` is a moment before that write was sent.
        """
        until = self.clock.now().wall
        off_s = max(since.wall - written.time, 0) or min(until - written.time, 0)
        return off_s if abs(off_s) > self.clock_tolerance_s else 0.0

    def _remember(self, name: str, document: LockDocument, version: str) -> None:
        with self._mutex:
            if self._freed.get(name, ()) is None:
                return
            self._freed[name] = (document, version)
            self._freed.move_to_end(name)
            if len(self._freed) > REMEMBERED:
                self._freed.popitem(last=False)

    def remembered(self, name: str) -> Look | None:
        """Return the document with which a lock was released here; None if there is none. Forgets it."""
        with self._mutex:
            return self._freed.pop(name, None) if self._freed.get(name) else None

    def forget(self, name: str) -> None:
        """Remember nothing of a lock that others had since it was released here: they will again."""
        with self._mutex:
            self._freed[name] = None


class Attempt:
    """One acquisition, in steps, by an owner of its own: `owner_id`, a new one if none is given.

    With time to wait it registers as the lock's waiter, until it gets the lock or its time is over. Whoever ends it
    earlier calls `cancel`. `above` is the largest fencing number that the caller knows of.
    """

    def __init__(
        self, locks: Locks, name: str, *, owner_id: str | None = None, timeout_s: float = 0.0, above: int = 0
    ) -> None:
        self._locks = locks
        self._name = name
        self._place = locks.place(name)
        self._owner_id = owner_id or str(uuid.uuid4())
        self._timeout_s = timeout_s
        self._above = above
        self._deadline = locks.clock.now().steady + timeout_s
        self._known = locks.remembered(name)
        self._mutex = threading.Lock()  # `cancel` waits for a step, which would register again
        self._wrote = False
        self._is_clock_right = False
        """True once the store's time was seen."""
        self._lease: Lease | None = None
        self._entry_due = 0.0
        """Moment of the steady clock from which on the entry as a waiter is to be renewed."""

    def step(self) -> "Lease | float":
        """Take the lock, or wait for it: return the lease, or the seconds until the next call, at most `POLL_S`.

        Raises `lock_contended`: at once when another owner waits for the lock already, and when it is held and there is
        no time to wait; `lock_timeout` when that time is over; `lock_damaged`; `provider_unavailable`; and
        `not_supported` when this machine's clock is unreliable. `cancel` it then, except after the first two.
        """
        with self._mutex:
            try:
                self._lease = self._take()
            except StateError as error:
                if error.code != "lock_contended" or error.data.get("waiting") or self._timeout_s <= 0:
                    raise
                if self._left_s() <= 0:
                    self._undo_if_possible()
                    message = f"{error.message.rpartition(': ')[0]}, and was not released within {self._timeout_s:g} s"
                    raise StateError("lock_timeout", message, **error.data) from None
            return self._lease or min(rules.POLL_S, max(self._left_s(), 0))

    def cancel(self) -> None:
        """Give up: wait no more, and release the lock if a step took it. Does nothing the second time.

        Raises `lock_damaged`, `provider_unavailable`: then call it again, or let lock and entry expire.
        """
        with self._mutex:
            self._undo()

    def _left_s(self) -> float:
        return self._deadline - self._locks.clock.now().steady

    def _take(self) -> "Lease | None":
        """Take the lock; or see that we are its waiter, and return None."""
        locks = self._locks
        guessed, self._known = self._known, None
        found, version = guessed or locks.read(self._name)
        failed = False
        for _ in range(WRITES_AT_ONCE):
            now = locks.clock.now()
            wanted = self._wanted(found, now)
            if wanted is found:
                return None
            written, self._wrote = None, True
            try:
                written = locks.write(self._name, wanted, version)
            except ProviderError:
                if failed:
                    raise
                failed = True
            if written is not None:
                lease = self._written(wanted, written, now)
                if lease is None and not wanted.is_held(now.wall):
                    found, version = wanted, written.version
                    continue
                return lease
            if guessed is not None:
                locks.forget(self._name)
            found, version = locks.read(self._name)
        raise _busy(self._place)

    def _wanted(self, found: LockDocument | None, now: Instant) -> LockDocument:
        """Return the document to write over the one found; the one found itself if our entry in it lasts.

        If ours is there already, by a write whose answer was lost, write it again: only an answer has the store's time.
        """
        if found is not None and found.owner_id == self._owner_id and found.is_held(now.wall):
            return rules.renewed(found, now.wall)
        if found is not None and found.has_expired(now.wall) and not self._is_clock_right:
            # By a clock that is ahead it may be another's still. A write that takes nothing tells the store's time.
            return rules.awaited(found, self._owner_id, now.wall, self._place)
        if found is None or not found.is_held(now.wall) or now.steady >= self._deadline:
            return rules.claimed(found, self._owner_id, now.wall, self._above, self._place)
        if found.live_waiter(now.wall) == self._owner_id and now.steady < self._entry_due:
            return found
        return rules.awaited(found, self._owner_id, now.wall, self._place)

    def _written(self, document: LockDocument, written: Written, since: Instant) -> "Lease | None":
        lease = None
        if document.owner_id == self._owner_id:
            lease = self._lease = Lease(self._locks, self._name, document, written.version, since)
        self._entry_due = since.steady + rules.RENEW_AFTER_S
        off_s = self._locks.clock_off_s(written, since)
        if off_s:
            self._undo_if_possible()
            raise SetupError(
                "not_supported",
                f"this machine's clock is {abs(off_s):.0f} s {'ahead of' if off_s > 0 else 'behind'} that of "
                f"{self._locks.store.where}, so no lock is safe: synchronize it, for example by NTP",
                clock_off_s=off_s,
            )
        self._is_clock_right = True
        return lease

    def _undo_if_possible(self) -> None:
        with suppress(SandkeepError):
            self._undo()

    def _undo(self) -> None:
        if self._lease is not None:
            self._lease.release()
        elif self._wrote:
            self._locks.give_up(self._name, self._owner_id)
            self._wrote = False


def _since(found: LockDocument, now: Instant) -> Instant:
    """Return the start of the lease in a document, if its clock is to be believed."""
    began = found.expires_at - rules.LEASE_S
    return Instant(began, now.steady - (now.wall - began))


class Lease:
    """A lock that was taken, with its fencing number. Keep it by calling `renew` every `RENEW_AFTER_S`."""

    def __init__(self, locks: Locks, name: str, document: LockDocument, version: Version, since: Instant) -> None:
        self.name = name
        self.owner_id = document.owner_id
        self.fence = Fence(name, document.fence, self.require)
        self._locks = locks
        self._place = locks.place(name)
        self._document = document
        self._version = version
        self._mutex = threading.RLock()  # over reading and writing; who only asks does not wait for it
        self._lost: Reason | None = None
        self._given_back = False
        self._until = _until(since)
        self._tried = {document.expires_at}
        """Expiry times that we may have written: another one is by a twin."""

    @property
    def remaining_s(self) -> float:
        """For how many seconds it is held still if it is not renewed; 0 or less when that time is over."""
        now = self._locks.clock.now()
        return min(self._until.steady - now.steady, self._until.wall - now.wall)

    @property
    def waiter(self) -> str | None:
        """The owner that waits for it, as of the last `look` or renewal; None if there was none."""
        return self._document.live_waiter(self._locks.clock.now().wall)

    @property
    def lost(self) -> Reason | None:
        """Reason why it is lost; None while it is surely held."""
        if self._lost is None and self.remaining_s <= 0:
            self._lost = "expired"
        return self._lost

    def require(self) -> None:
        """Raise `lock_lost` unless it is surely held at this moment."""
        reason = self.lost
        if reason is not None:
            raise lost(self._place, reason)

    def renew(self) -> None:
        """Hold it for `LEASE_S` from now on.

        Raises `lock_lost`, and it is lost for good; `provider_unavailable` when its store does not answer: it is held
        until its deadline all the same, so try again.
        """
        with self._mutex:
            for _ in range(WRITES_AT_ONCE):
                self.require()
                now = self._locks.clock.now()
                wanted = rules.renewed(self._document, now.wall)
                self._tried.add(wanted.expires_at)
                written = self._locks.write(self.name, wanted, self._version)
                if written is not None:
                    self._document, self._version, self._until = wanted, written.version, _until(now)
                    self._tried = {wanted.expires_at}
                    if self._locks.clock_off_s(written, now):
                        raise self._lose("clock")
                    return
                self._follow(*self._read())
        raise _unsettled(self._place)

    def look(self) -> str | None:
        """Return the owner that waits for it, if any, by one read of the document.

        Raises `lock_lost`, and it is lost for good; `provider_unavailable`.
        """
        self.require()
        before = self._version
        found, version = self._read()  # outside of the mutex, as a store that hangs must not delay a renewal
        with self._mutex:
            self.require()
            if self._version == before:  # else a renewal came in between, and this may be the document before it
                self._follow(found, version)
            return self.waiter

    def _read(self) -> Look:
        try:
            return self._locks.read(self.name)
        except DataError:
            raise self._lose("damaged") from None

    def _follow(self, found: LockDocument | None, version: Version) -> None:
        """Handle another version of the document: a new waiter, our own unanswered write, or loss."""
        if found is None or not found.is_of(self.owner_id, self.fence.number):
            raise self._lose("taken")
        if not found.is_held(self._locks.clock.now().wall):
            raise self._lose("freed")
        if found.expires_at not in self._tried:
            raise self._lose("twin")
        self._document, self._version = found, version

    def _lose(self, reason: Reason) -> StateError:
        self._lost = reason
        if reason == "clock":  # others need not wait until it expires
            with suppress(ProviderError):
                self.release()
        return lost(self._place, reason)

    def release(self) -> bool:
        """Give it back, and answer whether it was still ours to give.

        It counts as lost from the first call on. Raises `provider_unavailable`: then call it again.
        """
        with self._mutex:
            self._lost = self._lost or "released"
            for _ in range(WRITES_AT_ONCE):
                if self._given_back or self._free():
                    self._given_back = True
                    return True
                try:
                    found, version = self._locks.read(self.name)
                except DataError:
                    return False
                if found is None or not found.is_of(self.owner_id, self.fence.number):
                    return False
                if found.expires_at and found.expires_at not in self._tried:
                    return False
                self._given_back = not found.expires_at  # by a write whose answer was lost
                self._document, self._version = found, version
        raise _unsettled(self._place)

    def _free(self) -> bool:
        return self._locks.write(self.name, rules.freed(self._document), self._version) is not None


def _until(since: Instant) -> Instant:
    """Until when a lease that began then is surely held."""
    lasts = rules.LEASE_S - rules.MARGIN_S
    return Instant(since.wall + lasts, since.steady + lasts)


def _unsettled(place: str) -> ProviderError:
    return ProviderError("provider_unavailable", write_conflict(place))
