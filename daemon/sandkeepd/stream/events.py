"""``/v1/events``: events from a token on, as they were committed; first those that there are, then as they come."""

from typing import Final

import msgspec
from msgspec import Struct

from sandkeep.protocol.frames import CaughtUp, EventsQuery
from sandkeep.protocol.methods import EventQuery
from sandkeep_store.eventlog.log import EventLog
from sandkeepd.core.access import Request
from sandkeepd.core.core import Core
from sandkeepd.eventlog.history import History, RawEvent
from sandkeepd.sessions.activity import Activity
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


async def events(core: Core, activity: Activity, client: Client) -> Handler:
    """The endpoint: check access to the events, and the token to start from."""
    query, history = client.query(EventsQuery), History(core)
    wanted = validated(EventQuery, after=query.after, sandbox_id=query.sandbox, type=query.type, limit=PAGE_EVENTS)
    request = client.request(core, "event.list", wanted)
    after = await history.start(query.after)

    async def send(session: Session) -> None:
        with activity.attached(request.params.sandbox_id):
            await session.run_send_only(lambda: _send(session, core.log, history, request, after))

    return send


async def _send(session: Session, log: EventLog, history: History, request: Request[EventQuery], after: int) -> None:
    announced = -1
    while True:
        sent, reached, caught_up = await _send_page(session, history, request, after)
        after = log.parse_token(reached)
        if caught_up:
            if sent or announced < 0 or after - announced >= STRIDE:
                await session.send(CaughtUp(token=reached))
                announced = after
            await log.wait(after)


async def _send_page(
    session: Session, history: History, request: Request[EventQuery], after: int
) -> tuple[bool, str, bool]:
    """Send the next events once there is room; return if there were any, the token behind them, and if all are sent."""
    await session.room()
    page = await history.page(request, after, max_bytes=PAGE_BYTES)
    if page.events:
        await session.send_text(_encode(Batch(page.events, page.next)).decode())
    return bool(page.events), page.next, page.caught_up
