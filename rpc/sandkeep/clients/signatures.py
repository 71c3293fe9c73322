"""Signatures and docstrings of the table's methods, as `inspect`, `help` and editors show them.

Only they, and the generator of `typed.pyi`, import this: no call needs it.
"""

import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from inspect import Parameter, Signature, cleandoc
from os import PathLike
from typing import Any, Final, Literal

import msgspec

from sandkeep import model
from sandkeep.clients.binding import parameters
from sandkeep.protocol.methods import METHODS, Method, Params

_COLUMNS: Final = 72
"""Width of docstrings: `help` indents those of a class by 8 of a terminal's 80 columns."""

_SIGNATURE_COLUMNS: Final = 56
"""Maximum width of a signature on one line, before which `help` writes ``async`` and the method's name."""

_EXTRA: Final = {
    "command_id": (str | None, "`command_id` is an idempotency key: a repeated call has its effect once."),
    "progress": (Callable[[str], None] | None, "`progress` is called with the messages of a long call."),
}
"""The parameters that are not a row's own, with their types and descriptions."""


class MethodSignature(Signature):
    """A signature whose text has a line for each parameter if it is too long for one line."""

    def __str__(self) -> str:
        return self.text()

    def format(self, **_: Any) -> str:
        """Return the same text for `help` of Python 3.13 and later, which gives a width."""
        return self.text()

    def text(self, name: str = "", columns: int = _SIGNATURE_COLUMNS) -> str:
        """Return it as source text after a function's `name`."""
        params = list(_parameter_texts(self.parameters.values()))
        result = "" if self.return_annotation is Signature.empty else f" -> {type_text(self.return_annotation)}"
        line = f"{name}({', '.join(params)}){result}"
        if len(line) <= columns:
            return line
        return "\n".join([f"{name}(", *(f"    {param}," for param in params), f"){result}"])


def signature(row: Method, bound: Sequence[str] = (), hidden: Sequence[str] = ()) -> MethodSignature:
    """Return the signature of a row's method; without the parameters that are `bound` to a value, or `hidden`."""
    result = plain_type(row.result)
    return MethodSignature(list(_parameters(row, {*bound, *hidden})), return_annotation=result)


def docstring(row: Method, hidden: Sequence[str] = ()) -> str:
    """Return the summary of a row, the description of its parameters, and of those that are not the row's own."""
    notes = [_EXTRA[name][1] for name in _extra(row) if name not in hidden]
    described = cleandoc(row.params.__doc__ or "").split("\n\n") if row.params.__struct_fields__ else []
    return fill("\n\n".join([row.summary, *described, " ".join(notes)]))


def overview(noun: str) -> str:
    """Return the methods of a noun, each with its summary."""
    rows = [row for row in METHODS.values() if row.name.startswith(f"{noun}.")]
    return fill("\n\n".join(f"{row.name.partition('.')[2]}: {row.summary}" for row in rows))


def fill(text: str) -> str:
    """Wrap the paragraphs of a docstring to the width of help texts."""
    wrap = partial(textwrap.fill, width=_COLUMNS, break_long_words=False, break_on_hyphens=False)
    return "\n\n".join(map(wrap, filter(None, cleandoc(text).split("\n\n"))))


def type_text(annotation: Any) -> str:
    """Return an annotation as source text, without its constraints beyond the type."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return type_text(args[0])
    if origin is Literal:
        return f"Literal[{', '.join(repr(arg).replace(chr(39), chr(34)) for arg in args)}]"
    if origin in (typing.Union, types.UnionType):
        return " | ".join(dict.fromkeys(type_text(arg) for arg in args))
    if isinstance(annotation, list):
        return f"[{', '.join(map(type_text, annotation))}]"
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(type_text, args))}]"
    if annotation is None or annotation is type(None):
        return "None"
    if annotation is Any:
        return "Any"
    home = {"sandkeep.model": "model.", "sandkeep.protocol.methods": "methods."}.get(annotation.__module__, "")
    return f"{home}{annotation.__name__}"


def plain_type(annotation: Any, *, given: bool = False) -> Any:
    """Return an annotation without constraints. What is `given` may be any sequence for a list, text for bytes, an
    object for a path.
    """
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if given and annotation == model.Path:
        return str | PathLike[str]
    if origin is typing.Annotated:
        return plain_type(args[0], given=given)
    if annotation is bytes and given:
        return bytes | str
    if origin is None or origin is Literal:
        return annotation
    plain = tuple(plain_type(arg, given=given and origin is not dict) for arg in args)
    if origin in (typing.Union, types.UnionType):
        return typing.Union[plain]  # noqa: UP007 - of any number of types
    return (Sequence if origin is list and given else origin)[plain[0] if len(plain) == 1 else plain]


def _parameters(row: Method, without: set[str]) -> Iterator[Parameter]:
    hints, fields = _annotations(row.params), {field.name: field for field in msgspec.structs.fields(row.params)}
    names, _, positional = parameters(row.params)
    for number, name in enumerate(names):
        if name not in without:
            kind = Parameter.POSITIONAL_OR_KEYWORD if number < positional else Parameter.KEYWORD_ONLY
            annotation = plain_type(hints[name], given=True)
            yield Parameter(name, kind, default=_default(fields[name]), annotation=annotation)
    for name in _extra(row):
        if name not in without:
            yield Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=_EXTRA[name][0])


def _extra(row: Method) -> tuple[str, ...]:
    """Return the names of the parameters that are not the row's own."""
    return ("command_id", "progress") if row.mutates else ("progress",)


@cache
def _annotations(params: type[Params]) -> dict[str, Any]:
    return typing.get_type_hints(params, include_extras=True)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return Parameter.empty if field.default is msgspec.NODEFAULT else field.default


def _parameter_texts(params: typing.Iterable[Parameter]) -> Iterator[str]:
    starred = False
    for param in params:
        if param.kind is Parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        typed = "" if param.annotation is Parameter.empty else f": {type_text(param.annotation)}"
        default = repr(param.default).replace("'", '"')
        yield f"{param.name}{typed}{'' if param.default is Parameter.empty else f' = {default}'}"
