"""The keeper of shared sandboxes: looks at each now and then, and does what its lock asks for.

- A lock whose sandbox has ended, or was never made, is released.
- A sandbox whose lock was handed over is ended; where it goes on is put on record when the next daemon tells.
- A sandbox for which another daemon waits is handed over; one that is due for a limit of time, too.
- A sandbox whose lock was lost stands still. If nobody has had it since, its lock is taken again, and it goes on. If
  somebody has, it stays so, for its owner to save what he needs: it goes on elsewhere from what was saved last.

What it finds does not depend on what it did before, so a restart needs no recovery.
"""

import logging
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import trio

from sandkeep import events
from sandkeep.errors import SandkeepError
from sandkeep.events import Meta
from sandkeep.protocol.clock import now_us
from sandkeep.protocol.methods import LockAcquire
from sandkeep.settings.daemon import HANDOVER_STOP
from sandkeep_store.eventlog.log import NewEvent, Recorded
from sandkeep_store.views.locks import LockState
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.shared_metadata import SharedMetadata
from sandkeepd.core import rules
from sandkeepd.core.access import own_request
from sandkeepd.core.core import Core
from sandkeepd.locks.leases import HELD, Leases
from sandkeepd.locks.locks import LockService
from sandkeepd.locks.publish import Publisher
from sandkeepd.sandboxes import reaper
from sandkeepd.sandboxes.sandboxes import Sandboxes
from sandkeepd.sharing.handover import Handover

logger = logging.getLogger("sandkeepd")

LOOK_S: Final = 1.0
WAITER_LOOK_S: Final = 1.5
"""Seconds between two looks for a waiter, which is to be noticed within two."""

LOST_LOOK_S: Final = 5.0
MOST_PAUSE_S: Final = 300.0
"""Maximum seconds between two attempts to take a lost lock again. Each that fails doubles them: all are on record."""

MOVED_LOOKS: Final = 120
"""Number of looks for where a sandbox goes on that was handed over."""

LOST: Final = ("expired", "lost")


class Keeping:
    """See the module. `starting` are sandboxes whose lock is taken, and which are about to go on record."""

    def __init__(
        self, core: Core, leases: Leases, sandboxes: Sandboxes, locks: LockService, publisher: Publisher,
        handover: Handover, starting: set[str],
    ) -> None:  # fmt: skip
        self._core = core
        self._leases = leases
        self._sandboxes = sandboxes
        self._locks = locks
        self._publisher = publisher
        self._handover = handover
        self._starting = starting
        self._wake = trio.Event()
        self._busy: set[str] = set()
        self._looked: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        core.log.on_commit.append(self._committed)
        for sandbox in core.state.sandboxes.values():
            if sandbox.spec.shared is not None and sandbox.status == "suspended":
                lock = rules.shared_lock(self._core.state, sandbox.sandbox_id)
                if lock is not None and lock.status in HELD and self._before(lock).status in LOST:
                    core.withheld.add(sandbox.sandbox_id)  # an earlier daemon ended before it could go on

    def _committed(self, facts: Sequence[Recorded]) -> None:
        for fact in facts:
            event = fact.event
            if isinstance(event, events.LockExpired | events.LockLost):
                lock = self._core.state.locks.get(fact.stream)
                if lock is not None and lock.sandbox_id is not None:
                    self._core.withheld.add(lock.sandbox_id)
            ends = events.LockReleased | events.LockExpired | events.LockLost | events.SandboxTerminated
            if isinstance(event, ends | events.SandboxCreateFailed):
                self._wake.set()

    async def run(self) -> None:
        """Look at all of them once a second, and when one changes, until cancelled."""
        while True:
            with trio.move_on_after(LOOK_S):
                await self._wake.wait()
            self._wake = trio.Event()
            self.look()

    def look(self) -> None:
        """Look at all of them once; what is to be done is done by tasks of the daemon's."""
        state = self._core.state
        for lock in [lock for lock in state.locks.values() if lock.sandbox_id is not None and not lock.ended]:
            sandbox = state.sandboxes.get(lock.sandbox_id or "")
            if lock.status != "held":
                continue
            if sandbox is None or sandbox.hidden:
                if lock.sandbox_id not in self._starting:
                    self._start(lock.lock_id, partial(self._locks.free, lock))
            elif sandbox.status in rules.STANDING:
                self._start(lock.lock_id, partial(self._look_at, lock, sandbox))
        for sandbox in list(state.sandboxes.values()):
            if sandbox.spec.shared is not None and sandbox.made and not sandbox.hidden:
                self._look_at_sandbox(sandbox)

    def _start(self, key: str, work: Callable[[], object]) -> None:
        """Do something about a lock or sandbox, unless it is being done."""
        if key not in self._busy:
            self._busy.add(key)
            self._core.start_task(partial(self._do, key, work), f"keeping {key}")

    async def _do(self, key: str, work: Callable[[], object]) -> None:
        try:
            await work()  # type: ignore[misc]  # each is a coroutine function
        except SandkeepError as error:
            logger.warning("a shared sandbox is looked at again", extra={"what": key, "why": error.message})
            await trio.sleep(LOOK_S)
        finally:
            self._busy.discard(key)

    # -- a lock that is held ------------------------------------------------------------------------------------------

    async def _look_at(self, lock: LockState, sandbox: SandboxState) -> None:
        sharing = sandbox.spec.shared
        assert sharing is not None
        if sandbox.sandbox_id in self._core.withheld:
            await self._go_on(lock, sandbox)
            return
        if (
            lock.interrupted
            and lock.refused is not None
            and sandbox.status == "suspended"
            and sandbox.change is not None
        ):
            await self._handover.resume(sandbox)  # an earlier daemon ended while it handed it over
        if sharing.is_movable and (reason := reaper.reason_to_end(sandbox, now_us())) is not None:
            if lock.refused is None or not self._is_early(lock.lock_id, LOST_LOOK_S):
                await self._handover.order(lock, reason, Meta())
            return
        if self._is_early(lock.lock_id, WAITER_LOOK_S):
            return
        waiter = await self._leases.waiter(lock)
        told = lock.handover.waiter if lock.handover is not None and lock.refused is not None else None
        if sharing.enable_handoff and waiter not in (None, told) and lock.status == "held":
            logger.info("a shared sandbox is asked for", extra={"sandbox": sandbox.sandbox_id, "waiter": waiter})
            await self._handover.order(lock, "handed_over", Meta(), waiter)

    def _is_early(self, key: str, every_s: float) -> bool:
        """Return True if something was looked at less than so many seconds ago; else it is looked at now."""
        now = trio.current_time()
        if now - self._looked.get(key, 0.0) < every_s:
            return True
        self._looked[key] = now
        return False

    # -- a sandbox whose lock is not ----------------------------------------------------------------------------------

    def _look_at_sandbox(self, sandbox: SandboxState) -> None:
        lock = rules.shared_lock(self._core.state, sandbox.sandbox_id)
        if lock is None or not lock.ended:
            return
        if lock.status in LOST and not lock.given_back:
            if sandbox.moved_to is None or sandbox.status == "running":
                self._start(sandbox.sandbox_id, partial(self._take_again, lock, sandbox))
            return
        is_left = lock.handover is None and sandbox.moved_to is not None  # for its owner to save what he needs
        if sandbox.status != "stopping" and not is_left:
            self._start(sandbox.sandbox_id, partial(self._end, lock, sandbox))

    async def _end(self, lock: LockState, sandbox: SandboxState) -> None:
        """End a sandbox that was given up, and look where it goes on."""
        reason = lock.handover.reason if lock.handover is not None else "requested"
        await self._sandboxes.termination.end(sandbox.sandbox_id, reason)
        if lock.handover is not None and lock.handover.waiter is not None:
            self._core.start_task(partial(self._follow, lock, sandbox), f"following {sandbox.sandbox_id}")
        await self._sandboxes.termination.settled(sandbox.sandbox_id)

    async def _follow(self, lock: LockState, sandbox: SandboxState) -> None:
        for _ in range(MOVED_LOOKS):
            with suppress(SandkeepError):  # look again
                if await self._has_moved(lock, sandbox):
                    break
            await trio.sleep(LOOK_S)

    async def _has_moved(self, lock: LockState, sandbox: SandboxState) -> bool:
        """Put on record where a sandbox goes on, if another daemon tells that it has it. Raises the store's errors."""
        return await self._record_move(lock, sandbox, await self._publisher.read(sandbox.owner, lock.name))

    async def _record_move(self, lock: LockState, sandbox: SandboxState, found: SharedMetadata | None) -> bool:
        if found is None or found.fence <= (lock.fence or 0) or found.log_id == self._core.log.log_id:
            return False
        to = found.shared.addresses if found.shared is not None else []
        moved = events.SandboxMoved(to=[str(address)[:300] for address in to[:8]])
        await self._core.record([NewEvent(sandbox.sandbox_id, moved, sandbox.sandbox_id)], None)
        return True

    async def _take_again(self, lock: LockState, sandbox: SandboxState) -> None:
        """Stop a sandbox whose lock was lost. Let it go on under the lock if nobody has had it meanwhile."""
        self._core.withheld.add(sandbox.sandbox_id)
        if sandbox.status == "running":
            try:
                await self._handover.suspend(sandbox)
            except SandkeepError as error:
                logger.warning("cannot be suspended", extra={"sandbox": sandbox.sandbox_id, "why": error.message})
        if sandbox.moved_to is not None or self._is_early(sandbox.sandbox_id, LOST_LOOK_S):
            return
        pause_s = self._pauses.get(lock.lock_id, LOST_LOOK_S)
        if await self._has_moved(lock, sandbox) or self._is_early(f"retake {lock.lock_id}", pause_s):
            return
        self._pauses[lock.lock_id] = min(2 * pause_s, MOST_PAUSE_S)
        request = own_request(sandbox.owner, "lock.acquire", LockAcquire(name=lock.name, timeout_s=0.0))
        event = events.LockAcquireRequested(
            owner=lock.owner, name=lock.name, where=lock.where, owner_id=str(uuid.uuid4()),
            sandbox_id=sandbox.sandbox_id,
        )  # fmt: skip
        with suppress(SandkeepError):  # somebody has it, or the store does not answer: look again
            await self._locks.take(request, event)

    async def _go_on(self, lock: LockState, sandbox: SandboxState) -> None:
        """Let a sandbox go on whose lock was lost and taken again, unless another daemon had it meanwhile."""
        found = await self._publisher.read(sandbox.owner, lock.name)
        if await self._record_move(self._before(lock), sandbox, found):
            await self._locks.free(lock)
            return
        has_gone_on = found is not None and found.fence == lock.fence
        self._core.withheld.discard(sandbox.sandbox_id)
        try:
            if sandbox.status == "suspended" and not has_gone_on:
                logger.info("a shared sandbox has its lock again", extra={"sandbox": sandbox.sandbox_id})
                await self._handover.resume(sandbox)
        except BaseException:
            self._core.withheld.add(sandbox.sandbox_id)
            raise
        self._publisher.mark(sandbox.sandbox_id)

    def _before(self, lock: LockState) -> LockState:
        """Return the lock that a sandbox had here before, or this one if it is the first."""
        mine = [other for other in self._core.state.locks.values() if other.sandbox_id == lock.sandbox_id]
        return max((other for other in mine if other is not lock), key=lambda other: other.fence or 0, default=lock)

    # -- when the daemon stops ----------------------------------------------------------------------------------------

    async def shut_down(self) -> None:
        """Hand all sandboxes over that can be saved, within `HANDOVER_STOP`; the rest go on, under their locks."""
        seconds, due = HANDOVER_STOP(), list[tuple[LockState, SandboxState]]()
        with trio.move_on_after(seconds) as scope:
            for lock, sandbox in self._movable() if seconds else ():
                await self._leases.adopted(lock)
                try:
                    await self._handover.order(lock, "shutdown", Meta())
                    due.append((lock, sandbox))
                except SandkeepError as error:
                    logger.warning("a shared sandbox goes on", extra={"lock": lock.name, "why": error.message})
            for lock, sandbox in due:
                with suppress(SandkeepError):  # the handover has said why
                    await self._handover.detached(lock, sandbox)
        if scope.cancelled_caught:
            logger.warning("not all shared sandboxes were handed over: the rest go on", extra={"after": seconds})

    def _movable(self) -> list[tuple[LockState, SandboxState]]:
        found = []
        for lock in self._core.state.locks.values():
            sandbox = self._core.state.sandboxes.get(lock.sandbox_id or "")
            sharing = sandbox.spec.shared if sandbox is not None and sandbox.status in rules.STANDING else None
            if sandbox is not None and sharing is not None and sharing.is_movable and lock.status in HELD:
                found.append((lock, sandbox))
        return found
