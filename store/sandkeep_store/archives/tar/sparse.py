"""Files with holes: the ways in which archives tell where the data lie."""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from sandkeep_store.archives.tar import header
from sandkeep_store.archives.tar.members import corrupt, shown

MAX_EXTENTS: Final = 1 << 20
"""Maximum number of data extents of one file."""

_IN_HEADER: Final = range(386, 482, 24)
_IN_EXTENSION: Final = range(0, 504, 24)
_MAX_DIGITS: Final = 20
_MAX_VALUE: Final = (1 << 63) - 1


def checked_extents(pairs: Iterable[int], whole_size: int, size: int, name: bytes) -> "array[int]":
    """Offsets and lengths that make sense, in order; pieces without a byte are left out.

    Raises `snapshot_corrupt` for those that overlap, lie outside the file, or are not as long as the data.
    """
    extents = array("q")
    numbers = iter(pairs)
    end = total = 0
    for count, offset in enumerate(numbers):
        length = next(numbers, -1)
        if offset < end or length < 0 or offset + length > whole_size:
            raise corrupt(f"is damaged: the map of the sparse file {shown(name)} makes no sense", name)
        end, total = offset + length, total + length
        if length:
            extents.extend((offset, length))
        if count >= MAX_EXTENTS:
            raise corrupt(f"cannot be extracted: {shown(name)} has more than {MAX_EXTENTS} pieces", name)
    if total != size:
        raise corrupt(f"is damaged: the map of the sparse file {shown(name)} is not that of its data", name)
    return extents


def of_records(records: Mapping[bytes, bytes]) -> Iterator[int]:
    """Offsets and lengths as the first two formats of extended headers have them."""
    text = records.get(b"GNU.sparse.map", b"")
    return (decimal(number) for number in text.split(b",") if text)


def in_header(block: bytes) -> Iterator[int]:
    """The same, as the oldest format has them in the header. Raises `snapshot_corrupt`."""
    return _old(block, _IN_HEADER)


def in_extension(block: bytes) -> Iterator[int]:
    """The same, of a block that continues such a header."""
    return _old(block, _IN_EXTENSION)


def _old(block: bytes, places: range) -> Iterator[int]:
    for at in places:
        if not block[at]:
            return
        try:
            yield header.number(block[at : at + 12])
            yield header.number(block[at + 12 : at + 24])
        except ValueError:
            raise corrupt("is damaged: a sparse file's map holds no numbers") from None


def decimal(text: bytes) -> int:
    """A number of an extended header. Raises `snapshot_corrupt`."""
    if not text.isdigit() or len(text) > _MAX_DIGITS or int(text) > _MAX_VALUE:
        raise corrupt("is damaged: an extended header has no number where one belongs")
    return int(text)


def map_text(extents: "array[int]", whole_size: int) -> bytes:
    """The map as the newest format has it, before the data. A piece without a byte at the end tells how long a file is
    that ends in a hole: GNU tar goes by that alone.
    """
    if not extents or extents[-2] + extents[-1] < whole_size:
        extents = extents + array("q", (whole_size, 0))
    text = b"%d\n" % (len(extents) // 2) + b"".join(b"%d\n" % number for number in extents)
    return text.ljust(header.padded(len(text)), b"\0")
