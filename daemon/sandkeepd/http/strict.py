"""Framing of HTTP/1.1 requests, read as strictly as RFC 9112 allows.

Where h11 is lenient, a proxy before the daemon may see the end of a head, or of a body, elsewhere than the daemon does:
then one client's request is answered to another. So everything that a server may refuse is refused with 400: a line
that ends in a bare LF or has a bare CR, a folded line, a control character in a field, a `Content-Length` that is a
list, is repeated, or stands beside `Transfer-Encoding`, and a chunk's size with blanks.
"""

import re
from collections.abc import Sequence
from typing import Final

import h11
from h11._receivebuffer import ReceiveBuffer
from h11._util import LocalProtocolError

MAX_HEAD_BYTES: Final = 16 * 1024
"""Maximum size of a request's head, and of the trailers behind a body of chunks."""

_END: Final = b"\r\n\r\n"
_BARE: Final = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)")
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_LENGTH: Final = re.compile(rb"content-length:[ \t]*([0-9]{1,18})[ \t]*", re.IGNORECASE)
_IS_LENGTH: Final = re.compile(rb"content-length\s*:", re.IGNORECASE)
_IS_CODING: Final = re.compile(rb"transfer-encoding\s*:", re.IGNORECASE)
_CHUNK: Final = re.compile(rb"[0-9A-Fa-f]{1,16}(;[\t\x20-\x7e\x80-\xff]*)?\r\n")


class StrictBuffer(ReceiveBuffer):
    """Received bytes, from which h11 takes heads, trailers and chunks' sizes."""

    def maybe_extract_lines(self) -> list[bytearray] | None:
        """Return the lines of a head, without their ends, or None if it is not complete yet.

        Raises LocalProtocolError, which h11 answers with the status that it names.
        """
        if self._data[:2] == b"\r\n":  # no trailers; or no request line, which h11 refuses
            self._extract(2)
            return []
        end = self._data.find(_END, self._multiple_lines_search)
        if end < 0:
            _refuse(_BARE.search(self._data, self._multiple_lines_search))
            self._multiple_lines_search = max(0, len(self._data) - len(_END) + 1)
            return None
        head = self._extract(end + len(_END))
        if len(head) > MAX_HEAD_BYTES:
            raise LocalProtocolError("head too long", error_status_hint=431)
        lines = head[: -len(_END)].split(b"\r\n")
        _check(lines)
        return lines

    def maybe_extract_next_line(self) -> bytearray | None:
        """Return the line of a chunk's size, or None if it is not complete yet."""
        line = super().maybe_extract_next_line()
        _refuse(line is not None and not _CHUNK.fullmatch(line))
        return line


def _check(lines: Sequence[bytes | bytearray]) -> None:
    lengths = [line for line in lines if _IS_LENGTH.match(line)]
    _refuse(any(_CONTROL.search(line) or line[:1] in (b" ", b"\t") for line in lines))
    _refuse(len(lengths) > 1 or any(not _LENGTH.fullmatch(line) for line in lengths))
    _refuse(lengths and any(_IS_CODING.match(line) for line in lines))


def _refuse(is_wrong: object) -> None:
    if is_wrong:
        raise LocalProtocolError("malformed request")


def make_strict(connection: h11.Connection) -> None:
    """Let a new connection read from a `StrictBuffer`."""
    connection._receive_buffer = StrictBuffer()  # noqa: SLF001  # h11 has no setting for it
