"""Fences: numbers in everything written under a lock, so that a former owner can overwrite nothing.

No clock can promise that an owner who was stopped for a minute, in the middle of a write, does not finish it later. But
such a write can be refused: each acquisition of a lock has a larger number than all before it, each write contains the
number, and a document with a larger one refuses a smaller. An archive is written once, under a name of its own, and
counts only when a document names it; so the documents check, atomically with their write.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from sandkeep.errors import DataError, StateError
from sandkeep_store.locks.document import MAX_FENCE
from sandkeep_store.locks.store import DocumentStore, Stored

WRITES_AT_ONCE: Final = 5

MAX_BYTES: Final = 1 << 20
"""Of a longer document no more is read: it is damaged."""


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
                f"the lock {self.name} was lost: this write has fencing token {self.number}, and the document already "
                f"has {seen}",
                name=self.name,
                fence=self.number,
                seen=seen,
            )


class _Fenced(Struct):
    fence: Annotated[int, Meta(ge=0, le=MAX_FENCE)] | None = None


def fence_in(content: bytes, place: str) -> int | None:
    """Return the fence of a JSON document, from its key `fence`. Raises `lock_damaged` for unreadable content."""
    try:
        return msgspec.json.decode(content, type=_Fenced).fence
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(place, str(error)[:200]) from None


def read_fenced(store: DocumentStore, path: str) -> Stored | None:
    """Read a document that is written with a fence; None when there is none. Raises `lock_damaged` for one that is too
    long, and the store's errors.
    """
    found = store.read(path, MAX_BYTES)
    if found is not None and len(found.content) > MAX_BYTES:
        raise _damaged(f"{store.where}/{path}", f"it is longer than {MAX_BYTES} bytes")
    return found


def write_fenced(store: DocumentStore, path: str, content: bytes, fence: Fence) -> str:
    """Write a JSON document with a fence, over one with none or no larger one; return its version.

    Raises `lock_lost` when the lock is not surely held, or a later owner wrote the document; `lock_damaged` when the
    old document is unreadable; `conflict` when others write it all the time.
    """
    place = f"{store.where}/{path}"
    if fence_in(content, "the new document") != fence.number:
        raise ValueError(f"the document for {place} does not carry its fence, {fence.number}")
    for _ in range(WRITES_AT_ONCE):
        found = read_fenced(store, path)
        fence.check_over(None if found is None else fence_in(found.content, place))
        written = store.write(path, content, None if found is None else found.version)
        if written is not None:
            return written.version
    raise StateError("conflict", write_conflict(place), place=place)


def write_conflict(place: str) -> str:
    """Return the sentence for a document of which every version that is read is another one when it is written."""
    return f"write conflict on {place}: other daemons keep updating it; try again"


def _damaged(place: str, why: str) -> DataError:
    message = f"{place} was not overwritten, as its fencing token cannot be read ({why}): inspect it"
    return DataError("lock_damaged", message, place=place)
