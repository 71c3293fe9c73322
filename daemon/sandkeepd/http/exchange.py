"""One request and its answer: authentication, the query, the body within its limits, and replies.

The memory of bodies and of unread answers is charged to the connection.
"""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec
import trio
from msgspec import Struct

from sandkeep.errors import CallerError, StateError
from sandkeepd.core.peer import Peer
from sandkeepd.http.keys import Keys
from sandkeepd.http.problems import RefusedError
from sandkeepd.http.server import CONNECTION, STALLED_S, Connection, Receive, Scope, Send
from sandkeepd.serving import params

MAX_BODY_BYTES: Final = 1024 * 1024
"""Maximum size of a JSON body. Larger files go by ``files/upload/``."""

BODY_S: Final = 60.0
"""Seconds in which a JSON body has to arrive as a whole."""

PIECE_BYTES: Final = 256 * 1024
"""Size of the pieces in which answers are sent: hypercorn copies each of them."""

Headers = Sequence[tuple[bytes, bytes]]


class ClientLeftError(Exception):
    """The client has gone: nobody reads an answer."""


class Reply(Struct, frozen=True):
    """An answer: a status, a value that is sent as JSON unless it is None, and further headers."""

    status: int
    value: Any = None
    headers: Headers = ()


class Asked(Struct, kw_only=True):
    """A request that was let in. `query` and `body` are Structs of its route's, `body_bytes` is the size of the body as
    it came, and `id` is the session's in its path.
    """

    scope: Scope
    receive: Receive
    send: Send
    peer: Peer
    id: str = ""
    query: Any = None
    body: Any = None
    body_bytes: int = 0

    @property
    def artifact_id(self) -> str:
        """The id of the artifact in its path."""
        return str(self.scope["path_params"]["artifact_id"])

    @property
    def connection(self) -> Connection:
        """The connection that the request came on."""
        connection: Connection = self.scope[CONNECTION]
        return connection

    def header(self, name: bytes) -> str | None:
        """Return a header's value; None if it is missing. Raises `invalid` if it is given twice."""
        values = values_of(self.scope, name)
        if len(values) > 1:
            raise CallerError("invalid", f"give the header {name.decode().title()} once")
        return values[0] if values else None

    async def reply(self, reply: Reply) -> None:
        """Send an answer: its value as JSON, unless there is none."""
        content, status, headers = b"", reply.status, list(reply.headers)
        if reply.value is not None:
            content = msgspec.json.encode(reply.value)
            headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
        del reply  # or its value would stay in memory, uncharged, until the client has read the answer
        share = self.connection.share
        share.add(len(content))
        try:
            await self.send({"type": "http.response.start", "status": status, "headers": headers})
            begin = 0
            while begin + PIECE_BYTES < len(content):
                piece = content[begin : begin + PIECE_BYTES]
                await self.send({"type": "http.response.body", "body": piece, "more_body": True})
                begin += PIECE_BYTES
            await self.send({"type": "http.response.body", "body": content[begin:]})
        finally:
            share.subtract(len(content))

    async def piece(self) -> bytes | None:
        """Return the next bytes of the request; None at its end. Raises ClientLeftError, `RefusedError`."""
        with trio.move_on_after(STALLED_S) as scope:
            message = await self.receive()
        if scope.cancelled_caught:
            raise _late(f"the request did not go on for {STALLED_S:g} s")
        if message["type"] == "http.disconnect":
            raise ClientLeftError
        body: bytes = message.get("body", b"")
        return body or (b"" if message.get("more_body", False) else None)


def values_of(scope: Scope, name: bytes) -> list[str]:
    """Return the values of a header."""
    return [value.decode("latin-1") for header, value in scope["headers"] if header == name]


def require_identity(scope: Scope) -> None:
    """Refuse a compressed body: it would be taken for what it stands for. Raises `RefusedError`."""
    for coding in values_of(scope, b"content-encoding"):
        if coding.strip().lower() != "identity":
            message = f"Content-Encoding {coding[:80]!r} is not supported: send the body as it is, without the header"
            raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, CallerError("invalid", message))


def authenticate(scope: Scope, keys: Keys) -> Peer:
    """Return the peer of a request, by its API key. Raises `RefusedError`."""
    given = values_of(scope, b"x-api-key")
    for value in values_of(scope, b"authorization"):
        scheme, _, token = value.partition(" ")
        given.append(token.strip() if scheme.lower() == "bearer" else "")
    peer = keys.peer_of(given[0]) if len(given) == 1 else None
    if peer is None:
        what = "a valid API key" if given else "an API key"
        message = f"give {what}, in X-Api-Key or as a bearer token: `sandkeep key create NAME` makes one"
        raise RefusedError(HTTPStatus.UNAUTHORIZED, CallerError("permission_denied", message))
    return peer


def parse_query(scope: Scope, wanted: type[Struct]) -> Any:
    """Return the query. Raises `invalid`, naming the field."""
    try:
        pairs = parse_qsl(scope["query_string"].decode("ascii"), keep_blank_values=True, errors="strict")
        values = dict(pairs)
        if len(values) < len(pairs):
            raise CallerError("invalid", "give each parameter of the query once")
        return msgspec.convert(values, wanted, strict=False)
    except UnicodeDecodeError:
        raise CallerError("invalid", "the query must be UTF-8, percent-encoded") from None
    except msgspec.ValidationError as error:
        raise params.refusal(wanted, str(error)) from None


async def read_body(asked: Asked, wanted: type[Struct] | None) -> Any:
    """Return the JSON body; None, once it was read, of a route that wants none.

    Raises `invalid`, naming the field; `RefusedError` for one that is too long or too late.
    """
    length = asked.header(b"content-length")
    if length is not None and length.isdecimal() and int(length) > MAX_BODY_BYTES:
        raise _too_long()
    body = bytearray()
    share = asked.connection.share
    try:
        with trio.move_on_after(BODY_S) as scope:
            while (piece := await asked.piece()) is not None:
                body += piece
                share.add(len(piece))
                if len(body) > MAX_BODY_BYTES:
                    raise _too_long()
        if scope.cancelled_caught:
            raise _late(f"the body was not complete after {BODY_S:g} s")
        asked.body_bytes = len(body)
        return None if wanted is None else msgspec.json.decode(body or b"{}", type=wanted)
    except msgspec.ValidationError as error:
        assert wanted is not None
        raise params.refusal(wanted, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise CallerError("invalid", "the body must be a JSON object, in UTF-8") from None
    finally:
        share.subtract(len(body))


def _late(problem: str) -> RefusedError:
    return RefusedError(HTTPStatus.REQUEST_TIMEOUT, StateError("timeout", f"{problem}: send it again"))


def _too_long() -> RefusedError:
    message = "the body has more than 1 MiB: send files by files/upload/, which takes any size"
    return RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, CallerError("invalid", message))
