"""Binding of ``client.noun.verb(...)`` to a row of the table, for all clients, without any I/O but for a look at the
source of an image."""

from collections.abc import Callable
from functools import cache
from math import isfinite
from os import PathLike, fspath
from typing import Any, Final, TypeVar

import msgspec

from sandkeep.clients.host_paths import resolve
from sandkeep.errors import CallerError, DaemonError
from sandkeep.ids import new_id
from sandkeep.protocol.jsonrpc import Answer
from sandkeep.protocol.methods import METHODS, Method, Params

T = TypeVar("T")

_PLAIN: Final = frozenset((bytes, bytearray, memoryview, int, float, bool, type(None)))
_SYNONYMS: Final = {
    "cwd": "working_dir", "workdir": "working_dir", "environment": "env", "input": "stdin", "content": "data",
}  # fmt: skip
"""Names that `subprocess`, Docker's SDK and E2B's have for parameters."""

COLLECTIONS: Final = (
    "sandboxes",
    "processes",
    "images",
    "volumes",
    "snapshots",
    "checkpoints",
    "artifacts",
    "sessions",
)
"""Attributes of a client that answer handles: see `handles`, which only those who use them import."""


class Identified:
    """An object that stands for its `id` in a call."""

    id: str


class Nouns:
    """Gives an object an attribute for each noun of the table, and that one for each verb: ``client.sandbox.get``. In
    the plural, ``client.sandboxes``, it is a collection of handles.

    The object's own `_call` is called with the row, and with the arguments as they were given.
    """

    _call: Callable[..., Any]
    _shield: Callable[..., Any] | None = None
    """With an event loop: await a function, also when the task is cancelled."""

    def __getattr__(self, noun: str) -> Any:
        if noun in COLLECTIONS:
            from sandkeep.clients import handles

            return handles.collection(handles.Transport(self, carrier(self._call), self._shield), noun)
        if not any(name.startswith(f"{noun}.") for name in METHODS):
            from sandkeep.clients.habits import missing

            raise missing(self, noun)
        verbs = Verbs(noun, self._call)
        setattr(self, noun, verbs)
        return verbs

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *COLLECTIONS, *(name.partition(".")[0] for name in METHODS)})


class Verbs:
    """The methods of one noun, as functions."""

    @property
    def __doc__(self) -> str:  # type: ignore[override, mutable-override]
        from sandkeep.clients.signatures import overview

        return overview(self._noun)

    def __repr__(self) -> str:
        return f"<methods of {self._noun}: see help()>"

    def __init__(self, noun: str, call: Callable[..., Any]) -> None:
        self._noun = noun
        self._call = call

    def __getattr__(self, verb: str) -> Any:
        row = METHODS.get(f"{self._noun}.{verb}")
        if row is None:
            raise AttributeError(f"there is no method {self._noun}.{verb}", name=verb, obj=self)
        function = ClientMethod(self._call, row)
        setattr(self, verb, function)
        return function

    def __dir__(self) -> list[str]:
        return [name.partition(".")[2] for name in METHODS if name.startswith(f"{self._noun}.")]


class ClientMethod:
    """A row's method of a client: a function with the row's signature and docstring, made for who asks for them.

    No `partial`, of which `help` of Python 3.13 shows no signature. `__code__` and what is with it tell `inspect`
    whether it is to be awaited.
    """

    def __init__(self, call: Callable[..., Any], row: Method) -> None:
        self._call = call
        self._row = row
        self.__defaults__ = self.__kwdefaults__ = None
        self.__annotations__ = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make the call."""
        return self._call(self._row, *args, **kwargs)

    @property
    def __code__(self) -> Any:
        return self._call.__code__

    @property
    def __signature__(self) -> Any:
        from sandkeep.clients.signatures import signature

        return signature(self._row)

    @property
    def __doc__(self) -> str:  # type: ignore[override, mutable-override]
        from sandkeep.clients.signatures import docstring

        return docstring(self._row)

    @property
    def __name__(self) -> str:
        return str(self._row.name.partition(".")[2])

    def __get__(self, instance: object, owner: type | None = None) -> "ClientMethod":
        return self  # `help` shows the signature of descriptors and functions, and of no other object

    def __repr__(self) -> str:
        return f"<method {self._row.name} of a Sandkeep client>"


def carrier(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that carries out steps of operations, by `call`: see `operations`."""
    return lambda row, args, kwargs: call(row, *args, **kwargs)


def bind(row: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a call by name: positional arguments follow the fields of the row's type, in their order.

    A method that changes something gets a command_id if it was given none. Raises TypeError, as a function would, and
    `invalid` for a number that cannot be sent.
    """
    names, required, positional = parameters(row.params)
    if len(args) > positional:
        raise TypeError(f"{row.name}() takes at most {positional} positional arguments, not {len(args)}")
    params = dict(zip(names, args, strict=False))
    for given, value in kwargs.items():
        name = _SPELLINGS.get(given, given) if given not in names else given
        if name in params:
            raise TypeError(f"{row.name}() got more than one value for {name!r}")
        if name not in names and not (row.mutates and name == "command_id"):
            raise TypeError(f"{row.name}() has no parameter {given!r}: {_suggestion(given, names)}")
        params[name] = value
    if missing := [name for name in required if name not in params]:
        raise TypeError(f"{row.name}() needs {', '.join(missing)}")
    resolve(row.name, params)
    for name, value in params.items():
        if isinstance(value, str):
            if name in _bytes_of(row.params):
                params[name] = value.encode()  # in JSON bytes are base64, for which text must not be taken
        elif type(value) not in _PLAIN:
            params[name] = _sendable(row, name, value)
        elif type(value) is float and not isfinite(value):  # JSON has no such number, and would say null instead
            raise CallerError("invalid", f"{name}: must be a finite number, not {value}", field=name)
    if row.mutates and params.get("command_id") is None:
        params["command_id"] = new_id("cmd")
    return params


def _sendable(row: Method, name: str, value: Any) -> Any:
    """Return a value that JSON can express: an object's id, a path as text. Raises TypeError, and `invalid` for text
    that is not UTF-8, naming the parameter.
    """
    value = _plain(value)
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError:
        raise CallerError("invalid", f"{name}: must be valid UTF-8", field=name) from None
    except TypeError as error:
        raise TypeError(f"{row.name}() cannot send {name}: {error}") from None
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Identified):
        return value.id
    if isinstance(value, PathLike):
        return fspath(value)
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


_SPELLINGS: Final = {"timeout": "timeout_s"}
"""Parameters as `subprocess` and other SDKs call them, and ours: taken as such, as they mean the same."""


def _suggestion(name: str, names: tuple[str, ...]) -> str:
    from difflib import get_close_matches

    known = _SYNONYMS.get(name)
    close = [known] if known in names else get_close_matches(name, names, 1, 0.5)
    return f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(names) or 'none'}"


@cache
def _bytes_of(params: type[Params]) -> frozenset[str]:
    """Return the parameters that are bytes."""
    return frozenset(field.name for field in msgspec.structs.fields(params) if _is_bytes(field.type))


def _is_bytes(annotation: Any) -> bool:
    return annotation is bytes or any(map(_is_bytes, getattr(annotation, "__args__", ())))


@cache
def parameters(params: type[Params]) -> tuple[tuple[str, ...], tuple[str, ...], int]:
    """Return the names that a call may give, in order, those it must, and how many of the first may be positional: as
    in any function, all before one that must be given after one that need not.
    """
    fields = [field for field in msgspec.structs.fields(params) if field.name != "command_id"]
    optional = next((n for n, field in enumerate(fields) if not field.required), len(fields))
    positional = next((n for n, field in enumerate(fields) if field.required and n > optional), len(fields))
    return tuple(field.name for field in fields), tuple(field.name for field in fields if field.required), positional


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
