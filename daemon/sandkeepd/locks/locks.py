"""Locks of sandboxes that several daemons share: the handlers of ``lock.*``.

An acquisition is an intent, as every other change, and a carrier waits for the lock; but unlike others it is given up
when its caller goes, or nobody would know that the lock is held. The owner of a lock is who took it. His names are his
own: what others call the same, on this daemon too, is another lock, of which he sees nothing. Its events are filed
under the sandbox of its name, also when that is not there yet, so that they are in its history.
"""

import uuid
from functools import partial
from typing import Any

import trio

from sandkeep import events, failpoints, ids
from sandkeep.errors import CallerError, SandkeepError, StateError, error_from
from sandkeep.model import Lock, LockList
from sandkeep.protocol.methods import LockAcquire, LockQuery, LockRef, LockRelease
from sandkeep_store.buckets.config import STORAGE, Storage
from sandkeep_store.buckets.sdks import require_sdk
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.locks.lease import Lease
from sandkeep_store.locks.open import where
from sandkeep_store.locks.places import part_of
from sandkeep_store.views.locks import LockState
from sandkeepd.core.access import Request
from sandkeepd.core.core import ANEW, Core, Tries, as_sandkeep_error
from sandkeepd.core.paging import page
from sandkeepd.locks.leases import GIVEN_UP, Leases


class LockService:
    """The handlers of ``lock.*``."""

    def __init__(self, core: Core, leases: Leases, storage: Storage = STORAGE) -> None:
        self._core = core
        self._leases = leases
        self._storage = storage

    # -- taking -------------------------------------------------------------------------------------------------------

    async def acquire(self, request: Request[LockAcquire]) -> Lock:
        """Take a lock, and keep it until it is released."""
        command, core = request.params, self._core
        _check_name(command.name)
        place = self._where(request, command.name)
        event = events.LockAcquireRequested(
            owner=request.owner,
            name=command.name,
            where=place,
            owner_id=str(uuid.uuid4()),
            timeout_s=command.timeout_s,
        )
        lock_id = ids.new_id(ids.LOCK)
        file = core.state.file_for(lock_id, request.owner, command.name, place)
        intent = await core.intend(NewEvent(lock_id, event, file, 0), request.meta)
        lock, given_up = core.state.locks[lock_id], trio.Event()
        core.carry(partial(self._take, lock, given_up, intent), f"acquisition of {command.name}")
        try:
            return await self._taken(lock)
        finally:
            given_up.set()

    def _where(self, request: Request[Any], name: str) -> str:
        """Where the caller's lock of a name is, by the settings; that of a sandbox which he is shown, where its owner's
        is. Raises `not_configured`, and `not_supported` where an SDK is missing.
        """
        root = self._storage.lock_root()
        require_sdk(root)
        shared, sandbox = where(root), self._core.state.sandboxes.get(name)
        of_sandbox = sandbox is not None and request.sees(sandbox.owner)
        owner = sandbox.owner if sandbox is not None and of_sandbox else request.owner
        if any(self._is_old(lock, name, owner, shared) for lock in self._core.state.locks.values()):
            return shared
        return part_of(shared, owner)

    def _is_old(self, lock: LockState, name: str, owner: str, shared: str) -> bool:
        """Whether it is an owner's and held where older daemons had the locks of all: there it still has to be seen."""
        return lock.under_way and (lock.name, lock.owner, lock.where) == (name, owner, shared)

    async def acquired_before(self, request: Request[LockAcquire], first: Recorded) -> Any:
        """The answer to a command that was given before."""
        lock = self._known(request, first.stream)
        await self._core.settled(lock.lock_id, lambda: lock.status != "acquiring")
        return ANEW if lock.interrupted else await self._taken(lock)

    async def _taken(self, lock: LockState) -> Lock:
        """Wait until the lock is taken, or it is known why not."""
        await self._core.settled(lock.lock_id, lambda: lock.status != "acquiring")
        if lock.error is None or lock.acquired_us is not None:
            return lock.view()
        data = {"held_by": lock.held_by, "expires_at": lock.expires_at, "waiting": lock.waiting}
        told = data if lock.status == "contended" else {}
        raise error_from(*lock.error, {"lock_id": lock.lock_id, "name": lock.name, **told})

    async def _take(self, lock: LockState, given_up: trio.Event, intent: Recorded) -> None:
        lease: Lease | None = None
        outcome: events.Event = events.LockAcquireFailed(code="timeout", message=GIVEN_UP, interrupted=True)
        on_record = trio.Event()
        try:
            lease = await self._leases.take(lock, given_up)
        except Exception as unforeseen:  # noqa: BLE001  # an outcome is recorded whatever happened
            outcome = _refusal(as_sandkeep_error(unforeseen))
        failpoints.reach("lock.taken")
        if lease is not None and not given_up.is_set():
            outcome = events.LockAcquired(fence=lease.fence.number)
            self._leases.keep(lock, lease, on_record)
        elif lease is not None:
            await self._leases.drop(lease)
        await self._core.record([NewEvent(lock.lock_id, outcome, self._core.state.file_of(lock))], intent)
        on_record.set()
        if lease is None and outcome.type == "lock.acquire_failed":
            await self._leases.drop_unknown(lock)

    # -- giving back --------------------------------------------------------------------------------------------------

    async def release(self, request: Request[LockRelease]) -> Lock:
        """Give a lock back; one that was given back or lost is answered as it is."""
        name, force = request.params.name, request.params.force
        lock = self._find(request, name)
        if force and (lock is None or lock.status not in ("held", "releasing")):
            place = lock.where if lock is not None else self._where(request, name)
            return await self._steal(request, lock.name if lock is not None else name, place)
        if lock is None:
            raise _not_found(name, self._core.state.log.hint)
        if lock.status == "acquiring":
            words = f"the lock {lock.name} is still being waited for: end that call instead"
            raise StateError("not_ready", words, name=lock.name, status=lock.status)
        if lock.status == "held":
            await self._leases.before_release(self._core.state.file_of(lock))
        tries = Tries()
        while lock.status == "held":
            await self._order_release(lock, request, tries)
        return await self._released(lock)

    async def _order_release(self, lock: LockState, request: Request[LockRelease], tries: Tries) -> None:
        core = self._core
        event = NewEvent(lock.lock_id, events.LockReleaseRequested(), self._core.state.file_of(lock), lock.revision)
        try:
            intent = await core.intend(event, request.meta, essential=True)
        except StateError as conflict:
            return await tries.again(conflict)  # it was lost in that moment, or somebody else ordered the same
        return core.carry(partial(self._leases.give_back, lock, intent), f"release of {lock.name}")

    async def _released(self, lock: LockState) -> Lock:
        await self._core.settled(lock.lock_id, lambda: not lock.under_way)
        if lock.status == "failed" and lock.error is not None:
            raise error_from(*lock.error, {"lock_id": lock.lock_id, "name": lock.name})
        return lock.view()

    async def released_before(self, request: Request[LockRelease], first: Recorded) -> Any:
        """The answer to a command that was given before."""
        lock = self._known(request, first.stream)
        await self._core.settled(lock.lock_id, lambda: not lock.under_way)
        return ANEW if lock.interrupted else await self._released(lock)

    async def _steal(self, request: Request[LockRelease], name: str, place: str) -> Lock:
        """Free the lock of a name, whoever holds it."""
        core, lock_id = self._core, ids.new_id(ids.LOCK)
        event = events.LockStealRequested(owner=request.owner, name=name, where=place)
        file = core.state.file_for(lock_id, request.owner, name, place)
        intent = await core.intend(NewEvent(lock_id, event, file, 0), request.meta)
        lock = core.state.locks[lock_id]
        core.carry(partial(self._carry_steal, lock, intent), f"freeing of {name}")
        return await self._released(lock)

    async def _carry_steal(self, lock: LockState, intent: Recorded) -> None:
        outcome: events.Event = events.LockStolen()
        try:
            await self._leases.ask(partial(self._leases.locks(lock.where).replace, lock.name))
        except Exception as unforeseen:  # noqa: BLE001  # as above
            error = as_sandkeep_error(unforeseen)
            outcome = events.LockStealFailed(code=error.code, message=error.message)
        await self._core.record([NewEvent(lock.lock_id, outcome, self._core.state.file_of(lock))], intent)

    # -- reading ------------------------------------------------------------------------------------------------------

    def get_now(self, request: Request[LockRef]) -> Lock:
        """Show a lock as this daemon has it."""
        lock = self._find(request, request.params.name)
        if lock is None:
            raise _not_found(request.params.name, self._core.state.log.hint)
        return lock.view()

    def list_now(self, request: Request[LockQuery]) -> LockList:
        """List the locks that this daemon holds, or is about to."""
        query = request.params
        locks = self._core.state.locks.values()
        mine = [lock for lock in locks if request.sees(lock.owner) and (query.all or lock.under_way)]
        found, following = page(mine, lambda lock: lock.lock_id, query.after, query.limit)
        return LockList(locks=[lock.view() for lock in found], next=following)

    def _find(self, request: Request[Any], name: str) -> LockState | None:
        """The lock of that id, or the one of that name that is held here, or else the last that was."""
        locks = self._core.state.locks
        if name in locks and request.sees(locks[name].owner):
            return locks[name]
        named = [lock for lock in locks.values() if lock.name == name and request.sees(lock.owner)]
        return max(named, key=_standing, default=None)

    def _known(self, request: Request[Any], lock_id: str) -> LockState:
        lock = self._core.state.locks.get(lock_id)
        if lock is None:
            raise _not_found(request.params.name, ", as what is known of it was archived")
        return lock


def _standing(lock: LockState) -> tuple[bool, bool, bool, int]:
    """Of several acquisitions of one name the largest is meant: one that is held, or waited for, or else was held."""
    is_held = lock.status in ("held", "releasing")
    return is_held, lock.status == "acquiring", lock.acquired_us is not None, lock.requested_us


def _check_name(name: str) -> None:
    ids.check_name(name, "name")
    if name.startswith(f"{ids.LOCK}_"):
        raise CallerError("invalid", f"name: {name!r} looks like the id of a lock: choose another name", field="name")


def _not_found(name: str, hint: str) -> CallerError:
    return CallerError("not_found", f"there is no lock {name!r} here{hint}", name=name)


def _refusal(error: SandkeepError) -> events.Event:
    """What is recorded of a lock that was not taken."""
    if error.code not in ("lock_contended", "lock_timeout"):
        return events.LockAcquireFailed(code=error.code, message=error.message)
    told = {key: error.data.get(key) for key in ("held_by", "expires_at", "waiting")}
    return events.LockContended(code=error.code, message=error.message, **told)
