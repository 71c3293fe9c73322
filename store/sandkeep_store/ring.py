"""The most recent events in memory, shared by everyone who follows the log."""

from collections.abc import Sequence
from typing import Final

from sandkeep_store.record import Recorded

RING_EVENTS: Final = 8192
RING_BYTES: Final = 16 * 1024 * 1024
_OVERHEAD_BYTES: Final = 512


class Ring:
    """The last `RING_EVENTS` events, or fewer when they are large: together at most about `RING_BYTES`.

    Positions have no gaps, so that the place of an event is its position modulo the size.
    """

    def __init__(self, head: int, size: int = RING_EVENTS, max_bytes: int = RING_BYTES) -> None:
        self.first = head + 1
        self.head = head
        self._size = size
        self._max_bytes = max_bytes
        self._bytes = 0
        self._slots: list[Recorded | None] = [None] * size

    def extend(self, events: Sequence[Recorded]) -> None:
        """Add the events that follow `head`, in order."""
        for event in events:
            if self.head - self.first + 1 == self._size:
                self._drop_first()
            self.head = event.position
            self._slots[event.position % self._size] = event
            self._bytes += _size_of(event)
        while self._bytes > self._max_bytes and self.first < self.head:
            self._drop_first()

    def between(self, after: int, upto: int) -> list[Recorded] | None:
        """The events after one position, up to another and including it; None when the first of them is gone."""
        if after + 1 < self.first:
            return None
        begin, end = (after + 1) % self._size, (upto + 1) % self._size
        if after >= upto:
            return []
        found = self._slots[begin:end] if begin < end else self._slots[begin:] + self._slots[:end]
        return [event for event in found if event is not None]

    def _drop_first(self) -> None:
        place = self.first % self._size
        event = self._slots[place]
        assert event is not None
        self._bytes -= _size_of(event)
        self._slots[place] = None
        self.first += 1


def _size_of(event: Recorded) -> int:
    return len(event.data) + len(event.meta) + _OVERHEAD_BYTES
