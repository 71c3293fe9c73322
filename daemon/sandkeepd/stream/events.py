"""``/v1/events``: events from a token on, as they were committed; first those that there are, then as they come."""

from typing import Final

import msgspec
from msgspec import Struct

from sandkeep.protocol.frames import CaughtUp, EventsQuery
from sandkeep.protocol.methods import EventQuery
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.eventlog.history import History, RawEvent
from sandkeepd.stream.session import Client, Handler, Session, validated

PAGE_EVENTS: Final = 256
PAGE_BYTES: Final = 256 * 1024
STRIDE: Final = 4096
"""After so many events that the reader does not see, a newer token is sent, so that its own does not grow too old."""


class Batch(Struct, frozen=True, tag_field="kind", tag="events"):
    """`frames.EventBatch` as it is sent: the bytes of the log are spliced in unchanged."""

    events: list[RawEvent]
    token: str


_encode: Final = msgspec.json.Encoder().encode


class Events:
    """The endpoint."""

    def __init__(self, core: Core, history: History) -> None:
        self._core = core
        self._history = history

    async def __call__(self, client: Client) -> Handler:
        """Check access to the events, and the token to start from."""
        query = client.query(EventsQuery)
        wanted = validated(EventQuery, after=query.after, sandbox_id=query.sandbox, type=query.type, limit=PAGE_EVENTS)
        request = client.request(self._core, "event.list", wanted)
        after = self._history.start(query.after)
        return lambda session: session.run_send_only(lambda: self._send(session, request, after))

    async def _send(self, session: Session, request: Request[EventQuery], after: int) -> None:
        log, announced = self._core.log, -1
        while True:
            sent, reached, caught_up = await self._send_page(session, request, after)
            after = log.parse_token(reached)
            if caught_up:
                if sent or announced < 0 or after - announced >= STRIDE:
                    await session.send(CaughtUp(token=reached))
                    announced = after
                await log.wait(after)

    async def _send_page(self, session: Session, request: Request[EventQuery], after: int) -> tuple[bool, str, bool]:
        """Send the next events, if there are any to send; answer whether there were, the token behind them, and whether
        they are the last. They are read when there is room for them.
        """
        await session.room()
        page = await self._history.page(request, after, max_bytes=PAGE_BYTES)
        if page.events:
            await session.send_text(_encode(Batch(page.events, page.next)).decode())
        return bool(page.events), page.next, page.caught_up
