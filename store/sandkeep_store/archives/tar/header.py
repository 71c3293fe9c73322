"""The 512 bytes before each member of a tar archive, and the records of an extended header: to bytes and back.

Every number and name that is read here may be an attacker's.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from typing import Final
from zlib import adler32

from sandkeep_store.archives.tar.members import corrupt

BLOCK: Final = 512
ZEROS: Final = bytes(BLOCK)

MAX_OCTAL: Final = 8**11 - 1
"""The largest size that a header holds in plain octal."""

MAX_ID: Final = 8**7 - 1
"""The largest uid or gid that it does."""

_FIELDS: Final = struct.Struct("100s48s8sc100s8s64x16s167x")
_SIGNED: Final = struct.Struct("148b8x356b")
_NO_DEVICES: Final = b"0000000\0" * 2
_BLANKS: Final = b" " * 8
_MAGIC: Final = b"ustar\00000"
_PLAIN: Final = re.compile(rb"(?:[0-7]{7}\0){3}.{12}[0-7]{11}\0", re.DOTALL)
"""Mode, uid, gid, size, time, as nearly every header has them."""


class Fields:
    """The fields of one header, parsed on access. Names end at their first NUL; numbers raise ValueError."""

    __slots__ = ("block",)

    def __init__(self, block: bytes) -> None:
        self.block = block

    @property
    def kind(self) -> bytes:
        """One byte."""
        return self.block[156:157]

    @property
    def size(self) -> int:
        """Number of bytes of data that follow."""
        digits = self.block[124:135]
        return int(digits, 8) if digits.isdigit() and not self.block[135] else number(self.block[124:136])

    @property
    def numbers(self) -> tuple[int, int, int, int]:
        """Mode, uid, gid, and the time of the last change in seconds."""
        block = self.block
        if _PLAIN.match(block, 100):
            return int(block[100:107], 8), int(block[108:115], 8), int(block[116:123], 8), int(block[136:147], 8)
        return number(block[100:108]), number(block[108:116]), number(block[116:124]), number(block[136:148])

    @property
    def name(self) -> bytes:
        """The name as far as a header has room for it."""
        block = self.block
        name = block[:100].partition(b"\0")[0]
        if block[345] and block[257:263] == b"ustar\0":
            return block[345:500].partition(b"\0")[0] + b"/" + name
        return name

    @property
    def linkname(self) -> bytes:
        """Target of a link, cut to the length of the field."""
        return self.block[157:257].partition(b"\0")[0]

    @property
    def device(self) -> tuple[int, int]:
        """Major and minor number."""
        return number(self.block[329:337]), number(self.block[337:345])


def has_valid_checksum(block: bytes) -> bool:
    """Return True if a block is a header with a valid checksum, unsigned or signed as some programs write it."""
    right = _sum(block)
    if block[148:156] == b"%06o\0 " % right:  # as nearly all have it
        return True
    try:
        stored = number(block[148:156])
    except ValueError:
        return False
    return stored == right or stored == _signed_sum(block)


def _sum(block: bytes) -> int:
    """The sum of the bytes, with blanks for where it is written."""
    return _sum_of(block) - sum(block[148:156]) + 8 * 0x20


def _sum_of(block: bytes) -> int:
    """Adler's sum of a half begins with its bytes' own, which fits there: 30 times faster than adding them up here."""
    return (adler32(block[:256]) & 0xFFFF) + (adler32(block[256:]) & 0xFFFF) - 2


def _signed_sum(block: bytes) -> int:
    signed: tuple[int, ...] = _SIGNED.unpack(block)
    return sum(signed) + 8 * 0x20


def number(text: bytes) -> int:
    """A number in octal, or in the binary form for large ones. Raises ValueError."""
    if text[0] & 0x80:
        return _binary(text)
    digits = text.strip(b" \0")
    if not digits:
        return 0
    if not digits.isdigit() or not text[0]:  # programs differ on a field that begins with a NUL
        raise ValueError(digits)
    return int(digits, 8)


def _binary(text: bytes) -> int:
    value = int.from_bytes(text[1:], "big")
    if text[0] == 0xFF:  # a time before 1970
        value -= 1 << 8 * (len(text) - 1)
    elif text[0] != 0x80:
        raise ValueError(text)
    if abs(value) >= 1 << 63:
        raise ValueError(text)
    return value


def pack(
    name: bytes, kind: bytes, *, mode: int, uid: int, gid: int, size: int, mtime: int, linkname: bytes = b"",
    device: tuple[int, int] | None = None,
) -> bytes:  # fmt: skip
    """Return a header block. Values that do not fit are cut: the extended header before it has them in full."""
    numbers = b"%07o\0%07o\0%07o\0%011o\0%011o\0" % (
        mode, min(uid, MAX_ID), min(gid, MAX_ID), min(size, MAX_OCTAL), min(max(mtime, 0), MAX_OCTAL)
    )  # fmt: skip
    devices = b"%07o\0%07o\0" % device if device else _NO_DEVICES
    block = _FIELDS.pack(name, numbers, _BLANKS, kind, linkname, _MAGIC, devices)
    return b"%b%06o\0 %b" % (block[:148], _sum_of(block), block[156:])


def records(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of an extended header. Raises `snapshot_corrupt`."""
    at = 0
    while at < len(data):
        digits, blank, _ = data[at : at + 20].partition(b" ")
        if not blank or not digits.isdigit():
            raise corrupt("is damaged: an extended header has a record without a length")
        end = at + int(digits)
        key, equals, value = data[at + len(digits) + 1 : end - 1].partition(b"=")
        if end > len(data) or end <= at + len(digits) + 1 or data[end - 1 : end] != b"\n" or not equals or not key:
            raise corrupt("is damaged: a record of an extended header has the wrong length")
        yield key, value
        at = end


def records_text(pairs: Mapping[bytes, bytes]) -> bytes:
    """An extended header's content."""
    return b"".join(_record(key, value) for key, value in pairs.items())


def _record(key: bytes, value: bytes) -> bytes:
    rest = len(key) + len(value) + 3
    length = rest + len(str(rest))
    if rest + len(str(length)) > length:
        length += 1
    return b"%d %s=%s\n" % (length, key, value)


def padded(size: int) -> int:
    """Return `size` rounded up to whole blocks."""
    return -(-size // BLOCK) * BLOCK
