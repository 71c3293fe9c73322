"""Framing: one message a line, in time linear in its bytes and in memory bounded by the longest line allowed."""

from typing import Final

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
"""The longest message either side may send, without its newline. Bigger things are read in pieces."""


class LineBuffer:
    """Splits a stream of bytes into lines.

    An incomplete line is kept in one growing buffer and never searched again, so that a peer which sends a byte at a
    time costs no more than one which sends all at once.
    """

    def __init__(self) -> None:
        self._partial = bytearray()
        self.overflowed = False
        """A line was too long. It and all that follows is dropped: the next line cannot be told from its rest."""

    def __len__(self) -> int:
        return len(self._partial)

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes and return the lines that are complete now, without newlines and without empty ones."""
        if self.overflowed:
            return []
        if not self._partial and 1 < len(data) <= MAX_LINE_BYTES and data.find(b"\n") == len(data) - 1:
            return [data[:-1]]  # the usual: one line and no more
        *complete, rest = data.split(b"\n")
        if complete and self._partial:
            complete[0] = self._take_partial(complete[0])
        lines = self._within_limit(complete)
        if not self.overflowed:
            self._keep(rest)
        return lines

    def _take_partial(self, end: bytes) -> bytes:
        line = bytes(self._partial) + end
        self._partial.clear()
        return line

    def _within_limit(self, lines: list[bytes]) -> list[bytes]:
        for number, line in enumerate(lines):
            if len(line) > MAX_LINE_BYTES:
                self.overflowed = True
                return [line for line in lines[:number] if line]
        return [line for line in lines if line]

    def _keep(self, rest: bytes) -> None:
        if len(self._partial) + len(rest) > MAX_LINE_BYTES:
            self.overflowed = True
            self._partial.clear()
        elif rest:
            self._partial += rest
