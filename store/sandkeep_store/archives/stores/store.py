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

- **write** is create-only: of two concurrent writers one wins, and the other gets `conflict`. The object is invisible
  until it returns; a failed or cancelled write leaves nothing that is visible or billed. It takes any number of bytes
  in bounded memory, and resumes after a broken connection.
- **read** gives exactly the bytes of one generation, or raises: `snapshot_corrupt` when the store has fewer or more
  than it says, or other ones by its checksum. It too resumes after a broken connection. **download** reads once more
  before it says so.
- **objects** lists objects by prefix; names that are no paths of ours are omitted, since others may write to a bucket.
- **delete** returns False if there was no object; repeating it is safe.
- **Documents** are small objects with compare-and-swap: a write replaces only the version that was read. No two
  versions may have the same content: S3 would take them for one.

Everything blocks, and may be called from several threads at once. To cancel, let `progress` raise: it is called with
the number of bytes after every chunk, and now and then while a transfer waits for a retry; an exception ends the
transfer and discards the object.

A writer for a shared sandbox passes a **fence**. It is checked before the first byte and again right before
the object appears. That leaves a moment, in which a lock may change hands; but a new object is at a path that no other
writer has, and counts for nothing until a document names it, which is written only over the version that was read.

Errors: `snapshot_missing`, `snapshot_corrupt`, `conflict`, `lock_lost`; `not_configured` for a bucket that is not there
or refuses the daemon; `provider_unavailable` for a bucket that does not answer; `storage_unavailable` for a disk that
cannot be read or written.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from sandkeep.errors import ProviderError, SandkeepError
from sandkeep_store.archives.stores.transfer import Reader, VerifiedSource, send
from sandkeep_store.archives.stores.types import (
    DIGEST,
    WRITE_ID,
    Checksum,
    Fence,
    Progress,
    Source,
    Stored,
    TransferDamageError,
    Upload,
    Waiting,
    conflict,
    corrupt,
)
from sandkeep_store.buckets.config import Root, checked_path

__all__ = ["ArchiveStore", "Fence", "Progress", "Reader", "Source", "Stored"]


class ArchiveStore(ABC):
    """One place of archives; see the module. Backends implement the methods that begin with an underscore."""

    def __init__(self, root: Root, patience_s: float = 0.0) -> None:
        self.root = root
        self.patience_s = patience_s

    # -- public interface ----------------------------------------------------------------------------------------------

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
        """Write a new object. Raises `snapshot_corrupt`, and writes nothing, if size or digest are not those given."""
        metadata = dict(metadata or {})
        if sha256 is not None:
            metadata[DIGEST] = sha256
        if fence is not None:
            fence.check()
            metadata["fence"] = str(fence.number)
        verified = VerifiedSource(source, self.where(checked_path(path)), size_bytes, sha256)
        upload = self._begin(path, metadata, lambda: progress(verified.bytes_read))
        try:
            last = send(upload, verified, progress)
            if fence is not None:
                fence.check()
            return upload.finish(last)
        except BaseException:
            upload.abort()
            raise

    def read(
        self,
        path: str,
        *,
        generation: str | None = None,
        size_bytes: int | None = None,
        progress: Progress = lambda _: None,
    ) -> "Reader":
        """Open an object. Use it in a `with`. Another generation than the one asked for is `conflict`; another size is
        `snapshot_corrupt`, before a byte of it is read.
        """
        stored = self.stat(path)
        if generation is not None and generation != stored.generation:
            raise conflict(self.where(path))
        if size_bytes is not None and size_bytes != stored.size_bytes:
            raise corrupt(self.where(path), f"it has {stored.size_bytes} bytes and not {size_bytes}")
        return Reader(self.where(path), stored, self._fetch, self.patience_s, progress, self._checksum_of(stored))

    def download(
        self,
        path: str,
        begin: Callable[[], Callable[[bytes], object]],
        *,
        size_bytes: int | None = None,
        progress: Progress = lambda _: None,
    ) -> Stored:
        """Copy an object. `begin` begins the copy, or begins it anew, and returns the function that takes its chunks:
        bytes that were damaged on the way are fetched once more. Raises as `read` does.
        """
        try:
            return self._download(path, begin(), size_bytes, progress)
        except TransferDamageError:
            return self._download(path, begin(), size_bytes, progress)

    def _download(
        self, path: str, take: Callable[[bytes], object], size_bytes: int | None, progress: Progress
    ) -> Stored:
        with self.read(path, size_bytes=size_bytes, progress=progress) as archive:
            for chunk in archive:
                take(chunk)
            return archive.stored

    def stat(self, path: str) -> Stored:
        """Return size, generation and metadata of an object. Raises `snapshot_missing`."""
        return self._stat(checked_path(path))

    def delete(self, path: str, *, generation: str | None = None) -> bool:
        """Delete an object; False when there was none. With a generation only that one; `conflict` for others."""
        return self._delete(checked_path(path), generation)

    @abstractmethod
    def objects(self, prefix: str = "") -> Iterator[Stored]:
        """Every object whose path begins so, in no order; their metadata may be missing."""

    def sweep(
        self,
        older_than_s: float,  # noqa: ARG002
        prefix: str = "",  # noqa: ARG002
        is_over: Callable[[str], bool] = lambda path: True,  # noqa: ARG002, ARG005
    ) -> int:
        """Remove uploads that were begun `older_than_s` ago to paths with the prefix, of which `is_over` says that they
        are ours and no longer under way; return their number. A store without a list of uploads ends them by itself, as
        GCS does after a week.
        """
        return 0

    def where(self, path: str) -> str:
        """Return the display name of an object: its path on this machine, or its URI."""
        return str(self.root.place(path))

    # -- implemented by backends ---------------------------------------------------------------------------------------

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
        if error.code in ("conflict", "snapshot_missing", "provider_unavailable"):
            with suppress(ProviderError):
                found = self._found(path)
                if found is not None and found.metadata.get(WRITE_ID) == write_id:
                    return found
        raise error

    def _checksum_of(self, stored: Stored) -> Checksum | None:  # noqa: ARG002
        """Return what an object's bytes are compared with, if the store has anything."""
        return None

    @abstractmethod
    def _begin(self, path: str, metadata: dict[str, str], waiting: Waiting) -> Upload: ...

    @abstractmethod
    def _stat(self, path: str) -> Stored: ...

    @abstractmethod
    def _fetch(self, stored: Stored, offset: int) -> Iterator[bytes]:
        """The bytes of that generation from an offset on, in chunks. `provider_unavailable` when it broke off."""

    @abstractmethod
    def _delete(self, path: str, generation: str | None) -> bool: ...
