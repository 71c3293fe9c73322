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

_PLACE: Final = re.compile(r" - at (?:`key` in )?`\$\.?(\w*)[^`]*`$")
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`")
_TYPES: Final = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}


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
    if unknown := _UNKNOWN.match(message):
        return _invalid(unknown[1][:64], "there is no such parameter")
    if missing := _MISSING.match(message):
        return _invalid(missing[1], "is missing")
    place = _PLACE.search(message)
    if place is None or not place[1]:
        return _invalid("params", "give an object that holds the parameters by name")
    return _invalid(
        place[1], _rephrase(message[: place.start()], typing.get_type_hints(params, include_extras=True).get(place[1]))
    )


def _invalid(field: str, problem: str) -> CallerError:
    return CallerError("invalid", f"{field}: {problem}", field=field)


def _rephrase(message: str, annotation: Any) -> str:
    """Rephrase msgspec's message about a field with this annotation, in the terms of JSON and without the value."""
    if message.startswith("Invalid enum value"):
        literals = [part for part in _walk(annotation) if typing.get_origin(part) is Literal]
        return "must be one of " + ", ".join(f"`{choice}`" for part in literals for choice in typing.get_args(part))
    if "matching regex" in message:
        return _describe_pattern(message, annotation)
    message = re.sub(
        r"`(\w+(?: \| \w+)*)`",
        lambda found: " or ".join(_TYPES.get(name, name) for name in found[1].split(" | ")),
        message,
    )
    return re.sub(
        r"^Expected (.*?)(?:, got (\w+))?$",
        lambda found: f"must be {found[1]}" + (f", not {found[2]}" if found[2] else ""),
        message,
    )


def _describe_pattern(message: str, annotation: Any) -> str:
    for meta in _walk(annotation):
        if isinstance(meta, Meta) and meta.description and repr(meta.pattern) in message:
            return f"must be {meta.description[0].lower()}{meta.description[1:].rstrip('.')}"
    return "holds characters that are not allowed"


def _walk(annotation: Any) -> Iterator[Any]:
    """An annotation and all that it is made of, metadata included."""
    yield annotation
    if typing.get_origin(annotation) is not Literal:
        for part in (*typing.get_args(annotation), *getattr(annotation, "__metadata__", ())):
            yield from _walk(part)
