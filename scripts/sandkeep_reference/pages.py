"""Pages of the reference, from the tables that the programs run by; and a check for stale ones.

The manual page, and `typed.pyi`, the clients' signatures, are written and checked with them.
"""

import os
import types
import typing
from collections.abc import Callable, Iterator
from http import HTTPStatus
from itertools import groupby
from typing import Any, Final

import msgspec
from msgspec import Struct

import sandkeep
from sandkeep import events, model
from sandkeep.cli.commands.manual import man_page
from sandkeep.clients.signatures import type_text
from sandkeep.errors import CODES, MEANINGS
from sandkeep.protocol import methods
from sandkeep.protocol.jsonrpc import number_of
from sandkeep.protocol.methods import METHODS, Access, Method
from sandkeep.protocol.openrpc import error_codes
from sandkeep.settings.all import ALL_SETTINGS
from sandkeep_reference import stubs
from sandkeep_reference.command import cli_page
from sandkeep_reference.layout import anchor, item, paragraphs, table, wrap
from sandkeep_reference.lifecycles import lifecycles_page
from sandkeepd.http import bodies, problems
from sandkeepd.http.routes import ROWS
from sandkeepd.http.row import JSON, PREFIX, Row

_TYPED: Final = os.path.join(os.path.dirname(os.path.abspath(sandkeep.__file__)), "typed.pyi")
_MADE: Final = "<!-- Written by `make docs`: do not edit. -->"


def write(directory: str) -> None:
    """Write every page into `directory`, and the clients' signatures into the SDK."""
    os.makedirs(directory, exist_ok=True)
    for path, text in _files(directory):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)


def stale(directory: str) -> list[str]:
    """Return the paths of the files that are missing or differ from the tables."""
    return [path for path, text in _files(directory) if _read(path) != text]


def _files(directory: str) -> Iterator[tuple[str, str]]:
    for name, make in PAGES.items():
        yield os.path.join(directory, name), f"{_MADE}\n\n" + "\n".join(make()).rstrip() + "\n"
    yield os.path.join(directory, "sandkeep.1"), man_page()
    yield _TYPED, stubs.stub()


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


# -- methods ----------------------------------------------------------------------------------------------------------


def methods_page() -> Iterator[str]:
    """Every method, and then every type that one of them answers."""
    yield "# Methods"
    yield ""
    yield from wrap(
        "JSON-RPC 2.0 on the Unix socket, one UTF-8 JSON message a line, at most 16 MiB. Parameters are by name. "
        "`rpc.discover` returns the same as an OpenRPC document. A method that changes something takes an idempotency "
        "key, `command_id`: a repeat within a day gets the first answer, and nothing is executed twice."
    )
    for noun, rows in groupby(METHODS.values(), key=lambda row: row.name.partition(".")[0]):
        yield from ("", f"## {noun}")
        for row in rows:
            yield from _method(row)
    yield from ("", "## Types")
    for kind in _result_types():
        yield from ("", f"### {kind.__name__}", "", *_prose(kind), "", *_fields(kind))


def _method(row: Method) -> Iterator[str]:
    yield from ("", f"### {row.name}", "", *wrap(row.summary))
    if row.params is not methods.NoParams:
        yield from _prose(row.params)
    yield from ("", *_fields(row.params, without="command_id"))
    yield from item(f"Answers: {_type_link(row.result)}")
    yield from item(f"Access: {_access(row)}")
    yield from item(f"Mutates: {_change(row)}")
    if row.descriptors:
        yield f"- Passes, ahead of the answer: {row.descriptors} open descriptor{'s'[: row.descriptors - 1]}"
    yield f"- Deadline: {'none' if row.deadline_s is None else f'{row.deadline_s:g} s'}"
    yield from item(f"Errors: {', '.join(f'[`{code}`](errors.md#{code})' for code in error_codes(row))}")


def _change(row: Method) -> str:
    if not row.mutates:
        return "no"
    return "yes" if row.intent is None else f"yes; intent: `{row.intent}`"


def _access(row: Method) -> str:
    only = ", ".join(f"`{name}={value!r}`" for name, value in row.admin_if.items())
    named = ", ".join(f"`{name}`" for name in row.references)
    about = f" ({named})" if named and row.access is Access.OWNER else ""
    return f"{row.access.value}{about}" + (f"; {only} only for administrators" if only else "")


def _result_types() -> list[type[Struct]]:
    """Every type that is part of a call, an answer or an event, once, in the order of the tables."""
    found: dict[type[Struct], None] = {}
    for row in METHODS.values():
        _collect(row.result, found)
        _collect(row.params, found)
    for event in events.EVENTS.values():
        _collect(event, found)
    return [kind for kind in found if not issubclass(kind, events.Event | methods.Params)]


def _collect(annotation: Any, found: dict[type[Struct], None]) -> None:
    if isinstance(annotation, type) and issubclass(annotation, Struct) and annotation not in found:
        found[annotation] = None
        for hint in typing.get_type_hints(annotation, include_extras=True).values():
            _collect(hint, found)
    for part in typing.get_args(annotation):
        _collect(part, found)


# -- events, errors, settings -----------------------------------------------------------------------------------------


def events_page() -> Iterator[str]:
    """Every event, by its first word."""
    yield "# Events"
    yield ""
    yield from wrap(
        f"An event is at most {events.MAX_EVENT_BYTES // 1024} KiB. Its envelope is [Event](methods.md#event-1). "
        "This page has the `data` of each. An intent is durable before its effect, and one of its outcomes follows, at "
        "the latest after the next start of the daemon."
    )
    for noun, kinds in groupby(events.EVENTS.items(), key=lambda item: item[0].partition(".")[0]):
        yield from ("", f"## {noun}")
        for name, kind in kinds:
            yield from (
                "",
                f"### {name}",
                "",
                *_prose(kind),
                "",
                *wrap(f"Version {kind.version}.{_outcomes(kind)}"),
                "",
                *_fields(kind),
            )


def _outcomes(kind: type[events.Event]) -> str:
    return f" Outcomes: {', '.join(f'`{name}`' for name in kind.outcomes)}." if kind.outcomes else ""


def errors_page() -> Iterator[str]:
    """Every code."""
    yield "# Errors"
    yield ""
    yield from wrap(
        "An error's `data.code` is one of these, whose meaning never changes. `code` is the number of JSON-RPC. In "
        "Python each code belongs to a class, by cause; all are `SandkeepError`. Invalid JSON has the number -32700, "
        "an invalid request -32600, an unknown method -32601; their `data.code` is `invalid`."
    )
    for kind, codes in groupby(CODES, key=lambda code: CODES[code]):
        yield from ("", f"## {kind.__name__}", "", *_prose(kind))
        for code in codes:
            yield from ("", f"### {code}", "", *wrap(f"{MEANINGS[code]} ({number_of(code)})"))


def settings_page() -> Iterator[str]:
    """Every setting."""
    yield "# Settings"
    yield ""
    yield from wrap(
        "Environment variables, each read when it is used. An invalid value fails with `not_configured`, and the "
        "message names the variable: for `SANDKEEP_...` already the start of the daemon. A variable of that prefix "
        "that is like one of these is a warning in its log."
    )
    for setting in ALL_SETTINGS.values():
        yield from ("", f"## {setting.name}", "", *wrap(setting.summary))
        yield from ("", *wrap(f"Default: {setting.shown_default}"))


# -- the parts of a page ----------------------------------------------------------------------------------------------


def _prose(kind: type) -> list[str]:
    return paragraphs((kind.__doc__ or "").replace("``", "`"))


def _fields(kind: type[Struct], without: str = "") -> Iterator[str]:
    fields = [field for field in msgspec.structs.fields(kind) if field.name != without]
    if not fields:
        return
    hints = typing.get_type_hints(kind, include_extras=True)
    rows = [(f"`{f.name}`", _type_link(hints[f.name]), _default(f), _limits(hints[f.name])) for f in fields]
    yield from table(("field", "type", "default", ""), rows) or (line for row in rows for line in _field(*row))
    yield ""


def _field(name: str, kind: str, default: str, limits: str) -> list[str]:
    shown = default if default == "required" else f"default {default}"
    return item(f"{name}, {kind}, {shown}" + (f": {limits}" if limits else ""))


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    if field.default_factory is not msgspec.NODEFAULT:
        return f"`{msgspec.json.encode(field.default_factory()).decode()}`"
    return f"`{msgspec.json.encode(field.default).decode()}`"


def _type_link(annotation: Any) -> str:
    text = type_text(annotation)
    for module in (model.__name__, methods.__name__):
        text = text.replace(module.rpartition(".")[2] + ".", "")
    kind = next(iter(_structs_in(annotation)), None)
    if kind is not None and issubclass(kind, events.Event):
        return f"[`{kind.type}`](events.md#{anchor(kind.type)})"
    if kind is not None and kind.__module__ == bodies.__name__:
        return f"[`{text}`](#{kind.__name__.lower()})"
    return f"[`{text}`](methods.md#{_type_anchor(kind)})" if kind else f"`{text}`"


def _type_anchor(kind: type) -> str:
    """Return the anchor of a type: the second of that name if methods have it as their group, which comes first."""
    name = kind.__name__.lower()
    return f"{name}-1" if any(method.startswith(f"{name}.") for method in METHODS) else name


def _structs_in(annotation: Any) -> Iterator[type[Struct]]:
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _structs_in(part)


def _limits(annotation: Any) -> str:
    """Return an annotation's constraints beyond the type, for people."""
    said: list[str] = []
    for meta in _metas(annotation):
        bounds = {"at least": meta.ge, "more than": meta.gt, "at most": meta.le, "less than": meta.lt}
        sizes = {"at least": meta.min_length, "at most": meta.max_length}
        said += [f"{words} {limit:,}" for words, limit in bounds.items() if limit is not None]
        said += [
            f"{words} {limit:,} long" for words, limit in sizes.items() if limit is not None and not meta.description
        ]
        said += [meta.description.rstrip(".")] if meta.description else []
    return "; ".join(dict.fromkeys(said))


def _metas(annotation: Any) -> Iterator[msgspec.Meta]:
    """Yield the constraints of a value itself, and not of its items."""
    yield from (meta for meta in getattr(annotation, "__metadata__", ()) if isinstance(meta, msgspec.Meta))
    if typing.get_origin(annotation) in (typing.Annotated, typing.Union, types.UnionType):
        for part in typing.get_args(annotation):
            if not isinstance(part, msgspec.Meta):
                yield from _metas(part)


# -- HTTP -------------------------------------------------------------------------------------------------------------


def http_page() -> Iterator[str]:
    """Every route of the HTTP gateway, and then the types of its bodies."""
    yield from ("# HTTP", "")
    yield from wrap(
        "The routes of the gateway that `SANDKEEP_HTTP` switches on. A request needs an API key of `sandkeep key "
        f"create`, in `X-Api-Key` or as a bearer token. `GET {PREFIX}/openapi.json` returns the same as an OpenAPI "
        "document, without a key. Each route calls a [method](methods.md); where that changes something, the header "
        "`Idempotency-Key` is its `command_id`. JSON bodies have at most 1 MiB. A path is the same without its last "
        "slash."
    )
    yield ""
    yield from wrap(
        "Errors are problem documents (RFC 9457, `application/problem+json`) whose `code` is one of the "
        "[codes](errors.md). Their statuses, of any route:"
    )
    statuses = {**problems.STATUS, "any other code": HTTPStatus.CONFLICT}
    yield from ("", *table(("code", "status"), [(code, f"{s.value} {s.phrase}") for code, s in statuses.items()]), "")
    yield from wrap(
        "Besides these: 401 without a valid key, 405 for another method of HTTP, 408 for a body that does not go on, "
        "413 for one that is too long, 415 for one with a `Content-Encoding`, 431 for a head of more than 16 KiB, and "
        "429 for a key with 256 requests under way. A failed `POST /sessions/` is 404 if the snapshot cannot be "
        "restored with which it was to begin, else 400; its `code` says why."
    )
    for row in ROWS:
        yield from _route(row)
    yield from ("", "## Types")
    types = (body for row in ROWS for body in (row.body, row.query, row.answer) if body is not None)
    for kind in dict.fromkeys(next(_structs_in(body)) for body in types):
        if kind.__struct_fields__:
            yield from ("", f"### {kind.__name__}", "", *_prose(kind), "", *_fields(kind))


def _route(row: Row) -> Iterator[str]:
    yield from ("", f"## {row.verb} {PREFIX}{row.path}", "", *wrap(row.summary), "")
    yield f"- Calls: [`{row.operation}`](methods.md#{anchor(row.operation)})"
    if row.query.__struct_fields__:
        yield f"- Query: {_body_link(row.query)}"
    if row.body is not None or row.takes != JSON:
        yield f"- Body: {_body_link(row.body) if row.body is not None else f'`{row.takes}`'}"
    if row.statuses:
        answer = _body_link(row.answer) if row.answer is not None else "none" if row.sends == JSON else f"`{row.sends}`"
        yield f"- Answers: {' or '.join(map(str, row.statuses))}, {answer}"


def _body_link(annotation: Any) -> str:
    kind = next(_structs_in(annotation))
    return f"[{kind.__name__}](#{kind.__name__.lower()})" + ("" if kind is annotation else ", in a list")


PAGES: Final[dict[str, Callable[[], Iterator[str]]]] = {
    "methods.md": methods_page,
    "events.md": events_page,
    "lifecycles.md": lifecycles_page,
    "errors.md": errors_page,
    "settings.md": settings_page,
    "cli.md": cli_page,
    "http.md": http_page,
}
