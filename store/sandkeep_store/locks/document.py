"""The lock document, ``lock.json``: parsed as untrusted input, written with all unknown keys preserved.

Its keys are those of the projects that Sandkeep serves, plus `fence`; keys of other programs stay, byte for byte::

    {"ownerId":"<uuid4>","expiresAt":1678886400.0,"waitingOwnerId":null,"waiterExpiresAt":null,"fence":1678886340000000}

Times are seconds since 1970. The document of a released lock stays, with an `expiresAt` of 0: it holds the last
fencing number.
"""

import math
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from sandkeep.errors import DataError
from sandkeep_store.locks.store import MAX_DOCUMENT_BYTES

LONGEST_LEASE_S: Final = 3600.0
"""A lease that ends further in the future than this was written by a wrong clock."""

MAX_FENCE: Final = 2**53 - 1
"""The largest number that every reader of JSON reads as it is."""

OwnerId = Annotated[str, Meta(min_length=1, max_length=256)]
Time = Annotated[float, Meta(ge=0)]


class _Known(Struct, rename="camel", kw_only=True):
    owner_id: OwnerId
    expires_at: Time
    waiting_owner_id: OwnerId | None = None
    waiter_expires_at: Time | UnsetType | None = UNSET
    fence: Annotated[int, Meta(ge=0, le=MAX_FENCE)] = 0


class LockDocument(Struct, frozen=True, kw_only=True):
    """The content of a lock document. A new document has no `waiter_expires_at`; `fence` is 0 if its writer knows no
    fences. `others` are foreign keys.
    """

    owner_id: str
    expires_at: float
    waiting_owner_id: str | None = None
    waiter_expires_at: float | UnsetType | None = UNSET
    fence: int = 0
    others: dict[str, Raw] = field(default_factory=dict)

    def is_held(self, now: float) -> bool:
        """Return True while its owner's lease lasts."""
        return self.expires_at >= now

    def has_expired(self, now: float) -> bool:
        """Return True if its owner did not release it, and its lease is over."""
        return bool(self.expires_at) and not self.is_held(now)

    def is_of(self, owner_id: str, fence: int) -> bool:
        """Return True if it belongs to this acquisition."""
        return (self.owner_id, self.fence) == (owner_id, fence)

    def live_waiter(self, now: float) -> str | None:
        """Return the waiter, who will get the lock next; None if there is none, or his reservation expired."""
        until = self.waiter_expires_at
        return self.waiting_owner_id if isinstance(until, float) and until >= now else None


def encode(document: LockDocument) -> bytes:
    """The document as bytes."""
    known: dict[str, Any] = {
        "ownerId": document.owner_id,
        "expiresAt": document.expires_at,
        "waitingOwnerId": document.waiting_owner_id,
    }
    if document.waiter_expires_at is not UNSET:
        known["waiterExpiresAt"] = document.waiter_expires_at
    return msgspec.json.encode({**known, "fence": document.fence, **document.others})


def decode(content: bytes, place: str, now: float) -> LockDocument:
    """Parse and check the bytes of a document. Raises `lock_damaged`, naming the `place`."""
    if len(content) > MAX_DOCUMENT_BYTES:
        raise damaged(place, f"it is longer than {MAX_DOCUMENT_BYTES} bytes")
    try:
        known = msgspec.json.decode(content, type=_Known)
        every = msgspec.json.decode(content, type=dict[str, Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise damaged(place, _in_words(error)) from None
    _check_times(known, place, now)
    others = {key: value for key, value in every.items() if key not in _NAMES}
    return LockDocument(**{name: getattr(known, name) for name in _Known.__struct_fields__}, others=others)


_NAMES: Final = frozenset(field.encode_name for field in msgspec.structs.fields(_Known))


def _check_times(known: _Known, place: str, now: float) -> None:
    for name, time in (("expiresAt", known.expires_at), ("waiterExpiresAt", known.waiter_expires_at)):
        if not isinstance(time, float):
            continue
        if not math.isfinite(time) or time > now + LONGEST_LEASE_S:
            message = f"its {name}, {time:.15g}, is further in the future than any lease lasts, or this clock is behind"
            raise damaged(place, message)


def _in_words(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]


def damaged(place: str, why: str) -> DataError:
    """Return the error for content that is no lock document."""
    return DataError(
        "lock_damaged",
        f"{place} is not a valid lock ({why}): find out who wrote it, then have an administrator replace it "
        "with `sandkeep lock release --force`",
        place=place,
    )
