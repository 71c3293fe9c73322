"""Boundaries of the frames of a zstd archive.

The decompressor reports neither a truncated frame nor data after the last one; the lengths in the block headers show
both.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from sandkeep_store.archives.tar.members import corrupt
from sandkeep_store.archives.tar.stream import Stream

MAGIC: Final = b"\x28\xb5\x2f\xfd"
SKIPPED: Final = tuple(bytes((number, 0x2A, 0x4D, 0x18)) for number in range(0x50, 0x60))
"""Magic numbers of skippable frames, in which programs store their own notes."""

_DICTIONARY_BYTES: Final = (0, 1, 2, 4)
_SIZE_BYTES: Final = (0, 2, 4, 8)
_RUN, _RESERVED = 1, 3
"""Kinds of blocks."""


class Frames:
    """A file of frames only, each whole. Raises `snapshot_corrupt` where that is not so."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._stream = Stream(chunks)
        self._pieces = self._frames()
        self._waiting = bytearray()

    def read(self, size: int) -> bytes:
        """About `size` bytes; nothing at the end."""
        for piece in self._pieces:
            self._waiting += piece
            if len(self._waiting) >= size:
                break
        data = bytes(self._waiting[:size])
        del self._waiting[:size]
        return data

    def _frames(self) -> Iterator[bytes | memoryview]:
        while not self._stream.at_end():
            magic = self._stream.take(len(MAGIC))
            if magic in SKIPPED:
                self._stream.skip(int.from_bytes(self._stream.take(4), "little"))
            elif magic == MAGIC:
                yield magic
                yield from self._frame()
            else:
                raise corrupt("is not safe to extract: data follows the compressed stream")

    def _frame(self) -> Iterator[bytes | memoryview]:
        descriptor = self._stream.take(1)
        flags = descriptor[0]
        single = flags >> 5 & 1
        yield descriptor
        yield self._stream.take((not single) + _DICTIONARY_BYTES[flags & 3] + (_SIZE_BYTES[flags >> 6] or single))
        last = 0
        while not last:
            header_bytes = self._stream.take(3)
            block_header = int.from_bytes(header_bytes, "little")
            last, kind, size = block_header & 1, block_header >> 1 & 3, block_header >> 3
            if kind == _RESERVED:
                raise corrupt("is damaged: it cannot be decompressed")
            yield header_bytes
            yield from self._stream.pieces(1 if kind == _RUN else size)
        if flags >> 2 & 1:
            yield self._stream.take(4)
