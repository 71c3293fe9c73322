"""The most recent events in memory, shared by all followers of the log."""

from collections.abc import Sequence
from typing import Final

from sandkeep_store.eventlog.row import Recorded

RING_EVENTS: Final = 8192
RING_BYTES: Final = 16 * 1024 * 1024
_OVERHEAD_BYTES: Final = 512
_NOTHING: Final = Recorded(0, 0, "", 0, None, None, "", 0, b"", b"")


class Ring:
    """The last `RING_EVENTS` events, or fewer when they are large: together at most about `RING_BYTES`.

    Positions have no gaps, so that the place of an event is its position modulo the size.
    """

    def __init__(self, head: int, size: int = RING_EVENTS, max_bytes: int = RING_BYTES) -> None:
        self.first = head + 1
        self.head = head
        self._size = size
        self._max_bytes = max_bytes
        self._slots = [_NOTHING] * size
        # How many bytes had ever come in with the event of each slot, and with the last one that is here no more.
        self._totals = [0] * size
        self._total = self._gone = 0

    def extend(self, events: Sequence[Recorded]) -> None:
        """Add the events that follow `head`, in order."""
        slots, totals, size, total = self._slots, self._totals, self._size, self._total
        for event in events:
            place = event.position % size
            if event.position - self.first == size:
                self._gone, self.first = totals[place], self.first + 1
            total += len(event.data) + len(event.meta) + _OVERHEAD_BYTES
            slots[place], totals[place] = event, total
        if events:
            self.head, self._total = events[-1].position, total
        while self._total - self._gone > self._max_bytes and self.first < self.head:
            self._drop_first()

    def between(self, after: int, upto: int) -> list[Recorded]:
        """The events after one position, up to another and including it. None of them may be before `first`."""
        if after >= upto:
            return []
        begin, end = (after + 1) % self._size, (upto + 1) % self._size
        return self._slots[begin:end] if begin < end else self._slots[begin:] + self._slots[:end]

    def at(self, position: int) -> Recorded:
        """The event at a position that is here."""
        return self._slots[position % self._size]

    def forget(self, upto: int) -> None:
        """Let go of the events up to a position; the last one stays."""
        while self.first <= min(upto, self.head - 1):
            self._drop_first()

    def _drop_first(self) -> None:
        place = self.first % self._size
        self._gone = self._totals[place]
        self._slots[place] = _NOTHING
        self.first += 1
