"""Fences: numbers in everything written under a lock, so that a former owner can overwrite nothing.

No clock can promise that an owner who was stopped for a minute, in the middle of a write, does not finish it later. But
such a write can be refused: each acquisition of a lock has a larger number than all before it, each write contains the
number, and a document with a larger one refuses a smaller. An archive is written once, under a name of its own, and
counts only when a document names it; so the documents check, atomically with their write.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Final, Protocol

import msgspec
from msgspec import Meta, Struct

from sandkeep.errors import DataError, StateError
from sandkeep_store.locks.document import MAX_FENCE

WRITES_AT_ONCE: Final = 5


@dataclass(frozen=True, slots=True)
class Fence:
    """The right to write under the lock `name`, with the fencing number `number`."""

    name: str
    number: int
    require: Callable[[], None] = field(repr=False, compare=False)

    def check(self) -> None:
        """Raise `lock_lost` unless the lock is surely held at this moment."""
        self.require()

    def check_over(self, seen: int | None) -> None:
        """Raise `lock_lost` if a later owner wrote the document. `seen` is its fence; None if it has none."""
        self.require()
        if seen is not None and seen > self.number:
            raise StateError(
                "lock_lost",
                f"the lock {self.name} was taken over: what is to be written carries the fence {self.number}, and "
                f"{seen} has been here since",
                name=self.name,
                fence=self.number,
                seen=seen,
            )


class Document(Protocol):
    """A document as it was read, and which version it is."""

    @property
    def content(self) -> bytes:
        """Its bytes."""
        ...

    @property
    def generation(self) -> str:
        """Its version."""
        ...


class Documents(Protocol):
    """A store of documents that are written over, each time only the version that was read; archives' stores are."""

    def where(self, path: str) -> str:
        """Return the display name of a document."""
        ...

    def read_document(self, path: str) -> Document | None:
        """A document; None when there is none."""
        ...

    def write_document(self, path: str, content: bytes, *, over: str | None) -> str:
        """Write it over a version, or, with None, where none is. Raises `conflict` when another one is there."""
        ...


class _Fenced(Struct):
    fence: Annotated[int, Meta(ge=0, le=MAX_FENCE)] | None = None


def fence_in(content: bytes, place: str) -> int | None:
    """Return the fence of a JSON document, from its key `fence`. Raises `lock_damaged` for unreadable content."""
    try:
        return msgspec.json.decode(content, type=_Fenced).fence
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        message = f"{place} is not overwritten, as its fencing number cannot be read ({str(error)[:200]}): look at it"
        raise DataError("lock_damaged", message, place=place) from None


def write_fenced(documents: Documents, path: str, content: bytes, fence: Fence) -> str:
    """Write a JSON document with a fence, over one with none or no larger one; return its version.

    Raises `lock_lost` when the lock is not surely held, or a later owner wrote the document; `lock_damaged` when the
    old document is unreadable; `conflict` when others write it all the time.
    """
    place = documents.where(path)
    if fence_in(content, "the new document") != fence.number:
        raise ValueError(f"the document for {place} does not carry its fence, {fence.number}")
    for _ in range(WRITES_AT_ONCE):
        found = documents.read_document(path)
        fence.check_over(None if found is None else fence_in(found.content, place))
        try:
            return documents.write_document(path, content, over=None if found is None else found.generation)
        except StateError as error:
            if error.code != "conflict":
                raise
    raise StateError("conflict", f"other daemons write {place} all the time: try again", place=place)
