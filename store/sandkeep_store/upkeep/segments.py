"""Segments of the archive: files of events that left the log, each complete and checked before they leave it.

A segment is a zstd file: ``zstdcat SEGMENT`` shows an event a line. A skippable frame at its beginning describes its
content. Segments are never appended to or replaced.
"""

import contextlib
import hashlib
import os
import secrets
import struct
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import zstandard
from msgspec import Raw, Struct

from sandkeep import failpoints
from sandkeep.errors import DaemonError
from sandkeep.system.durable import Replacement, sync_directory
from sandkeep_store.eventlog.fingerprint_key import without_digest
from sandkeep_store.eventlog.row import Recorded
from sandkeep_store.fairness import yielding
from sandkeep_store.views.blanks import change_fingerprint

FOLDER: Final = "archive"
SUFFIX: Final = ".zst"
FORMAT: Final = 1
_SKIPPED: Final = struct.Struct("<II")
_SKIPPABLE_MAGIC: Final = 0x184D2A53
_MAX_HEADER_BYTES: Final = 64 * 1024


class Header(Struct, frozen=True, kw_only=True):
    """The description of a segment. The digest and the size are those of the lines."""

    format: int
    log_id: str
    first: int
    last: int
    events: int
    size_bytes: int
    sha256: str


class Line(Struct, frozen=True):
    """An event in a segment."""

    position: int
    time_us: int
    stream: str
    revision: int
    sandbox_id: str | None
    type: str
    version: int
    more: int
    data: Raw
    meta: Raw


_decode_header: Final = msgspec.json.Decoder(Header).decode
_decode_line: Final = msgspec.json.Decoder(Line).decode


def write(state_dir: str, log_id: str, events: Sequence[Recorded]) -> str:
    """Write events, in their order, into a new segment, and read it back; answer its name.

    It is durable and proved to hold them when this returns. Blocks. Raises `storage_unavailable`.
    """
    lines = [_line(event) for event in yielding(events)]
    folder = f"{state_dir}/{FOLDER}"
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        return store(folder, log_id, events[0].position, events[-1].position, lines)
    except OSError as error:
        raise DaemonError("storage_unavailable", f"{folder} cannot be written: {error.strerror}") from None


def store(folder: str, log_id: str, first: int, last: int, lines: Sequence[bytes]) -> str:
    """Write a segment, read it back, return its name. Raises OSError, and `storage_unavailable` if it differs."""
    content = b"".join(lines)
    header = Header(
        format=FORMAT,
        log_id=log_id,
        first=first,
        last=last,
        events=len(lines),
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    # A digest of its lines, which ``log.compacted`` would keep, could reveal data that is redacted later.
    name = f"{header.first:020}-{header.last:020}-{secrets.token_hex(8)}{SUFFIX}"
    _put(folder, name, header, content)
    return name


def _put(folder: str, name: str, header: Header, content: bytes) -> None:
    """Put a segment in its place once it is durable and was read back."""
    temporary = f"{folder}/.{name}.new"
    encoded = msgspec.json.encode(header)
    with Replacement(f"{folder}/{name}", temporary=temporary) as new:
        new.file.write(_SKIPPED.pack(_SKIPPABLE_MAGIC, len(encoded)) + encoded)
        new.file.write(zstandard.ZstdCompressor(level=3).compress(content))
        new.complete()
        failpoints.reach("segment.written")
        if read(temporary) != (header, content):
            raise _damaged(temporary, "it reads differently from what was written")
    failpoints.reach("segment.renamed")
    sync_directory(folder)


def tidy(state_dir: str) -> None:
    """Remove unfinished segments. No other may be in the making.

    Blocks. Raises `storage_unavailable`.
    """
    folder = f"{state_dir}/{FOLDER}"
    try:
        for name in os.listdir(folder):
            if name.startswith(".") and name.endswith(".new"):
                os.unlink(f"{folder}/{name}")
    except FileNotFoundError:
        return
    except OSError as error:
        raise DaemonError("storage_unavailable", f"{folder} cannot be written: {error.strerror}") from None


def _line(event: Recorded) -> bytes:
    line = Line(
        event.position,
        event.time_us,
        event.stream,
        event.revision,
        event.sandbox_id,
        event.type,
        event.version,
        event.more,
        Raw(event.data),
        archived_meta(event.meta),
    )
    return msgspec.json.encode(line) + b"\n"


def archived_meta(meta: bytes | Raw) -> Raw:
    """Return an event's meta for the archive, without the digest: archived commands are not looked up."""
    return Raw(change_fingerprint(bytes(meta), without_digest))


def names(state_dir: str) -> list[str]:
    """The segments of a state directory, in the order of their first events."""
    try:
        return sorted(n for n in os.listdir(f"{state_dir}/{FOLDER}") if n.endswith(SUFFIX) and not n.startswith("."))
    except FileNotFoundError:
        return []


def read(path: str) -> tuple[Header, bytes]:
    """A segment's header and its lines, checked against each other. Raises `storage_unavailable` for a damaged one."""
    try:
        with open(path, "rb") as file:
            whole = file.read()
        magic, length = _SKIPPED.unpack_from(whole)
        if magic != _SKIPPABLE_MAGIC or length > _MAX_HEADER_BYTES:
            raise _damaged(path, "it is no segment")
        begin = _SKIPPED.size + length
        header = _decode_header(whole[_SKIPPED.size : begin])
        content = zstandard.ZstdDecompressor().decompress(whole[begin:], max_output_size=header.size_bytes)
    except OSError as error:
        raise _damaged(path, str(error.strerror)) from None
    except (struct.error, msgspec.MsgspecError, zstandard.ZstdError) as error:
        raise _damaged(path, str(error)) from None
    if header.format != FORMAT or hashlib.sha256(content).hexdigest() != header.sha256:
        raise _damaged(path, "its content is not what its header says")
    return header, content


def events(path: str) -> Iterator[Line]:
    """The events of a segment. Raises `storage_unavailable` for a damaged one."""
    header, content = read(path)
    count = 0
    for text in content.splitlines():
        count += 1
        yield _decode_line(text)
    if count != header.events:
        raise _damaged(path, f"it has {count} events, not {header.events}")


def verify(state_dir: str, log_id: str) -> list[str]:
    """Check every segment; return the problems, a sentence each. Blocks."""
    return list(broken(state_dir, log_id).values())


def broken(state_dir: str, log_id: str) -> dict[str, str]:
    """Return the problems of segments, by their names. Blocks."""
    problems = {}
    for name in names(state_dir):
        path = f"{state_dir}/{FOLDER}/{name}"
        try:
            positions = [line.position for line in events(path)]
            header, _ = read(path)
            if header.log_id != log_id:
                problems[name] = f"{path} belongs to another event log: move it away"
            elif positions != sorted(positions) or [positions[0], positions[-1]] != [header.first, header.last]:
                problems[name] = f"{path} is damaged: its events are not in order; restore it from a backup"
        except (DaemonError, msgspec.MsgspecError, IndexError) as error:
            problems[name] = error.message if isinstance(error, DaemonError) else f"{path} is damaged: {error}"
    return problems


def positions(state_dir: str) -> set[int]:
    """The positions of the events in all segments that are sound. Blocks."""
    found: set[int] = set()
    for name in names(state_dir):
        with contextlib.suppress(DaemonError, msgspec.MsgspecError):
            found.update([line.position for line in events(f"{state_dir}/{FOLDER}/{name}")])
    return found


def _damaged(path: str, why: str) -> DaemonError:
    return DaemonError("storage_unavailable", f"the segment {path} is damaged ({why}): restore it from a backup")
