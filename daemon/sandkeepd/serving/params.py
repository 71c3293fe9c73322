"""Decoding of a method's parameters, with errors that name the field and its valid values.

An error never repeats a value, which may be a secret. The text is based on msgspec's; where that would show a value or
a regular expression, the field's own annotation describes valid values.
"""

import re
import typing
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from sandkeep.errors import CallerError
from sandkeep.protocol.methods import Params

_PLACE: Final = re.compile(r" - at (`key` in )?`\$\.?((\w*)[^`]*)`$")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*?)`(?= - at `|$)", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`")
_EXPECTED: Final = re.compile(
    r"^Expected `([\w |]+)`(?: of length ([<>]=) (\d+)| ([<>]=?) ([-+.\w]+))?(?:, got `(\w+)`)?$"
)
_TYPES: Final = {
    "str": "a string",
    "bytes": "base64",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
}
_UNITS: Final = {"str": "character", "bytes": "byte", "array": "element", "object": "entry"}
_BOUNDS: Final = {"<=": "at most", ">=": "at least", "<": "less than", ">": "more than"}


def decoder(params: type[Params]) -> Callable[[Raw], Params]:
    """A function that decodes parameters of this type; it raises `invalid`, naming the field, for any others."""
    decode = msgspec.json.Decoder(params).decode

    def decode_or_refuse(raw: Raw) -> Params:
        try:
            return decode(raw)
        except (msgspec.DecodeError, RecursionError) as error:
            raise refusal(params, str(error)) from None

    return decode_or_refuse


def refusal(params: type[Struct], message: str) -> CallerError:
    """The error for parameters that msgspec refused with the problem `message`."""
    place = _PLACE.search(message)
    field, path = (place[3], place[2].replace("[...]", "")) if place else ("", "")
    if unknown := _UNKNOWN.match(message):
        name = unknown[1][:64]
        return _invalid(field or name, "there is no such parameter", f"{path}.{name}" if path else name)
    if missing := _MISSING.match(message):
        return _invalid(field or missing[1], "is missing", f"{path}.{missing[1]}" if path else missing[1])
    if place is None or not field:
        return _invalid("params", "give an object that holds the parameters by name")
    annotation = typing.get_type_hints(params, include_extras=True).get(field)
    problem = _rephrase(message[: place.start()], annotation)
    return _invalid(field, f"each name {problem}" if place[1] else problem, path)


def _invalid(field: str, problem: str, path: str | None = None) -> CallerError:
    """The error for a parameter, or for the part of it at a `path` such as ``volumes[0].source``."""
    return CallerError("invalid", f"{path or field}: {problem}", field=field)


def _rephrase(message: str, annotation: Any) -> str:
    """Rephrase msgspec's message about a field with this annotation, in the terms of JSON and without the value."""
    if message.startswith("Invalid enum value"):
        literals = [part for part in _walk(annotation) if typing.get_origin(part) is Literal]
        return "must be one of " + ", ".join(f"`{choice}`" for part in literals for choice in typing.get_args(part))
    if "matching regex" in message:
        return _describe_pattern(message, annotation)
    expected = _EXPECTED.match(message)
    return message if expected is None else _expectation(*expected.groups())


def _expectation(kinds: str, bound: str, length: str, compared: str, limit: str, given: str) -> str:
    wanted = " or ".join(_TYPES.get(kind, kind) for kind in kinds.split(" | "))
    if bound:
        unit = _UNITS.get(kinds, "element")
        units = unit if length == "1" else f"{unit}s" if unit != "entry" else "entries"
        return f"must be {wanted} of {_BOUNDS[bound]} {length} {units}"
    if compared:
        return f"must be {wanted}, {_BOUNDS[compared]} {limit}"
    return f"must be {wanted}" + (f", not {_TYPES.get(given, given)}" if given else "")


def _describe_pattern(message: str, annotation: Any) -> str:
    for meta in _walk(annotation):
        if isinstance(meta, Meta) and meta.description and repr(meta.pattern) in message:
            return f"must be {_lower(meta.description).rstrip('.')}"
    return "holds characters that are not allowed"


def _lower(description: str) -> str:
    """Begin a description with a small letter, unless it begins with an acronym."""
    start = description[:2]
    return description if start.isalpha() and start.isupper() else f"{start.lower()}{description[2:]}"


def _walk(annotation: Any) -> Iterator[Any]:
    """An annotation and all that it is made of, metadata and the fields of structs included."""
    yield annotation
    if typing.get_origin(annotation) is Literal:
        return
    parts = (*typing.get_args(annotation), *getattr(annotation, "__metadata__", ()))
    if isinstance(annotation, type) and issubclass(annotation, Struct):
        parts = tuple(typing.get_type_hints(annotation, include_extras=True).values())
    for part in parts:
        yield from _walk(part)
