"""Watches: streams of events, resumed by resourceVersion."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web
from tests.support.kubernetes.call import Call
from tests.support.kubernetes.errors import ApiError
from tests.support.kubernetes.history import Cursor, Event
from tests.support.kubernetes.resources import Object
from tests.support.kubernetes.selectors import object_selector
from tests.support.kubernetes.store import Store

Outward = Callable[[Call, Object], Object]

_BOOKMARK_SECONDS = 60


class Watch:
    """One open watch. `lines` are sent next; with `ends`, nothing after them."""

    def __init__(self, call: Call, cursor: Cursor) -> None:
        self.call = call
        self.cursor = cursor
        self.lines: list[bytes] = []
        self.ends = False

    @property
    def bookmarks(self) -> bool:
        """Tell whether the client takes bookmarks."""
        return self.call.flag("allowWatchBookmarks")

    def bookmark(self) -> None:
        """Tell the client the revision that it has seen everything of."""
        if self.bookmarks:
            meta = {"resourceVersion": str(self.cursor.revision), "creationTimestamp": None}
            obj = {"kind": self.call.resource.kind, "apiVersion": self.call.resource.api_version(self.call.version)}
            self.lines.append(_line("BOOKMARK", msgspec.json.encode(obj | {"metadata": meta})))
            self.cursor.interrupt()

    def end(self, error: ApiError | None = None) -> None:
        """End the stream, after an ERROR event if one is given."""
        if error:
            self.lines.append(_line("ERROR", msgspec.json.encode(error.status())))
        self.ends = True
        self.cursor.interrupt()


class Watches:
    """All open watches."""

    def __init__(self, store: Store, outward: Outward) -> None:
        self._store = store
        self._outward = outward
        self._open: set[Watch] = set()

    async def serve(self, call: Call) -> web.StreamResponse:
        """Stream events until the timeout, the client or a fault ends it."""
        matches = object_selector(call.resource, call.query.get("labelSelector"), call.query.get("fieldSelector"))
        timeout = call.number("timeoutSeconds") or random.randint(1800, 3600)
        since = call.number("resourceVersion")
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(call.request)
        try:
            watch = Watch(call, self._store.cursor(call.resource.key, call.namespace, since))
        except ApiError as error:
            await response.write(_line("ERROR", msgspec.json.encode(error.status())))
            return response
        self._open.add(watch)
        try:
            await self._stream(watch, matches, response, asyncio.get_running_loop().time() + timeout)
        finally:
            self._open.discard(watch)
        return response

    def cut(self, *, resource: str = "", final: str = "") -> int:
        """End open watches: cleanly, with an ERROR event of 410 (`gone`), or by losing the connection (`drop`)."""
        cut = [watch for watch in self._open if resource in ("", watch.call.resource.key)]
        for watch in cut:
            transport = watch.call.request.transport
            if final == "drop" and transport:
                transport.abort()
            watch.end(ApiError(410, "Expired", "too old resource version") if final == "gone" else None)
        return len(cut)

    def bookmark(self) -> None:
        """Send a bookmark to every client that takes them."""
        for watch in self._open:
            watch.bookmark()

    def open(self) -> list[dict[str, Any]]:
        """The open watches."""
        return [
            {
                "user": watch.call.user.name,
                "resource": watch.call.resource.key,
                "namespace": watch.call.namespace,
                "labelSelector": watch.call.query.get("labelSelector", ""),
                "fieldSelector": watch.call.query.get("fieldSelector", ""),
            }
            for watch in self._open
        ]

    async def _stream(
        self, watch: Watch, matches: Callable[[Object], bool] | None, response: web.StreamResponse, deadline: float
    ) -> None:
        loop = asyncio.get_running_loop()
        while not watch.ends:
            try:
                events = watch.cursor.take()
            except ApiError as error:
                watch.end(error)
                break
            seen = [event.seen_through(matches) for event in events] if matches else events
            lines = [self._encoded(watch.call, event) for event in seen if event]
            lines += watch.lines
            watch.lines.clear()
            if lines:
                await response.write(b"".join(lines))
            elif loop.time() >= deadline:
                watch.bookmark()
                break
            elif not events:
                await self._wait(watch, deadline)
        if watch.lines:
            await response.write(b"".join(watch.lines))

    async def _wait(self, watch: Watch, deadline: float) -> None:
        limit = asyncio.get_running_loop().time() + _BOOKMARK_SECONDS
        try:
            async with asyncio.timeout_at(min(limit, deadline)):
                await watch.cursor.wait()
        except TimeoutError:
            if limit < deadline:
                watch.bookmark()

    def _encoded(self, call: Call, event: Event) -> bytes:
        """The line of an event, encoded once for all watches of a version."""
        line = event.encoded.get(call.version)
        if line is None:
            line = _line(event.type, msgspec.json.encode(self._outward(call, event.object)))
            event.encoded[call.version] = line
        return line


def _line(type: str, encoded: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (type.encode(), encoded)
