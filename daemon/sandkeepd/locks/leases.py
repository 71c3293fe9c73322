"""The leases that this daemon holds: one task renews each until it is released or lost, and records a loss.

Resource handling: leases outlive the daemon. A stopping daemon releases none, since their sandboxes go on; the next one
renews valid leases, and records the rest as lost. Error handling: requests to a store are retried until the lease's own
deadline, and not one second longer.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

import trio
from msgspec import Struct, field

from sandkeep import events, failpoints
from sandkeep.errors import DataError, SandkeepError, StateError
from sandkeep_store.eventlog.log import NewEvent
from sandkeep_store.locks import rules
from sandkeep_store.locks.clock import SYSTEM, Clock
from sandkeep_store.locks.fence import Fence
from sandkeep_store.locks.lease import Attempt, Lease, Locks, lost
from sandkeep_store.locks.open import open_owner_store, open_store
from sandkeep_store.locks.places import belongs_to_another, part_of
from sandkeep_store.locks.store import DocumentStore
from sandkeep_store.threads import Threads
from sandkeep_store.views.locks import LockState
from sandkeepd.core.core import Core, as_sandkeep_error
from sandkeepd.core.retry import retry_until_done

T = TypeVar("T")

logger = logging.getLogger("sandkeepd")

RETRY_S: Final = 1.0
"""Seconds between a failed renewal and its retry."""

THREADS: Final = 16
"""Maximum requests to lock stores at once; renewals have as many of their own."""

INTERRUPTED: Final = "the daemon stopped while the lock was being taken: take it again"
STEAL_INTERRUPTED: Final = "the daemon stopped while the lock was being freed: free it again"
HANDOVER_INTERRUPTED: Final = "the daemon stopped while the sandbox was being handed over: ask for it again"
GIVEN_UP: Final = "whoever waited for the lock has gone"


HELD: Final = ("held", "handing_over")
"""The states of a lock that guards its sandbox."""


class Held(Struct):
    """A lease, the lock that it is of, and the task that renews it, which is woken by `lost`."""

    lease: Lease
    lock: LockState
    scope: trio.CancelScope
    lost: trio.Event = field(default_factory=trio.Event)


class Leases:
    """See the module. `run` it for as long as any is held."""

    def __init__(
        self, core: Core, clock: Clock = SYSTEM, open_store: Callable[[str], DocumentStore] = open_store
    ) -> None:
        self._core = core
        self._clock = clock
        self._open_store = open_store
        self._places: dict[str, Locks] = {}
        self._held: dict[str, Held] = {}
        self._nursery: trio.Nursery | None = None
        self.in_thread = Threads(THREADS, abandon_on_cancel=True)
        """Ask a store something. Cancelled, it is left alone with the question."""
        self._renew_in_thread = Threads(THREADS, abandon_on_cancel=True)
        self._recovering: dict[str, trio.CancelScope] = {}
        self.on_adopted: Callable[[str], None] = lambda name: None  # noqa: ARG005
        """Hears of a lock that an earlier daemon held, once it is held again."""
        self.before_release: Callable[[str], Awaitable[None]] | None = None
        """Called to write the last documents before a lock is released."""

    def locks(self, where: str) -> Locks:
        """The locks of a place."""
        if where not in self._places:
            self._places[where] = Locks(open_owner_store(where, self._open_store), self._clock)
        return self._places[where]

    def fence(self, name: str, owner: str) -> Fence | None:
        """Return the fence for writes to `name`, a sandbox's id or its owner's name for it. None if no lock guards it
        here: it was never taken, or was released. Call before each write, and do not cache the result.

        Raises `lock_lost` when it was lost, or is being released; `not_ready` while an earlier daemon's is adopted.
        """
        state = self._core.state
        sandbox = state.sandboxes.get(name)
        called = sandbox.name if sandbox is not None and sandbox.owner == owner else None
        fence = self._fence(name, owner)
        if called not in (None, name) and state.sandbox_of_lock(owner, called or "", part_of(".", owner)) is sandbox:
            return self._fence(called or "", owner) or fence
        return fence

    def _fence(self, name: str, owner: str) -> Fence | None:
        mine = (lock for lock in self._core.state.locks.values() if lock.name == name and self._guards(lock, owner))
        last = max((lock for lock in mine if lock.fence), key=lambda lock: lock.fence or 0, default=None)
        if last is None or last.status == "released":
            return None
        held = self._held.get(last.lock_id)
        if last.status in HELD and held is not None:
            held.lease.require()
            return held.lease.fence
        if last.status in HELD:
            message = f"the restarted daemon is still taking over the lock {name}: try again in a moment"
            raise StateError("not_ready", message, name=name, status=last.status)
        raise lost(self._place(last), "expired" if last.status == "expired" else "taken")

    def _guards(self, lock: LockState, owner: str) -> bool:
        """Return True if the lock is the owner's, or was taken for his sandbox by another user with rights to it."""
        sandbox = self._core.state.sandboxes.get(lock.name)
        is_his = sandbox is not None and sandbox.owner == owner and lock.requested_us >= sandbox.requested_us
        return lock.owner == owner or (is_his and not belongs_to_another(lock.where, owner))

    def holds(self, name: str) -> bool:
        """Return True if a lock of that name, or of the sandbox of that id, is held here, as far as is known."""
        return any(name in (held.lease.name, self._core.state.filing_id(held.lock)) for held in self._held.values())

    def is_held(self, lock: LockState) -> bool:
        """Return True if a lock is surely held here at this moment."""
        held = self._held.get(lock.lock_id)
        return lock.status in HELD and held is not None and held.lease.lost is None

    async def adopted(self, lock: LockState) -> None:
        """Wait until a lock of an earlier daemon is held again, or is not."""
        await self._core.settled(lock.lock_id, lambda: lock.lock_id not in self._recovering)

    async def waiter(self, lock: LockState) -> str | None:
        """Return the owner that waits for a lock that is held here, if any, by a look at its document. A loss that is
        seen by that is recorded at once.

        Raises `lock_lost`, `provider_unavailable`.
        """
        held = self._held.get(lock.lock_id)
        if held is None:
            return None
        try:
            return await self.in_thread(held.lease.look)
        finally:
            if held.lease.lost is not None:
                held.lost.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Renew leases, beginning with those of an earlier daemon, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for lock in list(self._core.state.locks.values()):
                if not lock.ended:
                    self._recovering[lock.lock_id] = trio.CancelScope()
                    nursery.start_soon(
                        self._core.run_logged, partial(self._recover, lock), f"recovering {lock.lock_id}"
                    )
            task_status.started()
            await trio.sleep_forever()

    # -- taking and giving back ---------------------------------------------------------------------------------------

    async def acquire(self, lock: LockState, given_up: trio.Event) -> Lease | None:
        """Wait for a lock; return its lease, not yet renewed, or None if given up, and then nobody waits for it any
        more. Raises as `Attempt.step` does.
        """
        mine = (other.fence or 0 for other in self._core.state.locks.values() if other.competes_with(lock))
        attempt = Attempt(
            self.locks(lock.where),
            lock.name,
            owner_id=lock.owner_id,
            timeout_s=lock.timeout_s,
            above=max(mine, default=0),
        )
        while not given_up.is_set():
            step = await self.in_thread(attempt.step)
            if isinstance(step, Lease):
                return step
            with trio.move_on_after(step):
                await given_up.wait()
        await self._try_once(attempt.cancel, lock)
        return None

    async def release_unwanted(self, lock: LockState, lease: Lease | None = None) -> None:
        """Release a lock that nobody wants; without a lease, one that may be taken or waited for. If that fails, it
        expires.
        """
        await self._try_once(partial(self._free, lock, lease), lock)

    async def _try_once(self, give_back: Callable[[], object], lock: LockState) -> None:
        try:
            await self.in_thread(give_back)
        except SandkeepError as error:
            logger.info("not given back", extra={"lock": lock.name, "why": error.message})

    async def release(self, lock: LockState) -> events.Event:
        """Free a lock whose release is on record; return the outcome."""
        recovering, held = self._recovering.get(lock.lock_id), self._held.pop(lock.lock_id, None)
        if recovering is not None:
            recovering.cancel()
        if held is not None:
            held.scope.cancel()
        try:
            release = partial(self._free, lock, held.lease if held is not None else None)
            freed = await self._retry(release, f"release of {lock.name}")
            failpoints.reach("lock.given_back")
        except SandkeepError as error:
            return _loss(error)
        return events.LockReleased() if freed else _loss(lost(self._place(lock), "taken"))

    def _free(self, lock: LockState, lease: Lease | None) -> bool:
        if lease is not None:
            return lease.release()
        return self.locks(lock.where).give_up(lock.name, lock.owner_id or "")

    async def _retry(self, work: Callable[[], T], what: str) -> T:
        """Retry a request to a store. Raises its refusals, and `lock_lost` once the lease has expired."""
        with trio.move_on_after(rules.LEASE_S):
            return await retry_until_done(partial(self.in_thread, work), what, passing=(StateError, DataError))
        raise lost(what, "expired")

    def _place(self, lock: LockState) -> str:
        return self.locks(lock.where).place(lock.name)

    # -- keeping ------------------------------------------------------------------------------------------------------

    def start_renewal(self, lock: LockState, lease: Lease, on_record: trio.Event) -> None:
        """Renew a lease from now on. Its loss is recorded after its acquisition is `on_record`."""
        assert self._nursery is not None
        held = self._held[lock.lock_id] = Held(lease, lock, trio.CancelScope())
        self._nursery.start_soon(
            self._core.run_logged, partial(self._renew_until_recorded, lock, held, on_record), f"keeping {lock.name}"
        )

    async def _renew_until_recorded(self, lock: LockState, held: Held, on_record: trio.Event) -> None:
        with held.scope:
            await self._renew_until_lost(held)
            await on_record.wait()
            self._held.pop(lock.lock_id, None)
            await self._handle_loss(lock, held.lease)

    async def _renew_until_lost(self, held: Held) -> None:
        lease, pause = held.lease, rules.RENEW_AFTER_S
        while lease.lost is None:
            with trio.move_on_after(min(pause, max(lease.remaining_s, 0))):
                await held.lost.wait()
            with trio.move_on_after(max(lease.remaining_s, 0)):
                pause = await self._renew(lease)

    async def _renew(self, lease: Lease) -> float:
        """Renew a lease, and answer in how many seconds to do so again."""
        try:
            await self._renew_in_thread(lease.renew)
        except Exception as unforeseen:  # noqa: BLE001  # the lease lasts until its deadline in any case
            error = as_sandkeep_error(unforeseen)
            if error.code != "lock_lost":
                logger.warning("a lock is not renewed yet", extra={"lock": lease.name, "why": error.message})
            return RETRY_S
        return rules.RENEW_AFTER_S

    async def _handle_loss(self, lock: LockState, lease: Lease) -> None:
        """Record that a lock was lost, unless its release was ordered meanwhile; and let others have it at once."""
        reason = lease.lost or "expired"
        error = lost(self._place(lock), reason)
        logger.warning("lost a lock", extra={"lock": lock.name, "why": error.message})
        await self._record_loss(lock, error)
        if reason == "expired":
            await self.release_unwanted(lock, lease)

    async def _record(
        self, lock: LockState, event: events.Event, revision: int | None = None, *, essential: bool = False
    ) -> None:
        new = NewEvent(lock.lock_id, event, self._core.state.filing_id(lock), revision)
        await self._core.record([new], None, essential=essential)

    async def _record_loss(self, lock: LockState, error: SandkeepError) -> None:
        if lock.status in HELD:
            try:
                await self._record(lock, _loss(error), lock.revision)
            except StateError:
                logger.info("not told as lost, as it is being released", extra={"lock": lock.name})

    # -- after an earlier daemon's end --------------------------------------------------------------------------------

    async def _recover(self, lock: LockState) -> None:
        scope = self._recovering[lock.lock_id]
        try:
            with scope:
                match lock.status:
                    case "held" | "handing_over":
                        await self._adopt(lock)
                    case "acquiring":
                        await self._undo(lock)
                    case "releasing":
                        del self._recovering[lock.lock_id]  # `release` is not to cancel this
                        await self._record(lock, await self.release(lock), essential=True)
                    case "stealing":
                        code, message = "not_ready", STEAL_INTERRUPTED
                        await self._record(lock, events.LockStealFailed(code=code, message=message, interrupted=True))
        finally:
            self._recovering.pop(lock.lock_id, None)
            self._core.wake(lock.lock_id)

    async def _adopt(self, lock: LockState) -> None:
        """Go on with a lock that is held; or tell that it is lost."""
        assert lock.owner_id is not None
        adopt = partial(self.locks(lock.where).adopt, lock.name, lock.owner_id, lock.fence or 0)
        try:
            lease = await self._retry(adopt, f"adoption of {lock.name}")
        except SandkeepError as error:
            logger.warning("lost a lock", extra={"lock": lock.name, "why": error.message})
            await self._record_loss(lock, error)
            return
        logger.info("adopted", extra={"lock": lock.name})
        on_record = trio.Event()
        on_record.set()
        self.start_renewal(lock, lease, on_record)
        if lock.status == "handing_over":
            failed = events.LockHandoverFailed(code="not_ready", message=HANDOVER_INTERRUPTED, interrupted=True)
            await self._record(lock, failed)
        self.on_adopted(self._core.state.filing_id(lock))

    async def _undo(self, lock: LockState) -> None:
        """Free a lock that was being taken, if it was taken, and wait for it no more."""
        try:
            await self._retry(partial(self._free, lock, None), f"undoing {lock.lock_id}")
        except SandkeepError as error:
            logger.info("nothing to undo", extra={"lock": lock.name, "why": error.message})
        failed = events.LockAcquireFailed(code="not_ready", message=INTERRUPTED, interrupted=True)
        await self._record(lock, failed)


def _loss(error: SandkeepError) -> events.Event:
    """Return the event of a lost lock, by its error."""
    if error.data.get("reason") == "expired":
        return events.LockExpired(message=error.message)
    reason = "damaged" if isinstance(error, DataError) else str(error.data.get("reason", "taken"))
    return events.LockLost(reason=reason, message=error.message)
