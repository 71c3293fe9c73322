"""The event log as server-sent events: first those that there are, then as they come.

Each event has its token for an id, so that a client that reconnects goes on behind the last one that it had.
"""

from functools import partial
from typing import Any, Final

import msgspec
import trio
from msgspec import Raw, Struct
from msgspec.structs import replace

from sandkeep.events import Meta
from sandkeep.model import Name
from sandkeep.protocol.methods import METHODS, EventQuery, EventType, Token
from sandkeepd.core.access import Request, admit
from sandkeepd.core.call import Call
from sandkeepd.eventlog.history import History, RawEvent
from sandkeepd.http.exchange import Asked
from sandkeepd.http.gateway import CLIENT, Gateway, while_there
from sandkeepd.http.row import Row

PAGE_EVENTS: Final = 256
PAGE_BYTES: Final = 256 * 1024
QUIET_S: Final = 15.0
"""Seconds without an event after which the token is sent again, so that a client that has gone is noticed."""

MEDIA_TYPE: Final = "text/event-stream"
_HEADERS: Final = [(b"content-type", MEDIA_TYPE.encode()), (b"cache-control", b"no-store")]
_OF_PROVIDERS: Final = ("plan", "handle")
_PLACE: Final = {"where", "base", "path", "uri"}
_ON_THE_HOST: Final = ("mount", "directory", "state")
_encode: Final = msgspec.json.Encoder().encode
_owner_in: Final = msgspec.json.Decoder(Meta).decode


class StreamQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Events after a token, after ``now``, or from the first there is. The header Last-Event-ID stands for `after`."""

    after: Token | None = None
    type: EventType | None = None


class EventsQuery(StreamQuery, frozen=True, forbid_unknown_fields=True):
    """The same of one session's sandbox, or of any sandbox by its id."""

    sandbox: Name | None = None


async def events(gateway: Gateway, row: Row, asked: Asked) -> None:  # noqa: ARG001  # the shape of `Row.serve`
    """Send events until the client goes, its key is removed, or the daemon stops."""
    query: StreamQuery = asked.query
    sandbox = asked.id or getattr(query, "sandbox", None)
    after = asked.header(b"last-event-id") or query.after
    wanted = gateway.params(asked, EventQuery, {
        "after": after, "sandbox_id": sandbox, "type": query.type, "limit": PAGE_EVENTS,
    })  # fmt: skip
    request: Request[Any] = admit(gateway.core.state, Call(METHODS["event.list"], wanted, asked.peer, CLIENT))
    with gateway.activity.attached(request.params.sandbox_id):
        await while_there(asked, partial(_send, gateway, asked, request, after))


async def _send(gateway: Gateway, asked: Asked, request: Request[Any], token: str | None) -> None:
    history, log = History(gateway.core), gateway.core.log
    after = await history.start(token)
    begun = False
    while True:
        page = await history.page(request, after, max_bytes=PAGE_BYTES)
        if not begun:
            await asked.send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            begun = True
        told = b"".join(_told(event, log.token(event.position), request.owner) for event in page.events)
        # Without data it is no event, but the client resumes there: its token does not grow old among others' events.
        told += b"id: %s\n\n" % page.next.encode()
        await asked.send({"type": "http.response.body", "body": told, "more_body": True})
        after = log.parse_token(page.next)
        if page.caught_up:
            with trio.move_on_after(QUIET_S):
                await log.wait(after)


def _told(event: RawEvent, token: str, owner: str) -> bytes:
    told = replace(event, data=Raw(_encode(_without_host(msgspec.json.decode(event.data)))))
    if _owner_in(event.meta).owner not in (None, owner):
        told = replace(told, meta=Raw(b"{}"))  # another caller caused it, such as an administrator
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (token.encode(), event.type.encode(), _encode(told))


def _without_host(data: Any) -> Any:
    """Return the data of an event without the paths of the host in it, which are none of a key's business: those in
    plans and handles of sandboxes, the directories of places, and the sources of images.
    """
    if isinstance(data, list):
        return [_without_host(value) for value in data]
    if not isinstance(data, dict):
        return data
    if data.keys() == _PLACE and data["where"] in _ON_THE_HOST:
        return {**data, "base": "", "uri": data["path"]}
    if str(data.get("source", "")).startswith("/"):
        data = {**data, "source": ""}
    return {key: _without_host(value) for key, value in data.items() if key not in _OF_PROVIDERS}
