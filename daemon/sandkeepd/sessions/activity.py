"""Signs of life of sessions, on a clock that does not step. Most are on no record: heartbeats, calls that only read,
and attached clients.

After a restart a session counts as idle from when it was made ready, or from the last recorded activity in its sandbox.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.sessions import SessionState

Clock: TypeAlias = Callable[[], int]
"""Answers the time in microseconds: since 1970, or since some moment of the machine's own."""


def steady_us() -> int:
    """Return the microseconds since the machine's boot."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def awake_us() -> int:
    """Return the microseconds since the machine's boot in which it was not suspended."""
    return time.monotonic_ns() // 1000


class Moment(NamedTuple):
    """A moment on the wall clock, since 1970, and on the steady one."""

    wall_us: int
    steady_us: int


class Activity:
    """The last heartbeats and uses of sessions, by their keys, and the sandboxes to which clients are attached.

    `clock` is the wall clock.
    """

    def __init__(self, clock: Clock, steady: Clock = steady_us) -> None:
        self._clock = clock
        self._steady = steady
        self._heartbeats: dict[str, Moment] = {}
        self._uses: dict[str, Moment] = {}
        self._starts: dict[str, Moment] = {}
        self._recorded: dict[str, Moment] = {}
        self._attached: Counter[str | None] = Counter()

    def beat(self, session: SessionState) -> None:
        """Note a heartbeat."""
        self._heartbeats[session.key] = Moment(self._clock(), self._steady())

    def use(self, session: SessionState) -> None:
        """Note a use."""
        self._uses[session.key] = Moment(self._clock(), self._steady())

    @contextmanager
    def attached(self, sandbox_id: str | None) -> Iterator[None]:
        """Count a client as attached to a sandbox for the length of a block. None is no sandbox."""
        self._attached[sandbox_id] += 1
        try:
            yield
        finally:
            self._attached[sandbox_id] -= 1
            if not self._attached[sandbox_id]:
                del self._attached[sandbox_id]

    def is_attached(self, sandbox_id: str) -> bool:
        """Tell if a client is attached to a sandbox."""
        return sandbox_id in self._attached

    def heartbeat_us(self, session: SessionState) -> int | None:
        """Return the time of the last heartbeat, in microseconds since 1970."""
        beat = self._heartbeats.get(session.key)
        return None if beat is None else beat.wall_us

    def started(self, session: SessionState) -> Moment:
        """Return the moment at which a session was last made ready."""
        return self._of_record(self._starts, session, session.started_us or session.requested_us)

    def last(self, session: SessionState, sandbox: SandboxState) -> Moment:
        """Return the moment since which a session is idle."""
        recorded = self.started(session), self._of_record(self._recorded, session, sandbox.last_activity_us)
        unrecorded = self._heartbeats.get(session.key), self._uses.get(session.key)
        return max(*recorded, *filter(None, unrecorded), key=lambda moment: moment.steady_us)

    def _of_record(self, moments: dict[str, Moment], session: SessionState, wall_us: int) -> Moment:
        """Return a moment that is on record. Its age counts by the wall clock until the first look at it, which is the
        reaper's within a second, or the next daemon's.
        """
        known = moments.get(session.key)
        if known is None or known.wall_us != wall_us:
            age_us = max(0, self._clock() - wall_us)
            known = moments[session.key] = Moment(wall_us, self._steady() - age_us)
        return known

    def forget(self, session: SessionState) -> None:
        """Forget a session whose sandbox has ended."""
        for moments in (self._heartbeats, self._uses, self._starts, self._recorded):
            moments.pop(session.key, None)
