"""The record as callers read it: events from a token on, whole or of one sandbox, as they were committed."""

from typing import Final

import trio
from msgspec import Raw, Struct

from sandkeep.clock import rfc3339
from sandkeep.methods import EventQuery, HistoryQuery
from sandkeep_store.log import Recorded
from sandkeepd import decide
from sandkeepd.access import Request
from sandkeepd.core import Core

MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
NOW: Final = "now"


class RawEvent(Struct, frozen=True):
    """`model.Event` as it is sent: the bytes of the log are spliced in unchanged, also those of types not known
    here.
    """

    position: int
    time: str
    type: str
    version: int
    stream: str
    revision: int
    data: Raw
    meta: Raw


class RawEventPage(Struct, frozen=True):
    """`model.EventPage` as it is sent."""

    events: list[RawEvent]
    next: str
    caught_up: bool


class History:
    """The handlers of ``event.list`` and ``sandbox.history``."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def list(self, request: Request[EventQuery]) -> RawEventPage:
        """Events that the caller may see, after a token; with nothing new it waits a while for some."""
        query, log = request.params, self._core.log
        if query.sandbox_id is not None:
            request.require_sandbox(self._core.state, query.sandbox_id)
        if query.after == NOW:
            return RawEventPage([], log.token(log.head), caught_up=True)
        after = self.start(query.after)
        deadline = trio.current_time() + query.wait_s
        while True:
            page = await self._page(request, after, query.limit, query.sandbox_id, query.type)
            log.require_gapless(after)
            if page.events or not page.caught_up or trio.current_time() >= deadline:
                return page
            after = log.parse_token(page.next)
            with trio.move_on_at(deadline):
                await log.wait(after)

    async def of_sandbox(self, request: Request[HistoryQuery]) -> RawEventPage:
        """The events of one sandbox and of its processes, but for those of processes that are in the archive."""
        query, log = request.params, self._core.log
        decide.sandbox(self._core.state, query.sandbox_id)
        after = 0 if query.after is None else log.parse_token(query.after, gaps=True)
        return await self._page(request, after, query.limit, query.sandbox_id, None)

    def start(self, token: str | None) -> int:
        """The position that a token, or its absence, or ``now`` says to begin after. Raises as `parse_token` does."""
        log = self._core.log
        if token == NOW:
            return log.head
        return log.first_position - 1 if token is None else log.parse_token(token)

    async def page(self, request: Request[EventQuery], after: int, max_bytes: int) -> RawEventPage:
        """The next events of those asked for, for a reader that follows."""
        query = request.params
        page = await self._page(request, after, query.limit, query.sandbox_id, query.type, max_bytes)
        self._core.log.require_gapless(after)  # afterwards, as they may have been going while they were read
        return page

    async def _page(
        self,
        request: Request[EventQuery] | Request[HistoryQuery],
        after: int,
        limit: int,
        sandbox_id: str | None,
        kind: str | None,
        max_bytes: int = MAX_PAGE_BYTES,
    ) -> RawEventPage:
        """The next events that the caller may see. A page may be empty and yet not caught up; no append is split."""
        log, owner_of = self._core.log, self._core.state.owner_of
        page = await log.page(after, limit, sandbox_id=sandbox_id, type=kind)
        passed: list[RawEvent] = []
        size = 0
        for row in page.events:
            if request.sees(owner_of(row.stream, row.sandbox_id)):
                passed.append(raw_event(row))
                size += len(row.data) + len(row.meta)
            if size > max_bytes and row.more == 0:
                return RawEventPage(
                    passed, log.token(row.position), caught_up=row.position >= page.position and page.caught_up
                )
        return RawEventPage(passed, log.token(page.position), caught_up=page.caught_up)


def raw_event(row: Recorded) -> RawEvent:
    """An event as it is sent."""
    return RawEvent(
        row.position,
        rfc3339(row.time_us),
        row.type,
        row.version,
        row.stream,
        row.revision,
        Raw(row.data),
        Raw(row.meta),
    )
