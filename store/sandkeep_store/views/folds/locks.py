"""Folds of the events of locks."""

from sandkeep import events
from sandkeep.events import Event
from sandkeep.lifecycle import LOCK
from sandkeep_store.views.folds.register import folds
from sandkeep_store.views.locks import RECENT_LOCKS, LockState
from sandkeep_store.views.state import State
from sandkeep_store.views.view import Fact


@folds(events.LockAcquireRequested)
def _acquire_requested(state: State, event: events.LockAcquireRequested, fact: Fact) -> None:
    state.locks[fact.stream] = LockState(
        lock_id=fact.stream,
        owner=event.owner,
        name=event.name,
        where=event.where,
        requested_us=fact.time_us,
        revision=fact.revision,
        status=LOCK.targets[event.type],
        owner_id=event.owner_id,
        timeout_s=event.timeout_s,
    )


@folds(events.LockAcquired)
def _acquired(state: State, event: events.LockAcquired, fact: Fact) -> None:
    lock = _advance(state, event, fact)
    if lock is not None:
        lock.fence, lock.acquired_us = event.fence, fact.time_us


@folds(events.LockContended)
def _contended(state: State, event: events.LockContended, fact: Fact) -> None:
    lock = _end(state, event, fact, (event.code, event.message))
    if lock is not None:
        lock.held_by, lock.expires_at, lock.waiting = event.held_by, event.expires_at, event.waiting


@folds(events.LockAcquireFailed)
def _acquire_failed(state: State, event: events.LockAcquireFailed, fact: Fact) -> None:
    lock = _end(state, event, fact, (event.code, event.message))
    if lock is not None:
        lock.interrupted = event.interrupted


@folds(events.LockReleaseRequested)
def _release_requested(state: State, event: events.LockReleaseRequested, fact: Fact) -> None:
    _advance(state, event, fact)


@folds(events.LockReleased)
def _released(state: State, event: events.LockReleased, fact: Fact) -> None:
    _end(state, event, fact)


@folds(events.LockExpired)
def _expired(state: State, event: events.LockExpired, fact: Fact) -> None:
    _end(state, event, fact, ("lock_lost", event.message))


@folds(events.LockLost)
def _lost(state: State, event: events.LockLost, fact: Fact) -> None:
    _end(state, event, fact, ("lock_lost", event.message))


@folds(events.LockStealRequested)
def _steal_requested(state: State, event: events.LockStealRequested, fact: Fact) -> None:
    state.locks[fact.stream] = LockState(
        lock_id=fact.stream,
        owner=event.owner,
        name=event.name,
        where=event.where,
        requested_us=fact.time_us,
        revision=fact.revision,
        status=LOCK.targets[event.type],
    )


@folds(events.LockStolen)
def _stolen(state: State, event: events.LockStolen, fact: Fact) -> None:
    _end(state, event, fact)


@folds(events.LockStealFailed)
def _steal_failed(state: State, event: events.LockStealFailed, fact: Fact) -> None:
    lock = _end(state, event, fact, (event.code, event.message))
    if lock is not None:
        lock.interrupted = event.interrupted


def forget_before(state: State, before_us: int) -> None:
    """Forget locks that had ended before a moment: their events go into the archive."""
    for lock_id in [lock.lock_id for lock in state.locks.values() if goes_before(state, lock, before_us)]:
        del state.locks[lock_id]
        state.ended_locks.remove(lock_id)


def goes_before(state: State, lock: LockState, before_us: int) -> bool:
    """Return True if a lock had ended before a moment and is not needed any longer."""
    return (lock.ended_us or before_us) < before_us and not is_needed(state, lock)


def _end(state: State, event: Event, fact: Fact, error: tuple[str, str] | None = None) -> LockState | None:
    lock = _advance(state, event, fact)
    if lock is not None:
        lock.ended_us, lock.error = fact.time_us, error
        state.ended_locks.append(lock.lock_id)
        if len(state.ended_locks) > RECENT_LOCKS:
            del state.locks[_oldest(state)]
    return lock


def _oldest(state: State) -> str:
    """The first of those that are over that need not be known any longer; it is one of them no more."""
    ended = state.ended_locks
    oldest = next((lock_id for lock_id in ended if not is_needed(state, state.locks[lock_id])), ended[0])
    ended.remove(oldest)
    return oldest


def is_needed(state: State, lock: LockState) -> bool:
    """Return True if it was lost and not taken again: until then nothing may be written for its sandbox."""
    if lock.status not in ("expired", "lost") or state.guarded(lock.owner, lock.name, lock.where) is None:
        return False
    return all((other.fence or 0) <= (lock.fence or 0) for other in state.locks.values() if other.competes_with(lock))


def _advance(state: State, event: Event, fact: Fact) -> LockState | None:
    """Move an acquisition on; None for one whose first events are in the archive already."""
    lock = state.locks.get(fact.stream)
    if lock is not None:
        lock.status, lock.revision = LOCK.targets[event.type], fact.revision
    return lock
