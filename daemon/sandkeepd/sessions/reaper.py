"""The reaper of sessions: their limits of time.

The longest life is looked at first, then whether a session is idle; one in whose sandbox a process runs, to which a
client is attached, or whose files are being copied, is never idle.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeAlias

import trio

from sandkeep.errors import StateError
from sandkeep.events import Meta
from sandkeep.settings.daemon import SESSION_KEEP
from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.sessions import SessionState
from sandkeepd.core import rules
from sandkeepd.core.core import Core
from sandkeepd.sessions.activity import Activity, Clock
from sandkeepd.sessions.stopping import LIMITS, SessionStop

logger = logging.getLogger("sandkeepd")

LOOK_EVERY_S: Final = 1.0
AT_ONCE: Final = 200
"""Sessions that are looked at before other tasks get a turn."""

ENDS_AT_ONCE: Final = 16
"""Maximum number of ends under way that the reaper ordered, but for the first of each owner. The time for a snapshot is
each one's own.
"""

ENDS_OF_OWNER: Final = 4
"""Maximum number of these of one owner."""

AGAIN_AFTER_S: Final = 60.0
"""Seconds after which an end is ordered again whose snapshot failed."""


Due: TypeAlias = tuple[SessionState, str]
"""A session that is to end, and the reason."""


def reason_to_stop(session: SessionState, sandbox: SandboxState | None, ready_us: int, idle_us: int) -> str | None:
    """Return ``max_lifetime`` or ``idle_timeout`` if that has passed for a session whose sandbox stands, and that is
    ready and idle for so long; else None.
    """
    if session.status != "ready" or sandbox is None or sandbox.status not in rules.STANDING:
        return None
    life, limit = session.life_s(sandbox), session.spec.idle_timeout_s
    if life is not None and ready_us >= int(life * 1e6):
        return "max_lifetime"
    is_idle = limit is not None and not sandbox.active and idle_us >= int(limit * 1e6)
    return "idle_timeout" if is_idle else None


def choose(due: Sequence[Due], under_way: Mapping[str, int]) -> list[Due]:
    """Choose round-robin by owner which of the due sessions end now, with these numbers of ends `under_way` by owner.
    Each owner may have one, so that nobody's snapshots that hang keep the sessions of others.
    """
    ends, ranked = Counter(under_way), list[tuple[int, Due]]()
    for each in due:
        ends[each[0].owner] += 1
        ranked.append((ends[each[0].owner], each))
    ranked.sort(key=lambda turn: turn[0])
    room = ENDS_AT_ONCE - sum(under_way.values())
    fair = [(rank, each) for rank, each in ranked if rank <= ENDS_OF_OWNER]
    return [each for number, (rank, each) in enumerate(fair) if rank == 1 or number < room]


class Reaper:
    """Orders the ends of sessions that are due, by a `steady` clock. `is_copied` tells if files of a sandbox are being
    copied.
    """

    def __init__(
        self, core: Core, stopping: SessionStop, activity: Activity, steady: Clock,
        is_copied: Callable[[str], bool],
    ) -> None:  # fmt: skip
        self._core = core
        self._stopping = stopping
        self._activity = activity
        self._is_copied = is_copied
        self._steady = steady
        self._not_before_us: dict[str, int] = {}

    async def run(self) -> None:
        """Look at all sessions once a second, until cancelled."""
        while True:
            await trio.sleep(LOOK_EVERY_S)
            await self.look()

    async def look(self) -> None:
        """Look at all sessions once, and order the ends of those that are due."""
        state, due, moment = self._core.state, list[Due](), self._steady()
        self._not_before_us = {sandbox: at for sandbox, at in self._not_before_us.items() if at > moment}
        under_way = Counter[str]()
        for number, session in enumerate(list(state.sessions.values())):
            if number % AT_ONCE == AT_ONCE - 1:
                await trio.lowlevel.checkpoint()
            if session.status == "stopping" and session.stop is not None and session.stop.reason in LIMITS:
                under_way[session.owner] += 1
            reason = self._reason(session, state.sandboxes.get(session.sandbox_id or ""))
            if reason is not None:
                due.append((session, reason))
        for session, reason in choose(due, under_way):
            await self._core.run_logged(partial(self._end, session, reason), "reaping a session")

    def _reason(self, session: SessionState, sandbox: SandboxState | None) -> str | None:
        if sandbox is None or session.status != "ready":
            return None
        if self._activity.is_attached(sandbox.sandbox_id) or self._is_copied(sandbox.sandbox_id):
            self._activity.use(session)
        moment, started = self._steady(), self._activity.started(session)
        last = self._activity.last(session, sandbox)
        reason = reason_to_stop(session, sandbox, moment - started.steady_us, moment - last.steady_us)
        return reason if moment >= self._not_before_us.get(sandbox.sandbox_id, 0) else None

    async def _end(self, session: SessionState, reason: str) -> None:
        moment, sandbox_id = self._steady(), session.sandbox_id or ""
        if self._reason(session, self._core.state.sandboxes.get(sandbox_id)) != reason:
            return  # it was used meanwhile
        self._not_before_us[sandbox_id] = moment + int(min(AGAIN_AFTER_S, SESSION_KEEP()) * 1e6)
        logger.info("reaping a session", extra={"session": session.key, "reason": reason})
        try:
            await self._stopping.order(session, reason, Meta())
        except StateError as changed:
            self._not_before_us.pop(sandbox_id, None)
            logger.info("a session changed before its end", extra={"session": session.key, "why": changed.message})
