"""The view of locks: the acquisitions of this daemon, those under way and the last of those that are over.

Renewals are no events: of a lock that is held this says that nobody has heard otherwise.
"""

from typing import ClassVar, Final

from sandkeep import events, model
from sandkeep.lifecycle import LOCK, Lifecycle
from sandkeep.protocol.clock import optional_rfc3339, rfc3339
from sandkeep_store.views.view import ObjectState

RECENT_LOCKS: Final = 1000
"""Number of ended acquisitions that stay in the view."""


class LockState(ObjectState, kw_only=True, array_like=True):
    """The state of one acquisition. `interrupted`: it was ended by the end of a daemon."""

    lifecycle: ClassVar[Lifecycle[model.LockStatus]] = LOCK

    lock_id: str
    owner: str
    name: str
    where: str
    status: model.LockStatus
    owner_id: str | None = None
    timeout_s: float = 0.0
    fence: int | None = None
    acquired_us: int | None = None
    held_by: str | None = None
    expires_at: str | None = None
    waiting: str | None = None
    sandbox_id: str | None = None
    handover: events.LockHandoverRequested | None = None
    """The last order to hand its sandbox over."""
    given_back: bool = False
    """True once its release was ordered: from then on others may have it."""
    refused: tuple[str, str] | None = None
    """Code and message of the last handover, if it failed."""

    def competes_with(self, other: "LockState") -> bool:
        """Return True if both are acquisitions of one lock. Names are private to an owner."""
        return self.name == other.name and (self.where == other.where or self.owner == other.owner)

    def view(self) -> model.Lock:
        """The acquisition as readers see it."""
        return model.Lock(
            lock_id=self.lock_id,
            name=self.name,
            status=self.status,
            owner=self.owner,
            where=self.where,
            requested_at=rfc3339(self.requested_us),
            owner_id=self.owner_id,
            fence=self.fence,
            acquired_at=optional_rfc3339(self.acquired_us),
            ended_at=optional_rfc3339(self.ended_us),
            held_by=self.held_by,
            expires_at=self.expires_at,
            error=self.error[1] if self.error else None,
            sandbox_id=self.sandbox_id,
            handover_error=self.refused[1] if self.refused else None,
        )
