"""Locks of sandboxes that several daemons share: the handlers of ``lock.*``.

A lock's owner is the caller that took it. Names are private to an owner: an equal name of another owner, on this daemon
too, is another lock, and invisible. A lock's events are filed under the sandbox of its name, even before that exists,
so that they are in its history.
"""

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any

import trio

from sandkeep import events, failpoints, ids
from sandkeep.errors import CallerError, SandkeepError, StateError, error_from
from sandkeep.events import Meta
from sandkeep.model import Lock, LockList
from sandkeep.protocol.clock import now_us, rfc3339
from sandkeep.protocol.methods import LockAcquire, LockQuery, LockRef, LockRelease
from sandkeep_store.buckets.config import STORAGE, Storage
from sandkeep_store.buckets.sdks import require_sdk
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.locks.open import where
from sandkeep_store.locks.places import part_of
from sandkeep_store.views.locks import LockState
from sandkeepd.core import naming
from sandkeepd.core.access import Request
from sandkeepd.core.core import RUN_AGAIN, Core
from sandkeepd.core.operation import Command, Operation, Order, Removal
from sandkeepd.core.paging import page
from sandkeepd.locks.leases import GIVEN_UP, HELD, Leases


class LockOperation(Operation[LockState, Lock]):
    """An order about a lock. Those of an earlier daemon `Leases` brings to an end."""

    view = "locks"
    recovers = False

    def __init__(self, core: Core, leases: Leases) -> None:
        super().__init__(core)
        self.leases = leases

    def about(self, lock: LockState, event: events.Event) -> NewEvent:
        """An event of a lock, filed under the sandbox that it guards."""
        return NewEvent(lock.lock_id, event, self.core.state.filing_id(lock))

    async def answer(self, request: Request[Any], stream: str) -> Lock:
        return await self.answered(request, await self.settled(stream))

    async def answered(self, request: Request[Any], subject: LockState) -> Lock:  # noqa: ARG002
        """See `Operation.answered`. Raises why it was not taken, or not freed by force."""
        if subject.error is None or subject.acquired_us is not None:
            return subject.view()
        data = {"held_by": subject.held_by, "expires_at": subject.expires_at, "waiting": subject.waiting}
        details = data if subject.status == "contended" else {}
        raise error_from(*subject.error, {"lock_id": subject.lock_id, "name": subject.name, **details})

    async def again(self, request: Request[Any], first: Recorded) -> Any:
        if first.stream not in self.subjects:
            raise _not_found(request.params.name, ", as what is known of it was archived")
        lock = await self.settled(first.stream)
        return RUN_AGAIN if lock.interrupted else await self.answered(request, lock)


class LockAcquisition(LockOperation):
    """``lock.acquire``. `payload` is set when the caller has gone: then the lock is released again."""

    method = "lock.acquire"
    under_way = "acquiring"

    async def act(self, order: Order[LockState]) -> Sequence[NewEvent]:
        """See `Operation.act`. The order's context is an event to set once the acquisition is on record."""
        lock, given_up = order.subject, order.payload
        lease = await self.leases.acquire(lock, given_up)
        failpoints.reach("lock.taken")
        if lease is not None and not given_up.is_set():
            order.context = trio.Event()
            self.leases.start_renewal(lock, lease, order.context)
            return [self.about(lock, events.LockAcquired(fence=lease.fence.number))]
        if lease is not None:
            await self.leases.release_unwanted(lock, lease)
        return [self.about(lock, events.LockAcquireFailed(code="timeout", message=GIVEN_UP, interrupted=True))]

    async def failed(self, order: Order[LockState], error: SandkeepError) -> Sequence[NewEvent]:
        refused = _refusal(error)
        if refused.type == "lock.acquire_failed":
            order.resources.push_async_callback(self.leases.release_unwanted, order.subject)
        return [self.about(order.subject, refused)]

    async def recorded(self, order: Order[LockState], facts: Sequence[Recorded]) -> None:  # noqa: ARG002
        if order.context is not None:
            order.context.set()


class LockReturn(LockOperation, Removal[LockState, Lock]):
    """``lock.release`` of a lock that is held here."""

    method = "lock.release"
    under_way = "releasing"

    def may(self, subject: LockState) -> bool:
        return subject.status in HELD

    async def settled(self, stream: str) -> LockState:
        """See `Operation.settled`. A repeated command may also be one of `LockSteal`."""
        lock = self.subjects[stream]
        await self.core.settled(stream, lambda: lock.ended)
        return lock

    async def act(self, order: Order[LockState]) -> Sequence[NewEvent]:
        return [self.about(order.subject, await self.leases.release(order.subject))]


class LockSteal(LockOperation):
    """``lock.release`` by force: the lock of a name is freed from any owner."""

    method = "lock.release"
    under_way = "stealing"

    async def act(self, order: Order[LockState]) -> Sequence[NewEvent]:
        lock = order.subject
        await self.leases.in_thread(partial(self.leases.locks(lock.where).replace, lock.name))
        return [self.about(lock, events.LockStolen())]

    async def failed(self, order: Order[LockState], error: SandkeepError) -> Sequence[NewEvent]:
        return [self.about(order.subject, events.LockStealFailed(code=error.code, message=error.message))]


class LockService:
    """The handlers of ``lock.*``."""

    def __init__(self, core: Core, leases: Leases, storage: Storage = STORAGE) -> None:
        self._core = core
        self._leases = leases
        self._storage = storage
        self._acquisition = LockAcquisition(core, leases)
        self._return = LockReturn(core, leases)
        self._steal = LockSteal(core, leases)
        self.commands: Sequence[Command] = (self._acquisition, self._return)

    # -- taking -------------------------------------------------------------------------------------------------------

    async def acquire(self, request: Request[LockAcquire]) -> Lock:
        """Take a lock, and keep it until it is released."""
        command = request.params
        _check_name(command.name)
        event = events.LockAcquireRequested(
            owner=request.owner,
            name=command.name,
            where=self.place(request, command.name),
            owner_id=str(uuid.uuid4()),
            timeout_s=command.timeout_s,
        )
        return await self.take(request, event)

    async def take(self, request: Request[LockAcquire], event: events.LockAcquireRequested) -> Lock:
        """Take a lock by this intent. Raises as `LockAcquisition` does; whoever cancels it has not got the lock."""
        given_up = trio.Event()
        try:
            acquired: Lock = await self._acquisition.run(self._new(event), request, given_up)
        finally:
            given_up.set()
        return acquired

    def _new(self, event: events.LockAcquireRequested | events.LockStealRequested) -> NewEvent:
        """The first event of a stream, filed under the sandbox that the lock guards."""
        lock_id = ids.new_id(ids.LOCK)
        sandbox_id = event.sandbox_id if isinstance(event, events.LockAcquireRequested) else None
        filing_id = sandbox_id or self._core.state.filing_id_for(lock_id, event.owner, event.name, event.where)
        return NewEvent(lock_id, event, filing_id, 0)

    def place(self, request: Request[Any], name: str, *, beside_metadata: bool = False) -> str:
        """Return where the caller's lock lies; for a sandbox, its owner's. See `Storage.lock_root`. Raises
        `not_configured`, `not_supported`.
        """
        root = self._storage.lock_root(beside_metadata=beside_metadata)
        require_sdk(root)
        shared, sandbox = where(root), self._core.state.sandboxes.get(name)
        of_sandbox = sandbox is not None and request.sees(sandbox.owner)
        owner = sandbox.owner if sandbox is not None and of_sandbox else request.owner
        held = (lock for lock in self._core.state.locks.values() if not lock.ended)
        if any((lock.name, lock.owner, lock.where) == (name, owner, shared) for lock in held):
            return shared  # an older daemon took it, in the place that was then shared by all owners
        return part_of(shared, owner)

    # -- giving back --------------------------------------------------------------------------------------------------

    async def release(self, request: Request[LockRelease]) -> Lock:
        """Release a lock; one that was released or lost is answered as it is."""
        name, force = request.params.name, request.params.force
        lock = self._find(request, name)
        if force and (lock is None or lock.status not in ("held", "releasing")):
            place = lock.where if lock is not None else self.place(request, name)
            event = events.LockStealRequested(
                owner=request.owner, name=lock.name if lock is not None else name, where=place
            )
            return await self._steal.run(self._new(event), request)
        if lock is None:
            raise _not_found(name, self._core.state.log.hint)
        sandbox = self._core.state.sandboxes.get(lock.sandbox_id or "")
        if sandbox is not None and not sandbox.hidden and lock.status in HELD and not force:
            message = (
                f"sandbox {sandbox.sandbox_id} goes on under the lock {lock.name}: `sandkeep detach` gives up both"
            )
            raise StateError("in_use", message, name=lock.name, sandbox_id=sandbox.sandbox_id)
        if lock.status == "acquiring":
            message = f"`lock.acquire` still waits for the lock {lock.name}: cancel that call instead"
            raise StateError("not_ready", message, name=lock.name, status=lock.status)
        file = self._core.state.filing_id(lock)
        if lock.status in HELD and self._leases.before_release is not None:
            await self._leases.before_release(file)
        await self._return.order(lock.lock_id, events.LockReleaseRequested(), file, request.meta)
        return await self._return.answer(request, lock.lock_id)

    async def free(self, lock: LockState) -> None:
        """Release a lock that nobody needs any more."""
        file = self._core.state.filing_id(lock)
        if self._leases.before_release is not None:
            await self._leases.before_release(file)
        await self._return.order(lock.lock_id, events.LockReleaseRequested(), file, Meta())

    def start_release(self, order: Recorded) -> None:
        """Start carrying out the release of a lock that another operation has put on record."""
        self._return.start(order)

    # -- reading ------------------------------------------------------------------------------------------------------

    async def get(self, request: Request[LockRef]) -> Lock:
        """Show a lock as this daemon has it, or as it is on record in its store."""
        name = request.params.name
        lock = self._find(request, name)
        if lock is not None and (not lock.ended or lock.status == "contended"):
            return lock.view()
        elsewhere = await self._elsewhere(request, name) if not name.startswith(f"{ids.LOCK}_") else None
        if elsewhere is not None:
            return elsewhere
        if lock is None:
            raise _not_found(name, self._core.state.log.hint)
        return lock.view()

    async def _elsewhere(self, request: Request[Any], name: str) -> Lock | None:
        """Return a lock that another owner has, or waits for; None if that cannot be told."""
        try:
            place = self.place(request, name)
            found, _ = await self._leases.in_thread(partial(self._leases.locks(place).read, name))
        except SandkeepError:
            return None
        now = now_us()
        if found is None or not (found.is_held(now / 1e6) or found.live_waiter(now / 1e6)):
            return None
        return Lock(
            lock_id="", name=name, status="contended", owner=request.owner, where=place, requested_at=rfc3339(now),
            fence=found.fence, held_by=found.owner_id if found.is_held(now / 1e6) else None,
            expires_at=rfc3339(int(found.expires_at * 1e6)) if found.expires_at else None,
        )  # fmt: skip

    def list_now(self, request: Request[LockQuery]) -> LockList:
        """List the locks that this daemon holds, or is about to."""
        query = request.params
        locks = self._core.state.locks.values()
        mine = [lock for lock in locks if request.sees(lock.owner) and (query.all or not lock.ended)]
        found, following = page(mine, lambda lock: lock.lock_id, query.after, query.limit)
        return LockList(locks=[lock.view() for lock in found], next=following)

    def _find(self, request: Request[Any], name: str) -> LockState | None:
        """The lock of that id, or the one of that name that is held here, or else the last that was."""
        locks = self._core.state.locks
        if name in locks and request.sees(locks[name].owner):
            return locks[name]
        named = [lock for lock in locks.values() if lock.name == name and request.sees(lock.owner)]
        if not named and (lock_id := naming.beginning(locks, "lock", name, "name", request)) is not None:
            return locks[lock_id]
        return max(named, key=_standing, default=None)


def _standing(lock: LockState) -> tuple[bool, bool, bool, int]:
    """Of several acquisitions of one name the largest is meant: one that is held, or waited for, or else was held."""
    is_held = lock.status in ("held", "releasing")
    return is_held, lock.status == "acquiring", lock.acquired_us is not None, lock.requested_us


def _check_name(name: str) -> None:
    """Refuse the id of a lock; the id of another object is the name of its lock, as that of a sandbox."""
    ids.check_name(name, "name")
    if name.startswith(f"{ids.LOCK}_"):
        ids.refuse_id(name, "name")


def _not_found(name: str, hint: str) -> CallerError:
    return CallerError("not_found", f"there is no lock {name!r} here{hint}", name=name)


def _refusal(error: SandkeepError) -> events.Event:
    """Return the event of a failed acquisition."""
    if error.code not in ("lock_contended", "lock_timeout"):
        return events.LockAcquireFailed(code=error.code, message=error.message)
    details = {key: error.data.get(key) for key in ("held_by", "expires_at", "waiting")}
    return events.LockContended(code=error.code, message=error.message, **details)
