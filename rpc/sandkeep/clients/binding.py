"""Binding of ``client.noun.verb(...)`` to a row of the table, for both clients, without any I/O."""

from collections.abc import Callable
from functools import cache, partial
from math import isfinite
from typing import Any, TypeVar

import msgspec

from sandkeep.errors import CallerError, DaemonError
from sandkeep.ids import new_id
from sandkeep.protocol.jsonrpc import Answer
from sandkeep.protocol.methods import METHODS, Method, Mutation

T = TypeVar("T")


class Nouns:
    """Gives an object an attribute for each noun of the table, and that one for each verb: ``client.sandbox.get``.

    The object's own `_call` is called with the row, and with the arguments as they were given.
    """

    _call: Callable[..., Any]

    def __getattr__(self, noun: str) -> Any:
        if not any(name.startswith(f"{noun}.") for name in METHODS):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {noun!r}", name=noun, obj=self)
        verbs = Verbs(noun, self._call)
        setattr(self, noun, verbs)
        return verbs

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name.partition(".")[0] for name in METHODS)})


class Verbs:
    """The methods of one noun, as functions."""

    def __init__(self, noun: str, call: Callable[..., Any]) -> None:
        self._noun = noun
        self._call = call

    def __getattr__(self, verb: str) -> Any:
        row = METHODS.get(f"{self._noun}.{verb}")
        if row is None:
            raise AttributeError(f"there is no method {self._noun}.{verb}", name=verb, obj=self)
        function = partial(self._call, row)
        setattr(self, verb, function)
        return function

    def __dir__(self) -> list[str]:
        return [name.partition(".")[2] for name in METHODS if name.startswith(f"{self._noun}.")]


def bind(row: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a call by name: positional arguments follow the fields of the row's type, in their order.

    A method that changes something gets a command_id if it was given none. Raises TypeError, as a function would, and
    `invalid` for a number that cannot be sent.
    """
    names, required = _signature(row.params)
    if len(args) > len(names):
        raise TypeError(f"{row.name}() takes at most {len(names)} positional arguments, not {len(args)}")
    params = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name in params:
            raise TypeError(f"{row.name}() got more than one value for {name!r}")
        if name not in names and not (row.mutates and name == "command_id"):
            raise TypeError(f"{row.name}() has no parameter {name!r}: it takes {', '.join(names) or 'none'}")
        params[name] = value
    if missing := [name for name in required if name not in params]:
        raise TypeError(f"{row.name}() needs {', '.join(missing)}")
    for name, value in params.items():
        if isinstance(value, float) and not isfinite(value):  # JSON has no such number, and would say null instead
            raise CallerError("invalid", f"{name}: must be a finite number, not {value}", field=name)
    if row.mutates and params.get("command_id") is None:
        params["command_id"] = new_id("cmd")
    return params


@cache
def _signature(params: type[Mutation]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names that a call may give, in order, and those it must."""
    fields = [field for field in msgspec.structs.fields(params) if field.name != "command_id"]
    return tuple(field.name for field in fields), tuple(field.name for field in fields if field.required)


def identified(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Parameters as they are, and a command_id for a method that is known to change something and has none."""
    row = METHODS.get(method)
    if row is None or not row.mutates or params.get("command_id") is not None:
        return params
    return {**params, "command_id": new_id("cmd")}


def check_plain(method: str) -> None:
    """Raise `invalid` for a method whose descriptors would be lost in a plain call."""
    row = METHODS.get(method)
    if row is not None and row.descriptors:
        message = f"{method} hands over open descriptors: call with_descriptors({method!r}, ...) of a Python client"
        raise CallerError("invalid", message)


def outcome(answer: Answer, kind: type[T]) -> T:
    """Return an answer's result as that type, or raise its error."""
    if answer.error is not None:
        raise answer.error.to_exception()
    try:
        return msgspec.json.decode(answer.result, type=kind)
    except msgspec.DecodeError as error:
        raise DaemonError("internal", f"invalid answer from the daemon; is it of another version? {error}") from None
