"""Types and errors common to all archive stores."""

from collections.abc import Callable, Iterable, Mapping
from typing import BinaryIO, Final, NamedTuple, Protocol, TypeAlias

from sandkeep.errors import DataError, StateError

CHUNK_BYTES: Final = 1024**2
"""Maximum size of a chunk that a reader returns."""

WRITE_ID: Final = "sandkeep-write"
"""The key of metadata by which a writer knows its own object again."""

DIGEST: Final = "sha256"
"""The key of metadata that tells an archive's digest, where it is known before the first byte."""

Source: TypeAlias = BinaryIO | Iterable[bytes]
Progress: TypeAlias = Callable[[int], object]
"""Called with how many bytes passed so far."""
Waiting: TypeAlias = Callable[[], object]
"""Called while no bytes pass; raising ends the wait."""


class Stored(NamedTuple):
    """An object in a store. `changed_at` is in seconds since 1970, by the store's clock; `crc32c` is the checksum that
    GCS keeps, in base64.
    """

    path: str
    size_bytes: int
    generation: str
    metadata: Mapping[str, str]
    changed_at: float
    crc32c: str = ""


class Digest(Protocol):
    """A digest that is being made."""

    def update(self, data: bytes, /) -> object:
        """Take some more bytes."""
        ...


class Summing(Digest, Protocol):
    """A digest whose value can be had."""

    def digest(self) -> bytes:
        """Return the digest of the bytes so far."""
        ...


class Checksum:
    """The checksum of an object, compared with bytes as they come. `expected` is that of the object, in the form that
    `shown` gives the digest.
    """

    def __init__(self, digest: Summing, shown: Callable[[bytes], str], expected: str) -> None:
        self._digest = digest
        self._shown = shown
        self._expected = expected
        self.update = digest.update

    def matches(self) -> bool:
        """Return True if all bytes are those of the object."""
        return self._shown(self._digest.digest()) == self._expected


class Fence(Protocol):
    """A shared sandbox's writer proves by it that the sandbox is still its own."""

    @property
    def number(self) -> int:
        """The fencing number; grows with every owner. It is kept in the object's metadata."""
        ...

    def check(self) -> None:
        """Raise `lock_lost` if the lease may have passed to another holder."""
        ...


class Upload(Protocol):
    """An object being written. The caller that began it calls `finish` after the last part, or `abort`."""

    @property
    def part_bytes(self) -> int:
        """Size in bytes of the next part, unless it is the last."""
        ...

    def send(self, part: bytes) -> None:
        """Take one part."""
        ...

    def finish(self, part: bytes) -> Stored:
        """Take the last part, which may be empty, and make the object appear. Raises `conflict`."""
        ...

    def abort(self) -> None:
        """Discard the upload. Raises no SandkeepError: `sweep` removes the remains if this fails."""
        ...


def conflict(where: str) -> StateError:
    """Return the error for a lost race: another writer changed or created the object."""
    return StateError("conflict", f"{where} was changed meanwhile, or is there already", place=where)


def missing(where: str) -> DataError:
    """There is none."""
    return DataError("snapshot_missing", f"there is no {where}", place=where)


class TransferDamageError(DataError):
    """Bytes came that are not those of the object, by what the service says of it: they may be right next time."""


def corrupt(where: str, why: str) -> DataError:
    """Return the error for an archive that does not match its size or digest, or is malformed."""
    return DataError("snapshot_corrupt", _damaged(where, why), place=where)


def damaged_transfer(where: str, why: str) -> TransferDamageError:
    """Return the same error for what a read brought, which is worth another."""
    return TransferDamageError("snapshot_corrupt", _damaged(where, why), place=where)


def _damaged(where: str, why: str) -> str:
    return f"{where} is damaged: {why}: use another copy"
