"""The kinds of objects that have handles, and the methods of each, from the table."""

import typing
from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct

from sandkeep import model
from sandkeep.clients.binding import parameters
from sandkeep.protocol.methods import METHODS, Method


class Kind(Struct, frozen=True, kw_only=True):
    """A kind of objects that have handles. `ids` are the first parameters of methods of one, and where its view has
    them; `key` is the field that alone stands for one in other methods.
    """

    noun: str
    plural: str
    view: type[Struct]
    ids: dict[str, str]
    key: str


KINDS: Final = tuple(
    Kind(noun=noun, plural=plural, view=view, ids=ids or {f"{noun}_id": f"{noun}_id"}, key=key or f"{noun}_id")
    for noun, plural, view, ids, key in (
        ("sandbox", "sandboxes", model.Sandbox, None, None),
        ("process", "processes", model.Process, {"sandbox_id": "sandbox_id", "name": "process_id"}, None),
        ("image", "images", model.Image, None, None),
        ("volume", "volumes", model.NamedVolume, {name: name for name in ("name", "provider", "owner")}, "name"),
        ("snapshot", "snapshots", model.Snapshot, None, None),
        ("checkpoint", "checkpoints", model.Checkpoint, None, None),
        ("artifact", "artifacts", model.Artifact, None, None),
        ("session", "sessions", model.Session, None, None),
    )
)

PLURALS: Final = tuple(kind.plural for kind in KINDS)

_SHORT: Final = {"sandbox": {"snapshot": "snapshot.create", "checkpoint": "checkpoint.create"}}
"""Methods of a handle that are those of another noun."""

_LEFT_OUT: Final = {
    "sandbox.read_file", "sandbox.write_file", "sandbox.list_dir",  # there is `Files`
    "sandbox.copy_commit",  # goes with descriptors
    "process.cancel",  # clients call it themselves
}  # fmt: skip

_PAGED: Final = ("after", "limit")


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


def handle_methods(kind: Kind) -> list[Bound]:
    """Return the methods of a kind's handles, but for operations."""
    ids = tuple(kind.ids)
    rows = [row for row in _rows(kind) if _is_of_one(kind, row)]
    own = [_bound("refresh" if row is METHODS.get(f"{kind.noun}.get") else None, row, ids) for row in rows]
    return own + [_bound(name, METHODS[method], ids) for name, method in _SHORT.get(kind.noun, {}).items()]


def collection_methods(kind: Kind, bound: tuple[str, ...] = ()) -> list[Bound]:
    """Return the methods of a collection of a kind: of all, or of those of the sandbox that is `bound`."""
    rows = [row for row in _rows(kind) if row.name.endswith(".get") or not _is_of_one(kind, row)]
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


def _is_of_one(kind: Kind, row: Method) -> bool:
    """Return True for a method of an object that is there."""
    names, required, _ = parameters(row.params)
    ids = tuple(kind.ids)
    return names[: len(ids)] == ids and names[0] in required and not row.name.endswith(".create")


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
