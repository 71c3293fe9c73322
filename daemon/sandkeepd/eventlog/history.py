"""History for callers: committed events from a token on, of all or one sandbox; and the state after any."""

import re
from typing import Any, Final

import trio
from msgspec import Raw, Struct
from msgspec.structs import replace

from sandkeep.errors import CallerError
from sandkeep.model import Moment, SandboxAt
from sandkeep.protocol.clock import parse_rfc3339, rfc3339
from sandkeep.protocol.methods import EventQuery, HistoryQuery, SessionHistory, StateQuery
from sandkeep_store.eventlog.log import Recorded
from sandkeep_store.views.moments import moments
from sandkeepd.core import rules
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core

MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
NOW: Final = "now"
_DATE: Final = re.compile(r"\d{4}-", re.ASCII)


class RawEvent(Struct, frozen=True, omit_defaults=True):
    """`model.Event` as it is sent: the log's bytes are spliced in unchanged, also those of unknown types."""

    position: int
    time: str
    type: str
    version: int
    stream: str
    revision: int
    data: Raw
    meta: Raw
    moment: Moment | None = None


class RawEventPage(Struct, frozen=True):
    """`model.EventPage` as it is sent."""

    events: list[RawEvent]
    next: str
    caught_up: bool


class History:
    """The handlers of ``event.list``, ``event.state_at`` and ``sandbox.history``."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def list(self, request: Request[EventQuery]) -> RawEventPage:
        """Events that the caller may see, after a token; with nothing new it waits a while for some."""
        query, log = request.params, self._core.log
        if query.after == NOW:
            return RawEventPage([], log.token(log.head), caught_up=True)
        after = await self.start(query.after)
        deadline = trio.current_time() + query.wait_s
        while True:
            page = await self._page(request, after, query.limit, query.sandbox_id, query.type)
            log.require_gapless(after)
            if page.events or not page.caught_up or trio.current_time() >= deadline:
                return page
            after = log.parse_token(page.next)
            with trio.move_on_at(deadline):
                await log.wait(after)

    async def sandbox_history(self, request: Request[HistoryQuery]) -> RawEventPage:
        """List events of a sandbox and its processes, without archived ones, and which moments were kept."""
        query, log = request.params, self._core.log
        rules.sandbox(self._core.state, query.sandbox_id)
        after = 0 if query.after is None else log.parse_token(query.after, gaps=True)
        page = await self._page(request, after, query.limit, query.sandbox_id, None)
        return self._marked(request, page)

    async def session_history(self, request: Request[SessionHistory]) -> RawEventPage:
        """List events of a session itself; each of its sandboxes has a history of its own."""
        query = request.params
        after = 0 if query.after is None else self._core.log.parse_token(query.after, gaps=True)
        return await self._page(request, after, query.limit, query.session_id, None)

    def _marked(self, request: Request[HistoryQuery], page: RawEventPage) -> RawEventPage:
        """The page with the moments that were kept at its events."""
        state = self._core.state
        sandbox = state.sandboxes.get(request.params.sandbox_id)
        kept = moments(state, sandbox) if sandbox is not None else ()
        seen = {moment.position: moment.view() for moment in kept if request.sees(moment.owner)}
        return replace(page, events=[replace(event, moment=seen.get(event.position)) for event in page.events])

    async def state_at(self, request: Request[StateQuery]) -> SandboxAt:
        """A sandbox as it was on record after an event."""
        query, log = request.params, self._core.log
        present = rules.sandbox(self._core.state, query.sandbox_id)
        position = log.position_of(query.position, "position")
        state = await log.state_at(query.sandbox_id, position)
        sandbox = state.sandboxes.get(query.sandbox_id)
        if sandbox is None:
            raise await self._not_yet(query.sandbox_id, position)
        processes, snapshots = list(state.processes.values()), list(state.snapshots.values())
        checkpoints = list(state.checkpoints.values())
        return SandboxAt(
            position=position,
            time=rfc3339(await log.time_of(position)),
            sandbox=sandbox.view(),
            processes=[process.view() for process in processes[-query.limit :]],
            snapshots=[snapshot.view() for snapshot in snapshots[-query.limit :]],
            checkpoints=[checkpoint.view() for checkpoint in checkpoints[-query.limit :]],
            left_out=sum(max(0, len(found) - query.limit) for found in (processes, snapshots, checkpoints)),
            note=self._note(present.requested_us),
        )

    async def _not_yet(self, sandbox_id: str, position: int) -> CallerError:
        [first, *_] = await self._core.log.read(0, 1, sandbox_id=sandbox_id)
        message = f"sandbox {sandbox_id} did not exist yet at position {position}: it begins at {first.position}"
        return CallerError("not_found", message, sandbox_id=sandbox_id, first=first.position)

    def _note(self, requested_us: int) -> str | None:
        archived_us = self._core.state.log.archived_before_us
        if requested_us >= archived_us:
            return None
        return f"of its processes, those that had ended before {rfc3339(archived_us)} may be in the archive"

    async def start(self, token: str | None) -> int:
        """The position that a token, a time, ``now``, or no token says to begin after. Raises as `parse_token` does."""
        log = self._core.log
        if token == NOW:
            return log.head
        if token is not None and _DATE.match(token):
            return max(await log.first_since(_time_us(token)), log.first_position) - 1
        return log.first_position - 1 if token is None else log.parse_token(token)

    async def page(self, request: Request[EventQuery], after: int, max_bytes: int) -> RawEventPage:
        """The next events of those asked for, for a reader that follows."""
        query = request.params
        page = await self._page(request, after, query.limit, query.sandbox_id, query.type, max_bytes)
        self._core.log.require_gapless(after)  # afterwards, as they may have been going while they were read
        return page

    async def _page(
        self,
        request: Request[Any],
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
                is_last = row.position >= page.position and page.caught_up
                return RawEventPage(passed, log.token(row.position), caught_up=is_last)
        return RawEventPage(passed, log.token(page.position), caught_up=page.caught_up)


def _time_us(text: str) -> int:
    try:
        return parse_rfc3339(text)
    except ValueError as error:
        raise CallerError("invalid", f"after: {text!r} {error}", field="after") from None


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
