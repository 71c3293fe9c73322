"""Bytes that arrive in chunks of any size, taken in pieces of the size one needs."""

from collections.abc import Iterable, Iterator
from typing import Final

from sandkeep_store.archives.tar.members import corrupt

_MOST_PADDING: Final = 64 << 20
_PADDING_PIECE: Final = 1 << 16


class Stream:
    """Bytes that arrive in chunks of any size."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._chunk = b""
        self._at = 0
        self.position = 0

    def take(self, size: int) -> bytes:
        """Exactly `size` bytes. Raises `snapshot_corrupt` when there are fewer."""
        end = self._at + size
        if end <= len(self._chunk):
            piece = self._chunk[self._at : end]
            self._at = end
            self.position += size
            return piece
        return b"".join(self.pieces(size))

    def piece(self, size: int) -> memoryview:
        """Some of the next `size` bytes, as they come. Raises `snapshot_corrupt` when there are none."""
        if self.at_end():
            raise corrupt("is cut short")
        piece = memoryview(self._chunk)[self._at : self._at + size]
        self._at += len(piece)
        self.position += len(piece)
        return piece

    def pieces(self, size: int) -> Iterator[memoryview]:
        """Exactly `size` bytes, as they come."""
        while size:
            piece = self.piece(size)
            size -= len(piece)
            yield piece

    def peek(self, size: int) -> bytes:
        """Return up to `size` bytes without consuming them; fewer at the end of a chunk."""
        return b"" if self.at_end() else self._chunk[self._at : self._at + size]

    def skip(self, size: int) -> None:
        """Leave out `size` bytes."""
        end = self._at + size
        if end <= len(self._chunk):
            self._at = end
            self.position += size
            return
        for _ in self.pieces(size):
            pass

    def ends_in_zeros(self) -> bool:
        """Return True if only zeros follow, as padding of bounded length."""
        for _ in range(_MOST_PADDING // _PADDING_PIECE):
            if self.at_end():
                return True
            piece = self.peek(_PADDING_PIECE)
            if any(piece):
                return False
            self.skip(len(piece))
        return self.at_end()

    def at_end(self) -> bool:
        """Return True at the end of the stream."""
        if self._at < len(self._chunk):
            return False
        self._chunk = next(self._chunks, b"")
        self._at = 0
        return not self._chunk
