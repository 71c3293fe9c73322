"""A tar writer: the same members give the same bytes, readable by any tar."""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from sandkeep_store.archives.tar import header, sparse
from sandkeep_store.archives.tar.header import BLOCK, ZEROS
from sandkeep_store.archives.tar.members import Kind, Member

Sink = Callable[[memoryview], object]
"""A function that takes bytes. It must not keep the view."""

CHUNK: Final = 1 << 20
"""Bytes passed to a sink per call."""

_TYPES: Final[dict[Kind, bytes]] = {
    "file": b"0", "hard link": b"1", "symlink": b"2", "character device": b"3", "block device": b"4",
    "directory": b"5", "fifo": b"6",
}  # fmt: skip
_NAME_BYTES: Final = 100
_SECOND_NS: Final = 1_000_000_000
_TEN_DIGITS: Final = (10**9, header.MAX_OCTAL)


class Writer:
    """Write members to a sink, in chunks of one size so that compression is reproducible, too."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._buffer = bytearray(CHUNK)
        self._filled = 0

    def add(self, member: Member) -> None:
        """Write the header of a member, after which its data are to be written."""
        text = b""
        if member.extents is not None:
            text = sparse.map_text(member.extents, member.whole_size)
        self.write(_headers(member, len(text) + member.size))
        if text:
            self.write(text)

    def write(self, data: bytes | memoryview) -> None:
        """Write some bytes of a member."""
        room = CHUNK - self._filled
        while len(data) >= room:
            self._buffer[self._filled :] = data[:room]
            self._sink(memoryview(self._buffer))
            data = data[room:]
            self._filled, room = 0, CHUNK
        end = self._filled + len(data)
        self._buffer[self._filled : end] = data
        self._filled = end

    def end_member(self, member: Member) -> None:
        """Pad the last block of a member's data."""
        if member.size % BLOCK:
            self.write(ZEROS[member.size % BLOCK :])

    def close(self) -> None:
        """Write the mark of the end, and give the sink the rest."""
        self.write(ZEROS * 2)
        with memoryview(self._buffer) as view:
            self._sink(view[: self._filled])


def _headers(member: Member, size: int) -> bytes:
    seconds, part = divmod(member.mtime_ns, _SECOND_NS)
    name = member.name + b"/" if member.kind == "directory" else member.name
    text = _records(member, name, size, seconds, part)
    if member.extents is not None:
        name = b"GNUSparseFile.0/" + name
    block = header.pack(
        name, _TYPES[member.kind], mode=member.mode, uid=member.uid, gid=member.gid, size=size, mtime=seconds,
        linkname=member.target, device=member.device if member.kind.endswith("device") else None,
    )  # fmt: skip
    return b"".join((_extended(len(text)), text, ZEROS[len(text) % BLOCK or BLOCK :], block)) if text else block


def _records(member: Member, name: bytes, size: int, seconds: int, part: int) -> bytes:
    """Return the records of the extended header: the values that do not fit into a header."""
    if _is_plain(member, name, size, seconds):
        return b"30 mtime=%d.%09d\n" % (seconds, part) if part else b""
    records: dict[bytes, bytes] = {}
    if len(name) > _NAME_BYTES:
        records[b"path"] = name
    if len(member.target) > _NAME_BYTES:
        records[b"linkpath"] = member.target
    if member.extents is not None:
        records |= _sparse(member)
    if not all(value.isascii() for value in records.values()):
        records = {b"hdrcharset": b"BINARY", **records}
    if part or not 0 <= seconds <= header.MAX_OCTAL:
        records[b"mtime"] = _time(member.mtime_ns)
    if member.uid > header.MAX_ID:
        records[b"uid"] = b"%d" % member.uid
    if member.gid > header.MAX_ID:
        records[b"gid"] = b"%d" % member.gid
    if size > header.MAX_OCTAL:
        records[b"size"] = b"%d" % size
    for key, value in sorted(member.xattrs.items()):
        records[b"SCHILY.xattr." + key.replace(b"%", b"%25").replace(b"=", b"%3D")] = value
    return header.records_text(records) if records else b""


def _is_plain(member: Member, name: bytes, size: int, seconds: int) -> bool:
    """Return True if all values but fractions of a second fit into a header, as for nearly every member."""
    return (
        len(name) <= _NAME_BYTES
        and len(member.target) <= _NAME_BYTES
        and member.uid <= header.MAX_ID
        and member.gid <= header.MAX_ID
        and size <= header.MAX_OCTAL
        and _TEN_DIGITS[0] <= seconds <= _TEN_DIGITS[1]
        and member.extents is None
        and not member.xattrs
    )


def _time(time_ns: int) -> bytes:
    seconds, part = divmod(abs(time_ns), _SECOND_NS)
    text = b"%d.%09d" % (seconds, part) if part else b"%d" % seconds
    return b"-" + text if time_ns < 0 else text


def _sparse(member: Member) -> dict[bytes, bytes]:
    return {
        b"GNU.sparse.major": b"1",
        b"GNU.sparse.minor": b"0",
        b"GNU.sparse.name": member.name,
        b"GNU.sparse.realsize": b"%d" % member.whole_size,
    }


@lru_cache(maxsize=64)
def _extended(size: int) -> bytes:
    return header.pack(b"PaxHeaders/extended", b"x", mode=0o644, uid=0, gid=0, size=size, mtime=0)
