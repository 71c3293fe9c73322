"""Rules for changes of a lock's document. Pure: documents and a moment in, a document or an error out.

Several machines measure a lease, each with a clock of its own. So the owner is stricter than everyone else: others take
a lock over when `LEASE_S` are past by *their* clock, and the owner treats it as lost `MARGIN_S` earlier, by a monotonic
clock of his own. As long as no two clocks are further apart than `MARGIN_S`, no two owners believe in the same lock;
`lease` checks that by the store's clock. Fences stop the remaining cases.
"""

from typing import Final

from msgspec.structs import replace

from sandkeep.errors import StateError
from sandkeep.protocol.clock import rfc3339
from sandkeep_store.locks.document import LONGEST_LEASE_S, MAX_FENCE, LockDocument, damaged

LEASE_S: Final = 60.0
RENEW_AFTER_S: Final = LEASE_S / 2
"""Age in seconds at which an owner renews its lease, and a waiter its entry."""

WAITER_S: Final = 60.0
"""Seconds until the entry of a waiter that is gone does not count any more."""

MARGIN_S: Final = 10.0
CLOCK_TOLERANCE_S: Final = MARGIN_S / 2
"""Maximum distance of a clock from the store's, in seconds: then two are never further apart than `MARGIN_S`."""

POLL_S: Final = 1.0
"""Seconds between two looks of a waiter at a lock."""

assert LEASE_S < LONGEST_LEASE_S
assert min(LEASE_S, WAITER_S) > RENEW_AFTER_S + MARGIN_S


def claimed(found: LockDocument | None, owner_id: str, now: float, above: int, place: str) -> LockDocument:
    """Return the document that takes a free lock: new, released, or expired.

    Raises `lock_contended` when it is held, or when another owner waits for it, who has the right to be next.
    """
    if found is not None and (found.is_held(now) or found.live_waiter(now) not in (None, owner_id)):
        raise contended(withdrawn(found, owner_id), now, place)
    fence = next_fence(found, now, above, place)
    if found is None:
        return LockDocument(owner_id=owner_id, expires_at=now + LEASE_S, fence=fence)
    return replace(
        found,
        owner_id=owner_id,
        expires_at=now + LEASE_S,
        waiting_owner_id=None,
        waiter_expires_at=None,
        fence=fence,
    )


def awaited(held: LockDocument, owner_id: str, now: float, place: str) -> LockDocument:
    """Return the document in which `owner_id` waits for a lock. Raises `lock_contended` when another owner does."""
    if held.live_waiter(now) not in (None, owner_id):
        raise contended(held, now, place)
    return replace(held, waiting_owner_id=owner_id, waiter_expires_at=now + WAITER_S)


def next_fence(found: LockDocument | None, now: float, above: int, place: str) -> int:
    """Return a number larger than that of every earlier acquisition.

    It is larger than the last one, which the document keeps after a release too, and than `above`, the largest that the
    caller knows of. Without a last one, because the document is new, was removed by hand, or rewritten by a program
    without fences, it is the microseconds since 1970. With a last one the clock counts for `MARGIN_S` less: so no
    machine's clock, ahead as it may be, makes a number that another's, behind as it may be, would not exceed after a
    removal. That holds unless the document had been made within the last `MARGIN_S`.
    """
    last = found.fence if found is not None else 0
    fence = max(last, above, int((now - (MARGIN_S if last else 0.0)) * 1e6) - 1) + 1
    if fence > MAX_FENCE:
        raise damaged(place, f"no fencing number is larger than its last, {fence - 1}")
    return fence


def renewed(held: LockDocument, now: float) -> LockDocument:
    """The document by which its owner keeps a lock."""
    return replace(held, expires_at=now + LEASE_S)


def freed(held: LockDocument) -> LockDocument:
    """Return the document that releases a lock. The waiter stays in it, and gets the lock next."""
    return replace(held, expires_at=0.0)


def withdrawn(found: LockDocument, owner_id: str) -> LockDocument:
    """Return the document in which `owner_id` waits no more; the same one if it does not wait."""
    if found.waiting_owner_id != owner_id:
        return found
    return replace(found, waiting_owner_id=None, waiter_expires_at=None)


def given_up(found: LockDocument, owner_id: str) -> LockDocument:
    """Return the document that `owner_id` neither holds nor waits for; the same one if it does neither."""
    is_held = found.owner_id == owner_id and found.expires_at
    return withdrawn(freed(found) if is_held else found, owner_id)


def replaced(found: LockDocument | None, now: float, place: str) -> LockDocument:
    """Return the document by which an administrator frees a lock. `found` is None if the old one is unreadable."""
    if found is not None and found.fence < MAX_FENCE:
        return freed(found)
    return LockDocument(owner_id="nobody", expires_at=0.0, fence=next_fence(None, now, 0, place))


def contended(found: LockDocument, now: float, place: str) -> StateError:
    """Return the error for a lock that another owner holds or has reserved: it says who, and until when."""
    waiter = found.live_waiter(now)
    until = rfc3339(int(found.expires_at * 1e6))
    if found.is_held(now):
        message = f"{place} is held by {found.owner_id[:64]!r} until {until}"
        message += f", and {waiter[:64]!r} waits for it already" if waiter else ": wait for it, or try again then"
    else:
        message = f"{place} is free, but {(waiter or '')[:64]!r} waits for it and gets it next: try again later"
    return StateError(
        "lock_contended",
        message,
        held_by=found.owner_id if found.is_held(now) else None,
        expires_at=until if found.is_held(now) else None,
        waiting=waiter,
        fence=found.fence,
    )
