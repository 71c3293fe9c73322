"""Writing a tar archive: the same members give the same bytes, whoever made them, and any tar reads them."""

from collections.abc import Callable
from typing import Final

from sandkeep_store.archives import header, sparse
from sandkeep_store.archives.header import BLOCK, ZEROS
from sandkeep_store.archives.members import Kind, Member

Sink = Callable[[memoryview], object]
"""What takes the bytes. It may not keep what it is given."""

CHUNK: Final = 1 << 20
"""How many bytes a sink is given at once."""

_TYPES: Final[dict[Kind, bytes]] = {
    "file": b"0", "hard link": b"1", "symlink": b"2", "character device": b"3", "block device": b"4",
    "directory": b"5", "fifo": b"6",
}  # fmt: skip
_SECOND_NS: Final = 1_000_000_000


class Writer:
    """Members go in, bytes go to a sink: in chunks of one size, so that what becomes of them is reproducible, too."""

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
        """Write what fills up the last block of a member's data."""
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
    records: dict[bytes, bytes] = {}
    if len(name) > 100:
        records[b"path"] = name
    if len(member.target) > 100:
        records[b"linkpath"] = member.target
    if part or not header.fits(member.uid, member.gid, size, seconds):
        records |= _numbers(member, size)
    if member.xattrs:
        for key, value in sorted(member.xattrs.items()):
            records[b"SCHILY.xattr." + key.replace(b"%", b"%25").replace(b"=", b"%3D")] = value
    if member.extents is not None:
        records |= _sparse(member)
        name = b"GNUSparseFile.0/" + name
    block = header.made(
        name, _TYPES[member.kind], mode=member.mode, uid=member.uid, gid=member.gid, size=size, mtime=seconds,
        linkname=member.target, device=member.device if member.kind.endswith("device") else None,
    )  # fmt: skip
    return _extended(records) + block if records else block


def _numbers(member: Member, size: int) -> dict[bytes, bytes]:
    """What a header has no room for."""
    records: dict[bytes, bytes] = {}
    seconds, part = divmod(abs(member.mtime_ns), _SECOND_NS)
    if part or member.mtime_ns < 0 or seconds > header.MAX_OCTAL:
        fraction = b".%09d" % part if part else b""
        records[b"mtime"] = b"%s%d%s" % (b"-" if member.mtime_ns < 0 else b"", seconds, fraction.rstrip(b"0"))
    for key, value in ((b"uid", member.uid), (b"gid", member.gid)):
        if value > 8**7 - 1:
            records[key] = b"%d" % value
    if size > header.MAX_OCTAL:
        records[b"size"] = b"%d" % size
    return records


def _sparse(member: Member) -> dict[bytes, bytes]:
    return {
        b"GNU.sparse.major": b"1",
        b"GNU.sparse.minor": b"0",
        b"GNU.sparse.name": member.name,
        b"GNU.sparse.realsize": b"%d" % member.whole_size,
    }


def _extended(records: dict[bytes, bytes]) -> bytes:
    if not all(value.isascii() for key, value in records.items() if key in (b"path", b"linkpath", b"GNU.sparse.name")):
        records = {b"hdrcharset": b"BINARY", **records}
    text = header.records_text(records)
    block = header.made(b"PaxHeaders/extended", b"x", mode=0o644, uid=0, gid=0, size=len(text), mtime=0)
    return block + text.ljust(header.padded(len(text)), b"\0")
