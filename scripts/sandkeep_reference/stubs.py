"""Text of `typed.pyi`: both clients' methods as signatures, so that type checkers and editors know the methods of the
table.

It is only read by type checkers; nothing imports it while the program runs.
"""

import types
import typing
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final, Literal

import msgspec

from sandkeep import model
from sandkeep.protocol import methods
from sandkeep.protocol.methods import METHODS, Method, Mutation, Params

_LINE_COLUMNS: Final = 120
_HEAD: Final = '''\
"""The methods of both clients. Written by `make docs`: do not edit."""

# ruff: noqa: PYI021

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict, Unpack

from sandkeep import model
from sandkeep.protocol import methods

# The optional parameters of each method, for both clients.

class _Call(TypedDict, total=False):
    progress: Callable[[str], None] | None

class _Change(_Call, total=False):
    command_id: str | None
'''


def stub() -> str:
    """Return the text of `typed.pyi`."""
    nouns = {noun: list(rows) for noun, rows in groupby(METHODS.values(), key=_noun)}
    blocks = [_HEAD]
    params = dict.fromkeys(row.params for row in METHODS.values() if not row.descriptors)
    blocks += ["\n".join(_options(kind)) for kind in params if _fields(kind, required=False)]
    for prefix, keyword in (("Trio", "async def"), ("Blocking", "def")):
        blocks += ["\n".join(_class(prefix, keyword, noun, rows)) for noun, rows in nouns.items()]
        blocks.append("\n".join(_whole(prefix, nouns)))
    return "\n".join(f"{block.rstrip()}\n" for block in blocks)


def type_text(annotation: Any) -> str:
    """Return an annotation as source text, without its constraints beyond the type."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return type_text(args[0])
    if origin is Literal:
        return f"Literal[{', '.join(repr(arg).replace(chr(39), chr(34)) for arg in args)}]"
    if origin in (typing.Union, types.UnionType):
        return " | ".join(dict.fromkeys(type_text(arg) for arg in args))
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(type_text, args))}]"
    if annotation is None or annotation is type(None):
        return "None"
    if annotation is Any:
        return "Any"
    home = {model.__name__: "model.", methods.__name__: "methods."}.get(annotation.__module__, "")
    return f"{home}{annotation.__name__}"


def _noun(row: Method) -> str:
    return row.name.partition(".")[0]


def _class(prefix: str, keyword: str, noun: str, rows: list[Method]) -> Iterator[str]:
    yield f"class {prefix}{noun.title()}:"
    for row in rows:
        if not row.descriptors:  # `with_descriptors` calls those
            yield from _signature(row, keyword)


def _options(params: type[Params]) -> Iterator[str]:
    base = "_Change" if issubclass(params, Mutation) else "_Call"
    yield f"class _{params.__name__}({base}, total=False):"
    yield from (f"    {name}: {kind}" for name, kind in _fields(params, required=False))


def _signature(row: Method, keyword: str) -> Iterator[str]:
    named = f"_{row.params.__name__}" if _fields(row.params, required=False) else "_Change" if row.mutates else "_Call"
    given = "".join(f"{name}: {kind}, " for name, kind in _fields(row.params, required=True))
    name = row.name.partition(".")[2]
    start, params = f"    {keyword} {name}(", f"self, {given}**options: Unpack[{named}]"
    end = f") -> {type_text(row.result)}:"
    fits = len(start + params + end) <= _LINE_COLUMNS
    yield from [start + params + end] if fits else [start, f"        {params}", f"    {end}"]
    yield f'        """{row.summary}"""'


def _fields(params: type[Params], *, required: bool) -> list[tuple[str, str]]:
    """Return the names and types of the parameters that a call must, or may, give, but for `command_id`."""
    hints = typing.get_type_hints(params, include_extras=True)
    fields = [field for field in msgspec.structs.fields(params) if field.name != "command_id"]
    return [(field.name, _given(hints[field.name])) for field in fields if field.required == required]


def _given(annotation: Any) -> str:
    """Return a parameter's type. `Sequence` takes more than a list does, and no method here is named so."""
    return type_text(annotation).replace("list[", "Sequence[")


def _whole(prefix: str, nouns: dict[str, list[Method]]) -> Iterator[str]:
    yield f"class {prefix}Methods:"
    for noun in nouns:
        yield f"    {noun}: {prefix}{noun.title()}"
