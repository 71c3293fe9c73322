"""Archives made by hand, as no program would make them."""

import io
import tarfile
from collections.abc import Iterator
from typing import Any

BLOCK = 512
END = bytes(2 * BLOCK)


def header(name: bytes = b"a", kind: bytes = b"0", **fields: Any) -> bytes:
    """One header. Fields are bytes as they are to stand there, or numbers."""
    block = bytearray(BLOCK)
    places = {"mode": (100, 8), "uid": (108, 8), "gid": (116, 8), "size": (124, 12), "mtime": (136, 12)}
    places |= {"major": (329, 8), "minor": (337, 8), "realsize": (483, 12)}
    fields = {"mode": 0o644, "uid": 0, "gid": 0, "size": 0, "mtime": 0} | fields
    block[: len(name[:100])] = name[:100]
    block[156:157] = kind
    target = fields.pop("target", b"")
    block[157 : 157 + len(target[:100])] = target[:100]
    block[257:265] = fields.pop("magic", b"ustar\x0000")
    prefix = fields.pop("prefix", b"")
    block[345 : 345 + len(prefix)] = prefix
    more = fields.pop("more", {})
    for field, value in fields.items():
        at, width = places[field]
        text = value if isinstance(value, bytes) else b"%0*o" % (width - 1, value)
        block[at : at + len(text)] = text
    for at, text in more.items():
        block[at : at + len(text)] = text
    return summed(block)


def summed(block: bytes | bytearray) -> bytes:
    """A header with the right sum in it."""
    block = bytearray(block)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padded(data: bytes) -> bytes:
    """Data up to the end of its last block."""
    return data + bytes(-len(data) % BLOCK)


def member(name: bytes = b"a", kind: bytes = b"0", data: bytes = b"", **fields: Any) -> bytes:
    """A header and its data."""
    return header(name, kind, size=len(data), **fields) + padded(data)


def extended(records: dict[bytes, bytes] | bytes, kind: bytes = b"x") -> bytes:
    """An extended header."""
    data = records if isinstance(records, bytes) else b"".join(record(*pair) for pair in records.items())
    return member(b"././@PaxHeader", kind, data)


def record(key: bytes, value: bytes) -> bytes:
    """One record of it."""
    rest = len(key) + len(value) + 3
    size = next(size for size in range(rest, rest + 10) if len(str(size)) + rest == size)
    return b"%d %s=%s\n" % (size, key, value)


def archive(*members: bytes) -> bytes:
    """Members, and the end."""
    return b"".join(members) + END


def by_python(form: int) -> bytes:
    """An archive of many things, as Python makes it."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=form) as tar:
        for info, data in _things():
            tar.addfile(info, io.BytesIO(data) if data else None)
    return target.getvalue()


def _things() -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    def info(name: str, kind: bytes = tarfile.REGTYPE, **fields: Any) -> tarfile.TarInfo:
        made = tarfile.TarInfo(name)
        made.type, made.mtime = kind, 1_500_000_000
        for field, value in fields.items():
            setattr(made, field, value)
        return made

    yield info("d", tarfile.DIRTYPE, mode=0o700), b""
    yield info("d/file", size=5, mode=0o640), b"hello"
    yield info("d/\u00fc", size=1), b"x"
    yield info("d/" + "n" * 90, size=1), b"x"
    yield info("d/link", tarfile.SYMTYPE, linkname="file"), b""
    yield info("d/hard", tarfile.LNKTYPE, linkname="d/file", mode=0o640), b""
    yield info("pipe", tarfile.FIFOTYPE), b""


LONG = ["d/" + "deep/" * 30 + "end", "d/" + "n" * 200]
"""Names for which only some formats have room."""
