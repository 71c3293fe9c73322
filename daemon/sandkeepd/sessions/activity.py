"""Signs of life of sessions that are on no record: heartbeats, calls that only read, and attached clients.

After a restart a session counts as idle from when it was made ready, or from the last recorded activity in its sandbox.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from sandkeep_store.views.sandboxes import SandboxState
from sandkeep_store.views.sessions import SessionState

Clock: TypeAlias = Callable[[], int]
"""Answers the time in microseconds since 1970."""


class Activity:
    """The last heartbeats and uses of sessions, by their keys, in microseconds since 1970; and the sandboxes to which
    clients are attached.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heartbeats: dict[str, int] = {}
        self._uses: dict[str, int] = {}
        self._attached: Counter[str | None] = Counter()

    def beat(self, session: SessionState) -> None:
        """Note a heartbeat."""
        self._heartbeats[session.key] = self._clock()

    def use(self, session: SessionState) -> None:
        """Note a use."""
        self._uses[session.key] = self._clock()

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
        """Return the time of the last heartbeat."""
        return self._heartbeats.get(session.key)

    def last_us(self, session: SessionState, sandbox: SandboxState) -> int:
        """Return the time since which a session is idle."""
        key, started = session.key, session.started_us or session.requested_us
        known = (self._heartbeats.get(key, 0), self._uses.get(key, 0))
        return max(started, sandbox.last_activity_us, *known)

    def forget(self, session: SessionState) -> None:
        """Forget a session whose sandbox has ended."""
        self._heartbeats.pop(session.key, None)
        self._uses.pop(session.key, None)
