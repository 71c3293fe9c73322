"""A store of archives: objects that are written once, whole or not at all, and read by relative path.

Glossary. An **object** is the bytes of one archive. Its **path** is relative, checked by `config.checked_path`, and
means the same in every store. Its **generation** is the store's own word for one version of it: a path that was
deleted and written again has another. Its **metadata** are a few short strings kept beside it, where the store can.

Lifecycle::

    stored = store.write("snapshots/a.tar.gz", file, metadata={"sha256": digest}, sha256=digest)
    with store.read("snapshots/a.tar.gz", generation=stored.generation) as archive:
        for chunk in archive:
            ...
    store.delete("snapshots/a.tar.gz", generation=stored.generation)

- **write** is create-only, and of two writers at once one wins; the other gets `conflict`. Until it returns, nobody
  sees anything, and a write that fails or is given up leaves nothing that anybody sees or pays for. It takes any number
  of bytes in bounded memory, and goes on by itself where a broken connection left it.
- **read** gives exactly the bytes of one generation, or raises: `snapshot_corrupt` when the store has fewer or more
  than it says. It too goes on where a broken connection left it.
- **objects** tells what is there by its beginning; names in it that are no paths of ours are left out, since others may
  write to a bucket too.
- **delete** says whether there was anything; repeating it is safe.
- **Documents** are small objects that are written over, each time only the version that was read. No two versions may
  have the same content: S3 would take them for one.

Everything blocks, and may be called from several threads at once. To cancel, let `progress` raise: it is called with
the number of bytes after every chunk, and now and then while a transfer waits to be tried again; what it raises ends
the transfer and undoes what was written.

A **fence** is what a writer for a shared sandbox passes. It is checked before the first byte and again right before
the object appears. That leaves a moment, in which a lock may change hands; but a new object is at a path that no other
writer has, and counts for nothing until a document names it, which is written only over the version that was read.

Errors: `snapshot_missing`, `snapshot_corrupt`, `conflict`, `lock_lost`; `not_configured` for a bucket that is not there
or refuses the daemon; `provider_unavailable` for a bucket that does not answer; `storage_unavailable` for a disk that
cannot be read or written.
"""

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import BinaryIO, Final, NamedTuple, Protocol, Self, TypeAlias, TypeVar

from sandkeep.errors import DataError, ProviderError, SandkeepError, StateError
from sandkeep_store.config import Root, checked_path

CHUNK_BYTES: Final = 1024**2
"""What a reader gives at once, at most."""

MAX_DOCUMENT_BYTES: Final = 1024**2
PATIENCE_S: Final = 60.0
"""How long a transfer is tried again that gets nowhere."""

WRITE_ID: Final = "sandkeep-write"
"""The key of metadata by which a writer knows its own object again."""

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 5.0
HEARD_EVERY_S: Final = 0.5
"""How often `progress` is called while there is none, so that it can cancel."""

T = TypeVar("T")
Source: TypeAlias = BinaryIO | Iterable[bytes]
Progress: TypeAlias = Callable[[int], object]
"""Called with how many bytes passed so far."""
Waiting: TypeAlias = Callable[[], object]
"""Called while nothing passes; what it raises ends the waiting."""


class Stored(NamedTuple):
    """What a store knows of an object. `changed_at` is in seconds since 1970, by the store's clock."""

    path: str
    size_bytes: int
    generation: str
    metadata: Mapping[str, str]
    changed_at: float


class Document(NamedTuple):
    """A document as it was read, and which version it was."""

    content: bytes
    generation: str


class Fence(Protocol):
    """A shared sandbox's writer proves by it that the sandbox is still its own."""

    @property
    def number(self) -> int:
        """The fencing number; grows with every owner. It is kept in the object's metadata."""
        ...

    def check(self) -> None:
        """Raises `lock_lost` when somebody else may have taken over."""
        ...


class Upload(Protocol):
    """An object while it is written. Whoever began it calls `finish` after the last part, or `abort`."""

    @property
    def part_bytes(self) -> int:
        """How long the next part has to be, if it is not the last."""
        ...

    def send(self, part: bytes) -> None:
        """Take one part."""
        ...

    def finish(self, part: bytes) -> Stored:
        """Take the last part, which may be empty, and make the object appear. Raises `conflict`."""
        ...

    def abort(self) -> None:
        """Leave nothing. Raises no SandkeepError: what cannot be cleaned up now is by `sweep`."""
        ...


class ArchiveStore(ABC):
    """One place of archives; see the module. What a backend implements begins with an underscore."""

    def __init__(self, root: Root, patience_s: float = 0.0) -> None:
        self.root = root
        self.patience_s = patience_s

    # -- what callers use ----------------------------------------------------------------------------------------------

    def write(
        self,
        path: str,
        source: Source,
        *,
        size_bytes: int | None = None,
        sha256: str | None = None,
        metadata: Mapping[str, str] | None = None,
        fence: Fence | None = None,
        progress: Progress = lambda _: None,
    ) -> Stored:
        """Write a new object. `size_bytes` and `sha256`, when they are known, are what the source has to be: one that
        is not is `snapshot_corrupt`, and nothing was written.
        """
        if fence is not None:
            fence.check()
            metadata = {**(metadata or {}), "fence": str(fence.number)}
        measured = _Measured(source, self.where(checked_path(path)), size_bytes, sha256)
        upload = self._begin(path, dict(metadata or {}), lambda: progress(measured.passed))
        try:
            last = _send(upload, measured, progress)
            if fence is not None:
                fence.check()
            return upload.finish(last)
        except BaseException:
            upload.abort()
            raise

    def read(self, path: str, *, generation: str | None = None, progress: Progress = lambda _: None) -> "Reader":
        """Open an object. Use it in a `with`. Another generation than the one asked for is `conflict`."""
        stored = self.stat(path)
        if generation is not None and generation != stored.generation:
            raise conflict(self.where(path))
        return Reader(self.where(path), stored, self._fetch, self.patience_s, progress)

    def stat(self, path: str) -> Stored:
        """What the store knows of an object; `snapshot_missing` when there is none."""
        return self._stat(checked_path(path))

    def delete(self, path: str, *, generation: str | None = None) -> bool:
        """Delete an object; False when there was none. With a generation only that one; `conflict` for others."""
        return self._delete(checked_path(path), generation)

    @abstractmethod
    def objects(self, prefix: str = "") -> Iterator[Stored]:
        """Every object whose path begins so, in no order; their metadata may be missing."""

    def sweep(self, older_than_s: float, prefix: str = "") -> int:  # noqa: ARG002
        """Remove what writers left that died in the middle so long ago, below a prefix that is ours alone; answers how
        many.
        """
        return 0

    def read_document(self, path: str) -> Document | None:
        """A document; None when there is none. One of more than `MAX_DOCUMENT_BYTES` is `snapshot_corrupt`."""
        found = self._read_document(checked_path(path))
        if found is not None and len(found.content) > MAX_DOCUMENT_BYTES:
            raise corrupt(self.where(path), f"it is longer than {MAX_DOCUMENT_BYTES} bytes")
        return found

    def write_document(self, path: str, content: bytes, *, over: str | None) -> str:
        """Write a document over the generation `over`, or, with None, where none is; answers the new generation.

        Raises `conflict` when another one is there.
        """
        return self._write_document(checked_path(path), content, over)

    def where(self, path: str) -> str:
        """What people call an object: its path on this machine, or its URI."""
        return str(self.root.place(path))

    # -- what a backend does -------------------------------------------------------------------------------------------

    def _found(self, path: str) -> Stored | None:
        """As `_stat`, or None."""
        try:
            return self._stat(path)
        except SandkeepError as error:
            if error.code != "snapshot_missing":
                raise
            return None

    def _landed(self, path: str, write_id: str, error: SandkeepError) -> Stored:
        """The object, if that write made it in spite of the error; else raises the error."""
        if error.code in ("conflict", "snapshot_missing"):
            found = self._found(path)
            if found is not None and found.metadata.get(WRITE_ID) == write_id:
                return found
        raise error

    @abstractmethod
    def _begin(self, path: str, metadata: dict[str, str], waiting: Waiting) -> Upload: ...

    @abstractmethod
    def _stat(self, path: str) -> Stored: ...

    @abstractmethod
    def _fetch(self, stored: Stored, offset: int) -> Iterator[bytes]:
        """The bytes of that generation from an offset on, in chunks. `provider_unavailable` when it broke off."""

    @abstractmethod
    def _delete(self, path: str, generation: str | None) -> bool: ...

    @abstractmethod
    def _read_document(self, path: str) -> Document | None:
        """Of a longer one than `MAX_DOCUMENT_BYTES` not more than one byte more."""

    @abstractmethod
    def _write_document(self, path: str, content: bytes, over: str | None) -> str: ...


class Reader:
    """The bytes of one object, in chunks. `stored` says what they are. Use it in a `with`."""

    def __init__(
        self,
        where: str,
        stored: Stored,
        fetch: Callable[[Stored, int], Iterator[bytes]],
        patience_s: float,
        progress: Progress,
    ) -> None:
        self.stored = stored
        self._progress = progress
        self._patience = Patience(patience_s, lambda: progress(self._offset))
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
        """The chunks. After a broken connection it goes on with the next byte, while it gets anywhere."""
        while self._offset < self.stored.size_bytes:
            before = self._offset
            try:
                yield from self._until_it_breaks()
            except ProviderError as error:
                self._patience.wait(error, moved=self._offset > before)

    def _until_it_breaks(self) -> Iterator[bytes]:
        self.close()
        self._chunks = self._fetch(self.stored, self._offset)
        for chunk in self._chunks:
            self._offset += len(chunk)
            if self._offset > self.stored.size_bytes:
                raise corrupt(self._where, f"it has more than the {self.stored.size_bytes} bytes that it says it has")
            self._progress(self._offset)
            yield chunk
        if self._offset < self.stored.size_bytes:
            raise corrupt(self._where, f"{self._offset} bytes are there of the {self.stored.size_bytes} it says it has")


class Patience:
    """How long something is tried again that gets nowhere, and how long to wait before each time."""

    def __init__(self, seconds: float, waiting: Waiting) -> None:
        self._seconds = seconds
        self._waiting = waiting
        self._since: float | None = None
        self._pause_s = FIRST_PAUSE_S

    def wait(self, error: Exception, *, moved: bool) -> None:
        """Wait a while, or raise the error when it was long enough. `moved` says that it got somewhere this time."""
        now = time.monotonic()
        if moved or self._since is None:
            self._since, self._pause_s = now, FIRST_PAUSE_S
        if now + self._pause_s > self._since + self._seconds:
            raise error
        while (left := now + self._pause_s - time.monotonic()) > 0:
            self._waiting()
            time.sleep(min(left, HEARD_EVERY_S))
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)


def patiently(seconds: float, waiting: Waiting, attempt: Callable[[], T]) -> T:
    """What an attempt answers, made again for so many seconds while the provider is unavailable."""
    patience = Patience(seconds, waiting)
    while True:
        try:
            return attempt()
        except ProviderError as error:
            patience.wait(error, moved=False)


class _Measured:
    """A source of bytes, taken in parts, that has to be what is known of it."""

    def __init__(self, source: Source, where: str, size_bytes: int | None, sha256: str | None) -> None:
        self._take = _taker(source)
        self._where = where
        self._size_bytes = size_bytes
        self._sha256 = sha256
        self._digest = hashlib.sha256()
        self.passed = 0

    def take(self, wanted: int) -> bytes:
        """So many bytes; fewer only at the end, where `snapshot_corrupt` is raised for what is not as it has to be."""
        part = self._take(wanted)
        self.passed += len(part)
        if self._sha256 is not None:
            self._digest.update(part)
        if len(part) < wanted:
            self._check()
        return part

    def _check(self) -> None:
        if self._size_bytes not in (None, self.passed):
            raise corrupt(self._where, f"it has {self.passed} bytes and not {self._size_bytes}")
        if self._sha256 not in (None, self._digest.hexdigest()):
            raise corrupt(self._where, "its bytes are not those that its digest was made of")


def _send(upload: Upload, source: _Measured, progress: Progress) -> bytes:
    """Send all parts but the last, and answer that one."""
    while True:
        wanted = upload.part_bytes
        part = source.take(wanted)
        if len(part) < wanted:
            return part
        upload.send(part)
        del part  # so that there are never two
        progress(source.passed)


def _taker(source: Source) -> Callable[[int], bytes]:
    read = getattr(source, "read", None)
    return _from_file(read) if read is not None else _from_chunks(iter(source))


def _from_file(read: Callable[[int], bytes]) -> Callable[[int], bytes]:
    def take(wanted: int) -> bytes:
        part = read(wanted)
        while part and len(part) < wanted:  # a pipe gives what is there
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


# -- errors that all stores have in common ----------------------------------------------------------------------------


def conflict(where: str) -> StateError:
    """Somebody else was quicker."""
    return StateError("conflict", f"{where} was changed meanwhile, or is there already.", place=where)


def missing(where: str) -> DataError:
    """There is none."""
    return DataError("snapshot_missing", f"There is no {where}.", place=where)


def corrupt(where: str, why: str) -> DataError:
    """It is not what it has to be."""
    return DataError("snapshot_corrupt", f"{where} is damaged: {why}. Use another copy.", place=where)
