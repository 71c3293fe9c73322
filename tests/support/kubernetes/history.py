"""The objects of one kind and the events that made them, for watches that resume."""

import asyncio
from collections.abc import Callable

from tests.support.kubernetes.errors import ApiError
from tests.support.kubernetes.resources import Object, Resource

Matches = Callable[[Object], bool]
_WINDOW = 10_000


class Event:
    """One change; `encoded` caches the line that watches send for it."""

    __slots__ = ("encoded", "object", "previous", "revision", "type")

    def __init__(self, type: str, revision: int, obj: Object, previous: Object | None = None) -> None:
        self.type = type
        self.revision = revision
        self.object = obj
        self.previous = previous
        self.encoded: dict[str, bytes] = {}

    def seen_through(self, matches: Matches) -> "Event | None":
        """The event as a watch with a selector has it: an object that begins or ceases to match comes or goes."""
        now = self.type != "DELETED" and matches(self.object)
        before = self.previous is not None and matches(self.previous)
        if now == before:
            return self if now else None
        type = "ADDED" if now else "DELETED"
        return self if type == self.type else Event(type, self.revision, self.object)


class Collection:
    """The objects of one kind, by (namespace, name), and their recent events."""

    def __init__(self, resource: Resource, revision: int) -> None:
        self.resource = resource
        self.objects: dict[tuple[str, str], Object] = {}
        self.events: list[Event] = []
        self.first = 0
        self.compacted = revision
        self.waiting: set[asyncio.Future[None]] = set()

    def record(self, event: Event) -> None:
        """Append an event, drop the oldest half of a full window, and wake the watches."""
        self.events.append(event)
        if len(self.events) > _WINDOW:
            self.forget(_WINDOW // 2)
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(None)

    def forget(self, count: int) -> None:
        """Drop the oldest `count` events."""
        if count:
            self.compacted = self.events[count - 1].revision
            del self.events[:count]
            self.first += count


class Cursor:
    """A watch's position among the events of a collection. A slow reader costs nothing but its position."""

    def __init__(self, collection: Collection, namespace: str | None, since: int | None, current: int) -> None:
        self._collection = collection
        self._namespace = namespace
        self._waiter: asyncio.Future[None] | None = None
        self._initial: list[Event] = []
        self.revision = since or current
        self._next = collection.first + len(collection.events)
        if not since:
            self._initial = [
                Event("ADDED", current, obj)
                for (place, _), obj in sorted(collection.objects.items())
                if namespace is None or place == namespace
            ]
        elif since > current:
            raise ApiError(504, "Timeout", f"Too large resource version: {since}, current: {current}")
        else:
            self._check(since)
            events = collection.events
            while self._next > collection.first and events[self._next - collection.first - 1].revision > since:
                self._next -= 1

    def take(self, limit: int = 500) -> list[Event]:
        """Return events that came since, at most `limit`; raise ApiError 410 if they are compacted."""
        if self._initial:
            initial, self._initial = self._initial, []
            return initial
        collection = self._collection
        if self._next < collection.first:
            self._check(self.revision)
        start = self._next - collection.first
        events = collection.events[start : start + limit]
        self._next += len(events)
        if events:
            self.revision = events[-1].revision
        if self._namespace is None:
            return events
        return [e for e in events if e.object["metadata"].get("namespace", "") == self._namespace]

    async def wait(self) -> None:
        """Wait until there are events to take, or until `interrupt`."""
        collection = self._collection
        if self._initial or self._next < collection.first + len(collection.events):
            return
        self._waiter = asyncio.get_running_loop().create_future()
        collection.waiting.add(self._waiter)
        try:
            await self._waiter
        finally:
            collection.waiting.discard(self._waiter)

    def interrupt(self) -> None:
        """End a `wait` that is under way."""
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    def _check(self, since: int) -> None:
        if since < self._collection.compacted:
            message = f"too old resource version: {since} ({self._collection.compacted})"
            raise ApiError(410, "Expired", message)
