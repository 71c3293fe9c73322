"""Turns at long work, dealt out over all owners: a few pieces of work run at once, those of each owner in rotation.

Threads that compute share one interpreter, and the programs that they run share the machine's processors with the event
loop. So many owners together could delay everybody, however few threads each of them has.

A turn lasts `SLICE_S`. Work that takes longer gives its place up at its next `Turn.renew`, if others wait, and queues
again. Work that does not come to one is waiting for a program or a disk, or soon will: its place is taken from it. So
nobody waits for whoever is slowest, and work that hangs occupies no place.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

SLICE_S: Final = 0.1
_LOOK_S: Final = 0.2
"""Seconds in which work that waits for its next turn notices that its call is cancelled."""


class Turns:
    """Turns for `at_once` pieces of work. Urgent ones, such as an administrator's, go before all others."""

    def __init__(self, at_once: int, slice_s: float = SLICE_S) -> None:
        self.slice_s = slice_s
        self._free = at_once
        self._changed = threading.Condition()
        self._queues: dict[str, deque[Turn]] = {}
        """Waiting turns by owner; the owners in the order in which they go on."""
        self._ends: dict[Turn, float] = {}
        """The moments at which the slices end of those that have a place, the earliest first."""
        self._keeper: threading.Thread | None = None

    def enter(self, turn: "Turn") -> None:
        """Give a turn a place, now or later, and call its `wake` then."""
        with self._changed:
            self._queues.setdefault(turn.owner, deque()).append(turn)
            self._deal()
            if self._queues:
                if self._keeper is None:
                    self._keeper = threading.Thread(target=self._take_places, name="turns", daemon=True)
                    self._keeper.start()
                self._changed.notify()

    def leave(self, turn: "Turn") -> None:
        """Take a turn out, wherever it is."""
        with self._changed:
            if self._ends.pop(turn, None) is not None:
                self._free += 1
            elif turn in (queue := self._queues.get(turn.owner, deque())):
                queue.remove(turn)
                if not queue:
                    del self._queues[turn.owner]
            self._deal()

    def is_over(self, turn: "Turn") -> bool:
        """Return True if a turn has no place any more, or its slice has ended and others wait."""
        end = self._ends.get(turn)
        return end is None or (bool(self._queues) and time.monotonic() >= end)

    def _deal(self) -> None:
        while self._free and self._queues:
            owner = min(self._queues, key=lambda each: not self._queues[each][0].is_urgent)
            queue = self._queues.pop(owner)
            turn = queue.popleft()
            if queue:
                self._queues[owner] = queue  # behind all others
            self._free -= 1
            self._ends[turn] = time.monotonic() + self.slice_s
            turn.wake()

    def _take_places(self) -> None:
        while True:
            with self._changed:
                while not self._queues:
                    self._changed.wait()
                turn, end = next(iter(self._ends.items()))
                remaining_s = end - time.monotonic()
                if remaining_s <= 0:
                    del self._ends[turn]
                    self._free += 1
                    self._deal()
            if remaining_s > 0:
                time.sleep(remaining_s)


class Turn:
    """The turn of one piece of work; it has a place from `begin` to `end`, with waits in between."""

    def __init__(self, turns: Turns, owner: str, *, is_urgent: bool = False) -> None:
        self.owner = owner
        self.is_urgent = is_urgent
        self.wake: Callable[[], object] = lambda: None
        self._turns = turns

    async def begin(self) -> None:
        """Wait for a place, without a thread."""
        given, token = trio.Event(), trio.lowlevel.current_trio_token()
        self.wake = lambda: token.run_sync_soon(given.set)
        self._turns.enter(self)
        try:
            await given.wait()
        except BaseException:
            self.end()
            raise

    def renew(self, check: Callable[[], None]) -> None:
        """Let others go on if the slice is over, and wait for the next, in a thread. Raises what `check` raises."""
        if not self._turns.is_over(self):
            return
        given = threading.Event()
        self._turns.leave(self)
        self.wake = given.set
        self._turns.enter(self)
        while not given.wait(_LOOK_S):
            check()

    def end(self) -> None:
        """Give the place up."""
        self._turns.leave(self)
