"""Paths and lines of files from sandboxes, harmless for a terminal. Pure: text in, text out."""

from typing import Final

from sandkeep.cli.display.layout import plain

_ESCAPES: Final = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def quote(path: str, raw: bytes | None = None) -> str:
    """Return a path on one line, quoted as git does if it has control characters, quotes, or is not UTF-8. `raw` are
    the bytes of one that is not.
    """
    text = path if raw is None else raw.decode("utf-8", "surrogateescape")
    if raw is None and plain(text) == text and '"' not in text and "\\" not in text:
        return text
    return f'"{"".join(map(_escaped, text))}"'


def quote_bytes(path: bytes) -> str:
    """Return a path as `quote` does, given as bytes."""
    try:
        return quote(path.decode())
    except UnicodeDecodeError:
        return quote("", path)


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if plain(character) == character and not "\ud800" <= character <= "\udfff":
        return character
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))


def content(line: str) -> str:
    """Return a line of a file without control characters, except for tabs and the carriage return of a DOS file."""
    bare = line.removesuffix("\r")
    return "\t".join(map(plain, bare.split("\t"))) + line[len(bare) :]
