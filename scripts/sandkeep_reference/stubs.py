"""Text of `typed.pyi`: the clients' methods and handles as signatures, so that type checkers and editors know them.

It is only read by type checkers; nothing imports it while the program runs. What it says is what `inspect` finds.
"""

import inspect
import typing
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final, Literal

from sandkeep import model
from sandkeep.clients import handles
from sandkeep.clients.kinds import KINDS, PLURALS, Kind
from sandkeep.clients.signatures import MethodSignature, docstring, signature, type_text
from sandkeep.protocol.methods import METHODS, Method

_LINE_COLUMNS: Final = 120
_HEAD: Final = '''\
"""The methods and handles of the clients. Written by `make docs`: do not edit."""

# ruff: noqa: A002, PYI021

import builtins
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from os import PathLike
from typing import Any, Literal, Self

from sandkeep import model
from sandkeep.protocol import methods
'''
PREFIXES: Final = {"Async": True, "Blocking": False}


def stub() -> str:
    """Return the text of `typed.pyi`."""
    nouns = {noun: list(rows) for noun, rows in groupby(METHODS.values(), key=lambda row: row.name.partition(".")[0])}
    blocks = [_HEAD, *("\n".join(_view(kind)) for kind in KINDS)]
    for prefix, asynchronous in PREFIXES.items():
        blocks += ["\n".join(_noun(prefix, noun, rows, asynchronous)) for noun, rows in nouns.items()]
        blocks.append("\n".join(_whole(prefix, nouns, asynchronous)))
        blocks += [
            "\n".join(_handle(made, asynchronous)) for made in handles.family(asynchronous=asynchronous).values()
        ]
    return "\n".join(f"{block.rstrip()}\n" for block in blocks)


def _noun(prefix: str, noun: str, rows: list[Method], asynchronous: bool) -> Iterator[str]:
    yield f"class {prefix}{noun.title()}Methods:"
    for row in rows:
        if not row.descriptors:  # `with_descriptors` calls those
            shown = signature(row)
            params = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD), *shown.parameters.values()]
            name = row.name.partition(".")[2]
            yield from _function(name, shown.replace(parameters=params), docstring(row), asynchronous)


def _whole(prefix: str, nouns: dict[str, list[Method]], asynchronous: bool) -> Iterator[str]:
    yield f"class {prefix}Methods:"
    for noun in nouns:
        yield f"    {noun}: {prefix}{noun.title()}Methods"
    for name, made in handles.family(asynchronous=asynchronous).items():
        if name in PLURALS:
            yield f"    {name}: {made.__name__}"


def _handle(made: type, asynchronous: bool) -> Iterator[str]:
    view = f"({_name_of_view(made._kind)})" if issubclass(made, handles.Handle) else ""  # noqa: SLF001
    yield f"class {made.__name__}{view}:"
    for name, value in vars(made).items():
        if isinstance(value, property):
            yield from _property(name, value.fget.__annotations__["return"])
        elif inspect.isfunction(value) and not name.startswith("_"):
            yield from _function(name, inspect.signature(value), value.__doc__, inspect.iscoroutinefunction(value))
    if hasattr(made, "__aexit__" if asynchronous else "__exit__"):
        yield from _block(asynchronous)


def _view(kind: Kind) -> Iterator[str]:
    """The fields of a view, which its handles have, too, with and without an event loop."""
    yield f"class {_name_of_view(kind)}:"
    yield f"    info: {type_text(kind.view)}"
    yield from _property("id", str)
    for name, hint in typing.get_type_hints(kind.view).items():
        yield from _property(name, hint)


def _name_of_view(kind: Kind) -> str:
    return f"_{kind.view.__name__}View"


def _property(name: str, annotation: Any) -> Iterator[str]:
    yield "    @property"
    yield f"    def {name}(self) -> {_alias(annotation) or type_text(annotation)}: ..."


def _alias(annotation: Any) -> str | None:
    """Return the name that the model gives to a choice, of which the words can be many."""
    is_choice = typing.get_origin(annotation) is Literal
    return next((f"model.{name}" for name, value in vars(model).items() if is_choice and value == annotation), None)


def _block(asynchronous: bool) -> Iterator[str]:
    keyword, letter = ("async def", "a") if asynchronous else ("def", "")
    yield f"    {keyword} __{letter}enter__(self) -> Self: ..."
    error = "kind: object, error: BaseException | None, trace: object"
    yield f"    {keyword} __{letter}exit__(self, {error}) -> None: ..."


def _function(name: str, shown: inspect.Signature, doc: str | None, asynchronous: bool) -> Iterator[str]:
    assert isinstance(shown, MethodSignature)
    columns = _LINE_COLUMNS - len("    builtins.:")
    text = shown.text(f"{'async ' if asynchronous else ''}def {name}", columns) + ":"
    text = text.replace("-> list[", "-> builtins.list[")  # some classes have a method of that name
    yield from (f"    {line}" for line in text.splitlines())
    first, *rest = (doc or "").splitlines()
    yield f'        """{first}' + ("" if rest else '"""')
    yield from (f"        {line}".rstrip() for line in rest)
    if rest:
        yield '        """'
