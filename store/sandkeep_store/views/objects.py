"""The objects of one kind by their ids, with indexes by owner of how ids begin and of names."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol, TypeVar

_FEW: Final = 64
_MOST_STALE: Final = 1024


class Owned(Protocol):
    """An object that has an owner, and perhaps `requested.name`."""

    @property
    def owner(self) -> str:
        """The owner."""
        ...


T = TypeVar("T", bound=Owned)


class Objects(dict[str, T]):
    """A dictionary by id. New ids are indexed when somebody searches, as folds of a whole log search for none.

    The indexes may have ids that were removed; a search passes over these.
    """

    def __init__(self, objects: Iterable[tuple[str, T]] = ()) -> None:
        super().__init__(objects)
        self._new: list[str] = list(self)
        self._sorted: dict[str, list[str]] = {}
        self._named: dict[tuple[str, str], list[str]] = {}
        self._indexed = 0

    def __setitem__(self, object_id: str, value: T) -> None:
        super().__setitem__(object_id, value)
        self._new.append(object_id)

    def beginning_with(self, text: str, owner: str | None) -> Iterator[str]:
        """Yield the ids that begin so of an owner's objects, in their order; of everybody's if `owner` is None.

        The cost does not depend on how many others there are.
        """
        self._index()
        for ids in self._sorted.values() if owner is None else [self._sorted.get(owner, [])]:
            for at in range(bisect_left(ids, text), len(ids)):
                object_id = ids[at]
                if not object_id.startswith(text):
                    break
                if object_id in self:
                    yield object_id

    def named(self, owner: str, name: str) -> list[T]:
        """The owner's objects that were given that name, from the oldest on."""
        self._index()
        found = (self.get(object_id) for object_id in self._named.get((owner, name), ()))
        return [one for one in found if one is not None and _name_of(one) == name]

    def _index(self) -> None:
        if self._indexed > 2 * len(self) + _MOST_STALE:  # most were removed
            self._sorted, self._named, self._indexed, self._new = {}, {}, 0, list(self)
        new: dict[str, list[str]] = {}
        for object_id in dict.fromkeys(self._new):
            if (one := self.get(object_id)) is None:
                continue
            if not _has(self._sorted.get(one.owner, []), object_id):  # else it was replaced
                new.setdefault(one.owner, []).append(object_id)
                if (name := _name_of(one)) is not None:
                    self._named.setdefault((one.owner, name), []).append(object_id)
        self._new = []
        for owner, ids in new.items():
            self._indexed += len(ids)
            _insert(self._sorted.setdefault(owner, []), ids)


def _name_of(one: Any) -> str | None:
    name: str | None = getattr(one.requested, "name", None) if hasattr(one, "requested") else None
    return name


def _has(ids: list[str], object_id: str) -> bool:
    at = bisect_left(ids, object_id)
    return at < len(ids) and ids[at] == object_id


def _insert(ids: list[str], new: list[str]) -> None:
    if len(new) > _FEW:
        ids.extend(new)
        ids.sort()
    else:
        for object_id in new:
            insort(ids, object_id)
