"""JSON-RPC 2.0 (https://www.jsonrpc.org/specification) without I/O: lines in, messages out, and back.

Only the envelope of a message is decoded here: parameters and results stay `msgspec.Raw`, and the decoder of the
method's row does the rest in one pass. An id is never interpreted, only checked and given back byte for byte.

Where the specification leaves room
    - Parameters are by name only; an array is refused as invalid parameters.
    - An id is a string, a number or null, of at most `MAX_ID_BYTES`. A message whose id is null is a request; one
      without an id is a notification, and is not answered, not even with an error.
    - Members that the specification does not know are ignored. Of a member that occurs twice, the last counts.
    - A batch holds at most `MAX_BATCH` messages.
    - A message that is not UTF-8, or not JSON (NaN is not), is a parse error and answered with the id null.
"""

from functools import cache
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct, UnsetType

from sandkeep.errors import CallerError, SandkeepError, error_from

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
SERVER_ERROR: Final = -32000
"""Every error of ours that JSON-RPC has no number for. The string in ``data.code`` tells which it is."""

MAX_ID_BYTES: Final = 256
MAX_BATCH: Final = 1000

NO_ID: Final = Raw(b"")
NULL_ID: Final = Raw(b"null")
NO_PARAMS: Final = Raw(b"{}")

_NUMBERS: Final = {"invalid": INVALID_PARAMS, "internal": INTERNAL_ERROR}
_ID_STARTS: Final = frozenset(b'"-0123456789n')

encode: Final = msgspec.json.Encoder().encode


class Request(Struct, gc=False):
    """A call, or a notification when it has no id."""

    method: str
    jsonrpc: Literal["2.0"]
    id: Raw = NO_ID
    params: Raw = NO_PARAMS

    @property
    def wants_answer(self) -> bool:
        """True if the sender waits for an answer."""
        return self.id is not NO_ID


class Fault(Struct, frozen=True):
    """A message that is no request, or cannot be carried out as one: the answer that it gets."""

    number: int
    message: str
    id: Raw = NULL_ID

    def answer(self) -> bytes:
        """The error object's line, without its newline."""
        return _error(self.id, self.number, self.message, {"code": "invalid"})


class Batch(Struct, frozen=True):
    """Several messages at once, in their order. Their answers go out together, as one array."""

    messages: list[Request | Fault]


Message: TypeAlias = Request | Fault | Batch


# -- server side ------------------------------------------------------------------------------------------------------


def parse(line: bytes) -> Message:
    """Parse a line. Never raises: an invalid request comes back as the `Fault` to answer."""
    try:
        if not line.isascii():
            line.decode()
        request = _decode_request(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _parse_slowly(line, error)
    return request if request.id is NO_ID else _with_checked_id(request)


def result(request_id: Raw, encoded: bytes) -> bytes:
    """The answer to a request that went well; `encoded` is its result in JSON."""
    return b"".join((b'{"jsonrpc":"2.0","id":', request_id, b',"result":', encoded, b"}"))


def error(request_id: Raw, failure: SandkeepError) -> bytes:
    """The answer to a request that was refused or failed."""
    return _error(request_id, number_of(failure.code), failure.message, {**failure.data, "code": failure.code})


def number_of(code: str) -> int:
    """JSON-RPC's number for one of our codes."""
    return _NUMBERS.get(code, SERVER_ERROR)


def unknown_method(request: Request) -> Fault:
    """The answer to a request whose method is not in the table."""
    return Fault(METHOD_NOT_FOUND, f"{request.method[:64]!r} is not a method: `rpc.discover` lists them", request.id)


def array(answers: list[bytes]) -> bytes:
    """The one answer to a batch."""
    return b"[" + b",".join(answers) + b"]"


# -- client side ------------------------------------------------------------------------------------------------------


class ErrorObject(Struct, frozen=True):
    """An error as it travels."""

    code: int
    message: str
    data: dict[str, Any] = {}

    def to_exception(self) -> SandkeepError:
        """The same error again, as the class and code that the other side raised."""
        data = dict(self.data)
        code = data.pop("code", "internal")
        return error_from(str(code), self.message, {str(key): value for key, value in data.items() if key != "message"})


class Answer(Struct, frozen=True):
    """A line that a client receives: the answer to the request `id`, or a notification when it has a `method`."""

    id: int | str | None = None
    result: Raw = NO_ID
    error: ErrorObject | None = None
    method: str | None = None
    params: Raw = NO_PARAMS


class Progress(Struct, frozen=True):
    """The parameters of a ``progress`` notification: how the request of this id is getting on."""

    request: int | str | None
    message: str


class Descriptors(Struct, frozen=True):
    """The parameters of a ``descriptors`` notification: `count` open descriptors, for the request of this id, came
    attached to the first byte of its line.
    """

    request: int | str | None
    count: int


def request(request_id: int | UnsetType, method: str, params: dict[str, Any]) -> bytes:
    """Return a request's line, with its newline; without an id a notification's.

    Raises `invalid` for text that JSON cannot have, such as surrogates from arguments that are not UTF-8.
    """
    try:
        return encode(_Outgoing(jsonrpc="2.0", id=request_id, method=method, params=params)) + b"\n"
    except UnicodeEncodeError:
        name = next((name for name, value in params.items() if not _is_text(value)), "method")
        raise CallerError("invalid", f"{name}: must be valid UTF-8", field=name) from None


def _is_text(value: Any) -> bool:
    try:
        encode(value)
    except UnicodeEncodeError:
        return False
    return True


def progress(request_id: Raw, message: str) -> bytes:
    """A ``progress`` notification about a request, without its newline."""
    return encode({"jsonrpc": "2.0", "method": "progress", "params": {"request": request_id, "message": message}})


def descriptors(request_id: Raw, count: int) -> bytes:
    """A ``descriptors`` notification for a request, without its newline."""
    return encode({"jsonrpc": "2.0", "method": "descriptors", "params": {"request": request_id, "count": count}})


# Decode a server's message, and the parameters of its notifications. They raise `msgspec.DecodeError`.
parse_answer: Final = msgspec.json.Decoder(Answer).decode
parse_progress: Final = msgspec.json.Decoder(Progress).decode
parse_descriptors: Final = msgspec.json.Decoder(Descriptors).decode


# -- the slow ways ----------------------------------------------------------------------------------------------------


class _Outgoing(Struct, frozen=True, omit_defaults=False):
    jsonrpc: str
    id: int | UnsetType
    method: str
    params: dict[str, Any]


class _Identified(Struct):
    """The part of a message that is needed to answer it, if the rest is invalid."""

    id: Raw = NULL_ID


_decode_request: Final = msgspec.json.Decoder(Request).decode
_decode_raw: Final = msgspec.json.Decoder(Raw).decode
_decode_identified: Final = msgspec.json.Decoder(_Identified).decode


def _with_checked_id(request: Request) -> Request | Fault:
    text = bytes(request.id)
    if text[0] in _ID_STARTS and len(text) <= MAX_ID_BYTES:
        return request
    return Fault(INVALID_REQUEST, f"the id of a request is a string, a number or null, of at most {MAX_ID_BYTES} bytes")


def _parse_slowly(line: bytes, why: Exception) -> Message:
    """Classify a message that the typed decoder refused, which stops at the first error."""
    if isinstance(why, RecursionError):
        return Fault(PARSE_ERROR, "the message is nested too deeply")
    if isinstance(why, UnicodeDecodeError):
        return Fault(PARSE_ERROR, "the message is not UTF-8")
    try:
        body = bytes(_decode_raw(line))
    except (msgspec.DecodeError, RecursionError):
        return Fault(PARSE_ERROR, "the message is not JSON")
    return _parse_batch(body) if body[:1] == b"[" else _refuse(body)


def _parse_batch(body: bytes) -> Batch | Fault:
    try:
        slots = _batch_decoder().decode(body)
    except msgspec.ValidationError:
        return Fault(INVALID_REQUEST, f"a batch holds at most {MAX_BATCH} messages")
    messages = [_parse_item(bytes(raw)) for raw in msgspec.structs.astuple(slots) if raw is not NO_ID]
    return Batch(messages) if messages else Fault(INVALID_REQUEST, "a batch is never empty")


def _parse_item(body: bytes) -> Request | Fault:
    try:
        request = _decode_request(body)
    except (msgspec.DecodeError, RecursionError):
        return _refuse(body)
    return _with_checked_id(request) if request.wants_answer else request


def _refuse(body: bytes) -> Fault:
    """The fault of a message that is JSON but no request, with its id as far as it has one."""
    try:
        found = _with_checked_id(Request("", "2.0", _decode_identified(body).id))
    except (msgspec.DecodeError, RecursionError):
        return Fault(INVALID_REQUEST, "a message is an object with `jsonrpc`, `method`, `id` and `params`")
    request_id = found.id if isinstance(found, Request) else NULL_ID
    return Fault(
        INVALID_REQUEST,
        'a request has `"jsonrpc": "2.0"`, a `method` that is a string, and `params` that is an object',
        request_id,
    )


@cache
def _batch_decoder() -> msgspec.json.Decoder[Struct]:
    """Decodes an array, and never more of it than a batch may hold: a list would be built before it is refused."""
    slots = [(f"slot_{number}", Raw, NO_ID) for number in range(MAX_BATCH)]
    return msgspec.json.Decoder(msgspec.defstruct("_Slots", slots, array_like=True, forbid_unknown_fields=True))


def _error(request_id: Raw, number: int, message: str, data: dict[str, Any]) -> bytes:
    body = encode({"code": number, "message": message, "data": data})
    return b"".join((b'{"jsonrpc":"2.0","id":', request_id, b',"error":', body, b"}"))
