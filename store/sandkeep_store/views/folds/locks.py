"""Folds of the events of locks."""

from sandkeep import events
from sandkeep.events import Event
from sandkeep.lifecycle import LOCK
from sandkeep_store.views.folds.register import advance, changes, folds
from sandkeep_store.views.locks import RECENT_LOCKS, LockState
from sandkeep_store.views.state import State
from sandkeep_store.views.view import Fact


@folds(events.LockAcquireRequested, events.LockStealRequested)
def _requested(state: State, event: events.LockAcquireRequested | events.LockStealRequested, fact: Fact) -> None:
    lock = state.locks[fact.stream] = LockState(
        lock_id=fact.stream,
        owner=event.owner,
        name=event.name,
        where=event.where,
        requested_us=fact.time_us,
        revision=fact.revision,
        status=LOCK.targets[event.type],
    )
    if isinstance(event, events.LockAcquireRequested):
        lock.owner_id, lock.timeout_s, lock.sandbox_id = event.owner_id, event.timeout_s, event.sandbox_id


@changes("locks", events.LockAcquired)
def _acquired(lock: LockState, event: events.LockAcquired, fact: Fact) -> None:
    lock.fence, lock.acquired_us = event.fence, fact.time_us


@changes("locks", events.LockHandoverRequested)
def _handover_requested(lock: LockState, event: events.LockHandoverRequested, fact: Fact) -> None:
    lock.handover, lock.refused, lock.interrupted = event, None, False


@changes("locks", events.LockHandoverFailed)
def _handover_failed(lock: LockState, event: events.LockHandoverFailed, fact: Fact) -> None:
    lock.refused, lock.interrupted = (event.code, event.message), event.interrupted


@changes("locks", events.LockReleaseRequested)
def _release_requested(lock: LockState, event: events.LockReleaseRequested, fact: Fact) -> None:
    lock.given_back = True


@folds(events.LockContended)
def _contended(state: State, event: events.LockContended, fact: Fact) -> None:
    lock = _end(state, event, fact)
    if lock is not None:
        lock.error = (event.code, event.message)
        lock.held_by, lock.expires_at, lock.waiting = event.held_by, event.expires_at, event.waiting


@folds(events.LockAcquireFailed, events.LockStealFailed)
def _failed(state: State, event: events.LockAcquireFailed | events.LockStealFailed, fact: Fact) -> None:
    lock = _end(state, event, fact)
    if lock is not None:
        lock.fail(event, fact)


@folds(events.LockExpired, events.LockLost)
def _lost(state: State, event: events.LockExpired | events.LockLost, fact: Fact) -> None:
    lock = _end(state, event, fact)
    if lock is not None:
        lock.error = ("lock_lost", event.message)


@folds(events.LockReleased, events.LockStolen)
def _end(state: State, event: Event, fact: Fact) -> LockState | None:
    lock = advance(state.locks, event, fact)
    if lock is not None:
        lock.ended_us = fact.time_us
        state.ended_locks.append(lock.lock_id)
        if len(state.ended_locks) > RECENT_LOCKS:
            del state.locks[_oldest(state)]
    return lock


def forget_before(state: State, before_us: int) -> None:
    """Forget locks that had ended before a moment: their events go into the archive."""
    for lock_id in [lock.lock_id for lock in state.locks.values() if can_be_archived(state, lock, before_us)]:
        del state.locks[lock_id]
        state.ended_locks.remove(lock_id)


def can_be_archived(state: State, lock: LockState, before_us: int) -> bool:
    """Return True if a lock had ended before a moment and is not needed any longer."""
    return (lock.ended_us or before_us) < before_us and not is_needed(state, lock)


def _oldest(state: State) -> str:
    """The first of those that are over that need not be known any longer; it is one of them no more."""
    ended = state.ended_locks
    oldest = next((lock_id for lock_id in ended if not is_needed(state, state.locks[lock_id])), ended[0])
    ended.remove(oldest)
    return oldest


def is_needed(state: State, lock: LockState) -> bool:
    """Return True if it was lost and not taken again: until then nothing may be written for its sandbox."""
    if lock.status not in ("expired", "lost") or state.sandbox_of_lock(lock.owner, lock.name, lock.where) is None:
        return False
    return all((other.fence or 0) <= (lock.fence or 0) for other in state.locks.values() if other.competes_with(lock))
