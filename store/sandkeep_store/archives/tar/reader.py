"""A tar reader for streams: yields members, checked one by one.

It understands the formats that GNU tar, bsdtar and Python write, and refuses constructs on which these differ. Nothing
else parses headers: an archive that is passed on is written anew from these members.
"""

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from sandkeep_store.archives.tar import header, sparse
from sandkeep_store.archives.tar.header import BLOCK, ZEROS, Fields
from sandkeep_store.archives.tar.members import (
    MAX_NAME_BYTES,
    Kind,
    Member,
    corrupt,
    is_archived,
    normalized_name,
    shown,
)
from sandkeep_store.archives.tar.sparse import decimal
from sandkeep_store.archives.tar.stream import Stream
from sandkeep_store.fairness import yielding

MAX_EXTENDED_BYTES: Final = 1 << 20
"""Maximum size of an extended header, which is held in memory."""

_KINDS: Final[dict[bytes, Kind]] = {
    b"0": "file", b"\0": "file", b"7": "file", b"S": "file", b"1": "hard link", b"2": "symlink",
    b"3": "character device", b"4": "block device", b"5": "directory", b"6": "fifo",
}  # fmt: skip
_BEFORE_A_MEMBER: Final = {b"x": b"", b"L": b"path", b"K": b"linkpath"}
_FOR_ALL: Final = b"g"
_LABEL: Final = b"V"

_MOST_GLOBALS: Final = 1000
_MOST_GLOBAL_BYTES: Final = 1 << 16
"""Maximum size of global headers: they are held in memory and applied to each member."""
_STRIDE: Final = 50
_PAUSE_S: Final = 0.00005
"""So many members take about a millisecond, and a pause is as long as another thread takes to wake up."""
_SECOND_NS: Final = 1_000_000_000
_MAX_SECONDS: Final = 1 << 43
_PLAIN_TIME: Final = re.compile(rb"[0-9]{10}\.[0-9]{9}")
"""As nearly every extended header has it."""
_XATTR: Final = b"SCHILY.xattr."
_USER: Final = len(b"user.")
_MAX_XATTR_NAME: Final = 255
_MAX_XATTR_BYTES: Final = 1 << 16
_MAX_XATTR_LIST: Final = 1 << 16
"""XATTR_LIST_MAX: the kernel lists no more bytes of a file's names, each with a zero at its end."""
_SPARSE: Final = b"GNU.sparse."
_PLAIN: Final = frozenset((b"path", b"linkpath", b"size", b"mtime", b"uid", b"gid"))
"""Keys that nearly every extended header has, and that affect neither sparse maps nor attributes."""
_NOT_FOR_ALL: Final = (b"path", b"linkpath", b"size")
"""Keys that are not allowed in a global header."""

Records = dict[bytes, bytes]


class Reader:
    """The members of one archive, in its order.

        for member in reader:
            for piece in reader.data(): ...

    Data that nobody asks for are left out. Raises `snapshot_corrupt`.
    """

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._stream = Stream(chunks)
        self._left = 0
        self._padding = 0
        self._global: Records = {}
        self._globals_left = _MOST_GLOBALS
        self._last = b""

    def __iter__(self) -> Iterator[Member]:
        return yielding(self._members(), _STRIDE, _PAUSE_S)

    def _members(self) -> Iterator[Member]:
        while (member := self._parsed()) is not None:
            self._last = member.name
            self._left, self._padding = member.size, -member.size % BLOCK
            yield member
            self._stream.skip(self._left + self._padding)

    def data(self) -> Iterator[memoryview]:
        """The bytes of the present member; of a file with holes, those of its extents."""
        while self._left:
            piece = self._stream.piece(self._left)
            self._left -= len(piece)
            yield piece

    def _parsed(self) -> Member | None:
        try:
            return self._next()
        except ValueError:
            raise corrupt(f"is damaged: the header after {self._place()} has no number where one belongs") from None

    def _next(self) -> Member | None:
        kinds_seen = b""  # by which kinds of extended headers
        records = self._global
        while (fields := self._next_header()) is not None:
            kind = fields.kind
            if kind in _BEFORE_A_MEMBER:
                if kind in kinds_seen:
                    raise corrupt(f"is not safe to extract: two headers name what comes after {self._place()}")
                kinds_seen += kind
                records = self._joined(records, kind, self._extended(fields))
            elif kind == _FOR_ALL:
                self._take_globals(self._extended(fields))
                records = {**self._global, **records} if kinds_seen else self._global
            elif kind == _LABEL and not kinds_seen and not fields.size:
                continue
            else:
                return self._member(fields, records)
        if kinds_seen:
            raise corrupt(f"is damaged: an extended header is the last thing, after {self._place()}")
        return None

    # -- headers -------------------------------------------------------------------------------------------------------

    def _next_header(self) -> Fields | None:
        if self._stream.at_end():
            if not self._stream.position:
                raise corrupt("is empty")
            raise corrupt(f"is cut short: nothing marks its end after {self._place()}")
        block = self._stream.take(BLOCK)
        if block == ZEROS:
            self._check_end()
            return None
        if not header.has_valid_checksum(block):
            if self._stream.position == BLOCK:
                raise corrupt("is not a tar archive")
            raise corrupt(f"is damaged: what comes after {self._place()} is no header")
        return Fields(block)

    def _place(self) -> str:
        return f"member {shown(self._last)}" if self._last else "its beginning"

    def _check_end(self) -> None:
        """After the two blocks that mark the end comes only padding. Anything else some programs would read."""
        if self._stream.at_end() or self._stream.take(BLOCK) != ZEROS:
            raise corrupt(f"is damaged: half an end-of-archive mark comes after {self._place()}")
        if not self._stream.ends_in_zeros():
            raise corrupt("is not safe to extract: data follows its end-of-archive mark")

    def _extended(self, fields: Fields) -> bytes:
        size = _not_negative(fields.size)
        if size > MAX_EXTENDED_BYTES:
            raise corrupt(f"cannot be extracted: an extended header after {self._place()} is too large")
        data = self._stream.take(size)
        self._stream.skip(-size % BLOCK)
        return data

    def _joined(self, records: Records, kind: bytes, data: bytes) -> Records:
        key = _BEFORE_A_MEMBER[kind]
        more = {key: data.partition(b"\0")[0]} if key else _records(data)
        if (
            records is not self._global
            and not more.keys().isdisjoint((b"path", b"linkpath"))
            and (any(name in records and name in more for name in (b"path", b"linkpath")))
        ):
            raise corrupt(f"is not safe to extract: two headers name what comes after {self._place()}")
        return {**records, **more}

    def _take_globals(self, data: bytes) -> None:
        records = _records(data)
        self._globals_left -= 1
        if not self._globals_left:
            raise corrupt("cannot be extracted: it has too many global headers")
        if any(key in _NOT_FOR_ALL or key.startswith(_SPARSE) for key in records):
            raise corrupt("is not safe to extract: a global header sets the name or size of all members")
        self._global |= {key: value for key, value in records.items() if _is_for_all(key)}
        if sum(len(key) + len(value) for key, value in self._global.items()) > _MOST_GLOBAL_BYTES:
            raise corrupt("cannot be extracted: its global headers are too large")

    # -- members -------------------------------------------------------------------------------------------------------

    def _member(self, fields: Fields, records: Records) -> Member:
        kind = _KINDS.get(fields.kind)
        name = records.get(b"GNU.sparse.name") or records.get(b"path", fields.name)
        if kind is None:
            raise corrupt(f"cannot be extracted: {shown(name)} is of the unknown kind {shown(fields.kind)}", name)
        size = decimal(records[b"size"]) if b"size" in records else _not_negative(fields.size)
        if name.endswith(b"/") and kind != "directory":
            if kind != "file" or size:
                raise corrupt(f"is not safe to extract: {shown(name)} is a {kind} with a directory's name", name)
            kind = "directory"  # as it was written before there was a kind for them
        if size and kind != "file":
            raise corrupt(f"is not safe to extract: {shown(name)} is a {kind} with content", name)
        mode, uid, gid, mtime = fields.numbers
        member = Member(
            name=normalized_name(name), kind=kind, mode=mode & 0o7777, uid=_id(records, b"uid", uid),
            gid=_id(records, b"gid", gid), mtime_ns=_time(records, mtime), size=size, whole_size=size,
        )  # fmt: skip
        only_plain = records.keys() <= _PLAIN
        if kind == "file":
            if not only_plain or fields.kind == b"S":
                self._find_holes(member, fields, records)
        elif kind in ("symlink", "hard link"):
            member.target = _target(member, records.get(b"linkpath", fields.linkname))
        elif kind in ("character device", "block device"):
            member.device = fields.device
        if not only_plain and kind in ("file", "directory"):  # the kernel has users' own attributes of nothing else
            member.xattrs = {name: value for name, value in _xattrs(records) if is_archived(name)}
            _check_xattrs(member)
        return member

    def _find_holes(self, member: Member, fields: Fields, records: Records) -> None:
        if fields.kind == b"S":
            member.whole_size = _not_negative(header.number(fields.block[483:495]))
            pairs = self._old_map(fields.block)
        elif not any(key.startswith(_SPARSE) for key in records):
            return
        elif records.get(b"GNU.sparse.major") == b"1" and records.get(b"GNU.sparse.minor") == b"0":
            member.whole_size = decimal(records.get(b"GNU.sparse.realsize", b""))
            pairs = self._map_before_data(member)
        else:
            member.whole_size = decimal(records.get(b"GNU.sparse.size", b""))
            pairs = sparse.of_records(records)
        member.extents = sparse.checked_extents(pairs, member.whole_size, member.size, member.name)

    def _old_map(self, block: bytes) -> Iterator[int]:
        yield from sparse.in_header(block)
        more = block[482]
        while more:
            block = self._stream.take(BLOCK)
            yield from sparse.in_extension(block)
            more = block[504]

    def _map_before_data(self, member: Member) -> Iterator[int]:
        """Parse the sparse map of format 1.0, which takes up the first blocks of the file's data."""
        lines = b""
        wanted = 1
        given = array("q")
        while len(given) < wanted:
            if member.size < BLOCK or len(lines) > BLOCK:
                raise corrupt("is damaged: a sparse file's map is cut short", member.name)
            *whole, lines = (lines + self._stream.take(BLOCK)).split(b"\n")
            member.size -= BLOCK
            given.extend(decimal(line) for line in whole[: wanted - len(given)])
            if wanted == 1 and given:
                wanted = 1 + 2 * min(given[0], sparse.MAX_EXTENTS + 1)
                given.extend(decimal(line) for line in whole[1:wanted])
        return iter(given[1:])


def _records(data: bytes) -> Records:
    found: Records = {}
    pieces = []
    for key, value in header.records(data):
        if key in (b"GNU.sparse.offset", b"GNU.sparse.numbytes"):
            pieces.append(value)  # the first of the formats says these over and over
        else:
            found[key] = value
    if pieces:
        found[b"GNU.sparse.map"] = b",".join(pieces)
    return found


def _is_for_all(key: bytes) -> bool:
    """Return True for a key that is supported in a global header."""
    return key in (b"mtime", b"uid", b"gid") or key.startswith(_XATTR)


def _id(records: Mapping[bytes, bytes], key: bytes, from_header: int) -> int:
    return decimal(records[key]) if key in records else max(from_header, 0)


def _time(records: Mapping[bytes, bytes], from_header: int) -> int:
    text = records.get(b"mtime")
    if text is not None and _PLAIN_TIME.fullmatch(text):
        return int(text.replace(b".", b""))
    if text is None:
        seconds, part = from_header, 0
    else:
        whole, _, fraction = text.removeprefix(b"-").partition(b".")
        if fraction and not fraction.isdigit():
            raise corrupt("is damaged: an extended header holds no time where one belongs")
        seconds, part = decimal(whole), int(fraction[:9].ljust(9, b"0"))
    if abs(seconds) > _MAX_SECONDS:
        raise corrupt("is damaged: it holds a time that is none")
    value = seconds * _SECOND_NS + part
    return -value if text is not None and text.startswith(b"-") else value


def _target(member: Member, raw: bytes) -> bytes:
    if not raw or b"\0" in raw or len(raw) > MAX_NAME_BYTES:
        raise corrupt(f"is damaged: the {member.kind} {shown(member.name)} leads to no name", member.name)
    return raw if member.kind == "symlink" else normalized_name(raw)


def _not_negative(number: int) -> int:
    if number < 0:
        raise ValueError(number)
    return number


def _check_xattrs(member: Member) -> None:
    for name, value in member.xattrs.items():
        if not _USER < len(name) <= _MAX_XATTR_NAME or b"\0" in name or len(value) > _MAX_XATTR_BYTES:
            raise corrupt(f"cannot be extracted: {shown(member.name)} has an attribute that nothing can have", name)
    if sum(len(name) + 1 for name in member.xattrs) > _MAX_XATTR_LIST:
        raise corrupt(f"cannot be extracted: {shown(member.name)} has more attributes than a file can have")


def _xattrs(records: Records) -> Iterator[tuple[bytes, bytes]]:
    for key, value in records.items():
        if key.startswith(_XATTR) and value:  # a record without a value is none
            yield key.removeprefix(_XATTR).replace(b"%3D", b"=").replace(b"%25", b"%"), value
