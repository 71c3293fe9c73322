"""Handles: objects that call the table's methods with their own ids.

    sandbox = client.sandboxes.create(image)      # client.sandbox.create(image_id), and so on
    sandbox.exec("pytest -q").exit_code           # client.sandbox.exec(sandbox_id, "pytest -q").exit_code

The classes are made from the table: the methods of a noun whose first parameters are a handle's ids become methods of
the handle, the others of a collection. Views of objects become handles, lists of them lists of handles, with all pages.
Wherever a method asks for an id, it takes a handle, too. What the table does not have is an operation here, written
once for all clients: a generator that yields calls, and that a client runs to its end, with or without an event loop.
"""

import os
import typing
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from functools import cache, partial
from inspect import Parameter
from inspect import signature as signature_of
from typing import Any, ClassVar, Final

from msgspec import Struct

from sandkeep import model
from sandkeep.clients.binding import Identified, parameters
from sandkeep.clients.signatures import MethodSignature, docstring, fill, signature
from sandkeep.errors import CallerError, SandkeepError
from sandkeep.protocol.methods import MAX_WRITE_BYTES, METHODS, Method

Step = tuple[Method, tuple[Any, ...], dict[str, Any]]
Steps = Generator[Step, Any, Any]


class Kind(Struct, frozen=True, kw_only=True):
    """A kind of objects that have handles. `ids` are the parameters that name one, and where its view has them."""

    noun: str
    plural: str
    view: type[Struct]
    ids: dict[str, str]


KINDS: Final = tuple(
    Kind(noun=noun, plural=plural, view=view, ids=ids or {f"{noun}_id": f"{noun}_id"})
    for noun, plural, view, ids in (
        ("sandbox", "sandboxes", model.Sandbox, None),
        ("process", "processes", model.Process, {"sandbox_id": "sandbox_id", "name": "process_id"}),
        ("image", "images", model.Image, None),
        ("snapshot", "snapshots", model.Snapshot, None),
        ("checkpoint", "checkpoints", model.Checkpoint, None),
        ("artifact", "artifacts", model.Artifact, None),
    )
)

PLURALS: Final = tuple(kind.plural for kind in KINDS)

_SHORT: Final = {"sandbox": {"snapshot": "snapshot.create", "checkpoint": "checkpoint.create"}}
"""Methods of a handle that are those of another noun."""

_LEFT_OUT: Final = {"sandbox.copy_commit", "sandbox.read_file", "sandbox.write_file", "sandbox.list_dir"}
"""Methods for which there are `Files`, and one that only goes with descriptors."""

_PAGED: Final = ("after", "limit")

_ANY_OF: Final = {"other": ("sandbox", "snapshot", "image")}
"""Parameters that name an object of several kinds."""

_LARGER: Final = "copy larger files by sandkeep.transfer.copy_in"
_REFRESH: Final = "Get the present view of the object as `info`, and return the handle."
_SELF: Final = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD)


class Transport(Struct, frozen=True):
    """A client, the function that calls a row of the table on it, and with an event loop one that awaits a function
    also when the task is cancelled.
    """

    client: Any
    call: Callable[..., Any]
    shield: Callable[..., Any] | None = None


class Bound(Struct, frozen=True, kw_only=True):
    """A method of a handle or a collection: a row, the parameters that are `bound`, and how its result becomes handles
    of a `kind`: itself, its field `one`, or the list in its field `many`.
    """

    name: str
    row: Method
    bound: tuple[str, ...] = ()
    kind: Kind | None = None
    one: str | None = None
    many: str | None = None

    @property
    def hidden(self) -> tuple[str, ...]:
        """Parameters of paging, for a list whose pages are all read."""
        return _PAGED if self.is_paged else ()

    @property
    def is_paged(self) -> bool:
        """True for a list that comes in pages."""
        return self.many is not None and "after" in self.row.params.__struct_fields__

    def steps(self, transport: Transport, ids: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps:
        """Call it, and answer handles."""
        for name in kwargs:
            if name in self.hidden:
                raise TypeError(f"{self.name}() has no parameter {name!r}: it lists all")
        result = yield self.row, (*ids, *args), kwargs
        if self.many is None or self.kind is None:
            return self._handle(transport, result)
        views = list(getattr(result, self.many))
        while self.is_paged and result.next is not None:
            result = yield self.row, (*ids, *args), {**kwargs, "after": result.next}
            views += getattr(result, self.many)
        return [_handle(transport, self.kind, view) for view in views]

    def _handle(self, transport: Transport, result: Any) -> Any:
        if self.kind is None:
            return result
        return _handle(transport, self.kind, getattr(result, self.one) if self.one else result)


def handle_methods(kind: Kind) -> list[Bound]:
    """Return the methods of a kind's handles, but for operations."""
    ids = tuple(kind.ids)
    rows = [row for row in _rows(kind) if parameters(row.params)[1][: len(ids)] == ids]
    own = [_bound("refresh" if row is METHODS.get(f"{kind.noun}.get") else None, row, ids) for row in rows]
    return own + [_bound(name, METHODS[method], ids) for name, method in _SHORT.get(kind.noun, {}).items()]


def collection_methods(kind: Kind, bound: tuple[str, ...] = ()) -> list[Bound]:
    """Return the methods of a collection of a kind: of all, or of those of the sandbox that is `bound`."""
    ids = tuple(kind.ids)
    rows = [row for row in _rows(kind) if row.name.endswith(".get") or parameters(row.params)[1][: len(ids)] != ids]
    return [_bound(None, row, bound) for row in rows if parameters(row.params)[0][: len(bound)] == bound]


def inner_collections(kind: Kind) -> list[Kind]:
    """Return the kinds of which a kind's handles have collections."""
    if kind.noun != "sandbox":
        return []
    return [other for other in KINDS if other is not kind and collection_methods(other, tuple(kind.ids))]


def _rows(kind: Kind) -> Iterator[Method]:
    for row in METHODS.values():
        if row.name.startswith(f"{kind.noun}.") and not row.descriptors and row.name not in _LEFT_OUT:
            yield row


def _bound(name: str | None, row: Method, bound: tuple[str, ...]) -> Bound:
    kind, one, many = _result(row)
    return Bound(name=name or row.name.partition(".")[2], row=row, bound=bound, kind=kind, one=one, many=many)


def _result(row: Method) -> tuple[Kind | None, str | None, str | None]:
    """Return the kind of the handles in a row's result, and the field that holds one, or a list."""
    if (kind := _kind_of(row.result)) is not None:
        return kind, None, None
    if isinstance(row.result, type) and issubclass(row.result, Struct):
        for name, hint in typing.get_type_hints(row.result).items():
            if typing.get_origin(hint) is list and (kind := _kind_of(typing.get_args(hint)[0])) is not None:
                return kind, None, name
            if (kind := _kind_of(hint)) is not None:
                return kind, name, None
    return None, None, None


def _kind_of(view: Any) -> Kind | None:
    return next((kind for kind in KINDS if kind.view is view), None)


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
        return self._ids[-1]

    @property
    def _ids(self) -> tuple[str, ...]:
        return tuple(getattr(self.info, name) for name in self._kind.ids.values())

    def __getattr__(self, name: str) -> Any:
        if name != "info" and hasattr(self.info, name):
            return getattr(self.info, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.info.__struct_fields__})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and (self._kind, self._ids) == (other._kind, other._ids)

    def __hash__(self) -> int:
        return hash(self._ids)

    def __repr__(self) -> str:
        name = getattr(self.info, "name", None)
        called = f" {name!r}" if name and name != self.id else ""
        return f"<{type(self).__name__} {self.id}{called} {self.info.status}>"


class Collection:
    """The objects of one kind: all of the caller's, or those of a sandbox."""

    def __init__(self, transport: Any, ids: tuple[str, ...] = ()) -> None:
        self._transport = transport
        self._ids = ids


class _FilesOperations:
    """The files of a sandbox. Paths begin at its working directory unless they are absolute."""

    _ids: tuple[str, ...]

    def read(self, path: str | os.PathLike[str]) -> Generator[Step, Any, bytes]:
        """Read a whole file. One that is written meanwhile may come as parts of both versions.

        Raises `not_found` for a path that is no file.
        """
        data = bytearray()
        while True:
            piece = yield METHODS["sandbox.read_file"], self._ids, {**_path(path), "offset": len(data)}
            data += piece.data
            if piece.eof or not piece.data:
                return bytes(data)

    def read_text(self, path: str | os.PathLike[str], encoding: str = "utf-8") -> Generator[Step, Any, str]:
        """Read a whole file as text; see `read`. Raises UnicodeDecodeError for one that is not in that encoding."""
        data = yield from _FilesOperations.read(self, path)
        return data.decode(encoding)

    def write(
        self, path: str | os.PathLike[str], data: bytes | str, *, mode: int | None = None
    ) -> Generator[Step, Any, model.FileWritten]:
        """Write a whole file atomically, and make directories that are missing. Text is written as UTF-8.

        An existing file keeps its mode unless `mode` says another. Raises `invalid` for more than 8 MiB:
        `sandkeep.transfer` copies larger files.
        """
        content: Any = data.encode() if isinstance(data, str) else data
        if isinstance(content, bytes | bytearray) and len(content) > MAX_WRITE_BYTES:
            message = f"data: {len(content)} bytes are more than the {MAX_WRITE_BYTES} of one write: " + _LARGER
            raise CallerError("invalid", message, field="data")
        given = {**_path(path), "data": content, "mode": mode, "parents": True}
        written: model.FileWritten = yield METHODS["sandbox.write_file"], self._ids, given
        return written

    def ls(self, path: str | os.PathLike[str] = ".") -> Generator[Step, Any, list[model.FileEntry]]:
        """List the files of a directory by name. Raises `not_found` for a path that is no directory."""
        found: list[model.FileEntry] = []
        after = None
        while True:
            page = yield METHODS["sandbox.list_dir"], self._ids, {**_path(path), "after": after}
            found += page.entries
            if (after := page.next) is None:
                return found


def _path(path: str | os.PathLike[str]) -> dict[str, Any]:
    given = os.fsencode(path)
    try:
        return {"path": given.decode()}
    except UnicodeDecodeError:
        return {"path_bytes": given}


def _end(ids: tuple[str, ...]) -> Steps:
    """End a sandbox at the end of a ``with`` statement."""
    yield METHODS["sandbox.terminate"], ids, {}


def _output(self: Any, stdout_offset: int = 0, stderr_offset: int = 0, *, follow: bool = True) -> Any:
    """Iterate over the output from byte offsets until the process's end; without `follow`, the present output."""
    return self._transport.client.read_output(*self._ids, stdout_offset, stderr_offset, follow=follow)


def _events(self: Any, after: str | None = None, *, type: str | None = None, follow: bool = True) -> Any:
    """Iterate over the sandbox's events after a token, and wait for more, unless `follow` is false."""
    return self._transport.client.follow_events(after, sandbox_id=self.id, type=type, follow=follow)


_ITERATORS: Final[dict[str, tuple[str, Callable[..., Any], type[Struct]]]] = {
    "process": ("output", _output, model.ProcessOutput),
    "sandbox": ("events", _events, model.Event),
}


# -- running an operation ---------------------------------------------------------------------------------------------


def run(transport: Transport, steps: Steps) -> Any:
    """Run an operation on a blocking client, and return its result."""
    try:
        row, args, kwargs = next(steps)
        while True:
            row, args, kwargs = steps.send(transport.call(row, *args, **kwargs))
    except StopIteration as stop:
        return stop.value


async def run_async(transport: Transport, steps: Steps) -> Any:
    """Run an operation on a client with an event loop, and return its result."""
    try:
        row, args, kwargs = next(steps)
        while True:
            row, args, kwargs = steps.send(await transport.call(row, *args, **kwargs))
    except StopIteration as stop:
        return stop.value


def _enter(self: Any) -> Any:
    return self


def _exit(self: Any, *raised: Any) -> None:
    """End the sandbox."""
    try:
        run(self._transport, _end(self._ids))
    except SandkeepError as failure:
        _report(raised[1], failure)


async def _async_enter(self: Any) -> Any:
    return self


async def _async_exit(self: Any, *raised: Any) -> None:
    """End the sandbox, also when the block is cancelled."""
    try:
        await self._transport.shield(partial(run_async, self._transport, _end(self._ids)))
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
    """Return a class of handles by its name, as modules have it on first use. Raises AttributeError."""
    for asynchronous in (True, False):
        for kind in KINDS:
            made = family(asynchronous=asynchronous)[kind.noun]
            if made.__name__ == name:
                return made
    raise AttributeError(f"there is no {name!r} in this module", name=name)


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
    classes["sandbox.files"] = _class("SandboxFiles", Collection, _FilesOperations.__doc__, asynchronous)
    for name in ("read", "read_text", "write", "ls"):
        _add_operation(classes["sandbox.files"], getattr(_FilesOperations, name), asynchronous)
    for kind in KINDS:
        for bound in handle_methods(kind):
            _add_row(classes, classes[kind.noun], bound, asynchronous)
        if kind.noun in _ITERATORS:
            _add_iterator(classes[kind.noun], *_ITERATORS[kind.noun], asynchronous)
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
    def begin(self: Any, *args: Any, **kwargs: Any) -> Steps:
        result = yield from bound.steps(self._transport, self._ids, args, kwargs)
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


def _add_operation(owner: type, operation: Callable[..., Steps], asynchronous: bool) -> None:
    shown = signature_of(operation)
    result = typing.get_args(shown.return_annotation)[2]
    shown = MethodSignature(list(shown.parameters.values()), return_annotation=result)
    _add(owner, operation.__name__, operation, shown, operation.__doc__ or "", asynchronous)


def _add(
    owner: type, name: str, begin: Callable[..., Steps], shown: MethodSignature, doc: str, asynchronous: bool
) -> None:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return run(self._transport, begin(self, *args, **kwargs))

    async def async_method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await run_async(self._transport, begin(self, *args, **kwargs))

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
