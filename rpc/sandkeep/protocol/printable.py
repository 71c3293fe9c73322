"""Text that a terminal can show without being driven by it: one table of characters, for people's lines and for JSON.

Names, paths and messages come from sandboxes and callers. Printed as they are, control characters set a terminal's
title and clipboard, bidirectional controls show a path as another, and invisible ones make two names look alike. So
whatever the programs print passes here, except for output of the user's own processes, which the user asked for:

- `plain` is for a cell or a line: one line, each such character as U+FFFD
- `lines` is for text of several lines, whose newlines and tabs stay
- `document` is for JSON: each such character as its escape, so that a parser reads the same value
"""

import re
from typing import Any, Final

import msgspec

_UNSAFE: Final = (
    (0x00, 0x1F), (0x7F, 0x9F),  # C0, DEL, C1
    (0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F),
    (0x200B, 0x200F), (0x2028, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0), (0xFFF0, 0xFFFB), (0x13430, 0x1343F), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
)  # fmt: skip
"""Ranges of the controls (Unicode's category Cc), line and paragraph separators (Zl, Zp), format characters (Cf), but
for the few that draw something, and of all others that draw nothing (Default_Ignorable_Code_Point), such as the fillers
of Hangul, which are letters. Listed, as `unicodedata` would cost each command its import.
"""

_CLASS: Final = "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in _UNSAFE)
_UNSAFE_IN_LINE: Final = re.compile(f"[{_CLASS}]")
_UNSAFE_IN_LINES: Final = re.compile(f"(?![\\n\\t])[{_CLASS}]")
_INSTEAD: Final = {"\n": "⏎", "\u2028": "⏎", "\u2029": "⏎", "\t": " "}
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"


def plain(text: object) -> str:
    """Return a text as one line, without characters that drive a terminal or cannot be seen."""
    line = str(text)
    return line if _is_harmless(line) else _UNSAFE_IN_LINE.sub(_shown, line)


def lines(text: object) -> str:
    """Return a text of any number of lines, which may have tabs, without such characters."""
    several = str(text)
    return several if _is_harmless(several) else _UNSAFE_IN_LINES.sub(_shown, several)


def _is_harmless(text: str) -> bool:
    """Tell quickly of most texts: of others, `isprintable` knows letters that nobody sees."""
    return text.isascii() and text.isprintable()


def _shown(found: re.Match[str]) -> str:
    return _INSTEAD.get(found[0], _REPLACEMENT)


def document(value: Any) -> bytes:
    """Encode a value as JSON, on one line. Such characters, which all are in strings, are escaped."""
    encoded = msgspec.json.encode(value)
    if encoded.isascii() and b"\x7f" not in encoded:
        return encoded
    return _UNSAFE_IN_LINE.sub(_escaped, encoded.decode()).encode()


def _escaped(found: re.Match[str]) -> str:
    """Return a character's escape in JSON: of one beyond U+FFFF those of its two surrogates."""
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
