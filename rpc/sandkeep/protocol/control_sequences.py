"""An allow-list of terminal control sequences, for bytes from a sandbox that a terminal is to show.

A viewer of a process's terminal is sent what tmux draws. But that passes through a pseudo-terminal of the sandbox's,
to which any process inside can write, and the tmux is the sandbox's own. A terminal does more than draw if it is asked
to: it sets its title and the clipboard, prints, and answers questions as if that had been typed. So `Filter` passes
printable characters and what draws, as ECMA-48 and xterm name it, and drops all else:

- of C0 the harmless ones, of C1 none, in neither of its forms; what is not UTF-8 becomes U+FFFD
- no strings (OSC, DCS, APC, PM, SOS), whatever is in them
- of CSI those that tmux sends for the kinds of terminal that there are: the cursor, erasing, inserting, scrolling,
  colours, and the modes in `MODES`, all of which `RESET` ends
- no question but the three by which tmux finds out which terminal it has, each once: they have one fixed answer
"""

import re
from typing import Final

MODES: Final = (1, 7, 12, 25, 69, 1000, 1002, 1003, 1004, 1005, 1006, 1048, 2004, 2026)
"""The private modes that may be switched: of keys, wrapping, cursor, margins, mouse, focus, paste and pace. Besides
them those of the alternate screen may be, each by itself.
"""

RESET: Final = (
    b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1005l\x1b[?1006l\x1b[?1004l\x1b[?2004l\x1b[?2026l\x1b[?69l\x1b[?1l\x1b>\x1b[4l"
    b"\x1b[?7h\x1b[?12l\x1b[34h\x1b[?25h\x1b[0 q\x0f\x1b)B\x1b(B\x1b[m"
)
"""Sequences that undo all that can be passed, but for screen and margins: modes, keypad, cursor, characters, colours.
"""

_ALTERNATE: Final = re.compile(rb"\x1b\[\?(?:47|1047|1049)([hl])")
"""A change to the alternate screen, or back."""

MOST_PENDING: Final = 256
"""A sequence that is longer is none that is passed."""

_NUMBER: Final = rb"[0-9]{0,4}"  # no terminal has more columns; some count to a billion if they are told to
_MODE: Final = rb"(?:%s)" % b"|".join(b"%d" % mode for mode in MODES)

_PLAIN: Final = rb"[\x20-\x7e\a\b\t\n\r\x0e\x0f]++"
_UTF8: Final = (
    rb"(?:\xc2[\xa0-\xbf]|[\xc3-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    rb"|\xed[\x80-\x9f][\x80-\xbf]|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})++"
)
_DRAWING: Final = (
    rb"\x1b(?:"
    rb"\[(?:"
    rb"(?:%(n)s[;:]){0,40}%(n)sm"  # colours
    rb"|%(n)s(?:;%(n)s)?[@A-IL-MPX`abd-gr-s]|%(n)s[STZ]|u"  # cursor, lines, characters, scrolling, tabs, margins
    rb"|[012]?[JK]"  # erasing, but not the scrollback
    rb"|\?%(mode)s(?:;%(mode)s)*[hl]|\?(?:47|1047|1049)[hl]|(?:4|34)[hl]"
    rb"|[0-6]? q|\?[018]c"  # the cursor's form, which Linux's console has told otherwise
    rb"|2[23];0;0t"  # the title kept, and as it was
    rb"|%(n)s(?:;%(n)s){4}\$x"  # a rectangle filled
    rb")|[78=>DEHM]|[()][0AB])"
) % {b"n": _NUMBER, b"mode": _MODE}

_TOKENS: Final = re.compile(
    rb"(?P<passed>(?:%(plain)s|%(drawing)s|%(utf8)s)++)"
    rb"|(?P<question>\x1b\[(?:0?c|>0?[cq]))"
    rb"|(?P<string>\x1b[PX\]^_])"
    rb"|(?P<pending>(?:\x1b(?:\[[0-?]{0,%(most)d}[ -/]{0,2}|[ -/]{0,2})?+"
    rb"|[\xc2-\xf4]|[\xe0-\xf4][\x80-\xbf]|[\xf0-\xf4][\x80-\xbf]{2})\Z)"
    rb"|(?P<control>\x1b\[[0-?]*+[ -/]*+[@-~]?|\x1b[ -/]*+[0-~]?|\xc2[\x80-\x9f]|[\x00-\x1f\x7f])"
    rb"|(?P<broken>(?:[\x80-\xc1\xf5-\xff]|[\xc2-\xf4](?=[^\x80-\xbf]))++|[\xc2-\xf4])"
    % {b"plain": _PLAIN, b"drawing": _DRAWING, b"utf8": _UTF8, b"most": MOST_PENDING}
)
_STRING_END: Final = re.compile(rb"[\x07\x18\x1a]|\x1b\\|(?=\x1b[^\\])")  # another sequence ends it, too
_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}".encode()


class Filter:
    """Passes drawing sequences, of bytes that come in pieces. A sequence is passed as a whole, or not at all."""

    def __init__(self) -> None:
        self._pending = b""
        self._in_string = False
        self._answered = set[bytes]()
        self._way_back = b""

    def reset(self) -> bytes:
        """Return the sequences that restore a terminal after any passed bytes."""
        return RESET + (b"\x1b[r" + self._way_back if self._way_back else b"\x1b7\x1b[r\x1b8")

    def feed(self, data: bytes) -> bytes:
        """The part of the next bytes that may be shown. An unfinished sequence waits for its end."""
        passed = self._feed(data)
        for change in _ALTERNATE.finditer(passed):
            self._way_back = change[0].replace(b"h", b"l") if change[1] == b"h" else b""
        return passed

    def _feed(self, data: bytes) -> bytes:
        if self._pending:
            data, self._pending = self._pending + data, b""
        parts: list[bytes] = []
        at = 0
        while at < len(data):
            if self._in_string:
                at = self._skip_string(data, at)
                continue
            found = _TOKENS.match(data, at)
            assert found is not None  # every byte begins a token
            if found.lastgroup == "passed" and len(found[0]) == len(data):
                return data
            parts.append(self._handle_token(found))
            at = found.end()
        return b"".join(parts)

    def _handle_token(self, found: re.Match[bytes]) -> bytes:
        if found.lastgroup == "passed":
            return found[0]
        if found.lastgroup == "broken":
            return _REPLACEMENT * len(found[0])  # for each byte, as a run of them may come in pieces
        if found.lastgroup == "pending":
            self._pending = found[0]
        elif found.lastgroup == "string":
            self._in_string = True
        elif found.lastgroup == "question":
            return self._ask_once(found[0])
        return b""

    def _ask_once(self, question: bytes) -> bytes:
        plain = question.replace(b"0", b"")
        if plain in self._answered:
            return b""
        self._answered.add(plain)
        return question

    def _skip_string(self, data: bytes, at: int) -> int:
        """Position at which the string that was begun has ended, or the bytes so far."""
        end = _STRING_END.search(data, at)
        if end is not None:
            self._in_string = False
            return end.end()
        self._pending = b"\x1b" if data.endswith(b"\x1b") else b""
        return len(data)
