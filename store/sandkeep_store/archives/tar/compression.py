"""Compression and decompression of archives; both as streams, counted and hashed on the way.

gzip uses ISA-L, an order of magnitude faster than zlib, in threads that do not hold the GIL.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, Literal, Protocol

import zstandard
from isal import igzip_lib, igzip_threaded

from sandkeep.errors import DaemonError
from sandkeep.system.descriptors import closing_fd
from sandkeep_store.archives.tar.members import corrupt
from sandkeep_store.archives.tar.output import Output
from sandkeep_store.archives.tar.stream import Stream
from sandkeep_store.archives.tar.zstd_frames import MAGIC as _ZSTD
from sandkeep_store.archives.tar.zstd_frames import SKIPPED as _SKIPPED
from sandkeep_store.archives.tar.zstd_frames import Frames

Codec = Literal["gzip", "zstd", "none"]

CHUNK: Final = 1 << 20
_PIECE: Final = 1 << 18
"""Bytes decompressed per call: in between, other threads get the GIL."""
THREADS: Final = 2
_GZIP_LEVEL: Final = 1
_ZSTD_LEVEL: Final = 3
_MAX_WINDOW: Final = 1 << 27
"""Maximum zstd window in bytes: the default limit of the zstd program."""

_GZIP: Final = b"\x1f\x8b"
_FIRST_WINDOW: Final = 4096
_MOST_PARTS: Final = 1000
_PART_BYTES: Final = 4096
"""A gzip archive may have so many parts, and one more for each so many bytes: none are this small by accident."""


class Compressor(Protocol):
    """A sink that compresses bytes. After `close` all output is written."""

    def write(self, data: memoryview, /) -> object:
        """Take some bytes, which the caller may change afterwards."""

    def close(self) -> None:
        """Write the rest."""


@contextmanager
def compressing(output: Output, codec: Codec) -> Iterator[Compressor]:
    """Yield a compressor that writes into `output`. The output is complete when the block ends without an exception."""
    compressor: Compressor = _Plain(output) if codec == "none" else _Large(output, codec)
    try:
        yield compressor
    except BaseException:
        with suppress(Exception):  # the first error matters
            compressor.close()
        raise
    compressor.close()


class _Plain:
    def __init__(self, output: Output) -> None:
        self.write = output.write

    def close(self) -> None:
        """Nothing is held back."""


class _Large:
    """Compress with several threads once there is more than one chunk: starting threads takes a millisecond."""

    def __init__(self, output: Output, codec: Codec) -> None:
        self._output = output
        self._codec = codec
        self._first: bytes | None = None
        self._threads: Compressor | None = None

    def write(self, data: memoryview, /) -> None:
        if self._first is None:
            self._first = bytes(data)
            return
        if self._threads is None:
            self._threads = _threaded(self._output, self._codec)
            self._threads.write(memoryview(self._first))
        self._threads.write(data)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.close()
        else:
            self._output.write(_at_once(self._first or b"", self._codec))


def _threaded(output: Output, codec: Codec) -> Compressor:
    if codec == "gzip":
        opening: Callable[..., Compressor] = igzip_threaded.open
        return opening(output, "wb", compresslevel=_GZIP_LEVEL, threads=THREADS, block_size=CHUNK)
    maker = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, threads=THREADS, write_checksum=True)
    return maker.stream_writer(output, write_size=CHUNK, closefd=False)  # type: ignore[arg-type]


def _at_once(data: bytes, codec: Codec) -> bytes:
    if codec == "gzip":
        return igzip_lib.compress(data, _GZIP_LEVEL, igzip_lib.COMP_GZIP)
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compress(data)


# -- the reverse ------------------------------------------------------------------------------------------------------


class Input:
    """An open file that is read from its beginning to its end, counted and digested. Raises `storage_unavailable`.

    It is read by place and through a descriptor of its own, as a thread may be about to read more when its owner wants
    nothing more of it, closes his, and has another file under that number.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._digest = hashlib.sha256()
        self._begun = b""
        self.size_bytes = 0

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Hold a duplicate of the descriptor for the length of a block."""
        with closing_fd(os.dup(self._descriptor)) as self._descriptor:
            yield

    def codec(self) -> Codec:
        """Detect the codec from the first bytes."""
        self._begun = self._read()
        if self._begun.startswith(_GZIP):
            return "gzip"
        return "zstd" if self._begun.startswith((_ZSTD, *_SKIPPED)) else "none"

    def chunks(self) -> Iterator[bytes]:
        """The bytes as they are."""
        begun, self._begun = self._begun, b""
        while chunk := begun or self._read():
            begun = b""
            yield chunk

    def _read(self) -> bytes:
        try:
            chunk = os.pread(self._descriptor, CHUNK, self.size_bytes)
        except OSError as error:
            message = f"the archive cannot be read: {error.strerror}: check the disk that it is on"
            raise DaemonError("storage_unavailable", message) from None
        self._digest.update(chunk)
        self.size_bytes += len(chunk)
        return chunk

    @property
    def sha256(self) -> str:
        """The digest of the bytes read so far, in hexadecimal."""
        return self._digest.hexdigest()


def decompressed(source: Input, codec: Codec) -> Iterator[bytes]:
    """The bytes of a tar archive, in chunks of bounded size. Raises `snapshot_corrupt`."""
    if codec == "none":
        return source.chunks()
    return _gunzipped(source) if codec == "gzip" else _unzstd(source)


def _gunzipped(source: Input) -> Iterator[bytes]:
    """Several archives in a row count as one, and zeros behind the last as padding: so gzip itself has it."""
    broken: Any = igzip_lib.IsalError
    stream, parts = Stream(source.chunks()), 0
    produced = 0
    while not stream.at_end():
        begun = stream.peek(len(_GZIP))
        if parts and not any(begun) and stream.ends_in_zeros():
            return
        if not _GZIP.startswith(begun[: len(_GZIP)]):
            raise corrupt("is not safe to extract: data follows the compressed stream")
        parts += 1
        if parts > _MOST_PARTS + produced // _PART_BYTES:
            raise corrupt("cannot be extracted: it has too many small gzip members")
        engine = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)
        try:
            for chunk in _one_part(stream, engine):
                produced += len(chunk)
                yield chunk
        except broken:
            raise corrupt("is damaged: it cannot be decompressed") from None


def _one_part(stream: Stream, engine: Any) -> Iterator[bytes]:
    """Yield the output of one decompressor, up to the end of its stream.

    The engine copies the input behind that end, so the first inputs are small: else a million small parts would cause a
    million copies of all that follows.
    """
    window = _FIRST_WINDOW
    while not engine.eof:
        data = stream.peek(window)
        if not data:
            raise corrupt("is cut short: it ends within the compressed stream")
        window = min(window * 8, CHUNK)
        chunk = engine.decompress(data, _PIECE)
        while chunk:
            yield chunk
            chunk = b"" if engine.eof or engine.needs_input else engine.decompress(b"", _PIECE)
        stream.skip(len(data) - len(engine.unused_data) if engine.eof else len(data))


def _unzstd(source: Input) -> Iterator[bytes]:
    engine = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
    reader = engine.stream_reader(Frames(source.chunks()), read_size=CHUNK, read_across_frames=True)  # type: ignore[arg-type]
    try:
        while chunk := reader.read(_PIECE):
            yield chunk
    except zstandard.ZstdError as error:
        if "too much memory" in str(error):
            raise corrupt(f"cannot be extracted: it takes more than {_MAX_WINDOW >> 20} MiB of memory") from None
        raise corrupt("is damaged: it cannot be decompressed") from None
