"""The ASGI application: requests become calls of the daemon's methods, by the table of routes."""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property, partial
from http import HTTPStatus
from typing import Any, Final

import msgspec
import trio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response
from starlette.routing import Route

from sandkeep.errors import CallerError, SandkeepError, StateError, only_error
from sandkeep.protocol.methods import METHODS, Mutation, Params
from sandkeepd.api.dispatch import Dispatch
from sandkeepd.api.routes import routes_of
from sandkeepd.contract.caller import no_progress
from sandkeepd.core.call import Call, Give, Handler, cannot_give
from sandkeepd.core.core import Core
from sandkeepd.http import openapi, problems
from sandkeepd.http.exchange import (
    Asked,
    ClientLeftError,
    Headers,
    authenticate,
    parse_query,
    read_body,
    require_identity,
)
from sandkeepd.http.keys import Keys
from sandkeepd.http.problems import RefusedError
from sandkeepd.http.row import PREFIX, Row
from sandkeepd.http.server import MAX_CONNECTIONS, Receive, Scope, Send
from sandkeepd.serving import defects, params
from sandkeepd.serving.deadline import within_deadline
from sandkeepd.serving.holdings import CALL_BYTES
from sandkeepd.sessions.activity import Activity

log: Final = logging.getLogger(__name__)

CLIENT: Final = "http"
"""The name of the client in events that requests cause."""

MAX_REQUESTS: Final = MAX_CONNECTIONS // 2
"""Maximum requests of a key under way, so that one key does not take all connections."""

ENDING: Final = "session.close"
SPARE_REQUESTS: Final = 16
"""Further requests of a key that end sessions: so it gets out of its own way."""

MAX_BYTES: Final = 32 * 1024 * 1024
"""Maximum size of a key's calls under way that go on when their clients leave, but for those that end sessions."""

_CHALLENGE: Final = (b"www-authenticate", b"Bearer")


class Gateway:
    """Serves the routes of a table. `app` is the ASGI application."""

    def __init__(self, core: Core, dispatch: Dispatch, keys: Keys, activity: Activity, rows: Sequence[Row]) -> None:
        self.core = core
        self.keys = keys
        self.activity = activity
        self.requests: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._dispatch = dispatch
        self._routes = routes_of(dispatch)
        by_path: dict[str, dict[str, Row]] = {}
        for row in rows:
            by_path.setdefault(row.path, {})[row.verb] = row
        routes = [Route(PREFIX + path, _Endpoint(self, verbs)) for path, verbs in by_path.items()]
        self._rows = rows
        self._starlette = Starlette(
            routes=[Route(f"{PREFIX}/openapi.json", self._document), *routes],
            exception_handlers={HTTPException: _no_such_route},
        )
        self._starlette.router.redirect_slashes = False

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. A path is the same without its final slash."""
        path: str = scope["path"]
        if not path.endswith(("/", ".json")):
            scope["path"] = f"{path}/"
        await self._starlette(scope, receive, send)

    async def call(
        self, asked: Asked, name: str, values: Mapping[str, Any], give: Give = cannot_give, *, is_read: bool = True
    ) -> Any:
        """Call a method for a request, as the socket would, and return its answer. Raises SandkeepError.

        A call that changes something goes on when the client leaves; another one is its caller's to cancel. Unless the
        request `is_read` to its end, nobody sees that the client has left. Raises ClientLeftError.
        """
        route = self._routes[name]
        given = self.params(asked, route.method.params, values)
        call = Call(route.method, given, asked.peer, CLIENT, no_progress, give)
        if route.immediate is not None:
            value = route.immediate(call)
            if value is not NotImplemented:
                return value
        if not route.lasting:
            return await within_deadline(self._dispatch, call)
        errand = self._begin(asked, call)
        asked.connection.lasting += 1
        try:
            await (while_there(asked, errand.done.wait) if is_read else errand.done.wait())
        finally:
            asked.connection.lasting -= 1
        return errand.answer()

    def _begin(self, asked: Asked, call: Call) -> "_Errand":
        """Start a task of the daemon's for a call. It holds nothing of the connection but the request's bytes."""
        key, share = call.peer.key, asked.connection.share
        assert key is not None
        size = asked.body_bytes + CALL_BYTES if call.method.name != ENDING else 0
        if self._bytes[key] + size > MAX_BYTES or not share.reserve(size):
            message = f"the calls of the key {key} under way hold too much: wait until some of them are done"
            raise StateError("quota_exceeded", message)
        self._bytes[key] += size
        errand = _Errand()

        async def carry_out() -> None:
            try:
                await errand.run(call, self._dispatch)
            finally:
                share.release(size)
                self._bytes[key] -= size
                if not self._bytes[key]:
                    del self._bytes[key]

        self.core.start_task(carry_out, f"{call.method.name} over HTTP")
        return errand

    def params(self, asked: Asked, wanted: type[Params], values: Mapping[str, Any]) -> Params:
        """Return the parameters of a method. Raises `invalid`, naming the field."""
        command_id = asked.header(b"idempotency-key")
        if command_id is not None and issubclass(wanted, Mutation):
            values = {"command_id": command_id, **values}
        try:
            return msgspec.convert(values, wanted)
        except (msgspec.ValidationError, RecursionError) as error:
            raise params.refusal(wanted, str(error)) from None

    @cached_property
    def _openapi(self) -> bytes:
        return msgspec.json.encode(openapi.document(self._rows))

    async def _document(self, request: StarletteRequest) -> Response:  # noqa: ARG002
        return Response(self._openapi, media_type="application/json")


class _Errand:
    """A call that a task of the daemon's carries out, and its outcome once it is `done`."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self._value: Any = None
        self._error: SandkeepError | None = None

    async def run(self, call: Call, handler: Handler) -> None:
        """Carry out the call. A defect is put on record, though the request may be gone."""
        try:
            self._value = await within_deadline(handler, call)
        except Exception as error:  # noqa: BLE001  # it is for the request
            failure = only_error(error)
            if not isinstance(failure, SandkeepError):
                failure = defects.report(failure, call.method.name, call.params)
            self._error = failure
        self.done.set()

    def answer(self) -> Any:
        """Return the answer, or raise the error."""
        if self._error is not None:
            raise self._error
        return self._value


class _Endpoint:
    """A path, and its rows by their HTTP methods."""

    def __init__(self, gateway: Gateway, rows: Mapping[str, Row]) -> None:
        self._gateway = gateway
        self._rows = dict(rows)
        if "GET" in rows and not rows["GET"].streams:
            self._rows.setdefault("HEAD", rows["GET"])  # the server leaves the body out
        self._allowed = (b"allow", ", ".join(sorted(self._rows)).encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        row = self._rows.get(scope["method"])
        if row is None:
            message = f"{scope['method']} is not for this path: use {self._allowed[1].decode()}"
            error = RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, CallerError("invalid", message))
            await _send_problem(send, error.error, error.status, [self._allowed])
            return
        started = _Started(send)
        asked: Asked | None = None
        try:
            peer = authenticate(scope, self._gateway.keys)
            asked = Asked(scope=scope, receive=receive, send=started.send, peer=peer)
            await self._serve(row, asked)
        except Exception as error:  # noqa: BLE001  # a defect, which is reported
            # Without nurseries' groups: first of all that its client has gone.
            found = defects.first_of(error, ClientLeftError, RefusedError, SandkeepError) or error
            if isinstance(found, ClientLeftError):
                return
            failure, status = _failure(found, row, asked)
            if started.is_true:  # nothing can be said any more but that the answer is not whole
                log.info("%s was cut off: %s", row.operation, failure.message)
                assert asked is not None
                asked.connection.drop()
            else:
                await _send_problem(send, failure, status)

    async def _serve(self, row: Row, asked: Asked) -> None:
        """Serve a row, unless the key is removed meanwhile."""
        assert asked.peer.key is not None
        with self._gateway.keys.while_valid(asked.peer.key) as scope:
            await self._serve_in_turn(row, asked, asked.peer.key)
        if scope.cancelled_caught:
            asked.connection.drop()

    async def _serve_in_turn(self, row: Row, asked: Asked, key: str) -> None:
        connection, requests = asked.connection, self._gateway.requests
        if requests[key] >= MAX_REQUESTS + (SPARE_REQUESTS if row.operation == ENDING else 0):
            message = f"the key {key} has {MAX_REQUESTS} requests under way: wait for some, or close streams"
            raise RefusedError(HTTPStatus.TOO_MANY_REQUESTS, StateError("quota_exceeded", message))
        requests[key] += 1
        connection.requests += 1
        connection.share.add(CALL_BYTES)
        try:
            asked.id = asked.scope.get("path_params", {}).get("id", "")
            asked.query = parse_query(asked.scope, row.query)
            require_identity(asked.scope)
            if row.verb != "GET" and not row.streams:
                asked.body = await read_body(asked, row.body)
            if row.serve is not None:
                await row.serve(self._gateway, row, asked)
            else:
                await self._call(row, asked)
        finally:
            connection.share.subtract(CALL_BYTES)
            connection.requests -= 1
            requests[key] -= 1

    async def _call(self, row: Row, asked: Asked) -> None:
        call = partial(self._gateway.call, asked, row.operation, row.params(asked))
        if row.verb == "GET" and METHODS[row.operation].deadline_s is not None:
            call = partial(while_there, asked, call)
        await asked.reply(row.reply_to(asked, await call()))  # no name keeps the value


class _Started:
    """Watches whether an answer has begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.is_true = False

    async def send(self, message: Any) -> None:
        self.is_true = True
        await self._send(message)


async def while_there(asked: Asked, work: Callable[[], Awaitable[Any]]) -> Any:
    """Do `work` until it is done, or the client has gone. Raises ClientLeftError.

    The request was read to its end. A client that sends more is dropped: it could do so for ever.
    """
    value = None
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            while (message := await asked.receive())["type"] != "http.disconnect":
                if message.get("body"):
                    asked.connection.drop()
            raise ClientLeftError

        nursery.start_soon(watch)
        value = await work()
        nursery.cancel_scope.cancel()
    return value


def _failure(error: Exception, row: Row, asked: Asked | None) -> tuple[SandkeepError, HTTPStatus]:
    """Return the error to answer, and its status. A defect is put on record."""
    if isinstance(error, RefusedError):
        return error.error, error.status
    if not isinstance(error, SandkeepError):
        error = defects.report(error, f"{row.verb} {row.path}", None)
    status = row.problem(asked, error) if row.problem is not None and asked is not None else None
    return error, HTTPStatus(status) if status is not None else problems.status_of(error)


async def _send_problem(send: Send, error: SandkeepError, status: HTTPStatus, headers: Headers = ()) -> None:
    if status is HTTPStatus.UNAUTHORIZED:
        headers = [*headers, _CHALLENGE]
    if status is HTTPStatus.UNSUPPORTED_MEDIA_TYPE:
        headers = [*headers, (b"accept-encoding", b"identity")]
    document = problems.document(error, status)
    headers = [*headers, (b"content-type", problems.MEDIA_TYPE.encode()), (b"content-length", b"%d" % len(document))]
    await send({"type": "http.response.start", "status": status.value, "headers": headers})
    await send({"type": "http.response.body", "body": document})


async def _no_such_route(request: StarletteRequest, error: Exception) -> Response:  # noqa: ARG001
    status = HTTPStatus.NOT_FOUND
    message = f"there is no such path: {PREFIX}/openapi.json lists them all"
    return Response(
        problems.document(CallerError("not_found", message), status), status.value, media_type=problems.MEDIA_TYPE
    )
