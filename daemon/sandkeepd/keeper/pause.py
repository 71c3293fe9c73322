"""The pause state of a sandbox. Deadlines for its code are extended by the time of a pause."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

PAUSED_S: Final = 30.0
"""Seconds that a freeze or thaw may take, where a provider names no others."""


class Pause:
    """The state of one sandbox: paused or not. Its provider sets it, for any cause of the pause."""

    def __init__(self) -> None:
        self.is_on = False
        self.reason: str | None = None
        """Reason for which its provider suspended it by itself."""
        self._changed = trio.Event()
        self._waiting: dict[trio.CancelScope, float] = {}

    def set(self, paused: bool) -> None:
        """Take note that it stands still, or goes on."""
        if paused == self.is_on:
            return
        if not paused:
            self.reason = None
        self.is_on = paused
        now = trio.current_time()
        for scope, left in self._waiting.items():
            self._waiting[scope] = scope.deadline - now if paused else left
            scope.deadline = math.inf if paused else now + left
        self._changed.set()
        self._changed = trio.Event()

    async def changed(self, paused: bool) -> None:
        """Wait until it is not so any more."""
        while self.is_on == paused:
            await self._changed.wait()

    @contextmanager
    def timeout(self, seconds: float) -> Iterator[trio.CancelScope]:
        """Cancel a block after so many seconds, not counting those in which the sandbox stands still."""
        with trio.CancelScope(deadline=math.inf if self.is_on else trio.current_time() + seconds) as scope:
            self._waiting[scope] = seconds
            try:
                yield scope
            finally:
                del self._waiting[scope]


class Pauses:
    """The part of `Pausing` that goes by a `Pause`. A provider's subclass suspends and resumes, and sets that."""

    def __init__(self, pause: Pause, no_pauses: str | None = None) -> None:
        self.pause = pause
        self.no_pauses = no_pauses

    @property
    def deadline_s(self) -> float:
        """See `Pausing.deadline_s`."""
        return PAUSED_S

    @property
    def reason(self) -> str | None:
        """See `Pausing.reason`."""
        return self.pause.reason

    def is_paused(self) -> bool:
        """See `Pausing.is_paused`."""
        return self.pause.is_on

    async def pause_changed(self, paused: bool) -> None:
        """See `Pausing.pause_changed`."""
        await self.pause.changed(paused)
