"""Handles: objects that call the table's methods with their own ids.

    sandbox = client.sandboxes.create(image)      # client.sandbox.create(image_id), and so on
    sandbox.exec("pytest -q").exit_code           # client.sandbox.exec(sandbox_id, "pytest -q").exit_code

The classes are made from the table: the methods of a noun whose first parameters are a handle's ids become methods of
the handle, the others of a collection. Views of objects become handles, lists of them lists of handles, with all pages.
Wherever a method asks for an id, it takes a handle, too. See `kinds`, and `operations` for the rest.
"""

import typing
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache, partial
from inspect import Parameter
from inspect import signature as signature_of
from typing import Any, ClassVar, Final, NoReturn

from msgspec import Struct

from sandkeep.clients.binding import Identified, parameters
from sandkeep.clients.habits import missing
from sandkeep.clients.kinds import KINDS, Bound, Kind, collection_methods, handle_methods, inner_collections
from sandkeep.clients.operations import ITERATORS, Files, end
from sandkeep.clients.signatures import MethodSignature, docstring, fill, signature
from sandkeep.clients.steps import Steps, run, run_async
from sandkeep.errors import SandkeepError
from sandkeep.protocol.methods import Method

_ANY_OF: Final = {"base": ("sandbox", "snapshot", "image")}
"""Parameters that name an object of several kinds."""

_REFRESH: Final = "Get the present view of the object as `info`, and return the handle."
_SELF: Final = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)


class Transport(Struct, frozen=True):
    """A client, the function that carries out an operation's step on it, and with an event loop one that awaits a
    function also when the task is cancelled.
    """

    client: Any
    carry_out: Callable[..., Any]
    shield: Callable[..., Any] | None = None


# -- the classes ------------------------------------------------------------------------------------------------------


class Handle(Identified):
    """An object of the daemon: its view as of the last call, `info`, whose fields are also the handle's own."""

    _kind: ClassVar[Kind]
    _transport: Transport
    info: Any

    def __init__(self, transport: Any, info: Any) -> None:
        self._transport = transport
        self.info = info

    @property
    def id(self) -> str:  # type: ignore[override]
        """The object's id."""
        return str(getattr(self.info, self._kind.key))

    @property
    def _ids(self) -> tuple[str, ...]:
        return tuple(getattr(self.info, name) for name in self._kind.ids.values())

    def __getattr__(self, name: str) -> Any:
        if name != "info" and hasattr(self.info, name):
            return getattr(self.info, name)
        raise missing(self, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.info.__struct_fields__})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and (self._kind, self._ids) == (other._kind, other._ids)

    def __hash__(self) -> int:
        return hash(self._ids)

    def __repr__(self) -> str:
        name, status = (getattr(self.info, field, None) for field in ("name", "status"))
        shown = [self.id, *([repr(name)] if name and name != self.id else []), *([status] if status else [])]
        return f"<{type(self).__name__} {' '.join(shown)}>"


class Collection:
    """The objects of one kind: all of the caller's, or those of a sandbox."""

    def __init__(self, transport: Any, ids: tuple[str, ...] = ()) -> None:
        self._transport = transport
        self._ids = ids

    def __getattr__(self, name: str) -> NoReturn:
        raise missing(self, name)


# -- `with` statements ------------------------------------------------------------------------------------------------


def _enter(self: Any) -> Any:
    return self


def _exit(self: Any, *raised: Any) -> None:
    """End the sandbox."""
    try:
        run(self._transport.carry_out, end(self._ids))
    except SandkeepError as failure:
        _report(raised[1], failure)


async def _async_enter(self: Any) -> Any:
    return self


async def _async_exit(self: Any, *raised: Any) -> None:
    """End the sandbox, also when the block is cancelled."""
    try:
        await self._transport.shield(partial(run_async, self._transport.carry_out, end(self._ids)))
    except SandkeepError as failure:
        _report(raised[1], failure)


def _report(error: BaseException | None, failure: SandkeepError) -> None:
    if error is None:
        raise failure
    error.add_note(f"The sandbox was not ended, either: {failure}")  # the block's own error says more


# -- making the classes -----------------------------------------------------------------------------------------------


def collection(transport: Transport, plural: str) -> Any:
    """Return a client's collection, such as ``sandboxes``."""
    return _family_of(transport)[plural](transport)


def named(name: str) -> type:
    """Return a class of handles by its name, as modules have it on first use."""
    classes = family(asynchronous=name.startswith("Async"))
    return next(classes[kind.noun] for kind in KINDS if classes[kind.noun].__name__ == name)


def _call(bound: Bound, transport: Transport, ids: tuple[str, ...], args: tuple[Any, ...], kwargs: Any) -> Steps[Any]:
    """Call a row, and answer handles for the objects in its result."""
    names = parameters(bound.row.params)[0]
    for name in (*names[: len(ids) + len(args)], *kwargs):
        if name in bound.hidden:
            raise TypeError(f"{bound.name}() has no parameter {name!r}: it lists all")
    result = yield bound.row, (*ids, *args), kwargs
    if bound.kind is None:
        return result
    if bound.many is None:
        return _handle(transport, bound.kind, getattr(result, bound.one) if bound.one else result)
    views = list(getattr(result, bound.many))
    while bound.is_paged and result.next is not None:
        result = yield bound.row, (*ids, *args), {**kwargs, "after": result.next}
        views += getattr(result, bound.many)
    return [_handle(transport, bound.kind, view) for view in views]


def _handle(transport: Transport, kind: Kind, view: Any) -> Any:
    return _family_of(transport)[kind.noun](transport, view)


def _family_of(transport: Transport) -> dict[str, type]:
    return family(asynchronous=transport.shield is not None)


@cache
def family(*, asynchronous: bool) -> dict[str, type]:
    """Make the classes for one sort of clients: handles by their nouns, collections by their plurals, and those of a
    sandbox as ``sandbox.processes``.
    """
    enter, leave = (_async_enter, _async_exit) if asynchronous else (_enter, _exit)
    letter = "a" if asynchronous else ""
    blocks = {"sandbox": {f"__{letter}enter__": enter, f"__{letter}exit__": leave}}
    classes: dict[str, type] = {}
    for kind in KINDS:
        attributes = blocks.get(kind.noun, {})
        made = _class(kind.noun.title(), Handle, kind.view.__doc__, asynchronous, _kind=kind, **attributes)
        classes[kind.noun] = made
    for kind in KINDS:
        _add_collection(classes, kind.plural, kind, (), asynchronous)
        for inner in inner_collections(kind):
            _add_collection(classes, f"{kind.noun}.{inner.plural}", inner, tuple(kind.ids), asynchronous)
    classes["sandbox.files"] = _class("SandboxFiles", Collection, Files.__doc__, asynchronous)
    for name in ("read", "read_text", "write", "ls"):
        _add_operation(classes["sandbox.files"], getattr(Files, name), asynchronous)
    for kind in KINDS:
        for bound in handle_methods(kind):
            _add_row(classes, classes[kind.noun], bound, asynchronous)
        if kind.noun in ITERATORS:
            _add_iterator(classes[kind.noun], *ITERATORS[kind.noun], asynchronous)
    for name, made in classes.items():
        noun, _, attribute = name.partition(".")
        if attribute:
            setattr(classes[noun], attribute, _inner(attribute, made))
    return classes


def _class(name: str, base: type, doc: str | None, asynchronous: bool, **attributes: Any) -> type:
    called = f"Async{name}" if asynchronous else name
    home = "sandkeep" if asynchronous else "sandkeep.blocking"
    return type(called, (base,), {"__doc__": fill(doc or ""), "__module__": home, **attributes})


def _add_collection(
    classes: dict[str, type], name: str, kind: Kind, bound: tuple[str, ...], asynchronous: bool
) -> None:
    title = "".join(part.title() for part in name.split("."))
    whose = "a sandbox" if bound else "the caller"
    made = classes[name] = _class(title, Collection, f"The {kind.plural} of {whose}.", asynchronous)
    for method in collection_methods(kind, bound):
        _add_row(classes, made, method, asynchronous)


def _add_row(classes: dict[str, type], owner: type, bound: Bound, asynchronous: bool) -> None:
    def begin(self: Any, *args: Any, **kwargs: Any) -> Steps[Any]:
        result = yield from _call(bound, self._transport, self._ids, args, kwargs)
        if isinstance(result, Handle) and result == self:
            self.info, result = result.info, self
        return result

    shown = signature(bound.row, bound.bound, bound.hidden)
    params = [_taking_handles(classes, bound.row, param) for param in shown.parameters.values()]
    made = bound.kind and classes[bound.kind.noun]
    result = shown.return_annotation if made is None else list[made] if bound.many else made  # type: ignore[valid-type]
    shown = MethodSignature([_SELF, *params], return_annotation=result)
    doc = _REFRESH if bound.name == "refresh" else docstring(bound.row, bound.hidden)
    _add(owner, bound.name, begin, shown, doc, asynchronous)


def _taking_handles(classes: dict[str, type], row: Method, param: Parameter) -> Parameter:
    nouns = _ANY_OF.get(param.name) or [row.references.get(param.name)]
    kinds = [classes[noun] for noun in nouns if noun in classes]
    if not kinds:
        return param
    given = [str, *kinds, *([None] if type(None) in typing.get_args(param.annotation) else [])]
    return param.replace(annotation=typing.Union[tuple(given)])  # noqa: UP007 - of any number of types


def _add_operation(owner: type, operation: Callable[..., Steps[Any]], asynchronous: bool) -> None:
    shown = signature_of(operation)
    result = typing.get_args(shown.return_annotation)[2]
    shown = MethodSignature(list(shown.parameters.values()), return_annotation=result)
    _add(owner, operation.__name__, operation, shown, operation.__doc__ or "", asynchronous)


def _add(
    owner: type, name: str, begin: Callable[..., Steps[Any]], shown: MethodSignature, doc: str, asynchronous: bool
) -> None:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return run(self._transport.carry_out, begin(self, *args, **kwargs))

    async def async_method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await run_async(self._transport.carry_out, begin(self, *args, **kwargs))

    _set(owner, name, async_method if asynchronous else method, shown, doc)


def _add_iterator(
    owner: type, name: str, iterate: Callable[..., Any], element: type[Struct], asynchronous: bool
) -> None:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return iterate(self, *args, **kwargs)

    result = (AsyncIterator if asynchronous else Iterator)[element]
    _, *params = signature_of(iterate).parameters.values()
    _set(owner, name, method, MethodSignature([_SELF, *params], return_annotation=result), iterate.__doc__ or "")


def _set(owner: type, name: str, method: Any, shown: MethodSignature, doc: str) -> None:
    method.__name__, method.__qualname__ = name, f"{owner.__name__}.{name}"
    method.__signature__, method.__doc__ = shown, fill(doc)
    setattr(owner, name, method)


def _inner(name: str, made: type) -> property:
    def get(self: Any) -> Any:
        return made(self._transport, self._ids)

    get.__annotations__["return"] = made
    get.__name__ = name
    return property(get, doc=made.__doc__)
