"""The words that all stores of archives have in common: what they tell, what they are given, and what goes wrong."""

from collections.abc import Callable, Iterable, Mapping
from typing import BinaryIO, Final, NamedTuple, Protocol, TypeAlias

from sandkeep.errors import DataError, StateError

CHUNK_BYTES: Final = 1024**2
"""What a reader gives at once, at most."""

MAX_DOCUMENT_BYTES: Final = 1024**2

WRITE_ID: Final = "sandkeep-write"
"""The key of metadata by which a writer knows its own object again."""

Source: TypeAlias = BinaryIO | Iterable[bytes]
Progress: TypeAlias = Callable[[int], object]
"""Called with how many bytes passed so far."""
Waiting: TypeAlias = Callable[[], object]
"""Called while nothing passes; what it raises ends the waiting."""


class Stored(NamedTuple):
    """What a store knows of an object. `changed_at` is in seconds since 1970, by the store's clock."""

    path: str
    size_bytes: int
    generation: str
    metadata: Mapping[str, str]
    changed_at: float


class Document(NamedTuple):
    """A document as it was read, and which version it was."""

    content: bytes
    generation: str


class Fence(Protocol):
    """A shared sandbox's writer proves by it that the sandbox is still its own."""

    @property
    def number(self) -> int:
        """The fencing number; grows with every owner. It is kept in the object's metadata."""
        ...

    def check(self) -> None:
        """Raises `lock_lost` when somebody else may have taken over."""
        ...


class Upload(Protocol):
    """An object while it is written. Whoever began it calls `finish` after the last part, or `abort`."""

    @property
    def part_bytes(self) -> int:
        """How long the next part has to be, if it is not the last."""
        ...

    def send(self, part: bytes) -> None:
        """Take one part."""
        ...

    def finish(self, part: bytes) -> Stored:
        """Take the last part, which may be empty, and make the object appear. Raises `conflict`."""
        ...

    def abort(self) -> None:
        """Leave nothing. Raises no SandkeepError: what cannot be cleaned up now is by `sweep`."""
        ...


def conflict(where: str) -> StateError:
    """Somebody else was quicker."""
    return StateError("conflict", f"{where} was changed meanwhile, or is there already", place=where)


def missing(where: str) -> DataError:
    """There is none."""
    return DataError("snapshot_missing", f"there is no {where}", place=where)


def corrupt(where: str, why: str) -> DataError:
    """It is not what it has to be."""
    return DataError("snapshot_corrupt", f"{where} is damaged: {why}: use another copy", place=where)
