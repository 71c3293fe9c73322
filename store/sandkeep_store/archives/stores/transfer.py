"""Bytes on their way: cut into parts for an upload, and read on after a broken connection."""

import hashlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Generic, Self, TypeVar

from sandkeep.errors import ProviderError
from sandkeep.system.descriptors import write_all
from sandkeep_store.archives.stores.retry import RetryLimit
from sandkeep_store.archives.stores.types import (
    Checksum,
    Digest,
    Progress,
    Source,
    Stored,
    Upload,
    corrupt,
    damaged_transfer,
)


class VerifiedSource:
    """A source of bytes, taken in parts and verified against the expected size and digest."""

    def __init__(self, source: Source, where: str, size_bytes: int | None, sha256: str | None) -> None:
        self._take = _taker(source)
        self._where = where
        self._size_bytes = size_bytes
        self._sha256 = sha256
        self._digest = hashlib.sha256()
        self.bytes_read = 0

    def take(self, wanted: int) -> bytes:
        """Return `wanted` bytes; fewer only at the end. Raises `snapshot_corrupt` there if size or digest differ."""
        part = self._take(wanted)
        self.bytes_read += len(part)
        if self._sha256 is not None:
            self._digest.update(part)
        if len(part) < wanted:
            self._check()
        return part

    def _check(self) -> None:
        if self._size_bytes not in (None, self.bytes_read):
            raise corrupt(self._where, f"it has {self.bytes_read} bytes and not {self._size_bytes}")
        if self._sha256 not in (None, self._digest.hexdigest()):
            raise corrupt(self._where, "its digest is not the recorded one")


def send(upload: Upload, source: VerifiedSource, progress: Progress) -> bytes:
    """Send all parts but the last, and answer that one."""
    while True:
        wanted = upload.part_bytes
        part = source.take(wanted)
        if len(part) < wanted:
            return part
        upload.send(part)
        del part  # so that there are never two
        progress(source.bytes_read)


def _taker(source: Source) -> Callable[[int], bytes]:
    read = getattr(source, "read", None)
    return _from_file(read) if read is not None else _from_chunks(iter(source))


def _from_file(read: Callable[[int], bytes]) -> Callable[[int], bytes]:
    def take(wanted: int) -> bytes:
        part = read(wanted)
        while part and len(part) < wanted:  # a pipe returns short reads
            more = read(wanted - len(part))
            if not more:
                break
            part += more
        return part

    return take


def _from_chunks(chunks: Iterator[bytes]) -> Callable[[int], bytes]:
    rest = memoryview(b"")

    def take(wanted: int) -> bytes:
        nonlocal rest
        pieces: list[memoryview] = []
        while wanted:
            if not rest:
                chunk = next(chunks, None)
                if chunk is None:
                    break
                rest = memoryview(chunk)
            pieces.append(rest[:wanted])
            rest = rest[wanted:]
            wanted -= len(pieces[-1])
        return b"".join(pieces)

    return take


def begin_copy(descriptor: int) -> Callable[[bytes], object]:
    """Empty a file, and return the function that takes the chunks of a copy. See `ArchiveStore.download`."""
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return partial(write_all, descriptor)


D = TypeVar("D", bound=Digest)


class DigestedCopy(Generic[D]):
    """A copy of an object, for `ArchiveStore.download`, and its digest: into a file, if there is a descriptor."""

    def __init__(self, new_digest: Callable[[], D], descriptor: int | None = None) -> None:
        self._new_digest = new_digest
        self._descriptor = descriptor
        self.digest = new_digest()

    def begin(self) -> Callable[[bytes], object]:
        """Begin it, or begin it anew; return the function that takes its chunks."""
        self.digest = self._new_digest()
        if self._descriptor is None:
            return self.digest.update
        write = begin_copy(self._descriptor)

        def take(chunk: bytes) -> None:
            self.digest.update(chunk)
            write(chunk)

        return take


class Reader:
    """The bytes of one object, in chunks. `stored` describes the object. Use it in a `with`."""

    def __init__(
        self,
        where: str,
        stored: Stored,
        fetch: Callable[[Stored, int], Iterator[bytes]],
        patience_s: float,
        progress: Progress,
        checksum: Checksum | None = None,
    ) -> None:
        self.stored = stored
        self._checksum = checksum
        self._progress = progress
        self._patience = RetryLimit(patience_s, lambda: progress(self._offset))
        self._where = where
        self._fetch = fetch
        self._chunks: Iterator[bytes] = iter(())
        self._offset = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back the connection or descriptor. Idempotent."""
        close = getattr(self._chunks, "close", None)
        if close is not None:
            close()

    def __iter__(self) -> Iterator[bytes]:
        """The chunks. After a broken connection it goes on with the next byte, while it gets anywhere. Raises
        `TransferDamageError` after the last one if they are not those of the object.
        """
        while self._offset < self.stored.size_bytes:
            before = self._offset
            try:
                yield from self._until_it_breaks()
            except ProviderError as error:
                self._patience.wait(error, moved=self._offset > before)
        if self._checksum is not None and not self._checksum.matches():
            raise damaged_transfer(self._where, "its bytes are not those of its checksum")

    def _until_it_breaks(self) -> Iterator[bytes]:
        self.close()
        self._chunks = self._fetch(self.stored, self._offset)
        for chunk in self._chunks:
            self._offset += len(chunk)
            if self._offset > self.stored.size_bytes:
                raise damaged_transfer(
                    self._where, f"it has more than the {self.stored.size_bytes} bytes that it says it has"
                )
            if self._checksum is not None:
                self._checksum.update(chunk)
            self._progress(self._offset)
            yield chunk
        if self._offset < self.stored.size_bytes:
            raise damaged_transfer(
                self._where, f"{self._offset} bytes are there of the {self.stored.size_bytes} it says it has"
            )
