"""The stream protocol's wire format: targets, text messages, and the header of binary frames. No I/O.

A text frame is a JSON object whose `kind` says what it is: the Structs below, by their tags. A binary frame of a
process's output begins with a header of `HEADER_BYTES`: one byte for the stream, eight for the offset of what follows,
most significant first. Binary frames of files, and of what a client types, have no header.
"""

import struct
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote_from_bytes, unquote_to_bytes

import msgspec
from msgspec import Meta, Struct, field

from sandkeep.errors import CallerError, SandkeepError, error_from
from sandkeep.model import Event, Name, Offset, ProcessStatus
from sandkeep.protocol.methods import EventType, Params, PathBytes, Signal, TerminalName, TerminalSide, Token

P = TypeVar("P", bound=Params)

PROTOCOL: Final = "sandkeep.v1"
"""The subprotocol. A client that proposes any must propose this one."""

TOKEN_PROTOCOL: Final = "sandkeep.token."  # noqa: S105  # prefix of a token
"""Prefix of a second proposal that holds the token, for clients that cannot set headers, such as browsers."""

MAX_MESSAGE_BYTES: Final = 1024 * 1024
"""Maximum size of a client's message, in bytes."""

# -- targets ----------------------------------------------------------------------------------------------------------


class LogsQuery(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query of a log: the start offset in each stream, whether to wait for more, and whether to tell times."""

    stdout: Offset = 0
    stderr: Offset = 0
    follow: bool = False
    times: bool = False


class EventsQuery(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query of events: after a token or ``now``, of one sandbox, of a type or its first word."""

    after: Token | None = None
    sandbox: Name | None = None
    type: EventType | None = None


class AttachQuery(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A terminal's size and kind; or, for a process without one, where to begin in its journal: by default, now."""

    rows: TerminalSide = 24
    cols: TerminalSide = 80
    term: TerminalName = "xterm-256color"
    read_only: bool = False
    stdout: Offset | None = None
    stderr: Offset | None = None


class FilesQuery(Params, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file or a tree in a sandbox, got or put. `path` may hold any byte but NUL; it begins at the sandbox's working
    directory unless it is absolute.

    A file travels as its bytes. A tree travels as a tar archive: of one entry at its top, under its name, or with
    `contents` of what is in the directory.
    """

    path: PathBytes
    op: Literal["get", "put"] = "get"
    kind: Literal["file", "tree"] = "file"
    contents: bool = False


class Target(NamedTuple):
    """The path and query of a request's target."""

    parts: tuple[str, ...]
    query: dict[str, bytes]


PATHS: Final[dict[str, type[Params]]] = {
    "/v1/logs/<sandbox>/<process>": LogsQuery,
    "/v1/events": EventsQuery,
    "/v1/attach/<sandbox>/<process>": AttachQuery,
    "/v1/files/<sandbox>": FilesQuery,
}
"""All paths, with the type of each one's query."""

_SECRETS: Final = frozenset({"token", "access_token", "authorization", "bearer"})


def parse_target(text: str) -> Target:
    """The parts and the query of a request's target, percent-decoded. Raises `invalid`."""
    path, _, rest = text.partition("?")
    parts = tuple(_text("path", unquote_to_bytes(part)) for part in path.split("/")[1:])
    query: dict[str, bytes] = {}
    for pair in filter(None, rest.split("&")):
        name, _, value = pair.partition("=")
        key = _text("query", unquote_to_bytes(name.replace("+", " ")))
        if key.lower() in _SECRETS:
            raise _invalid(
                key, "a token must not be in a URL, which logs record: send it in a header, and renew this one"
            )
        if key in query:
            raise _invalid(key, "is given twice")
        query[key] = unquote_to_bytes(value.replace("+", " "))
    return Target(parts, query)


def target(*parts: str, **query: Any) -> str:
    """Return a request's target from its parts, without those that are None."""
    asked = "&".join(f"{name}={_quoted(value)}" for name, value in query.items() if value is not None)
    return (
        "/v1/" + "/".join(quote_from_bytes(part.encode(), safe="") for part in parts) + (f"?{asked}" if asked else "")
    )


def _quoted(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    return quote_from_bytes(value if isinstance(value, bytes) else str(value).encode(), safe="")


def parse_query(wanted: type[P], query: dict[str, bytes]) -> P:
    """Convert a target's query. Raises msgspec's ValidationError, and `invalid` for text that is not UTF-8."""
    raw = wanted is FilesQuery
    values = {name: value if raw and name == "path" else _text(name, value) for name, value in query.items()}
    return msgspec.convert(values, wanted, strict=False)


def _text(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _invalid(name[:64], "is not UTF-8") from None


def _invalid(name: str, message: str) -> CallerError:
    return CallerError("invalid", f"{name}: {message}", field=name)


# -- binary frames ----------------------------------------------------------------------------------------------------

STDOUT: Final = 1
STDERR: Final = 2
TERMINAL: Final = 3
_STREAMS: Final = (STDOUT, STDERR, TERMINAL)
_HEADER: Final = struct.Struct(">BQ")
HEADER_BYTES: Final = _HEADER.size


class Output(NamedTuple):
    """Bytes that a process wrote, and where they stand in their stream."""

    stream: int
    offset: int
    data: bytes


def pack_output(stream: int, offset: int, data: bytes) -> bytes:
    """A binary frame of output."""
    return _HEADER.pack(stream, offset) + data


def parse_output(frame: bytes) -> Output:
    """Parse a binary frame of output. Raises ValueError."""
    if len(frame) < HEADER_BYTES or frame[0] not in _STREAMS:
        raise ValueError("not a frame of output")
    stream, offset = _HEADER.unpack_from(frame)
    return Output(stream, offset, frame[HEADER_BYTES:])


# -- text frames ------------------------------------------------------------------------------------------------------


class Message(Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """A text frame."""


class CaughtUp(Message, frozen=True, kw_only=True, tag="caught_up"):
    """All earlier data is sent; the rest is new. For events with the token from which to resume."""

    token: str | None = None


class Exit(Message, frozen=True, kw_only=True, tag="exit", omit_defaults=False):
    """The process has ended, and all that it wrote is sent."""

    status: ProcessStatus
    exit_code: int | None
    timed_out: bool
    stdout_bytes: int | None
    stderr_bytes: int | None
    error: str | None = None


class Note(Message, frozen=True, kw_only=True, tag="note"):
    """Something odd about a journal, in a sentence: it was cut or replaced from inside. Or its beginning was
    dropped, and the next piece of it begins at `first`.
    """

    stream: Literal["stdout", "stderr"]
    message: str
    first: int | None = None


class Time(Struct, frozen=True, kw_only=True):
    """All of a stream before `offset` had come at that time; an unknown one is null."""

    at: str | None
    offset: int


class Times(Message, frozen=True, kw_only=True, tag="times"):
    """The times of the next piece of output of a stream, oldest first. The last one is that of its end."""

    stream: Literal["stdout", "stderr"]
    times: list[Time]


class EventBatch(Message, frozen=True, kw_only=True, tag="events"):
    """Events in order; an append is never split. `token` is the place to continue from."""

    events: list[Event]
    token: str


class Detached(Message, frozen=True, kw_only=True, tag="detached"):
    """The viewer was detached from the terminal; the process keeps running."""


class End(Message, frozen=True, kw_only=True, tag="end"):
    """All the bytes were sent; this is their digest, in hexadecimal digits, and how many they were."""

    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
    size_bytes: int | None = None


class Done(Message, frozen=True, kw_only=True, tag="done"):
    """The upload is in place: at `path`, so many `files`, and the bytes in them."""

    path: str
    files: int
    size_bytes: int


class WireError(Struct, frozen=True, kw_only=True):
    """An error as it travels, in a text frame or in the body of a refused request."""

    code: str
    message: str
    data: dict[str, Any] = field(default_factory=dict)


class Failed(Message, frozen=True, kw_only=True, tag="error"):
    """The request failed; the connection is closed after it."""

    error: WireError


class Resize(Message, frozen=True, kw_only=True, tag="resize"):
    """The client's terminal has another size now."""

    rows: TerminalSide
    cols: TerminalSide


class Eof(Message, frozen=True, kw_only=True, tag="eof"):
    """No more input comes."""


class SendSignal(Message, frozen=True, kw_only=True, tag="signal"):
    """Send a signal to the process and its group."""

    signal: Signal


class Refusal(Struct, frozen=True, kw_only=True):
    """The body of a request that was refused."""

    error: WireError


FromServer: TypeAlias = CaughtUp | Exit | Note | Times | EventBatch | Detached | End | Done | Failed
FromClient: TypeAlias = Resize | Eof | SendSignal | End

encode: Final = msgspec.json.Encoder().encode
decode_from_server: Final = msgspec.json.Decoder(FromServer).decode
decode_from_client: Final = msgspec.json.Decoder(FromClient).decode
_decode_refusal: Final = msgspec.json.Decoder(Refusal).decode


def wire_error(error: SandkeepError) -> WireError:
    """An error, ready to travel."""
    return WireError(code=error.code, message=error.message, data=error.data)


def as_exception(error: WireError) -> SandkeepError:
    """Convert an error from the wire into its exception."""
    return error_from(error.code, error.message, error.data)


def refusal_of(body: bytes) -> SandkeepError | None:
    """The error in the body of a refused request; None when it was not one of ours that answered."""
    try:
        return as_exception(_decode_refusal(body).error)
    except msgspec.DecodeError:
        return None
